"""What every estimator checks: the views it is given and its plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from configs.errors import ConfigError, DataRefused

Floats = NDArray[np.float64]


def check_whole_numbers(values: Mapping[str, tuple[Any, int]]) -> None:
    """Check parameters, each with the least value that it may have.

    Raises
    ------
    ConfigError
        Where one is not a whole number of at least this.
    """
    for name, (value, least) in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise ConfigError(f"{name} is {value!r}: give a whole number, {least} or more")


def check_tolerance(tol: float) -> None:
    """Check that a tolerance is a number of 0 or more.

    Raises
    ------
    ConfigError
    """
    if isinstance(tol, bool) or not isinstance(tol, Real) or not tol >= 0:
        raise ConfigError(f"tol is {tol!r}: give a number, 0 or more")


def check_views(views: Any) -> list[Floats]:
    """Return the views as float64 with NaN where a cell is not finite.

    Raises
    ------
    DataRefused
        Where a view is no table of numbers, or has other rows than view 0.
    """
    arrays = [_table(view, h) for h, view in enumerate(views)]
    check_same_rows(arrays)
    for array in arrays:
        array[~np.isfinite(array)] = np.nan
    return arrays


def check_dense_or_sparse(views: Any) -> list[Floats | sparse.csr_array]:
    """Return the views as float64, sparse ones as CSR; cells that are not finite stay.

    Raises
    ------
    DataRefused
        As `check_views`.
    """
    tables = [
        _sparse_table(view, h) if sparse.issparse(view) else _table(view, h)
        for h, view in enumerate(views)
    ]
    check_same_rows(tables)
    return tables


def check_same_rows(tables: Sequence[Any]) -> None:
    """Check that there is a view and that all have as many rows as view 0.

    Raises
    ------
    DataRefused
    """
    if not tables:
        raise DataRefused("0 views were given: give a list of at least one array (rows, columns)")
    for h, table in enumerate(tables):
        if table.shape[0] != tables[0].shape[0]:
            raise DataRefused(
                f"view {h} has {table.shape[0]} rows, view 0 has {tables[0].shape[0]}: every view "
                "needs the same rows, NaN where missing"
            )


def _table(view: Any, h: int) -> Floats:
    try:
        if np.iscomplexobj(view):
            raise TypeError("complex numbers")
        array = np.array(np.ma.filled(np.ma.asarray(view, dtype=np.float64), np.nan))
    except (TypeError, ValueError) as error:
        raise _no_table(h) from error
    _check_shape(array.shape, h)
    return array


def _sparse_table(view: Any, h: int) -> sparse.csr_array:
    if np.iscomplexobj(view):
        raise _no_table(h)
    try:
        table = sparse.csr_array(view, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _no_table(h) from error
    _check_shape(table.shape, h)
    return table


def _no_table(h: int) -> DataRefused:
    return DataRefused(
        f"view {h} is not a table of numbers: give an array of shape (rows, columns), NaN where "
        "missing"
    )


def _check_shape(shape: tuple[int, ...], h: int) -> None:
    if len(shape) != 2 or 0 in shape:
        raise DataRefused(
            f"view {h} has shape {shape}: give an array of at least 1 row and 1 column"
        )
