"""Spectral embedding of the affinity W = B Delta^-1 B^T (Eq. 15), which is never formed.

Its eigenvectors are the left singular vectors of ``B Delta^-1/2``: an eigenproblem of the size of
the anchors and one product with B.
"""

from __future__ import annotations

import numpy as np
import torch

from fedmvc_client.solvers.anchor_graph import AnchorGraph
from fedmvc_client.solvers.chunks import chunk_rows, fold_chunks, one_intra_op_thread

_CPU = torch.device("cpu")
# Pairs of neighbours counted at a time; a larger table of anchors asks for more of them.
_PAIRS = 1 << 18
# Eigenvalues of W lie in [0, 1]: below this they are rounding.
_SMALLEST_EIGENVALUE = 1e-12


def anchor_gram(graph: AnchorGraph, *, n_threads: int | None = None) -> torch.Tensor:
    """Return ``B^T B`` (theta, theta) on the CPU; its row sums are Delta, as rows of B sum to 1.

    Parameters
    ----------
    graph : AnchorGraph
    n_threads : int, optional
        The result does not depend on it.
    """
    theta = graph.n_anchors
    n_rows, k = graph.index.shape
    device = graph.index.device
    gram = torch.zeros((theta, theta), dtype=torch.float64, device=device)
    if device.type == "cpu":
        count, rows_per_chunk = _gram_of_pairs, max(_PAIRS, theta * theta) // (k * k) + 1
    else:
        count, rows_per_chunk = _gram_of_product, chunk_rows(n_rows, device)

    def part(chunk: int) -> torch.Tensor:
        rows = slice(chunk * rows_per_chunk, (chunk + 1) * rows_per_chunk)
        return count(graph.index[rows], graph.value[rows], theta)

    def add(counted: torch.Tensor) -> None:
        gram.add_(counted)

    fold_chunks(part, add, -(-n_rows // rows_per_chunk), device=device, n_threads=n_threads)
    return gram.to(_CPU)


def _gram_of_pairs(index: torch.Tensor, value: torch.Tensor, theta: int) -> torch.Tensor:
    """Add up ``b_il b_ij`` over the pairs of neighbours of each row, on the CPU."""
    anchors, weights = index.numpy(), value.numpy()
    # Each pair once, at its place above or below the diagonal.
    left, right = np.triu_indices(index.shape[1])
    place = np.multiply(anchors[:, left], theta, dtype=np.int64)
    place += anchors[:, right]
    weight = weights[:, left] * weights[:, right]
    counted = np.bincount(place.ravel(), weight.ravel(), minlength=theta * theta)
    half = torch.from_numpy(counted.reshape(theta, theta))
    gram = half + half.T
    gram.diagonal().copy_(half.diagonal())
    return gram


def _gram_of_product(index: torch.Tensor, value: torch.Tensor, theta: int) -> torch.Tensor:
    """Multiply dense rows: on a GPU additions at given places come in any order."""
    dense = torch.zeros((len(index), theta), dtype=value.dtype, device=value.device)
    dense.scatter_(1, index.long(), value)
    return dense.T @ dense


def spectral_embedding(
    graph: AnchorGraph, n_clusters: int, *, n_threads: int | None = None
) -> torch.Tensor:
    """Return F: unit rows of the top K left singular vectors of ``B Delta^-1/2``.

    Parameters
    ----------
    graph : AnchorGraph
        With at least K anchors.
    n_clusters : int
        K.
    n_threads : int, optional
        The result does not depend on it.

    Returns
    -------
    torch.Tensor of shape (n, K), float64
        On the graph's device. The largest entry of each anchor eigenvector is positive; columns
        beyond the rank of W are 0.
    """
    n_rows, k = graph.index.shape
    device = graph.index.device
    mapping = _anchor_coordinates(anchor_gram(graph, n_threads=n_threads), n_clusters).to(device)
    embedding = torch.empty((n_rows, n_clusters), dtype=torch.float64, device=device)
    rows_per_chunk = chunk_rows(n_rows, device)

    def embed(chunk: int) -> None:
        rows = slice(chunk * rows_per_chunk, (chunk + 1) * rows_per_chunk)
        index, value = graph.index[rows].long(), graph.value[rows]
        # One neighbour after the other: no array of rows by neighbours by clusters, and equal rows
        # stay equal wherever they stand.
        f = mapping[index[:, 0]].mul_(value[:, :1])
        for j in range(1, k):
            f += mapping[index[:, j]] * value[:, j : j + 1]
        length = f.square().sum(dim=1, keepdim=True).sqrt_()
        embedding[rows] = f / torch.where(length > 0, length, 1.0)

    fold_chunks(
        embed, lambda _: None, -(-n_rows // rows_per_chunk), device=device, n_threads=n_threads
    )
    return embedding


def _anchor_coordinates(gram: torch.Tensor, n_clusters: int) -> torch.Tensor:
    """Return ``Delta^-1/2 V lambda^-1/2`` (theta, K): B times it are the left singular vectors."""
    mass = gram.sum(dim=1)
    scale = torch.where(mass > 0, mass, 1.0).rsqrt()
    with one_intra_op_thread():
        eigenvalue, vector = torch.linalg.eigh(gram * scale[:, None] * scale)
    eigenvalue = eigenvalue[-n_clusters:].flip(0)
    vector = vector[:, -n_clusters:].flip(1)
    largest = vector.abs().argmax(dim=0, keepdim=True)
    vector = vector * vector.gather(0, largest).sign()
    kept = eigenvalue > _SMALLEST_EIGENVALUE
    inverse = torch.where(kept, eigenvalue, 1.0).rsqrt() * kept
    return scale[:, None] * vector * inverse
