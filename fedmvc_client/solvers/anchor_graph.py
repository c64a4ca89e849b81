"""The k-nearest-anchor graph B of a view (Eq. 14), built in chunks of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from fedmvc_client.solvers.chunks import chunk_rows, fold_chunks
from fedmvc_client.solvers.row_order import Matrix

# Distances are sums and differences of squared lengths: below this share of them they are rounding.
_RESOLUTION = 1e-14


@dataclass(frozen=True)
class AnchorGraph:
    """The rows of B, k neighbours each.

    Attributes
    ----------
    index : torch.Tensor of shape (n, k), int32
        Which anchors, nearest first.
    value : torch.Tensor of shape (n, k), float64
        ``b_ij``; each row sums to 1.
    n_anchors : int
        theta.
    """

    index: torch.Tensor
    value: torch.Tensor
    n_anchors: int

    def to_csr(self) -> sparse.csr_array:
        """Return B as a sparse matrix (n, theta), columns in ascending order, no stored zero."""
        n_rows, k = self.index.shape
        indptr = np.arange(n_rows + 1, dtype=np.int64) * k
        matrix = sparse.csr_array(
            (
                self.value.cpu().numpy().ravel().copy(),
                self.index.cpu().numpy().ravel().copy(),
                indptr,
            ),
            shape=(n_rows, self.n_anchors),
        )
        matrix.sort_indices()
        matrix.eliminate_zeros()
        return matrix


def anchor_graph(
    values: Matrix,
    anchors: NDArray[np.int64],
    neighbours: int,
    device: torch.device,
    *,
    n_threads: int | None = None,
) -> AnchorGraph:
    """Connect every row with its nearest anchors.

    Parameters
    ----------
    values : ndarray or csr_array of shape (n, d)
    anchors : ndarray of shape (theta,), int64
        Rows of ``values``, at least 2.
    neighbours : int
        k; at most theta - 1 are used, as Eq. (14) needs the distance of one anchor more.
    device : torch.device
    n_threads : int, optional
        See :func:`fedmvc_client.solvers.chunks.fold_chunks`; the result does not depend on it.

    Returns
    -------
    AnchorGraph
        On ``device``.
    """
    n_rows, n_anchors = values.shape[0], len(anchors)
    k = min(neighbours, n_anchors - 1)
    distances = _Distances(values, anchors, device)
    index = torch.empty((n_rows, k), dtype=torch.int32, device=device)
    value = torch.empty((n_rows, k), dtype=torch.float64, device=device)
    rows_per_chunk = chunk_rows(n_rows, device)

    def connect(chunk: int) -> None:
        rows = slice(chunk * rows_per_chunk, min((chunk + 1) * rows_per_chunk, n_rows))
        squared, resolution = distances.of(rows)
        nearest = squared.topk(k + 1, dim=1, largest=False, sorted=True)
        gap = nearest.values[:, k:] - nearest.values[:, :k]
        total = gap.sum(dim=1, keepdim=True)
        even = gap[:, :1] <= resolution
        value[rows] = torch.where(even, 1.0 / k, gap / torch.where(even, 1.0, total))
        index[rows] = nearest.indices[:, :k]

    fold_chunks(
        connect,
        lambda _: None,
        -(-n_rows // rows_per_chunk),
        device=device,
        n_threads=n_threads,
    )
    return AnchorGraph(index, value, n_anchors)


class _Distances:
    """Squared distances of chunks of rows to all anchors, dense or sparse."""

    def __init__(self, values: Matrix, anchors: NDArray[np.int64], device: torch.device) -> None:
        self._values = values
        self._device = device
        chosen = values[anchors]
        if not isinstance(chosen, np.ndarray):
            self._transposed = sparse.csr_array(chosen.T)
            lengths = np.asarray(chosen.multiply(chosen).sum(axis=1)).ravel()
            self._lengths = torch.tensor(lengths, device=device)
        else:
            # Distances do not change with the origin, but lose digits far from it.
            self._origin = chosen.mean(axis=0)
            self._anchors = torch.tensor(chosen - self._origin, device=device)
            self._lengths = self._anchors.square().sum(dim=1)

    def of(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the squared distances (c, theta) and what is rounding among them (c, 1)."""
        chunk = self._values[rows]
        if not isinstance(chunk, np.ndarray):
            products = torch.tensor((chunk @ self._transposed).toarray(), device=self._device)
            own = np.asarray(chunk.multiply(chunk).sum(axis=1)).ravel()
            lengths = torch.tensor(own, device=self._device)[:, None]
            squared = products.mul_(-2.0).add_(self._lengths).add_(lengths)
        else:
            x = torch.tensor(chunk - self._origin, device=self._device)
            lengths = x.square().sum(dim=1, keepdim=True)
            squared = torch.addmm(self._lengths, x, self._anchors.T, alpha=-2.0).add_(lengths)
        resolution = (lengths + self._lengths.max()) * _RESOLUTION
        return squared.clamp_(min=0.0), resolution
