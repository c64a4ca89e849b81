"""The search over feature keys: one number a feature, of which the m highest are selected.

The criterion, how much of the embeddings the selected features leave unexplained, is what the
swarm is good at: from the deterministic order of digits (600 samples, 57 of 567 features) it takes
it from .053 to .038 or .039. But clustering does not follow the criterion (accuracy 73.2 to 75.6 %
and NMI 73.4 to 74.1 % after four searches, 75.1 and 75.2 before), so the search is off by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from configs.mufsht_profiles import Variant
from fedmvc_client.solvers.chunks import one_intra_op_thread
from fedmvc_client.solvers.thro import THRO, SwarmResult

__all__ = ["KeySearchResult", "KeysFitness", "search_keys", "selected"]

#: Added to the diagonal of the selected features' Gram matrix.
RIDGE = 1e-3
#: Up to this many features their Gram matrix is computed once (128 MB), else per subset.
GRAM_FEATURES = 4096
#: Most numbers gathered at once to rate subsets.
BLOCK_CELLS = 4_000_000


class KeysFitness:
    """Share of the embeddings that the m features with the highest keys do not explain.

    Parameters
    ----------
    views : sequence of torch.Tensor of shape (d_v, n), float64
        Rows of unit length.
    embeddings : sequence of torch.Tensor of shape (k, n)
        Orthonormal rows.
    m : int
        Features selected, 1 .. D.
    gram_features : int
        With at most so many features, their Gram matrix is computed once.

    Notes
    -----
    ``min_C ||Z - C X_S||^2 + ridge ||C||^2`` over ``||Z||^2``, Z all embeddings stacked, X_S the
    selected features. It never rises when a feature is added.
    """

    def __init__(
        self,
        views: Sequence[torch.Tensor],
        embeddings: Sequence[torch.Tensor],
        m: int,
        *,
        gram_features: int = GRAM_FEATURES,
    ) -> None:
        self.m = m
        self._x, self._z = torch.cat(list(views)), torch.cat(list(embeddings))
        self._total = float(self._z.square().sum())
        self._dual = m > self._x.shape[1]
        once = not self._dual and len(self._x) <= gram_features
        with one_intra_op_thread():
            self._cross = self._x @ self._z.T
            self._gram = self._x @ self._x.T if once else None

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Rate positions (N, D)."""
        chosen = selected(positions, self.m)
        cells = self.m * (self.m if self._gram is not None else self._x.shape[1])
        rate = self._rate_dual if self._dual else self._rate
        return torch.cat([rate(part) for part in chosen.split(max(BLOCK_CELLS // cells, 1))])

    def _rate(self, chosen: torch.Tensor) -> torch.Tensor:
        if self._gram is not None:
            gram = self._gram[chosen[:, :, None], chosen[:, None, :]]
        else:
            x = self._x[chosen]
            gram = x @ x.transpose(1, 2)
        left = torch.linalg.solve_triangular(_factor(gram), self._cross[chosen], upper=False)
        return 1.0 - left.square().sum(dim=(1, 2)) / self._total

    def _rate_dual(self, chosen: torch.Tensor) -> torch.Tensor:
        """Rate by the Gram matrix of the samples, the smaller one where m exceeds n."""
        x = self._x[chosen]
        factor = _factor(x.transpose(1, 2) @ x)
        left = torch.linalg.solve_triangular(factor, self._z.T, upper=False)
        return RIDGE * left.square().sum(dim=(1, 2)) / self._total


def selected(positions: torch.Tensor, m: int) -> torch.Tensor:
    """Features with the m highest keys of each position; of equal keys the lower index."""
    return positions.argsort(dim=1, descending=True, stable=True)[:, :m]


def _factor(gram: torch.Tensor) -> torch.Tensor:
    ridge = RIDGE * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.cholesky(gram + ridge)


@dataclass(frozen=True)
class KeySearchResult:
    """A subset that is at least as good as the one the search began with.

    Attributes
    ----------
    order : torch.Tensor of shape (D,), int64
        The m chosen features first; both parts in the order of the seed.
    unexplained, seed_unexplained : float
        The criterion of the chosen and of the seed's m features.
    swarm : SwarmResult
    """

    order: torch.Tensor
    unexplained: float
    seed_unexplained: float
    swarm: SwarmResult


def search_keys(
    fitness: KeysFitness,
    order: torch.Tensor,
    *,
    variant: Variant = "hc-thro",
    population: int = 30,
    iterations: int = 100,
    random_state: int = 0,
) -> KeySearchResult:
    """Search for m features that explain the embeddings better than the first of an order.

    Parameters
    ----------
    fitness : KeysFitness
        Says how many features are wanted.
    order : torch.Tensor of shape (D,), int64
        Features, best first: one horse starts with keys that fall along it.
    variant, population, iterations, random_state
        As for :class:`fedmvc_client.solvers.thro.THRO`.
    """
    keys = torch.empty(len(order), dtype=torch.float64, device=order.device)
    falling = torch.linspace(1.0, -1.0, len(order), dtype=torch.float64, device=order.device)
    keys[order] = falling
    swarm = THRO(
        len(order),
        variant=variant,
        population=population,
        iterations=iterations,
        seeds=[keys],
        random_state=random_state,
        device=order.device,
    )
    result = swarm.run(fitness)
    chosen = torch.zeros(len(order), dtype=torch.bool, device=order.device)
    chosen[selected(result.position[None], fitness.m)[0]] = True
    first = chosen[order]
    return KeySearchResult(
        order=torch.cat([order[first], order[~first]]),
        unexplained=result.fitness,
        seed_unexplained=float(fitness(keys[None])),
        swarm=result,
    )
