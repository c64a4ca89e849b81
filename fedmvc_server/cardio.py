"""Synthetic multi-view sets with known clusters: the FedHK-MVFC paper's, and Gaussian ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from configs.errors import ConfigError

__all__ = ["N_PHENOTYPES", "cardio_views", "gaussian_views"]

N_PHENOTYPES = 4

_Shape = Callable[[np.random.Generator, int], np.ndarray]


def cardio_views(n: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw the two-view, four-phenotype set of FedHK-MVFC, Eqs. 77-104.

    Given the phenotype the two views are independent. A phenotype made of two parts (crescent,
    cross) holds exact halves of them, shuffled so that the halves of the two views are unrelated.
    Negative radii (Eqs. 90, 93) are kept as reflections through the centre.

    Parameters
    ----------
    n : int
        Number of patients, at least 4. Phenotypes differ by at most one patient in size.
    seed : int
        Seed of the generator.

    Returns
    -------
    views : list of two ndarray of shape (n, 2), float64
        The views, rows of the same patient side by side, patients in random order.
    labels : ndarray of shape (n,), int64
        True phenotype, 0 to 3.

    Raises
    ------
    ConfigError
        If n is below 4 or the seed is negative.
    """
    if n < N_PHENOTYPES:
        raise ConfigError(
            f"n is {n}: the cardio set has {N_PHENOTYPES} phenotypes, so give {N_PHENOTYPES} or "
            "more patients."
        )
    rng = _generator(seed)
    sizes = [n // N_PHENOTYPES + (k < n % N_PHENOTYPES) for k in range(N_PHENOTYPES)]
    order = rng.permutation(n)
    labels = np.repeat(np.arange(N_PHENOTYPES), sizes)[order]
    views = [
        np.concatenate([shape(rng, size) for shape, size in zip(shapes, sizes, strict=True)])[order]
        for shapes in (_VIEW_1, _VIEW_2)
    ]
    return views, labels


def gaussian_views(
    n: int,
    seed: int,
    *,
    n_clusters: int = 4,
    dims: Sequence[int] = (2, 2),
    separation: float = 6.0,
    noise_views: int = 0,
    confusions: Sequence[Sequence[tuple[int, int]]] | None = None,
    proportions: Sequence[float] | None = None,
    outliers: float = 0.0,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Draw Gaussian clusters of unit variance in several views.

    Parameters
    ----------
    n : int
        Number of records, at least `n_clusters`.
    seed : int
        Seed of the generator.
    n_clusters : int, default 4
        Number of clusters.
    dims : sequence of int, default (2, 2)
        Number of columns of each informative view.
    separation : float, default 6.0
        Least distance between two distinct centres of a view, in standard deviations.
    noise_views : int, default 0
        Number of further views, of two columns each, that know nothing of the clusters.
    confusions : sequence (one entry a view) of pairs of clusters, optional
        Pairs that share one centre in that view. With different pairs a view, no single view
        separates all clusters although all views together do.
    proportions : sequence of float, optional
        Relative cluster sizes; equal by default.
    outliers : float, default 0.0
        Share of the records of each view, in [0, 1), that is replaced by uniform noise over three
        times the view's range. Each view draws its own.

    Returns
    -------
    views : list of ndarray of shape (n, d_h), float64
        Informative views, then noise views.
    labels : ndarray of shape (n,), int64
        True cluster, 0 to `n_clusters` - 1; each occurs at least once.

    Raises
    ------
    ConfigError
        If an argument is out of range.
    """
    weights = np.ones(n_clusters) if proportions is None else np.asarray(proportions, float)
    pairs: Sequence[Sequence[tuple[int, int]]] = confusions or [()] * len(dims)
    if not 1 <= n_clusters <= n:
        raise ConfigError(f"n_clusters is {n_clusters}: give a number from 1 to n = {n}.")
    if weights.shape != (n_clusters,) or not np.all(weights > 0.0):
        raise ConfigError(
            f"proportions need one positive number for each of {n_clusters} clusters."
        )
    if len(pairs) != len(dims):
        raise ConfigError(f"confusions name {len(pairs)} views but dims name {len(dims)}.")
    if not 0.0 <= outliers < 1.0:
        raise ConfigError(f"outliers is {outliers}: give a share from 0 to below 1.")
    rng = _generator(seed)
    labels = rng.permutation(_labels(n, weights))
    views = []
    for width, confused in zip(dims, pairs, strict=True):
        centers = _separated_centers(rng, n_clusters, width, separation)
        for one, other in confused:
            centers[other] = centers[one]
        views.append(centers[labels] + rng.standard_normal((n, width)))
    views += [rng.standard_normal((n, 2)) for _ in range(noise_views)]
    for view in views:
        hit = rng.permutation(n)[: round(outliers * n)]
        low, high = view.min(axis=0), view.max(axis=0)
        view[hit] = rng.uniform(2 * low - high, 2 * high - low, (hit.size, view.shape[1]))
    return views, labels


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise ConfigError(f"seed is {seed}: give a whole number, 0 or more.")
    return np.random.default_rng(seed)


def _labels(n: int, weights: np.ndarray) -> np.ndarray:
    share = n * weights / weights.sum()
    sizes = np.floor(share).astype(np.int64)
    sizes[np.argsort(sizes - share, kind="stable")[: n - sizes.sum()]] += 1  # largest remainder
    for empty in np.flatnonzero(sizes == 0):
        sizes[np.argmax(sizes)] -= 1
        sizes[empty] = 1
    return np.repeat(np.arange(weights.size), sizes)


def _separated_centers(
    rng: np.random.Generator, n_clusters: int, width: int, separation: float
) -> np.ndarray:
    centers = rng.standard_normal((n_clusters, width))
    if n_clusters == 1:
        return centers
    distance = np.linalg.norm(centers[:, None] - centers[None], axis=2)
    return centers * (separation / distance[np.triu_indices(n_clusters, 1)].min())


def _polar(center: tuple[float, float], radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.column_stack([center[0] + radius * np.cos(angle), center[1] + radius * np.sin(angle)])


def _first_half(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.permutation(n) < (n + 1) // 2


def _circle(rng: np.random.Generator, n: int) -> np.ndarray:  # Eqs. 77-79
    angle = rng.uniform(0.0, 2 * np.pi, n)
    return _polar((2.0, 2.0), 0.5 * np.sqrt(rng.uniform(size=n)), angle)


def _ellipse(rng: np.random.Generator, n: int) -> np.ndarray:  # Eqs. 80-82
    angle = rng.uniform(0.0, 2 * np.pi, n)
    disc = _polar((0.0, 0.0), np.sqrt(rng.uniform(size=n)), angle)
    return np.array([8.0, 2.0]) + np.array([1.5, 0.4]) * disc


def _crescent(rng: np.random.Generator, n: int) -> np.ndarray:  # Eqs. 83-88
    angle = rng.uniform(-np.pi / 3, np.pi / 3, n) + 0.1 * rng.standard_normal(n)
    outer = _first_half(rng, n)
    radius = np.where(outer, 1.2, 0.6) + 0.1 * rng.standard_normal(n)
    points = _polar((2.0, 8.0), radius, angle)
    points[~outer, 0] += 0.4  # the shift of the inner arc is along x only
    return points


def _spiral(rng: np.random.Generator, n: int) -> np.ndarray:  # Eqs. 89-91
    angle = rng.uniform(0.0, 2 * np.pi, n) + 0.05 * rng.standard_normal(n)
    radius = 0.3 + 0.3 * np.sin(3 * angle) + 0.1 * rng.standard_normal(n)
    return _polar((8.0, 8.0), radius, angle)


def _diamond(rng: np.random.Generator, n: int) -> np.ndarray:  # Eqs. 92-94
    angle = rng.uniform(0.0, 2 * np.pi, n)
    radius = 0.5 + 0.3 * np.abs(np.cos(4 * angle)) + 0.1 * rng.standard_normal(n)
    return _polar((2.0, 2.0), radius, angle)


def _ring(rng: np.random.Generator, n: int) -> np.ndarray:  # Eqs. 95-97
    angle = rng.uniform(0.0, 2 * np.pi, n)
    return _polar((6.0, 6.0), rng.uniform(0.8, 1.3, n), angle)


def _cross(rng: np.random.Generator, n: int) -> np.ndarray:  # Eqs. 98-100
    along = 2.0 * (rng.uniform(size=n) - 0.5)
    across = 0.3 * rng.standard_normal(n)
    horizontal = _first_half(rng, n)
    return np.column_stack(
        [6.0 + np.where(horizontal, along, across), -3.0 + np.where(horizontal, across, along)]
    )


def _heart(rng: np.random.Generator, n: int) -> np.ndarray:  # Eqs. 101-104
    t = rng.uniform(0.0, 2 * np.pi, n) + 0.1 * rng.standard_normal(n)
    outline = np.column_stack(
        [
            16 * np.sin(t) ** 3,
            13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t),
        ]
    )
    return np.array([-2.0, -2.0]) + 0.3 * outline + 0.1 * rng.standard_normal((n, 2))


_VIEW_1: tuple[_Shape, ...] = (_circle, _ellipse, _crescent, _spiral)
_VIEW_2: tuple[_Shape, ...] = (_diamond, _ring, _cross, _heart)
