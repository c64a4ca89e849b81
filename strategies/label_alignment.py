"""Matching the clusters of one model to those of another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from strategies.statistics import Floats


def match_clusters(
    local: Sequence[Floats], reference: Sequence[Floats], view_spread: Floats
) -> NDArray[np.int64]:
    """Match each local cluster to a different reference cluster (Hungarian method).

    Parameters
    ----------
    local : sequence of ndarray of shape (c', d_h)
        Only the views both models hold.
    reference : sequence of ndarray of shape (c, d_h), c >= c'
    view_spread : ndarray of shape (s,)
        Total variance of each view; squared distances are divided by it so that views weigh alike.

    Returns
    -------
    ndarray of shape (c',), int64
        ``rows[k]`` is the reference cluster of local cluster k.
    """
    cost = np.zeros((local[0].shape[0], reference[0].shape[0]))
    for a, b, spread in zip(local, reference, view_spread, strict=True):
        squared = ((a**2).sum(axis=1)[:, None] - 2 * a @ b.T + (b**2).sum(axis=1)[None, :]).clip(0)
        cost += squared / max(float(spread), np.finfo(np.float64).tiny)
    return np.asarray(linear_sum_assignment(cost)[1], dtype=np.int64)
