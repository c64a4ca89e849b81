"""What MUFSHT checks and resolves: its parameters and the views that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused
from configs.mufsht_profiles import MUFSHTSettings, resolve_mufsht
from configs.values import check_number
from fedmvc_client.estimators.validation import (
    check_dense_or_sparse,
    check_tolerance,
    check_whole_numbers,
)
from fedmvc_client.solvers.devices import resolve_device
from fedmvc_client.solvers.feature_preparation import check_range

Floats = NDArray[np.float64]


def resolve_parameters(
    *,
    n_clusters: int,
    max_iter: int,
    tol: float,
    random_state: int,
    device: str,
    **chosen: Any,
) -> MUFSHTSettings:
    """Check the parameters of `MUFSHT` and fill in what is not given.

    Parameters
    ----------
    n_clusters, max_iter, tol, random_state, device
        As the estimator's.
    **chosen
        Its others, which a plan knows too: see `configs.mufsht_profiles.resolve_mufsht`.

    Raises
    ------
    ConfigError
        Where one is out of range or unknown.
    """
    check_whole_numbers(
        {
            "n_clusters": (n_clusters, 2),
            "max_iter": (max_iter, 1),
            "random_state": (random_state, 0),
        }
    )
    check_tolerance(tol)
    resolve_device(device)
    return resolve_mufsht(**chosen)


def check_ratio(ratio: Any) -> None:
    """Check a share of features.

    Raises
    ------
    ConfigError
        Where it is not above 0 and at most 1.
    """
    check_number("ratio", ratio, above=0.0, most=1.0)


def feature_tables(views: Sequence[Any]) -> list[Floats]:
    """Return views as dense float64 tables, every cell finite or NaN.

    Raises
    ------
    DataRefused
        Where a view is no table of numbers, has other rows than view 0, or holds an infinite or too
        large cell.
    """
    tables = [
        table if isinstance(table, np.ndarray) else np.asarray(table.toarray())
        for table in check_dense_or_sparse(views)
    ]
    for v, table in enumerate(tables):
        infinite = int(np.isinf(table).sum())
        if infinite:
            raise DataRefused(
                f"view {v} has {infinite} infinite cells and may have 0: mend them or mark them "
                "as missing"
            )
        check_range(table, f"view {v}")
    return tables
