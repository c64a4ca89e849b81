"""Orders of features by the weight matrices of Fed-MUFSHT, and baselines to compare them with.

A weight matrix W_v (d_v, k) maps an embedding Z_v (k, n), Z_v Z_v' = I, to the features of view v.
It is known up to a rotation of its columns: every rule here depends on W W' alone, and what needs
the weight matrices of several sites side by side aligns them first (`procrustes_align`). Features
of all views are numbered side by side, view after view.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import chi2

from configs.mufsht_profiles import RankingRule
from strategies.statistics import Floats

__all__ = [
    "communality_scores",
    "gated_pivot",
    "laplacian_scores",
    "order_by_scores",
    "procrustes_align",
    "random_scores",
    "rank_features",
    "row_norm_scores",
    "variance_scores",
]

#: Residuals closer than this share of the largest are equal, and the lower index wins.
TIE = 1e-9
#: A relevant feature's squared norm exceeds what noise reaches by this factor, or ...
NOISE_FACTOR = 4.0
#: ... this share of the 95th percentile, whichever is lower.
PERCENTILE_SHARE = 0.25
#: Features observed less than this are corrected as if they were observed this much: the row of a
#: handful of cells is mostly noise, and would be blown up.
LEAST_SHARE = 0.1
#: A column whose spread is below this share of its length is constant up to rounding.
CONSTANT = 1e-12


def row_norm_scores(weights: Floats, observed_share: Floats | None = None) -> Floats:
    """Score features by the length of their rows (the paper's rule).

    Parameters
    ----------
    weights : ndarray of shape (D, k)
    observed_share : ndarray of shape (D,), optional
        Observed entries of each feature over all its entries, in [0, 1]; 1 by default. Missing
        entries shorten a row in proportion to its root, so the length is divided by that.

    Returns
    -------
    ndarray of shape (D,)
        0 for a feature that is constant or missing everywhere.
    """
    return np.asarray(np.linalg.norm(_without_gaps(weights, observed_share), axis=1))


def gated_pivot(
    weights: Sequence[Floats],
    n_samples: int,
    *,
    observed_share: Floats | None = None,
    m: int | None = None,
) -> NDArray[np.int64]:
    """Order features by repeated pivoting behind a gate: relevant ones, redundant ones late.

    A feature is relevant where ``||w||^2 > min(4 q / n, P / 4)``, q the (1 - 1/D) quantile of
    chi-square with k degrees of freedom (the largest of D noise features) and P the 95th percentile
    of all squared norms. Each round takes, in every view, up to k relevant features that are not
    yet taken, by column-pivoted QR: always the one with the largest part outside the span of those
    taken in this round. A round that has used up the span of a view ends early there. Within a
    round all views' first pivots come first, then all second ones, ...; of equal step the larger
    residual. Irrelevant features follow by norm. Ties (`TIE`) go to the lower index.

    Parameters
    ----------
    weights : sequence of ndarray of shape (d_v, k)
    n_samples : int
        Samples behind the weights, over all sites.
    observed_share : ndarray of shape (D,), optional
        See `row_norm_scores`.
    m : int, optional
        How many features are wanted; all D by default. The pivoting stops there.

    Returns
    -------
    ndarray of shape (min(m, D),), int64
        Best first: a prefix of the whole order.
    """
    joint = _without_gaps(np.concatenate(list(weights)), observed_share)
    n_features, k = joint.shape
    wanted = n_features if m is None else min(m, n_features)
    squared = np.einsum("ij,ij->i", joint, joint)
    noise = NOISE_FACTOR * float(chi2.ppf(1.0 - 1.0 / n_features, k)) / n_samples
    gate = min(noise, PERCENTILE_SHARE * float(np.quantile(squared, 0.95)))
    relevant = squared > gate
    starts = np.cumsum([0, *(len(w) for w in weights)])
    unit = float(squared.max(initial=0.0))
    views = [
        _Pivots(joint, start + np.flatnonzero(relevant[start:stop]), unit)
        for start, stop in pairwise(starts)
    ]
    order: list[int] = []
    while len(order) < wanted and any(view.left for view in views):
        taken = [found for view in views for found in view.round()]
        order.extend(index for _, _, index in sorted(taken))
    rest = np.flatnonzero(~relevant)
    rest = rest[order_by_scores(squared[rest])]
    return np.concatenate([np.asarray(order, dtype=np.int64), rest])[:wanted]


class _Pivots:
    """The relevant rows of one view that are not yet taken."""

    def __init__(self, joint: Floats, rows: NDArray[np.int64], unit: float) -> None:
        self._index = rows
        self._unit = unit
        self._rows = np.ascontiguousarray(joint[rows])

    @property
    def left(self) -> int:
        return len(self._index)

    def round(self) -> list[tuple[int, int, int]]:
        """Take up to k rows; return (step, minus squared residual in ties, feature) of each."""
        rows, k = self._rows, self._rows.shape[1]
        residual = np.einsum("ij,ij->i", rows, rows)
        equal = TIE * float(residual.max(initial=0.0))
        basis = np.empty((k, k))
        free = np.ones(len(rows), dtype=bool)
        found = []
        for step in range(min(k, len(rows))):
            largest = float(residual.max())
            if step and largest <= equal:
                break
            pick = int(np.argmax(residual >= largest - equal))
            found.append((step, -round(largest / (TIE * self._unit)), int(self._index[pick])))
            free[pick] = False
            direction = rows[pick] - basis[:step].T @ (basis[:step] @ rows[pick])
            basis[step] = direction / np.linalg.norm(direction)
            residual -= (rows @ basis[step]) ** 2
            residual[pick] = -np.inf
        self._rows, self._index = rows[free], self._index[free]
        return found


def rank_features(
    weights: Sequence[Floats],
    n_samples: int,
    *,
    rule: RankingRule = "gated_pivot",
    observed_share: Floats | None = None,
    m: int | None = None,
) -> NDArray[np.int64]:
    """Order the features of all views, best first; parameters as for `gated_pivot`.

    Parameters
    ----------
    rule : {"gated_pivot", "row_norm"}
        The paper's rule, "row_norm", ranks redundant features side by side.

    Returns
    -------
    ndarray of shape (min(m, D),), int64
    """
    if rule == "gated_pivot":
        return gated_pivot(weights, n_samples, observed_share=observed_share, m=m)
    return order_by_scores(row_norm_scores(np.concatenate(list(weights)), observed_share))[:m]


def order_by_scores(scores: Floats) -> NDArray[np.int64]:
    """Return the indices of scores, highest first; equal scores in the order of their index."""
    return np.argsort(-scores, kind="stable").astype(np.int64)


def procrustes_align(weights: Sequence[Floats], reference: Sequence[Floats]) -> list[Floats]:
    """Turn the weights of all views by the one rotation that brings them closest to others.

    Parameters
    ----------
    weights, reference : sequence of ndarray of shape (d_v, k)

    Returns
    -------
    list of ndarray of shape (d_v, k)
        ``W_v R``, R the orthogonal factor of ``sum_v W_v' Wref_v``: it minimises
        ``sum_v ||W_v R - Wref_v||^2``.
    """
    cross = sum(w.T @ other for w, other in zip(weights, reference, strict=True))
    left, _, right = np.linalg.svd(cross)
    rotation = left @ right
    return [w @ rotation for w in weights]


def variance_scores(values: Floats) -> Floats:
    """Variance of each column (n, d) over its observed entries; NaN = missing, none observed: 0."""
    observed = ~np.isnan(values)
    count = np.maximum(observed.sum(axis=0), 1)
    centred = np.where(observed, values, 0.0)
    centred = np.where(observed, centred - centred.sum(axis=0) / count, 0.0)
    return np.asarray((centred**2).sum(axis=0) / count)


def laplacian_scores(values: Floats, graph: sparse.csr_array) -> Floats:
    """Laplacian score (He, Cai and Niyogi 2005), turned so that higher is better.

    Parameters
    ----------
    values : ndarray of shape (n, d)
        No NaN.
    graph : csr_array of shape (n, n)
        Symmetric, none of its entries negative, joining near samples.

    Returns
    -------
    ndarray of shape (d,)
        ``2 - f' L f / f' D f`` of each column f, centred with the weights D; 0 for a constant one,
        2 for one that does not change along an edge.
    """
    degree = np.asarray(graph.sum(axis=1)).ravel()
    centred = values - degree @ values / degree.sum()
    total = degree @ centred**2
    smooth = np.einsum("ij,ij->j", centred, graph @ centred)
    varies = total > CONSTANT**2 * (degree @ values**2)
    return np.where(varies, 1.0 + smooth / np.where(varies, total, 1.0), 0.0)


def communality_scores(values: Floats, k: int) -> Floats:
    """Share of each column's variance that the k leading principal components explain.

    Parameters
    ----------
    values : ndarray of shape (n, d)
        One view, or all side by side; no NaN. Columns are centred and scaled here.
    k : int

    Returns
    -------
    ndarray of shape (d,)
        In [0, 1]; 0 for a constant column.
    """
    centred = values - values.mean(axis=0)
    length = np.linalg.norm(centred, axis=0)
    varies = length > CONSTANT * np.linalg.norm(values, axis=0)
    unit = np.where(varies, centred / np.where(varies, length, 1.0), 0.0)
    components = np.linalg.svd(unit, full_matrices=False)[0][:, :k]
    return np.asarray(((components.T @ unit) ** 2).sum(axis=0))


def random_scores(n_features: int, seed: int) -> Floats:
    """Scores that say nothing: what any rule has to beat."""
    return np.random.default_rng(seed).random(n_features)


def _without_gaps(weights: Floats, observed_share: Floats | None) -> Floats:
    """Undo how missing entries shorten the rows; rows of features never observed become 0."""
    if observed_share is None:
        return weights
    root = np.sqrt(np.where(observed_share > 0, np.maximum(observed_share, LEAST_SHARE), 0.0))[
        :, None
    ]
    return np.divide(weights, root, out=np.zeros_like(weights), where=root > 0)
