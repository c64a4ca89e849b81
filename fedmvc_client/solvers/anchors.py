"""Choose the anchors of a view among its rows, which stand in content order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from configs.tensor_profiles import AnchorKind
from fedmvc_client.solvers.chunks import CPU_CHUNK_ROWS
from fedmvc_client.solvers.row_order import Matrix

Floats = NDArray[np.float64]

# The first principal component is taken from at most so many rows, by so many power iterations.
_COMPONENT_ROWS = 20_000
_POWER_ITERATIONS = 100


def choose_anchors(
    values: Matrix, n_anchors: int, kind: AnchorKind, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the places of the anchors in ascending order, all different.

    Parameters
    ----------
    values : ndarray or csr_array of shape (n, d)
        Rows in content order, so that equal scores fall by content.
    n_anchors : int
        theta, at most n.
    kind : {"das", "random", "pc1"}
        "das": the directly alternating sampling of the paper; "random": drawn by ``rng``;
        "pc1": evenly over the ranks on the first principal component.
    rng : Generator

    Returns
    -------
    ndarray of shape (n_anchors,), int64
    """
    if kind == "random":
        return np.sort(rng.choice(values.shape[0], size=n_anchors, replace=False))
    if kind == "das":
        return np.sort(alternating_sampling(das_scores(values), n_anchors))
    ranked = np.argsort(_first_component_scores(values), kind="stable")
    place = ((np.arange(n_anchors) + 0.5) * (len(ranked) / n_anchors)).astype(np.int64)
    return np.sort(ranked[place])


def das_scores(values: Matrix) -> Floats:
    """Return ``s_i = sum_j (x_ij - min_i x_ij)``, at least 0, each summed over its row in turn.

    The sums run one column after the other, so the dense and the sparse form agree bit for bit.
    """
    if not isinstance(values, np.ndarray):
        score = values @ np.ones(values.shape[1])
    else:
        score = np.empty(len(values))
        for first in range(0, len(values), CPU_CHUNK_ROWS):
            rows = slice(first, first + CPU_CHUNK_ROWS)
            score[rows] = np.cumsum(values[rows], axis=1)[:, -1]
    low = values.min(axis=0)
    low = low.toarray().ravel() if sparse.issparse(values) else low
    return np.asarray(np.maximum(score - np.cumsum(low)[-1], 0.0))


def alternating_sampling(score: Floats, n_anchors: int) -> NDArray[np.int64]:
    """Take the largest score again and again, each time after ``s <- s (1 - s) / max``.

    A row is taken once at most. A row whose score equals that of a pick falls to 0 with it; once
    all scores left are 0 the rows that are left follow in their order.

    Parameters
    ----------
    score : ndarray of shape (n,)
        At least 0.
    n_anchors : int

    Returns
    -------
    ndarray of shape (n_anchors,), int64
        In the order of the picks.
    """
    score = score.copy()
    rest = np.empty_like(score)
    picks = np.empty(n_anchors, dtype=np.int64)
    taken = np.zeros(len(score), dtype=bool)
    for number in range(n_anchors):
        best = int(score.argmax())
        if score[best] <= 0.0:
            picks[number:] = np.flatnonzero(~taken)[: n_anchors - number]
            break
        score /= score[best]
        picks[number] = best
        taken[best] = True
        np.subtract(1.0, score, out=rest)
        score *= rest
        score[best] = 0.0  # 1 * (1 - 1): also after rounding, and for good
    return picks


def _first_component_scores(values: Matrix) -> Floats:
    """Return each row's coordinate on the first principal component."""
    n_rows, n_columns = values.shape
    sample = values[:: max(1, n_rows // _COMPONENT_ROWS)]
    mean = np.asarray(sample.mean(axis=0)).ravel()
    with threadpool_limits(limits=1):
        direction = np.linspace(1.0, 2.0, n_columns)
        for _ in range(_POWER_ITERATIONS):
            coordinate = sample @ direction - mean @ direction
            direction = sample.T @ coordinate - mean * coordinate.sum()
            length = np.linalg.norm(direction)
            if length == 0.0:
                break
            direction /= length
        return np.asarray(values @ direction)
