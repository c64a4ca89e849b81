"""Planted features: views of which a known part follows the classes and the rest is noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["PLANTED_SIZES", "PlantedViews", "planted_views", "without_cells"]

Floats = NDArray[np.float64]

#: Features of each view, and how many of them are informative.
PLANTED_SIZES = ((60, 15), (80, 20), (50, 10))
#: Dimensions of the latent space that the classes live in.
_LATENT = 4


@dataclass(frozen=True)
class PlantedViews:
    """A planted data set.

    Attributes
    ----------
    views : list of ndarray of shape (n, d_v)
    labels : ndarray of shape (n,), int64
        Class of each row.
    informative : ndarray of shape (D,), bool
        Which features follow the classes, over all views side by side.
    """

    views: list[Floats]
    labels: NDArray[np.int64]
    informative: NDArray[np.bool_]


def planted_views(
    n: int = 400,
    seed: int = 0,
    *,
    sizes: Sequence[tuple[int, int]] = PLANTED_SIZES,
    n_clusters: int = 5,
) -> PlantedViews:
    """Draw views that hide informative features among noise.

    A row of class c has the latent point ``H = m_c + .5 N(0, I)``, ``m_c ~ 2 N(0, I)``, in 4
    dimensions. Of the d features of a view m are ``B H + N(0, 1)``, ``B ~ N(0, 1) / 2``, the others
    ``N(0, 1)``; their order is drawn.

    Parameters
    ----------
    n : int, default 400
    seed : int, default 0
    sizes : sequence of (d, m), default `PLANTED_SIZES`
    n_clusters : int, default 5

    Returns
    -------
    PlantedViews
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_clusters, size=n)
    middles = 2 * rng.normal(size=(n_clusters, _LATENT))
    latent = middles[labels] + 0.5 * rng.normal(size=(n, _LATENT))
    views, informative = [], []
    for d, m in sizes:
        view = rng.normal(size=(n, d))
        view[:, :m] += latent @ (rng.normal(size=(m, _LATENT)) / 2).T
        order = rng.permutation(d)
        views.append(view[:, order])
        informative.append(order < m)
    return PlantedViews(views, labels, np.concatenate(informative))


def without_cells(views: Sequence[Floats], share: float, seed: int) -> list[Floats]:
    """Return views with that share of their cells missing (NaN), drawn one by one."""
    rng = np.random.default_rng(seed)
    return [np.where(rng.random(view.shape) < share, np.nan, view) for view in views]
