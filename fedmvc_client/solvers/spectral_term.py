"""The local term of profile ``plus``: centreless k-means on the spectral embedding.

With unit rows F and centres C the cost of a row is ``||f_i - c_k||^2 + balance (n_k K / n - 1)``:
kernel k-means of ``F F^T``, so all rows may move at once and with balance 0 the term never rises.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from fedmvc_client.solvers.chunks import chunk_rows, fold_chunks

Floats = NDArray[np.float64]
#: mu z of some rows, (c, K) float64 on the CPU.
Blend = Callable[[slice], Floats]

#: Beyond this many rows k-means sees a sample of them.
KMEANS_ROWS = 20_000
# Rows of F are equal where they agree to so many digits.
_EQUAL_DIGITS = 8


class SpectralTerm:
    """Labels and centres of one view on its embedding.

    Parameters
    ----------
    embedding : torch.Tensor of shape (n, K), float64
        F in content order.
    balance : float
        Weight of the push to equal clusters.

    Attributes
    ----------
    labels : torch.Tensor of shape (n,), int64
    centers : torch.Tensor of shape (K, K), float64
    """

    def __init__(self, embedding: torch.Tensor, balance: float) -> None:
        self.embedding = embedding
        self.balance = balance
        self._device = embedding.device
        n_rows, n_clusters = embedding.shape
        self.labels = torch.zeros(n_rows, dtype=torch.int64, device=self._device)
        self.centers = torch.zeros((n_clusters,) * 2, dtype=torch.float64, device=self._device)
        self._rows_per_chunk = chunk_rows(n_rows, self._device)
        self._n_chunks = -(-n_rows // self._rows_per_chunk)

    def start(self, rng: np.random.Generator) -> float:
        """Label the rows by k-means on F; return the trace.

        Ten starts on at most ``KMEANS_ROWS`` rows, then every row joins its nearest centre.
        Clusters are numbered by their first row: k-means' own numbers follow the basis of the
        embedding, which rounding decides where eigenvalues are equal.
        """
        n_rows, n_clusters = self.embedding.shape
        rows = np.arange(n_rows)
        if n_rows > KMEANS_ROWS:
            rows = np.sort(rng.choice(n_rows, size=KMEANS_ROWS, replace=False))
        sample = self.embedding[torch.from_numpy(rows).to(self._device)].cpu().numpy()
        centers = _kmeans_centers(sample, n_clusters, rng)
        self.centers = torch.tensor(centers, device=self._device)
        self._assign(torch.zeros(n_clusters, dtype=torch.float64, device=self._device), 1.0, None)
        first = np.full(n_clusters, n_rows)
        found, first_of_found = np.unique(self.labels.cpu().numpy(), return_index=True)
        first[found] = first_of_found
        self.rename(np.argsort(np.argsort(first, kind="stable")))
        return self._trace()

    def sweep(self, weight: float, blend: Blend | None) -> float:
        """Move every row to ``argmin_k weight cost_ik - mu z_ik``, then the centres; return T.

        Parameters
        ----------
        weight : float
        blend : callable or None
            ``mu z`` by rows in content order.
        """
        n_rows, n_clusters = self.embedding.shape
        counts = torch.bincount(self.labels, minlength=n_clusters).to(torch.float64)
        self._assign(self.balance * (counts * n_clusters / n_rows - 1.0), weight, blend)
        return self._trace()

    def rename(self, names: NDArray[np.int64]) -> None:
        """Call cluster k ``names[k]``."""
        new = torch.from_numpy(names).to(self._device)
        self.labels = new[self.labels]
        centers = torch.empty_like(self.centers)
        centers[new] = self.centers
        self.centers = centers

    def set_state(self, labels: NDArray[np.int64], centers: Floats) -> None:
        """Go on from saved labels and centres."""
        self.labels = torch.tensor(labels, device=self._device)
        self.centers = torch.tensor(centers, device=self._device)

    def _chunk(self, number: int) -> slice:
        return slice(number * self._rows_per_chunk, (number + 1) * self._rows_per_chunk)

    def _assign(self, extra: torch.Tensor, weight: float, blend: Blend | None) -> None:
        """Give every row its cheapest cluster, the lowest among equals, and update the centres."""
        n_clusters = len(self.centers)
        bias = self.centers.square().sum(dim=1) + extra
        transposed = self.centers.T.contiguous()
        sums = torch.zeros_like(self.centers)
        counts = torch.zeros(n_clusters, dtype=torch.float64, device=self._device)

        def assign(number: int) -> tuple[torch.Tensor, torch.Tensor]:
            rows = self._chunk(number)
            f = self.embedding[rows]
            # ||f_i||^2 is the same for every cluster.
            cost = torch.addmm(bias, f, transposed, alpha=-2.0).mul_(weight)
            if blend is not None:
                cost -= torch.from_numpy(blend(rows)).to(self._device)
            best = cost.argmin(dim=1)
            self.labels[rows] = best
            member = torch.zeros_like(cost).scatter_(1, best[:, None], 1.0)
            return member.T @ f, member.sum(dim=0)

        def add(sums_and_counts: tuple[torch.Tensor, torch.Tensor]) -> None:
            sums.add_(sums_and_counts[0])
            counts.add_(sums_and_counts[1])

        fold_chunks(assign, add, self._n_chunks, device=self._device)
        filled = (counts > 0)[:, None]
        mean = sums / counts.clamp(min=1.0)[:, None]
        # An empty cluster keeps its last centre.
        self.centers = torch.where(filled, mean, self.centers)

    def _trace(self) -> float:
        """Return ``sum_i ||f_i - c_{y_i}||^2``."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)

        def spread(number: int) -> torch.Tensor:
            rows = self._chunk(number)
            return (self.embedding[rows] - self.centers[self.labels[rows]]).square_().sum()

        def add(part: torch.Tensor) -> None:
            total.add_(part)

        fold_chunks(spread, add, self._n_chunks, device=self._device)
        return float(total)


def _kmeans_centers(points: Floats, n_clusters: int, rng: np.random.Generator) -> Floats:
    """Return k-means centres (K, K); where fewer points differ, these points and zeros."""
    distinct = np.unique(np.round(points, _EQUAL_DIGITS) + 0.0, axis=0)
    if len(distinct) <= n_clusters:
        centers = np.zeros((n_clusters, points.shape[1]))
        centers[: len(distinct)] = distinct
        return centers
    kmeans = KMeans(n_clusters, n_init=10, random_state=int(rng.integers(2**31)))
    with threadpool_limits(limits=1):
        return np.asarray(kmeans.fit(points).cluster_centers_)
