"""Sites given as arrays: checked before a simulation makes workers of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix, issparse

from configs.errors import ConfigError, DataRefused
from configs.plan import RunPlan
from configs.schema import DataSchema
from configs.site import SITE_NAME
from fedmvc_server.runner import RunResult

__all__ = [
    "View",
    "bounded_schema",
    "earlier_outcomes",
    "schema_of",
    "vertical_views",
    "views_of",
]

#: A float64 array or a CSR matrix of shape (n, d_h); scipy has no types.
View: TypeAlias = Any
Views = Mapping[str, Sequence[View | None]]


def views_of(name: str, site: Mapping[str, Any], *, sparse_too: bool = False) -> list[View | None]:
    """Return a site's views as float64 arrays, None where it lacks one.

    Parameters
    ----------
    name : str
    site : mapping
        ``{"views": [...]}`` and nothing else.
    sparse_too : bool
        Keep sparse matrices, as CSR.

    Raises
    ------
    ConfigError
    """
    if not isinstance(name, str) or not re.match(SITE_NAME, name):
        raise ConfigError(
            f"site name {name!r} is none: use 1 to 64 letters, digits, '.', '_' or '-', the first "
            "a letter or digit"
        )
    if not isinstance(site, Mapping) or set(site) != {"views"}:
        raise ConfigError(
            f"site '{name}' needs one entry 'views' and no other: give {{'views': [array, ...]}}"
        )
    return [_as_view(view, sparse_too) for view in site["views"]]


def _as_view(view: Any, sparse_too: bool) -> View | None:
    if view is None:
        return None
    try:
        if np.iscomplexobj(view):
            raise TypeError("complex numbers")
        if sparse_too and issparse(view):
            return csr_matrix(view, dtype=np.float64)
        array = np.ma.filled(np.ma.asarray(view, dtype=np.float64), np.nan)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "a view is not a table of real numbers: give arrays of shape (rows, columns), NaN "
            "where missing"
        ) from error
    if array.ndim != 2:
        raise ConfigError(
            f"a view has {array.ndim} dimensions: give arrays of shape (rows, columns)"
        )
    return array


def schema_of(views: Views) -> DataSchema:
    """Make a schema for sites that list the same views.

    Raises
    ------
    ConfigError
        Where they list different numbers of views, or nobody holds one.
    """
    counts = {len(v) for v in views.values()}
    if len(counts) != 1:
        raise ConfigError(
            f"the sites list {sorted(counts)} views: give every site the same list, None for a "
            "view it lacks"
        )
    examples: list[View] = []
    for h in range(counts.pop()):
        held = [v[h] for v in views.values() if v[h] is not None]
        if not held or held[0] is None:
            raise ConfigError(f"view {h} is None at all {len(views)} sites: leave it out")
        examples.append(held[0])
    return DataSchema.from_arrays(examples)


def bounded_schema(schema: DataSchema, views: Views) -> DataSchema:
    """Declare each column's extremes over all sites as its bounds: for simulations only.

    Real sites declare bounds that no record decides.
    """
    fields = schema.model_dump()
    for h, view in enumerate(fields["views"]):
        held = [a for a in (v[h] for v in views.values()) if a is not None]
        low = np.min([np.nanmin(a, axis=0, initial=np.inf) for a in held], axis=0)
        high = np.max([np.nanmax(a, axis=0, initial=-np.inf) for a in held], axis=0)
        flat = ~(low < high)  # constant, or never observed
        low = np.where(flat, np.where(np.isfinite(low), low - 0.5, 0.0), low)
        high = np.where(flat, low + 1.0, high)
        for column, a, b in zip(view["columns"], low.tolist(), high.tolist(), strict=True):
            column["bounds"] = (a, b)
    return DataSchema.parse(fields)


def earlier_outcomes(plan: RunPlan, selection: RunResult | None) -> dict[str, dict[str, Any]]:
    """Return what the run that ``plan.features`` names left at each site, by site and run id.

    Raises
    ------
    ConfigError
        Where plan and result do not speak of the same run.
    """
    choice = plan.feature_choice
    if selection is not None and not hasattr(selection, "site_results"):
        raise ConfigError(
            f"selection is a {type(selection).__name__}: give the whole result that simulate "
            "returned of the selection run"
        )
    if choice is None:
        if selection is None:
            return {}
        raise ConfigError(
            f"simulate was given the selection of run {selection.run_id[:8]} but the plan's "
            f"features is '': set features = '{selection.run_id}@0.4' or leave the selection out"
        )
    if selection is None:
        raise ConfigError(
            f"features names run {choice.run_id[:8]} but simulate was given no selection: give "
            "selection = the result of that run"
        )
    if selection.run_id != choice.run_id:
        raise ConfigError(
            f"features names run {choice.run_id[:8]} but simulate was given the selection of run "
            f"{selection.run_id[:8]}: give the result of the run that features names"
        )
    return {site: {selection.run_id: left} for site, left in selection.site_results.items()}


def vertical_views(views: Views) -> dict[str, list[View | None]]:
    """Check that all arrays have the same rows, and give each lone view a place of its own.

    Raises
    ------
    DataRefused
        Where numbers of rows differ or a cell is infinite.
    """
    reference: tuple[str, int] | None = None
    for name in sorted(views):
        for view in views[name]:
            if view is None:
                continue
            if reference is not None and view.shape[0] != reference[1]:
                raise DataRefused(
                    f"site '{name}' has {view.shape[0]} rows, site '{reference[0]}' has "
                    f"{reference[1]}: arrays of a vertical run need the same records in the same "
                    "order, a row of NaN where a site lacks one"
                )
            reference = (name, view.shape[0])
            cells = view.data if issparse(view) else view
            if np.isinf(cells).any():
                raise DataRefused(
                    f"site '{name}' has {int(np.isinf(cells).sum())} infinite cells: give NaN "
                    "where a cell is missing"
                )
    if len(views) < 2 or any(len(v) != 1 for v in views.values()):
        return {name: list(v) for name, v in views.items()}
    names = sorted(views)
    return {name: [views[name][0] if other == name else None for other in names] for name in names}
