"""The exponents ``phi`` of a chunk of records and all centres, from the features of ``views``."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedmvc_client.solvers.views import PreparedView

__all__ = ["center_matrix", "exponents_by_feature"]

Floats = NDArray[np.float64]


def center_matrix(view: PreparedView, centers: Floats, bandwidth: Floats, n_padded: int) -> Floats:
    """Matrix whose product with a chunk of features is -phi, zero rows added at the end."""
    shifted = centers - view.shift
    d = view.n_columns
    n_starts, n_clusters = shifted.shape[:2]
    matrix = np.zeros((n_starts, n_clusters, 2 * d + 1 if view.cell_mass else d + 2))
    if view.cell_mass:
        matrix[..., :d] = 2.0 * shifted
        matrix[..., d:-1] = -(shifted**2)
    else:
        matrix[..., :d] = 2.0 * view.weight * shifted
        matrix[..., d] = -(shifted**2) @ view.weight
    matrix[..., -1] = -1.0
    matrix *= bandwidth[:, None, None]
    padded = np.zeros((n_padded, matrix.shape[2]))
    padded[: n_starts * n_clusters] = matrix.reshape(n_starts * n_clusters, -1)
    return padded


def exponents_by_feature(
    matrix: torch.Tensor, features: torch.Tensor, out: torch.Tensor, term: torch.Tensor
) -> None:
    """Fill ``out`` with the product of the two, each term and each sum rounded by itself.

    So a record's exponents are the same to the bit in any place beside any others, which a matrix
    product does not promise.

    Parameters
    ----------
    matrix : torch.Tensor of shape (rows, n_features)
        Made by :func:`center_matrix`; rows after those of ``term`` are padding.
    features : torch.Tensor of shape (n_features, chunk_rows)
    out : torch.Tensor of shape (rows, chunk_rows)
    term : torch.Tensor of shape (R c, chunk_rows)
        Is overwritten.
    """
    n_centers = len(term)
    out.zero_()
    for j in range(len(features)):
        torch.mul(matrix[:n_centers, j, None], features[j], out=term)
        out[:n_centers].add_(term)
