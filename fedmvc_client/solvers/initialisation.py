"""Starting centres of one site by k-means on its own records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from fedmvc_client.solvers.views import PreparedViews

Floats = NDArray[np.float64]


def local_seeds(
    prepared: PreparedViews,
    n_clusters: int,
    n_starts: int,
    seed: int,
    *,
    view_spread: Floats,
    mean: Sequence[Floats],
    max_rows: int = 20_000,
    min_cell: int = 1,
) -> tuple[list[Floats], Floats]:
    """Cluster the site's records by k-means on all views side by side.

    Each view is divided by the root of its spread so that none outweighs the others by its unit or
    number of columns. Start 0 is a converged k-means; later starts are k-means++ draws with one
    Lloyd step, which keeps them diverse.

    Parameters
    ----------
    prepared : PreparedViews
    n_clusters, n_starts : int
        c and R.
    seed : int
    view_spread : ndarray of shape (s,)
        Pooled spread of each view; a view of spread 0 is left out of the distances.
    mean : sequence of ndarray of shape (d_h,)
        Pooled means, scaled units, put in the place of missing cells.
    max_rows : int
        Beyond this many rows a random sample of them is clustered.
    min_cell : int
        Where fewer of a cluster's records (but some) have a column's cell, the column's pooled mean
        stands in the centre: the mean over few cells among many missing ones gives them away.

    Returns
    -------
    centers : list of ndarray of shape (R, c', d_h)
        Scaled units, all views of a centre from the same cluster of records.
    counts : ndarray of shape (R, c')
        Records of each cluster, scaled up to all rows where a sample was clustered.

    Notes
    -----
    c' is the smaller of c and the number of distinct rows. The result is bit-identical for any
    number of threads.
    """
    rng = np.random.default_rng(seed)
    rows = np.arange(prepared.n_rows)
    if prepared.n_rows > max_rows:
        rows = np.sort(rng.choice(prepared.n_rows, size=max_rows, replace=False))
    values, observed = [], []
    for view, center in zip(prepared.views, mean, strict=True):
        scaled = view.scaled(rows)
        observed.append((~np.isnan(scaled)).astype(np.float64))
        values.append(np.where(np.isnan(scaled), center, scaled))
    unit = np.array([1.0 / np.sqrt(spread) if spread > 0 else 0.0 for spread in view_spread])
    table = np.hstack([scaled * factor for scaled, factor in zip(values, unit, strict=True)])
    n_found = min(n_clusters, len(np.unique(table, axis=0)))
    centers = [np.empty((n_starts, n_found, scaled.shape[1])) for scaled in values]
    counts = np.empty((n_starts, n_found))
    with threadpool_limits(limits=1):
        for start in range(n_starts):
            kmeans = KMeans(
                n_found,
                n_init=1,
                max_iter=300 if start == 0 else 1,
                random_state=int(rng.integers(2**31)),
            )
            labels = kmeans.fit(table).labels_
            chosen = (labels == np.arange(n_found)[:, None]).astype(np.float64)
            counts[start] = chosen.sum(axis=1)
            for empty in np.flatnonzero(counts[start] == 0):
                distance = ((table - kmeans.cluster_centers_[empty]) ** 2).sum(axis=1)
                chosen[empty, distance.argmin()] = 1.0
            size = chosen.sum(axis=1, keepdims=True)
            for table_of_view, cells, pooled_mean, out in zip(
                values, observed, mean, centers, strict=True
            ):
                # Means of the records rather than k-means' own centres: also right for views of
                # spread 0, and every centre lies among its records.
                out[start] = chosen @ table_of_view / size
                if min_cell > 1:
                    n_cells = chosen @ cells
                    few = (n_cells > 0) & (n_cells < min_cell)
                    out[start] = np.where(few, pooled_mean, out[start])
    counts *= prepared.n_rows / len(rows)
    return centers, counts
