"""What is agreed before round 1: pooled scaling, bandwidth, and starting centres. No Flower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.profiles import ANNEALING, AUTO_BANDWIDTH_FACTOR, HeatKernelSettings
from strategies.statistics import Floats, Moments, ViewScaling

#: What a reader must know of a column that takes two values, with kernel "minmax".
TWO_VALUED = (
    "takes two values only, and heat_kernel 'minmax' gives the lower one coefficient 0: the column "
    "has no effect; use heat_kernel 'one' or profile 'robust'"
)


@dataclass(frozen=True)
class Preparation:
    """Pooled quantities of a run, the same at every site.

    Attributes
    ----------
    settings : HeatKernelSettings
    n_rows : int
        Records over all sites.
    moments : tuple of Moments
        Pooled, one a view.
    scaling : tuple of ViewScaling
    holding_share : ndarray of shape (s,)
        pi_h; 1 where nobody holds the view.
    cell_mass : tuple of bool
        Whether a view's mass is one number a column (else one a cluster).
    spread : ndarray of shape (s,)
        Total scaled variance.
    active : ndarray of shape (s,), bool
        Views with a column that varies.
    """

    settings: HeatKernelSettings
    n_rows: int
    moments: tuple[Moments, ...]
    scaling: tuple[ViewScaling, ...]
    holding_share: Floats
    cell_mass: tuple[bool, ...]
    spread: Floats
    active: NDArray[np.bool_]

    @classmethod
    def pool(
        cls,
        settings: HeatKernelSettings,
        n_rows: Sequence[int],
        holding: Sequence[NDArray[np.int64]],
        partly_missing: Sequence[NDArray[np.int64]],
        moments: Sequence[Sequence[Moments]],
    ) -> Preparation:
        """Pool what the sites report; every argument has one entry a site, in name order.

        Parameters
        ----------
        settings : HeatKernelSettings
        n_rows : sequence of int
        holding, partly_missing : sequence of ndarray of shape (s,)
            Records that hold a view at all, and those that miss some of its cells.
        moments : sequence over sites of sequence over views of Moments
        """
        total = sum(n_rows)
        pooled = tuple(Moments.pool(view) for view in zip(*moments, strict=True))
        scaling = tuple(view_scaling(m, settings.scaling, settings.heat_kernel) for m in pooled)
        held = np.sum(holding, axis=0).astype(np.float64)
        missing = np.sum(partly_missing, axis=0)
        active = np.array([bool(np.isfinite(sc.delta_b).any()) for sc in scaling])
        return cls(
            settings,
            total,
            pooled,
            scaling,
            np.where(held > 0, held / max(total, 1), 1.0),
            tuple(settings.heat_kernel != "one" or bool(m > 0) for m in missing),
            np.array([view_spread(m, sc) for m, sc in zip(pooled, scaling, strict=True)]),
            active,
        )

    @property
    def mean(self) -> tuple[Floats, ...]:
        """Pooled mean of each column in scaled units."""
        return tuple(scaled_mean(m, sc) for m, sc in zip(self.moments, self.scaling, strict=True))

    @property
    def stages(self) -> tuple[float, ...]:
        """Bandwidth factors of the annealing stages, the last 1."""
        return (*ANNEALING, 1.0) if self.settings.anneal else (1.0,)

    @property
    def equal_weights(self) -> Floats:
        """Equal view weights over the active views (all views where none is active)."""
        chosen = self.active if self.active.any() else np.ones_like(self.active)
        return np.asarray(chosen / chosen.sum())

    def bandwidth(self, spread_sums: Sequence[Floats]) -> Floats:
        """Bandwidth of each view, shape (s,), from the pooled delta-weighted sums."""
        if self.settings.bandwidth != "auto":
            return np.full(len(self.scaling), float(self.settings.bandwidth))
        held = self.holding_share * self.n_rows
        return np.array(
            [
                auto_bandwidth(sums, float(n), AUTO_BANDWIDTH_FACTOR)
                for sums, n in zip(spread_sums, held, strict=True)
            ]
        )

    def silent_columns(self) -> list[tuple[int, int, str]]:
        """Columns (view, column, why) that have no effect on the clusters.

        With kernel "minmax" a column of two values is one: its lower value has coefficient 0, so
        only the upper one counts, and every centre comes to lie on it.
        """
        found = []
        for h, (m, sc) in enumerate(zip(self.moments, self.scaling, strict=True)):
            width = m.maximum - m.minimum
            gap = m.variance - (m.mean - m.minimum) * (m.maximum - m.mean)
            two_valued = np.abs(gap) <= 1e-9 * width**2
            for j in range(width.shape[0]):
                if m.count[j] == 0:
                    found.append((h, j, "has no observed cell: it is kept with weight 0"))
                elif not np.isfinite(sc.delta_b[j]):
                    found.append((h, j, "is constant: it is kept with weight 0"))
                elif self.settings.heat_kernel == "minmax" and two_valued[j]:
                    found.append((h, j, TWO_VALUED))
        return found

    @property
    def box(self) -> tuple[list[Floats], list[Floats]]:
        """Least and largest value of each column over all sites, scaled: (d_h,) a view."""
        pairs = list(zip(self.moments, self.scaling, strict=True))
        return (
            [(m.minimum - sc.offset) / sc.scale for m, sc in pairs],
            [(m.maximum - sc.offset) / sc.scale for m, sc in pairs],
        )

    @property
    def reach(self) -> list[tuple[Floats, Floats]]:
        """Largest heat-kernel coefficient and absolute value a cell can have: (d_h,) each, a view.

        The coefficient includes the factor d_h of a record with a single observed cell.
        """
        found = []
        for low, high, scaling in zip(*self.box, self.scaling, strict=True):
            delta = np.ones_like(low)
            if self.settings.heat_kernel == "absdev":
                delta = np.maximum(np.abs(low - scaling.delta_a), np.abs(high - scaling.delta_a))
                delta = delta / scaling.delta_b
            found.append((delta * low.shape[0], np.maximum(np.abs(low), np.abs(high))))
        return found

    def data_free_seeds(self, init: str, n_clusters: int, seed: int) -> tuple[Floats, ...]:
        """Draw starting centres (R, c, d_h) of ``init`` "box" or "spread": no record is touched."""
        low, high = self.box
        n_starts = self.settings.n_init
        if init == "box":
            return box_seeds(low, high, n_clusters, n_starts, seed)
        return spread_seeds(low, high, self.spread, n_clusters, n_starts, seed)


def view_scaling(moments: Moments, scaling: str, heat_kernel: str) -> ViewScaling:
    """Scaling and heat-kernel coefficients of one view from its pooled moments (Eqs. 1-2, 22-23).

    Parameters
    ----------
    moments : Moments
        Pooled over sites.
    scaling : {"minmax", "standard", "none"}
        "none" centres on the mean, which leaves distances alone and keeps them exact far from 0.
    heat_kernel : {"minmax", "absdev", "one"}
    """
    width = moments.maximum - moments.minimum
    constant = ~((width > 0) & (moments.m2 > 0))
    ones = np.ones_like(width)
    if scaling == "minmax":
        offset, scale = moments.minimum, width
    elif scaling == "standard":
        offset, scale = moments.mean, np.sqrt(moments.variance)
    else:
        offset, scale = moments.mean, ones
    scale = np.where(constant, 1.0, scale)
    offset = np.where(constant, moments.mean, offset)
    if heat_kernel == "minmax":
        delta_a = (moments.minimum - offset) / scale
        delta_b = ones if scaling == "minmax" else width / scale
    elif heat_kernel == "absdev":
        delta_a, delta_b = (moments.mean - offset) / scale, ones
    else:
        delta_a, delta_b = np.zeros_like(width), ones
    return ViewScaling(offset, scale, delta_a, np.where(constant, np.inf, delta_b))


def view_spread(moments: Moments, scaling: ViewScaling) -> float:
    """Total scaled variance of a view; 1 where no column varies."""
    varies = np.isfinite(scaling.delta_b)
    total = float((moments.variance / scaling.scale**2)[varies].sum())
    return total if total > 0 else 1.0


def scaled_mean(moments: Moments, scaling: ViewScaling) -> Floats:
    """Pooled mean of each column in scaled units."""
    return np.asarray((moments.mean - scaling.offset) / scaling.scale)


def auto_bandwidth(spread_sums: Floats, n_holding: float, factor: float) -> float:
    """Bandwidth ``beta = factor / mean delta-weighted spread`` of a view.

    Parameters
    ----------
    spread_sums : ndarray of shape (3, d_h)
        Pooled ``sum delta x^2``, ``sum delta x`` and ``sum delta`` of each column.
    n_holding : float
        Records that hold the view.
    factor : float
        0.1 by default elsewhere; towards 0 with kernel "one" the method becomes fuzzy c-means.
    """
    square, linear, weight = spread_sums
    safe = np.maximum(weight, np.finfo(np.float64).tiny)
    spread = float(np.maximum(square - linear**2 / safe, 0.0).sum()) / max(n_holding, 1.0)
    return factor / spread if spread > 0 else 1.0


def box_seeds(
    low: Sequence[Floats],
    high: Sequence[Floats],
    n_clusters: int,
    n_starts: int,
    seed: int | Sequence[int],
) -> tuple[Floats, ...]:
    """Draw starting centres uniformly between the scaled extremes: (R, c, d_h) a view."""
    rng = np.random.default_rng(seed)
    return tuple(
        rng.uniform(a, np.maximum(a, b), (n_starts, n_clusters, a.shape[0]))
        for a, b in zip(low, high, strict=True)
    )


def spread_seeds(
    low: Sequence[Floats],
    high: Sequence[Floats],
    spread: Floats,
    n_clusters: int,
    n_starts: int,
    seed: int,
    n_candidates: int = 200,
) -> tuple[Floats, ...]:
    """Data-free seeds: of ``n_candidates`` random sets keep that with the widest smallest gap."""
    starts = []
    for start in range(n_starts):
        sets = box_seeds(low, high, n_clusters, n_candidates, [seed, start])
        flat = np.concatenate(
            [a / np.sqrt(max(float(t), 1e-300)) for a, t in zip(sets, spread, strict=True)], axis=2
        )
        gaps = np.full(n_candidates, np.inf)
        for k in range(1, n_clusters):
            distance = ((flat[:, k, None, :] - flat[:, :k, :]) ** 2).sum(axis=2)
            gaps = np.minimum(gaps, distance.min(axis=1))
        keep = int(np.argmax(gaps))
        starts.append([a[keep] for a in sets])
    return tuple(np.stack([s[h] for s in starts]) for h in range(len(low)))


def pooled_seeds(
    centers: Sequence[Sequence[Floats]],
    counts: Sequence[Floats],
    held: NDArray[np.bool_],
    spread: Floats,
    mean: Sequence[Floats],
    n_clusters: int,
    seed: int,
    box: tuple[Sequence[Floats], Sequence[Floats]] | None = None,
) -> tuple[Floats, ...]:
    """One-shot federated initialisation: weighted k-means over the sites' local centres.

    Parameters
    ----------
    centers : per site, per view: ndarray of shape (R, c', d_h)
    counts : per site: ndarray of shape (R, c')
        Records that a centre stands for; one of count 0 is left out.
    held : ndarray of shape (M, s), bool
        Sites that lack a view stand out of the way where others hold them all and give enough
        centres; otherwise the pooled mean stands in.
    spread : ndarray of shape (s,)
    mean : per view: ndarray of shape (d_h,)
    n_clusters, seed : int
    box : pair of sequences of ndarray of shape (d_h,), optional
        Least and largest scaled values. Where a start has fewer than c distinct centres the rest
        is drawn between them: centres that coincide never part. Without it centres are repeated.

    Returns
    -------
    tuple of ndarray of shape (R, c, d_h)
    """
    complete = held.all(axis=1)
    dims = [m.shape[0] for m in mean]
    n_starts = counts[0].shape[0]
    norms = np.sqrt(np.maximum(spread, 1e-300))
    starts = []
    for r in range(n_starts):
        given = sum(int((counts[int(i)][r] > 0).sum()) for i in np.flatnonzero(complete))
        chosen = complete if given >= n_clusters else np.ones_like(complete)
        rows, weights = [], []
        for site in np.flatnonzero(chosen).tolist():
            blocks = [
                (
                    centers[site][h][r]
                    if held[site, h]
                    else np.tile(mean[h], (counts[site].shape[1], 1))
                )
                / norms[h]
                for h in range(len(dims))
            ]
            rows.append(np.concatenate(blocks, axis=1))
            weights.append(counts[site][r])
        spare = None
        if box is not None:
            drawn = box_seeds(*box, n_clusters, 1, [seed, r])
            spare = np.concatenate([a[0] / t for a, t in zip(drawn, norms, strict=True)], axis=1)
        found = weighted_kmeans(
            np.concatenate(rows), np.concatenate(weights), n_clusters, _start_seed(seed, r), spare
        )
        blocks = np.split(found, np.cumsum(dims)[:-1], axis=1)
        starts.append([b * norm for b, norm in zip(blocks, norms, strict=True)])
    return tuple(np.stack([s[h] for s in starts]) for h in range(len(dims)))


def _start_seed(seed: int, start: int) -> int:
    """Seed below 2**32 of one start: another plan seed shares none of its starts."""
    return int(np.random.SeedSequence([seed, start]).generate_state(1)[0])


def weighted_kmeans(
    points: Floats, weights: Floats, n_clusters: int, seed: int, spare: Floats | None = None
) -> Floats:
    """Centres (c, D) of weighted k-means; with at most c distinct points, the points.

    The centres missing then are rows of ``spare`` (c, D) where it is given, else the points again.
    """
    points, weights = points[weights > 0], weights[weights > 0]
    _, first = np.unique(points, axis=0, return_index=True)
    if first.size <= n_clusters:
        distinct = points[np.sort(first) if points.shape[0] <= n_clusters else first]
        if spare is not None:
            return np.concatenate([distinct, spare[: n_clusters - first.size]])
        return np.asarray(distinct[np.arange(n_clusters) % first.size])
    from sklearn.cluster import KMeans  # 1.3 s to import: paid by the one exchange that needs it
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        model = KMeans(n_clusters, n_init=10, random_state=seed).fit(points, sample_weight=weights)
    return np.asarray(model.cluster_centers_, dtype=np.float64)
