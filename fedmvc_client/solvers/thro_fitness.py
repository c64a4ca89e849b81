"""What horses race for over weights: Fed-MUFSHT's objective.

Both fitnesses rate a whole population by matrix products, not horse by horse. Shapes: view v has
features (d_v, n), embedding Z_v (k, n) with Z_v Z_v' = I and weights W_v (d_v, k); a position of
the weight search is all W_v, view after view, row by row (Eq. 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from fedmvc_client.solvers.chunks import one_intra_op_thread

__all__ = [
    "FixedEmbeddingFitness",
    "FreeEmbeddingFitness",
    "fold",
    "unfold",
]

#: Curvature bound q of tr(W'QW): the eigenvalues of a normalised Laplacian are at most 2.
CURVATURE = 2.0


def fold(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Lay the weights of all views out as one position (Eq. 3)."""
    return torch.cat([w.reshape(-1) for w in weights])


def unfold(position: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Undo `fold`: the weights (d_v, k) of views of ``sizes`` d_v features."""
    return list(position.view(sum(sizes), -1).split(list(sizes)))


class _WeightFitness:
    """Penalties on W, which do not depend on how the embeddings are treated."""

    def __init__(
        self,
        views: Sequence[torch.Tensor],
        view_weights: Sequence[float] | None,
        laplacians: Sequence[torch.Tensor] | None,
        lam: float,
        beta: float,
    ) -> None:
        alpha = [1.0] * len(views) if view_weights is None else [float(a) for a in view_weights]
        self.sizes = [len(x) for x in views]
        self._fit = [a / d for a, d in zip(alpha, self.sizes, strict=True)]
        self._starts = list(pairwise([sum(self.sizes[:v]) for v in range(len(views) + 1)]))
        self._laplacians = laplacians if lam else None
        self._lam, self._beta = lam, beta
        repeats = torch.tensor(self.sizes, device=views[0].device)
        fit = torch.tensor(self._fit, dtype=torch.float64, device=views[0].device)
        self._fit_rows = fit.repeat_interleave(repeats)
        self._view_rows = (1.0 / repeats.to(torch.float64)).repeat_interleave(repeats)

    def _rows(self, positions: torch.Tensor) -> torch.Tensor:
        return positions.view(len(positions), sum(self.sizes), -1)

    def _quadratic(self, weights: torch.Tensor) -> torch.Tensor:
        """Weighted ``||W||^2`` of the fit plus the penalties, of weights (N, D, k)."""
        norms = torch.linalg.vector_norm(weights, dim=2)
        total = norms.square() @ self._fit_rows + self._beta * (norms @ self._view_rows)
        if self._laplacians is not None:
            for (start, stop), q in zip(self._starts, self._laplacians, strict=True):
                side = weights[:, start:stop].permute(1, 0, 2).reshape(stop - start, -1)
                smooth = (side * torch.sparse.mm(q, side)).sum(dim=0).view(len(weights), -1)
                total += self._lam / (stop - start) * smooth.sum(dim=1)
        return total


class FixedEmbeddingFitness(_WeightFitness):
    """F over W for given embeddings: convex, O(D k) for each horse, minimum known.

    Parameters
    ----------
    views : sequence of torch.Tensor of shape (d_v, n), float64
        Imputed features.
    embeddings : sequence of torch.Tensor of shape (k, n)
        Orthonormal rows.
    view_weights : sequence of float, optional
        alpha_v, 1 by default.
    laplacians : sequence of torch.Tensor of shape (d_v, d_v), sparse, optional
        Q_v; needed where ``lam`` is not 0.
    lam, beta : float

    Notes
    -----
    ``sum_v (alpha_v ||X_v - W_v Z_v||^2 + lam tr(W_v'Q_v W_v) + beta ||W_v||_21) / d_v``: what of
    the objective depends on W.
    """

    def __init__(
        self,
        views: Sequence[torch.Tensor],
        embeddings: Sequence[torch.Tensor],
        *,
        view_weights: Sequence[float] | None = None,
        laplacians: Sequence[torch.Tensor] | None = None,
        lam: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__(views, view_weights, laplacians, lam, beta)
        with one_intra_op_thread():
            self._cross = [x @ z.T for x, z in zip(views, embeddings, strict=True)]
        scaled = fold([a * b for a, b in zip(self._fit, self._cross, strict=True)])
        self._slope = -2.0 * scaled
        self._constant = sum(
            a * float(x.square().sum()) for a, x in zip(self._fit, views, strict=True)
        )

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Rate positions (N, D * k)."""
        quadratic = self._quadratic(self._rows(positions))
        return quadratic + positions @ self._slope + self._constant

    def minimiser(self, steps: int = 1) -> torch.Tensor:
        """Position of least fitness: exact in one step without ``lam``, else in the limit.

        Each step takes ``C = (alpha B + lam (q W - Q W)) / (alpha + lam q)``, q = 2, and shrinks
        its rows by ``beta / (2 (alpha + lam q))``; none raises the fitness.
        """
        found = []
        for v, cross in enumerate(self._cross):
            alpha, lam = self._fit[v] * self.sizes[v], 0.0
            if self._laplacians is not None:
                lam = self._lam
            w = cross
            for _ in range(steps):
                total = alpha + lam * CURVATURE
                c = alpha * cross
                if self._laplacians is not None:
                    c = c + lam * (CURVATURE * w - torch.sparse.mm(self._laplacians[v], w))
                c = c / total
                length = torch.linalg.vector_norm(c, dim=1, keepdim=True)
                kept = length > self._beta / (2.0 * total)
                shrink = 1.0 - self._beta / (2.0 * total * torch.where(kept, length, 1.0))
                w = torch.where(kept, shrink * c, 0.0)
            found.append(w)
        return fold(found)


class FreeEmbeddingFitness(_WeightFitness):
    """F over W with the best embeddings for each W: the honest, non-convex fitness.

    Parameters
    ----------
    views, view_weights, laplacians, lam, beta
        As for `FixedEmbeddingFitness`.
    targets : sequence of torch.Tensor of shape (k, n), optional
        ``A diag(M_v) P'``, what the CP factors make of each embedding; needed where ``tau`` is not
        0.
    tau : float

    Notes
    -----
    With ``Y_v = (alpha_v / d_v) W_v' X_v + (tau / k) T_v`` the minimum over Z_v Z_v' = I of
    ``(alpha_v / d_v) ||X_v - W_v Z_v||^2 + (tau / k) ||Z_v - T_v||^2`` is what does not depend on
    Z_v less twice the sum of the singular values of Y_v, which are the roots of the eigenvalues of
    its k x k Gram matrix.
    """

    def __init__(
        self,
        views: Sequence[torch.Tensor],
        *,
        view_weights: Sequence[float] | None = None,
        laplacians: Sequence[torch.Tensor] | None = None,
        lam: float = 0.0,
        beta: float = 0.0,
        targets: Sequence[torch.Tensor] | None = None,
        tau: float = 0.0,
    ) -> None:
        super().__init__(views, view_weights, laplacians, lam, beta)
        self._constant = 0.0
        self._views: list[tuple[torch.Tensor, torch.Tensor | float]] = []
        for v, (a, x) in enumerate(zip(self._fit, views, strict=True)):
            self._constant += a * float(x.square().sum())
            target = x[:0]
            if tau and targets is not None:
                k = len(targets[v])
                self._constant += tau / k * (k + float(targets[v].square().sum()))
                target = tau / k * targets[v]
            both = torch.cat([a * x, target])
            if both.shape[0] < both.shape[1]:
                # a rotation of the samples that leaves as few of them as there are rows
                with one_intra_op_thread():
                    both = torch.linalg.qr(both.T, mode="r").R.T
            self._views.append((both[: len(x)], both[len(x) :] if len(target) else 0.0))

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Rate positions (N, D * k)."""
        weights = self._rows(positions)
        n, _, k = weights.shape
        total = self._quadratic(weights) + self._constant
        for (start, stop), (x, target) in zip(self._starts, self._views, strict=True):
            stacked = weights[:, start:stop].transpose(1, 2).reshape(n * k, stop - start)
            y = (stacked @ x).view(n, k, -1) + target
            squared = torch.linalg.eigvalsh(torch.bmm(y, y.transpose(1, 2)))
            total -= 2.0 * squared.clamp_(min=0.0).sqrt_().sum(dim=1)
        return total
