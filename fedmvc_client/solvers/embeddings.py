"""Embeddings with orthonormal rows: orthogonal factors and the leading part of an SVD."""

from __future__ import annotations

import math

import torch

#: Up to this size the Gram matrix of a view is decomposed; beyond, a subspace is iterated.
GRAM_SIZE = 1000
#: Extra directions and rounds of the subspace iteration.
_OVERSAMPLING = 10
_ROUNDS = 12


def polar(matrix: torch.Tensor) -> torch.Tensor:
    """Return the nearest matrix with orthonormal rows, ``U V'`` of the SVD.

    Parameters
    ----------
    matrix : torch.Tensor of shape (k, n), float64
        k at most n. Where its rank is below k the factor is one of several.
    """
    basis, small = torch.linalg.qr(matrix.T)
    left, _, right = torch.linalg.svd(small)
    return (basis @ (left @ right)).T.contiguous()


def leading_embedding(features: torch.Tensor, rank: int) -> tuple[torch.Tensor, int]:
    """Return the k leading right singular vectors of a view, and how many the view defines.

    Parameters
    ----------
    features : torch.Tensor of shape (d, n), float64
    rank : int
        k, at most n. A view with fewer features is completed by waves along the samples.

    Returns
    -------
    embedding : torch.Tensor of shape (k, n)
        Orthonormal rows.
    defined : int
        min(d, k).
    """
    n_features, n_samples = features.shape
    defined = min(n_features, rank)
    if min(n_features, n_samples) <= GRAM_SIZE:
        vectors = _by_gram(features, defined)
    else:
        vectors = _by_iteration(features, defined)
    if defined < rank:
        waves = _waves(n_samples, rank - defined, features)
        vectors = torch.cat([vectors, waves], dim=1)
    return torch.linalg.qr(vectors).Q.T.contiguous(), defined


def _by_gram(features: torch.Tensor, k: int) -> torch.Tensor:
    if features.shape[0] < features.shape[1]:
        vectors = torch.linalg.eigh(features @ features.T).eigenvectors.flip(1)[:, :k]
        return features.T @ vectors
    return torch.linalg.eigh(features.T @ features).eigenvectors.flip(1)[:, :k]


def _by_iteration(features: torch.Tensor, k: int) -> torch.Tensor:
    """Randomised subspace iteration (Halko, Martinsson and Tropp 2011), always the same draws.

    The draws stand for samples, so that a permutation of the features changes nothing.
    """
    n_samples = features.shape[1]
    draws = torch.Generator().manual_seed(0)
    width = min(k + _OVERSAMPLING, *features.shape)
    basis = torch.randn(n_samples, width, dtype=features.dtype, generator=draws)
    basis = torch.linalg.qr(basis.to(features.device)).Q
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(features.T @ (features @ basis)).Q
    small = features @ basis
    vectors = torch.linalg.eigh(small.T @ small).eigenvectors.flip(1)[:, :k]
    return basis @ vectors


def _waves(n_samples: int, count: int, like: torch.Tensor) -> torch.Tensor:
    """Return cosines of rising frequency as columns (n, count)."""
    place = torch.arange(n_samples, dtype=like.dtype, device=like.device) + 0.5
    frequency = torch.arange(1, count + 1, dtype=like.dtype, device=like.device)
    return torch.cos(math.pi / n_samples * place[:, None] * frequency)
