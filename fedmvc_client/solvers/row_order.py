"""An order of rows that depends on what the rows hold and never on where they stand.

Everything a site computes on its own runs in this order, so a permuted view gives the permuted
result: sums over rows round alike, random draws meet the same rows, and ties fall the same way.
Rows of equal content are interchangeable.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from fedmvc_client.solvers.chunks import chunk_rows, fold_chunks

Hashes = NDArray[np.uint64]
Matrix: TypeAlias = NDArray[np.float64] | sparse.csr_array

_CPU = torch.device("cpu")
# splitmix64 (Steele, Lea and Flood 2014)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(words: Hashes) -> Hashes:
    """Apply splitmix64's finaliser, a bijection of 64-bit words, to each word in place."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def _column_keys(n_columns: int) -> Hashes:
    return _mix(np.arange(1, n_columns + 1, dtype=np.uint64) * _STEP)


def row_hashes(values: Matrix) -> Hashes:
    """Return a 64-bit hash of each row's non-zero values and their column numbers.

    Parameters
    ----------
    values : ndarray of shape (n, d), float64, or csr_array in canonical form
        Finite. The two forms of one matrix have the same hashes; ``-0.0`` counts as 0.

    Returns
    -------
    ndarray of shape (n,), uint64
    """
    n_rows, n_columns = values.shape
    keys = _column_keys(n_columns)
    hashes = np.empty(n_rows, dtype=np.uint64)
    rows_per_chunk = chunk_rows(n_rows, _CPU)

    def hash_chunk(chunk: int) -> None:
        rows = slice(chunk * rows_per_chunk, min((chunk + 1) * rows_per_chunk, n_rows))
        if not isinstance(values, np.ndarray):
            bounds = values.indptr[rows.start : rows.stop + 1]
            cells = slice(bounds[0], bounds[-1])
            x = np.ascontiguousarray(values.data[cells])
            words = _mix(x.view(np.uint64) ^ keys[values.indices[cells]])
            words[x == 0] = 0
            # Wrapping sums: the difference of two of them is the row's sum exactly.
            total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)])
            inside = bounds - bounds[0]
            hashes[rows] = _mix(total[inside[1:]] - total[inside[:-1]])
        else:
            x = np.ascontiguousarray(values[rows])
            words = _mix(x.view(np.uint64) ^ keys)
            words[x == 0] = 0
            hashes[rows] = _mix(words.sum(axis=1, dtype=np.uint64))

    fold_chunks(hash_chunk, lambda _: None, -(-n_rows // rows_per_chunk), device=_CPU)
    return hashes


def content_order(values: Matrix) -> tuple[NDArray[np.int64], int]:
    """Order rows by the hash of their content.

    Parameters
    ----------
    values : ndarray of shape (n, d), float64, or csr_array in canonical form

    Returns
    -------
    order : ndarray of shape (n,), int64
        ``values[order]`` is the same matrix for every permutation of the rows.
    n_distinct : int
        Number of different rows.
    """
    hashes = row_hashes(values)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    return order, int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(1, len(order))
