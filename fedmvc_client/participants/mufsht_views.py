"""A site's views as a Fed-MUFSHT run may use them: checked, and without columns of few records."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused, ProtocolError
from fedmvc_client.solvers.feature_preparation import check_range, check_text
from fedmvc_client.sources import Records

__all__ = ["require_variation", "view_of"]

log = logging.getLogger("fedmvc.site")

Floats = NDArray[np.float64]


def view_of(
    site: str, records: Records, name: str, n_columns: int, *, text: bool, min_cell: int
) -> Floats:
    """Return a view (n, d) of a site's records, all NaN where it lacks the view.

    A column that fewer than ``min_cell`` records observe becomes one that nobody observes here: its
    mean and spread would be those of few patients, and every site receives them.

    Raises
    ------
    ProtocolError
        Where the server counts other columns.
    DataRefused
        Where a cell is too large, or text has negative cells or rows with some missing.
    """
    view = records.views.get(name)
    if view is None:
        return np.full((len(records.ids), n_columns), np.nan)
    if view.shape[1] != n_columns:
        raise ProtocolError(
            f"the server counts {n_columns} columns in view '{name}', this site {view.shape[1]}"
        )
    sentence = f"view '{name}' of site '{site}'"
    check_range(view, sentence)
    if text:
        check_text(view, sentence)
    observed = ~np.isnan(view)
    count = observed.sum(axis=0)
    rare = (count > 0) & (count < min_cell)
    # a view that few records hold as a whole is refused by its own sentence
    if not rare.any() or int(observed.any(axis=1).sum()) < min_cell:
        return np.asarray(view, dtype=np.float64)
    log.info(
        "site '%s', view '%s': %d of %d columns have fewer observed cells than policy.min_cell = "
        "%d and take no part",
        *(site, name, int(rare.sum()), len(rare), min_cell),
    )
    return np.where(rare, np.nan, view)


def require_variation(site: str, views: Sequence[Floats]) -> None:
    """Refuse to take part without any column that varies here.

    Raises
    ------
    DataRefused
    """
    for view in views:
        observed = ~np.isnan(view)
        least = np.where(observed, view, np.inf).min(axis=0)
        if (np.where(observed, view, -np.inf).max(axis=0) > least).any():
            return
    raise DataRefused(
        f"site '{site}' has {sum(view.shape[1] for view in views)} columns and 0 of them vary over "
        "its records: check the files or the columns"
    )
