"""The sequential sweep of Eq. (30), compiled; importing this module loads numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
T = TypeVar("T")


def _compiled(function: Callable[..., T]) -> Callable[..., T]:
    """Compile and keep the machine code on disk, where a folder for it can be written."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)


@_compiled
def _sweep(indptr, indices, data, order, labels, counts, weight, blend):
    n_clusters = len(counts)
    near = np.empty(n_clusters)
    for t in order:
        near[:] = 0.0
        for cell in range(indptr[t], indptr[t + 1]):
            near[labels[indices[cell]]] += data[cell]
        counts[labels[t]] -= 1
        best = 0
        lowest = np.inf
        for k in range(n_clusters):
            score = 2.0 * weight * (counts[k] - near[k])
            if len(blend) > 0:
                score -= blend[t, k]
            if score < lowest:
                lowest = score
                best = k
        counts[best] += 1
        labels[t] = best


@_compiled
def _within(indptr, indices, data, labels):
    total = 0.0
    for t in range(len(labels)):
        own = 0.0
        for cell in range(indptr[t], indptr[t + 1]):
            if labels[indices[cell]] == labels[t]:
                own += data[cell]
        total += own
    return total


def sequential_sweep(
    similarity: sparse.csr_array,
    labels: Labels,
    order: Labels,
    n_clusters: int,
    weight: float,
    blend: Floats | None,
) -> Labels:
    """Give one row after the other its best cluster, each with the newest labels of all others.

    Row t takes ``argmin_k 2 weight (D H)_tk - mu z_tk`` with ``D = 1 1^T - I - S``, the lowest k
    among equals.

    Parameters
    ----------
    similarity : csr_array of shape (n, n)
        S, symmetric with an empty diagonal: what any distance in [0, 1] leaves of 1.
    labels : ndarray of shape (n,), int64
        In 0..K-1; not changed.
    order : ndarray, int64
        The rows in the order of their turns.
    n_clusters : int
    weight : float
        ``alpha^r``.
    blend : ndarray of shape (n, K) or None
        ``mu z``.

    Returns
    -------
    ndarray of shape (n,), int64
        The new labels.
    """
    labels = labels.copy()
    counts = np.bincount(labels, minlength=n_clusters)
    table = np.empty((0, n_clusters)) if blend is None else np.ascontiguousarray(blend)
    _sweep(*_arrays(similarity), order, labels, counts, float(weight), table)
    return labels


def distance_trace(similarity: sparse.csr_array, labels: Labels) -> float:
    """Return ``Tr(H^T D H)``, the distances between all ordered pairs of rows of one cluster.

    Parameters
    ----------
    similarity : csr_array of shape (n, n)
        S of ``D = 1 1^T - I - S``.
    labels : ndarray of shape (n,), int64
    """
    counts = np.bincount(labels)
    pairs = int((counts * (counts - 1)).sum())
    return max(pairs - float(_within(*_arrays(similarity), labels)), 0.0)


def _arrays(similarity: sparse.csr_array) -> tuple[Labels, Labels, Floats]:
    """One type of index, so that each kernel is compiled once."""
    indptr = similarity.indptr.astype(np.int64)
    return indptr, similarity.indices.astype(np.int32, copy=False), similarity.data
