"""Aggregation of site models (Eqs. 59-62, quality and NMI weights) and signs of a collapsed one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strategies.statistics import Floats

#: A cluster with a smaller share of all memberships is empty.
EMPTY = 1e-9


def site_weights(
    aggregation: str,
    n_rows: Floats,
    partition_coefficient: Floats,
    agreement: Floats,
    n_clusters: int,
    temperature: float,
) -> Floats:
    """Weight of each site, summing to 1 over sites for every start.

    Parameters
    ----------
    aggregation : {"weighted", "fedavg", "median", "quality", "nmi_softmax"}
        Eq. 59 with w = n_l / n; Eq. 62; (median: equal, for reporting only); records times how far
        the partition coefficient stands above 1/c; softmax(q / temperature).
    n_rows : ndarray of shape (M,)
    partition_coefficient, agreement : ndarray of shape (M, R)
    n_clusters : int
    temperature : float
        > 0; towards infinity "nmi_softmax" becomes "fedavg".

    Returns
    -------
    ndarray of shape (M, R)
    """
    n_sites, n_starts = agreement.shape
    if aggregation == "weighted":
        raw = np.repeat(n_rows[:, None], n_starts, axis=1)
    elif aggregation == "quality":
        floor = 1.0 / n_clusters
        above = np.clip((partition_coefficient - floor) / max(1.0 - floor, 1e-300), 0.0, None)
        raw = n_rows[:, None] * above
        raw = np.where(raw.sum(axis=0) > 0, raw, n_rows[:, None])
    elif aggregation == "nmi_softmax":
        raw = np.exp((agreement - agreement.max(axis=0)) / temperature)
    else:
        raw = np.ones((n_sites, n_starts))
    return np.asarray(raw / raw.sum(axis=0))


def average(values: Floats, weights: Floats, previous: Floats) -> Floats:
    """Weighted mean over sites (Eqs. 59-60, 62); NaN marks what a site does not hold.

    Parameters
    ----------
    values : ndarray of shape (M, R, ...)
    weights : ndarray of shape (M, R)
    previous : ndarray of shape (R, ...)
        Kept where no site holds an entry.
    """
    weight = weights.reshape(weights.shape + (1,) * (values.ndim - 2))
    present = np.isfinite(values)
    total = np.where(present, weight, 0.0).sum(axis=0)
    summed = np.where(present, weight * values, 0.0).sum(axis=0)
    return np.where(total > 0, summed / np.where(total > 0, total, 1.0), previous)


def median(values: Floats, previous: Floats) -> Floats:
    """Entry-wise median over sites (Eq. 61); an even count takes the mean of the middle two."""
    present = np.isfinite(values)
    ordered = np.sort(np.where(present, values, np.inf), axis=0)
    count = present.sum(axis=0)
    low = np.maximum((count - 1) // 2, 0)[None]
    high = np.maximum(count // 2, 0)[None]
    safe = np.where(np.isfinite(ordered), ordered, 0.0)
    middle = 0.5 * (np.take_along_axis(safe, low, 0)[0] + np.take_along_axis(safe, high, 0)[0])
    return np.where(count > 0, middle, previous)


def on_simplex(view_weights: Floats, previous: Floats) -> Floats:
    """Rescale view weights (R, s) so that each row sums to 1 (a median of weights need not).

    A row of zeros (three sites, each with all its weight on another view: every median is 0) takes
    the ``previous`` row.
    """
    total = view_weights.sum(axis=-1, keepdims=True)
    return np.where(total > 0, view_weights / np.where(total > 0, total, 1.0), previous)


def collapse_warnings(
    centers: Sequence[Floats],
    view_weights: Floats,
    spread: Floats,
    partition_coefficient: float,
    views: Sequence[str],
    active: Sequence[bool],
    mean_membership: Floats,
) -> list[str]:
    """Say in words where a solution has no structure.

    Parameters
    ----------
    centers : sequence of ndarray of shape (c, d_h)
        Scaled units.
    view_weights, spread : ndarray of shape (s,)
    partition_coefficient : float
        Mean over records of ``sum_k u_ik^2``, in [1/c, 1].
    views : sequence of str
    active : sequence of bool
        Whether any column of the view varies.
    mean_membership : ndarray of shape (c,)
        Share of the records that each cluster holds (Eq. 66).

    Returns
    -------
    list of str
        Empty for a healthy solution.
    """
    n_clusters = centers[0].shape[0]
    found = []
    if not any(active):
        return ["no structure: every row is the same, so all memberships are 1/c"]
    if n_clusters > 1 and partition_coefficient < 1.0 / n_clusters + 0.02 * (1 - 1.0 / n_clusters):
        found.append(
            f"no structure found: all memberships are close to 1/{n_clusters} (partition "
            f"coefficient {partition_coefficient:.4f}); lower the fuzzifier or use "
            'profile = "robust"'
        )
    joint = np.concatenate(
        [a / np.sqrt(max(float(t), 1e-300)) for a, t in zip(centers, spread, strict=True)], axis=1
    )
    gaps = [
        float(((joint[k] - joint[:k]) ** 2).sum(axis=1).min()) for k in range(1, joint.shape[0])
    ]
    if gaps and min(gaps) < 1e-6:
        found.append(
            f"centres coincide: fewer than {n_clusters} distinct clusters were found; ask for "
            "fewer or raise n_init"
        )
    empty = int((mean_membership < EMPTY).sum())
    if empty:
        found.append(
            f"{empty} of {n_clusters} clusters hold no record: fewer than {n_clusters} distinct "
            "clusters were found; ask for fewer or raise n_init"
        )
    if sum(bool(a) for a in active) > 1 and view_weights.max() > 0.95:
        view = views[int(np.argmax(view_weights))]
        found.append(
            f"view '{view}' holds {view_weights.max():.3f} of the weight (limit 0.95): the other "
            "views hardly count; raise view_exponent"
        )
    return found
