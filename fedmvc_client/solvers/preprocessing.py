"""A site's view made ready for the anchor graph: checked, filled, in content order and scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import normalize

from configs.errors import DataRefused
from fedmvc_client.solvers.row_order import Matrix, content_order, row_hashes

Floats = NDArray[np.float64]

#: A dense view without negative values is text from this share of zeros and number of columns on.
TEXT_ZEROS = 0.5
TEXT_COLUMNS = 50
#: Largest number whose squares can be summed over any view.
LARGEST = 1e150
#: Scaled rows are equal where they agree to so many decimals.
_EQUAL_DECIMALS = 12
#: Most cells for which a sparse view with negative values is laid out densely.
_DENSE_CELLS = 50_000_000


@dataclass(frozen=True)
class PreparedRows:
    """The observed rows of a view in content order.

    Attributes
    ----------
    values : ndarray or csr_array of shape (n, d)
        Scaled; n held rows.
    rows : ndarray of shape (n,), int64
        Which row of the view stands at each place.
    distinct : ndarray of shape (u,), int64
        Places of the first of equal rows, after scaling and to 12 decimals.
    held : ndarray of shape (N,), bool
        Rows with at least one observed cell.
    warnings : tuple of str
        What was done about missing cells, a sentence each.
    """

    values: Matrix
    rows: NDArray[np.int64]
    distinct: NDArray[np.int64]
    held: NDArray[np.bool_]
    warnings: tuple[str, ...]


def prepare_rows(
    view: NDArray[np.floating] | sparse.sparray | sparse.spmatrix,
    n_clusters: int,
    scaling: Literal["auto", "none"],
    name: str,
) -> PreparedRows:
    """Check a view, fill its missing cells, order its rows by content and scale it.

    Parameters
    ----------
    view : ndarray of shape (N, d), or sparse matrix
        NaN = missing cell. In a sparse matrix a row that stores nothing but NaN is a missing row;
        single missing cells are refused.
    n_clusters : int
    scaling : {"auto", "none"}
        "auto": text (sparse, or dense with more than half zeros in 50 columns or more; no negative
        value) is weighted by TF-IDF where all values are integers, then scaled to unit rows;
        other views are scaled to [0, 1] by column.
    name : str
        How a sentence calls the view.

    Raises
    ------
    DataRefused
        If a cell is infinite or too large, no row is observed, all rows are equal, or there are
        fewer (different) rows than clusters.

    Notes
    -----
    A missing cell gets the median of its column's observed cells. Columns of one value are
    dropped.
    """
    if view.ndim != 2:
        raise DataRefused(f"{name} has {view.ndim} axes but a view has 2: rows and columns")
    if sparse.issparse(view):
        values, held, warnings = _observed_sparse(view, name)
    else:
        values, held, warnings = _observed_dense(view, name)
    n_rows = values.shape[0]
    if n_rows < n_clusters:
        raise DataRefused(
            f"{name} has {n_rows} rows with data but n_clusters is {n_clusters}: "
            f"lower n_clusters or bring more rows"
        )
    order, n_distinct = content_order(values)
    values = _without_constant_columns(values[order])
    if n_distinct == 1 or values.shape[1] == 0:
        raise DataRefused(
            f"all {n_rows} rows of {name} are identical, 1 where clustering needs "
            f"{n_clusters} different ones: leave this view out"
        )
    if n_distinct < n_clusters:
        raise DataRefused(
            f"{name} has {n_distinct} different rows but n_clusters is {n_clusters}: "
            f"lower n_clusters or leave this view out"
        )
    if scaling == "auto":
        values = _scaled(values, name)
    distinct = _first_of_equal(values)
    if len(distinct) < n_clusters:
        raise DataRefused(
            f"{name} has {len(distinct)} different rows once it is scaled but n_clusters is "
            f"{n_clusters}: lower n_clusters or leave this view out"
        )
    return PreparedRows(values, np.flatnonzero(held)[order], distinct, held, warnings)


def _first_of_equal(values: Matrix) -> NDArray[np.int64]:
    """Return the places of the first of rows that are equal to `_EQUAL_DECIMALS`."""
    if isinstance(values, np.ndarray):
        rounded: Matrix = np.round(values, _EQUAL_DECIMALS)
    else:
        rounded = values.copy()
        np.round(rounded.data, _EQUAL_DECIMALS, out=rounded.data)
        rounded.eliminate_zeros()
    return np.sort(np.unique(row_hashes(rounded), return_index=True)[1])


def _observed_sparse(
    view: sparse.sparray | sparse.spmatrix, name: str
) -> tuple[sparse.csr_array, NDArray[np.bool_], tuple[str, ...]]:
    values = sparse.csr_array(view, dtype=np.float64, copy=True)
    values.sum_duplicates()
    missing = np.isnan(values.data)
    counted = np.concatenate([[0], np.cumsum(missing)])
    n_missing = counted[values.indptr[1:]] - counted[values.indptr[:-1]]
    held = n_missing == 0
    if (n_missing[~held] < np.diff(values.indptr)[~held]).any():
        raise DataRefused(
            f"{name} is sparse and has {int(missing.sum())} missing cells, of which it may have 0 "
            f"in rows that hold other values: fill them or give the view as a dense array"
        )
    values = values[np.flatnonzero(held)] if missing.any() else values
    values.eliminate_zeros()
    _check_cells(values.data, name)
    _check_rows(held, name)
    return values, held, ()


def _observed_dense(
    view: NDArray[np.floating], name: str
) -> tuple[Floats, NDArray[np.bool_], tuple[str, ...]]:
    values = np.ascontiguousarray(view, dtype=np.float64)
    missing = np.isnan(values)
    held = np.asarray(~missing.all(axis=1))
    _check_rows(held, name)
    if not held.all():
        values, missing = values[held], missing[held]
    partly = int(missing.any(axis=1).sum())
    warnings: tuple[str, ...] = ()
    if partly:
        values = values.copy()
        for column in np.flatnonzero(missing.any(axis=0)):
            cells = missing[:, column]
            observed = values[~cells, column]
            values[cells, column] = np.median(observed) if len(observed) else 0.0
        warnings = (
            f"{name}: {partly} of {len(values)} rows lack a cell; "
            f"the median of the column stands in its place",
        )
    _check_cells(values, name)
    return values, held, warnings


def _check_cells(cells: Floats, name: str) -> None:
    largest = max(-float(cells.min()), float(cells.max())) if cells.size else 0.0
    if largest == np.inf:
        raise DataRefused(
            f"{name} has {int(np.isinf(cells).sum())} infinite cells and may have 0: "
            f"mend them or mark them as missing"
        )
    if largest > LARGEST:
        raise DataRefused(
            f"{name} has {int((np.abs(cells) > LARGEST).sum())} values beyond {LARGEST:g} and may "
            f"have 0: choose a larger unit"
        )


def _check_rows(held: NDArray[np.bool_], name: str) -> None:
    if not held.any():
        raise DataRefused(
            f"{name} has 0 rows with data of {len(held)}: check its file or leave this view out"
        )


def _without_constant_columns(values: Matrix) -> Matrix:
    low, high = _column_extremes(values)
    varies = low < high
    return values if varies.all() else values[:, np.flatnonzero(varies)]


def _column_extremes(values: Matrix) -> tuple[Floats, Floats]:
    low, high = values.min(axis=0), values.max(axis=0)
    if not isinstance(values, np.ndarray):
        return low.toarray().ravel(), high.toarray().ravel()
    return low, high


def _scaled(values: Matrix, name: str) -> Matrix:
    if not isinstance(values, np.ndarray):
        if (values.data < 0).any():
            return _unit_interval(_dense(values, name))
        return _text(values)
    if (
        values.shape[1] >= TEXT_COLUMNS
        and values.size - np.count_nonzero(values) > TEXT_ZEROS * values.size
        and not (values < 0).any()
    ):
        return _text(sparse.csr_array(values))
    return _unit_interval(values)


def _dense(values: sparse.csr_array, name: str) -> Floats:
    cells = values.shape[0] * values.shape[1]
    if cells > _DENSE_CELLS:
        raise DataRefused(
            f"{name} is sparse with negative values and {cells} cells, beyond the "
            f'{_DENSE_CELLS} that can be scaled densely: scale it and use scaling = "none"'
        )
    return np.asarray(values.toarray())


def _unit_interval(values: Floats) -> Floats:
    """Scale to [0, 1] in place, which a copy of the site's data allows."""
    low, high = _column_extremes(values)
    values -= low
    values /= high - low
    return values


def _text(values: sparse.csr_array) -> sparse.csr_array:
    """TF-IDF with idf = ln((1 + N)/(1 + df)) + 1 where all values are integers, then unit rows."""
    if (values.data == np.rint(values.data)).all():
        n_rows, n_columns = values.shape
        document_frequency = np.bincount(values.indices, minlength=n_columns)
        idf = np.log((1 + n_rows) / (1 + document_frequency)) + 1
        values.data *= idf[values.indices]
    return normalize(values, copy=False)
