"""One view of tensor learning: its cells, weights and embedding, and the imputation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Most cells of the product W Z that are laid out at once.
_BLOCK_CELLS = 4_000_000


class FeatureView:
    """``X_v + E_v``, W_v and Z_v of one view, and how well they fit.

    Parameters
    ----------
    values : ndarray of shape (d, n), float64
        Prepared, 0 where missing.
    observed : ndarray of shape (d, n), bool, or None
    device : torch.device

    Attributes
    ----------
    filled : torch.Tensor of shape (d, n)
        X + E: imputed values stand in the missing cells.
    dead : torch.Tensor of shape (d,), bool
        Features of zeros only; none of their cells counts as missing.
    missing : torch.Tensor of shape (d, n), bool, or None
    weights, embedding : torch.Tensor of shape (d, k), (k, n)
        W, set from outside, and Z, set by `embed`.
    imputed_norm, norm, error : float
        ``||E||^2``, ``||X + E||^2`` and ``||X + E - W Z||^2 / d``, as last measured.
    """

    weights: torch.Tensor
    embedding: torch.Tensor

    def __init__(
        self, values: Floats, observed: NDArray[np.bool_] | None, device: torch.device
    ) -> None:
        self.filled = torch.tensor(np.ascontiguousarray(values), device=device)
        self.n_features = len(values)
        self.dead = ~(self.filled != 0).any(dim=1)
        self.missing: torch.Tensor | None = None
        if observed is not None and not observed.all():
            self.missing = torch.tensor(np.ascontiguousarray(~observed), device=device)
            self.missing[self.dead] = False
        self.forget()

    def forget(self) -> None:
        """Put 0 into the missing cells, as at the beginning."""
        if self.missing is not None:
            self.filled.masked_fill_(self.missing, 0.0)
        self._cross: torch.Tensor | None = None
        self.imputed_norm = 0.0
        self.norm = float(self.filled.square().sum())
        self.error = self.norm / self.n_features

    def embed(self, embedding: torch.Tensor) -> None:
        """Take another Z, with orthonormal rows."""
        self.embedding = embedding
        self._cross = None

    def cross(self) -> torch.Tensor:
        """Return ``(X + E) Z'`` (d, k), computed once for each Z and E."""
        if self._cross is None:
            self._cross = self.filled @ self.embedding.T
        return self._cross

    def measure(self) -> None:
        """Set the error without laying out a residual, which ``Z Z' = I`` allows."""
        fit = float((self.weights * (self.weights - 2.0 * self.cross())).sum())
        self.error = max(self.norm + fit, 0.0) / self.n_features

    def impute(self, share: float) -> None:
        """Put ``share W Z`` into the missing cells."""
        if self.missing is None:
            return
        norm = imputed = error = 0.0
        for rows in self._blocks():
            missing, filled = self.missing[rows], self.filled[rows]
            product = self.weights[rows] @ self.embedding
            guess = share * product
            torch.where(missing, guess, filled, out=filled)
            imputed += float(torch.where(missing, guess, 0.0).square().sum())
            norm += float(filled.square().sum())
            error += float((filled - product).square().sum())
        self._cross = None
        self.imputed_norm, self.norm, self.error = imputed, norm, error / self.n_features

    def completed(self) -> Floats:
        """Return the view with ``W Z`` in the missing cells."""
        found = self.filled.clone()
        if self.missing is not None:
            for rows in self._blocks():
                product = self.weights[rows] @ self.embedding
                found[rows] = torch.where(self.missing[rows], product, found[rows])
        return np.asarray(found.cpu().numpy())

    def _blocks(self) -> list[slice]:
        step = max(_BLOCK_CELLS // self.filled.shape[1], 1)
        return [slice(start, start + step) for start in range(0, self.n_features, step)]
