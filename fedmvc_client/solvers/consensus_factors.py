"""The CP factors that draw the embeddings of all views together.

The embeddings stack to a tensor with slices ``Z_v`` (k, n), modelled as ``A diag(M_v) P'``:
A (k, r) says which directions move together, P (n, r) places the samples, M (V, r) how much each
view takes part. No unfolding is laid out: a least-squares step needs the MTTKRP (matricised tensor
times Khatri-Rao product), a sum of matrix products over views, and the Hadamard product of two
small Gram matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import torch

from configs.errors import ConfigError
from configs.mufsht_profiles import Simplex
from fedmvc_client.solvers.chunks import one_intra_op_thread

#: Projected gradient steps of a factor on the simplex.
GRADIENT_STEPS = 20
#: Directions of a Gram matrix below this share of the largest are left as they are.
_RANK_TOLERANCE = 1e-12


def project_simplex(rows: torch.Tensor) -> torch.Tensor:
    """Return the nearest point of the probability simplex to each row (m, r)."""
    descending = rows.sort(dim=1, descending=True).values
    excess = descending.cumsum(dim=1) - 1.0
    rank = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device)
    n_kept = (descending * rank > excess).sum(dim=1, keepdim=True)
    shift = excess.gather(1, n_kept - 1) / n_kept
    return (rows - shift).clamp_(min=0.0)


class ConsensusFactors:
    """A, P and M, with the update of each.

    Parameters
    ----------
    weight : float
        Factor of the squared misfit, tau / k.
    ridge : float
        Factor of ``||M||^2``.
    simplex : {"view", "sample", "none"}
        Whose rows are on the probability simplex: M's, P's, or none.

    Attributes
    ----------
    directions, samples, shares : torch.Tensor of shape (k, r), (n, r), (V, r)
        A, P and M, after `start`.

    Raises
    ------
    ConfigError
        For another name of ``simplex``.
    """

    directions: torch.Tensor
    samples: torch.Tensor
    shares: torch.Tensor

    def __init__(self, weight: float, ridge: float, simplex: Simplex) -> None:
        if simplex not in get_args(Simplex):
            raise ConfigError(f'simplex "{simplex}" is unknown; use "view", "sample" or "none"')
        self.weight = weight
        self.ridge = ridge
        self.simplex = simplex

    def start(self, embeddings: Sequence[torch.Tensor]) -> None:
        """Set ``A = I``, ``M = 1/r`` and P to the mean of the transposed embeddings."""
        k = embeddings[0].shape[0]
        self.directions = torch.eye(k, dtype=embeddings[0].dtype, device=embeddings[0].device)
        self.shares = torch.full_like(self.directions[:1], 1.0 / k).repeat(len(embeddings), 1)
        self.samples = torch.stack(list(embeddings)).mean(dim=0).T.contiguous()
        if self.simplex == "sample":
            self.samples = project_simplex(self.samples)

    def model(self, view: int) -> torch.Tensor:
        """Return ``A diag(M_v) P'``, (k, n)."""
        return (self.directions * self.shares[view]) @ self.samples.T

    def penalty(self, embeddings: Sequence[torch.Tensor]) -> float:
        """Return what misfit and ridge add to the objective."""
        misfit = sum(float((z - self.model(v)).square().sum()) for v, z in enumerate(embeddings))
        return self.weight * misfit + self.ridge * float(self.shares.square().sum())

    def update(self, embeddings: Sequence[torch.Tensor]) -> None:
        """Update A, then P, then M; `penalty` never rises."""
        with one_intra_op_thread():
            self.update_directions(embeddings)
            self.update_samples(embeddings)
            self.update_shares(embeddings)

    def update_directions(self, embeddings: Sequence[torch.Tensor]) -> None:
        """Set A to the least-squares solution."""
        target = _total((z @ self.samples) * self.shares[v] for v, z in enumerate(embeddings))
        gram = _gram(self.shares) * _gram(self.samples)
        self.directions = _least_squares(self.directions, target, gram)

    def update_samples(self, embeddings: Sequence[torch.Tensor]) -> None:
        """Set P to the least-squares solution, or move it downhill on the simplex."""
        target = _total((z.T @ self.directions) * self.shares[v] for v, z in enumerate(embeddings))
        gram = _gram(self.shares) * _gram(self.directions)
        if self.simplex == "sample":
            self.samples = _descend(self.samples, target, gram)
        else:
            self.samples = _least_squares(self.samples, target, gram)

    def update_shares(self, embeddings: Sequence[torch.Tensor]) -> None:
        """Set M to the ridge solution, or move it downhill on the simplex."""
        target = torch.stack(
            [(self.directions * (z @ self.samples)).sum(dim=0) for z in embeddings]
        )
        gram = _gram(self.directions) * _gram(self.samples)
        ridge = self.ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        target, gram = self.weight * target, self.weight * gram + ridge
        if self.simplex == "view":
            self.shares = _descend(self.shares, target, gram)
        else:
            self.shares = _least_squares(self.shares, target, gram)


def _gram(factor: torch.Tensor) -> torch.Tensor:
    return factor.T @ factor


def _total(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Sum over views in their order."""
    return torch.stack(list(parts)).sum(dim=0)


def _least_squares(factor: torch.Tensor, target: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """Minimise ``tr(F G F') - 2 <F, T>``; directions that G does not see stay as they are."""
    inverse = torch.linalg.pinv(gram, rtol=_RANK_TOLERANCE, hermitian=True)
    return factor + (target - factor @ gram) @ inverse


def _descend(factor: torch.Tensor, target: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """Lower ``tr(F G F') - 2 <F, T>`` over rows on the simplex, by steps of 1/L."""
    largest = torch.linalg.eigvalsh(gram)[-1]
    if not largest > 0:
        return factor
    for _ in range(GRADIENT_STEPS):
        factor = project_simplex(factor - (factor @ gram - target) / largest)
    return factor
