"""Hierarchical-Cognitive Tianji's Horse Racing Optimisation (Eqs. 4 and 5), on whole populations.

Two populations of horses, Tianji's (A) and the King's (B), search for the position of least
fitness; all proposals of a step are rated by one call. Every horse keeps the best position it has
been at, so the best of all never gets worse.

What it is worth: over the D * k weights of Fed-MUFSHT it is not worth its time. On 600 handwritten
digits (567 features, k = 10; all weights 0: an objective of 1.00) 3030 ratings end at .93 to 1.02
and the base optimiser's 6030 at .84 to .85; two alternating sweeps from a random start reach .37,
thirty from the SVD start .333, and a swarm that starts there improves it by rounding only. For
fixed embeddings the problem is convex and solved in closed form. Over feature keys the swarm does
find better subsets by its criterion (`thro_keys`), but clustering does not follow that. So the
search is off by default, and is here for the paper's ablations and for the key search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from configs.errors import ConfigError
from configs.mufsht_profiles import Variant
from fedmvc_client.solvers.chunks import one_intra_op_thread

__all__ = [
    "THRO",
    "Fitness",
    "SwarmResult",
    "cognitive_mapping",
    "competitive_learning",
    "pair_races",
]

#: Positions (N, n_dims) to their fitness (N,), lower is better.
Fitness = Callable[[torch.Tensor], torch.Tensor]

#: Fewest horses: two in each population, so that each has a peer.
SMALLEST = 4
#: Numbers that one step computes at once: what is used again at once stays in the cache.
BLOCK_CELLS = 1 << 19
#: Levy steps of exponent 1.5 by Mantegna's method: standard deviation of their numerator.
LEVY = 1.5
LEVY_SIGMA = (
    math.gamma(1 + LEVY)
    * math.sin(math.pi * LEVY / 2)
    / (math.gamma((1 + LEVY) / 2) * LEVY * 2 ** ((LEVY - 1) / 2))
) ** (1 / LEVY)
#: Share of a Levy step that a horse in training takes.
TRAINING = 0.2


@dataclass(frozen=True)
class SwarmResult:
    """What a run found.

    Attributes
    ----------
    position : torch.Tensor of shape (n_dims,)
    fitness : float
    history : tuple of float
        Least fitness so far, at the start and after each iteration: never increases.
    evaluations : int
        Positions rated.
    """

    position: torch.Tensor
    fitness: float
    history: tuple[float, ...]
    evaluations: int


def competitive_learning(
    x: torch.Tensor,
    rival: torch.Tensor,
    peer: torch.Tensor,
    draws: tuple[torch.Tensor, torch.Tensor],
    time: float,
) -> torch.Tensor:
    """Move towards the other population's best and a peer (HCL, Eq. 4).

    Parameters
    ----------
    x, rival, peer : torch.Tensor of shape (..., n_dims)
    draws : tuple of two torch.Tensor of the shape of ``x``
        R_1 and R_2, uniform in [0, 1].
    time : float
        u = t / T in [0, 1]; ``alpha_t = .5 + u``, ``beta_t = 1 - u``.
    """
    moved = (rival - x).mul_(draws[0]).mul_(0.5 + time)
    moved.addcmul_(draws[1], peer - x, value=1.0 - time)
    return moved.add_(x)


def cognitive_mapping(
    moved: torch.Tensor,
    x: torch.Tensor,
    memory: torch.Tensor,
    mean: torch.Tensor,
    time: float,
) -> torch.Tensor:
    """Move on towards the own best and the population's mean (ACM, Eq. 5).

    Parameters
    ----------
    moved : torch.Tensor of shape (..., n_dims)
        After Eq. 4.
    x, memory, mean : torch.Tensor of shape (..., n_dims)
        Before Eq. 4; ``pbest``; ``gmean``.
    time : float
        u = t / T in [0, 1]; ``gamma_t = .5 u``, ``delta_t = .5 (1 - u)``.
    """
    mapped = (mean - x).mul_(0.5 * (1.0 - time)).add_(moved)
    return mapped.add_(memory - x, alpha=0.5 * time)


def pair_races(
    tianji: Sequence[float], king: Sequence[float], strangers: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """Pair the horses of two populations as the story has it.

    Parameters
    ----------
    tianji, king : sequence of N float
        Fitness, fastest (least) first.
    strangers : sequence of N int
        For each race a horse of Tianji's, drawn at random, whom a beaten one learns from.

    Returns
    -------
    list of N (horse, guide, king's horse, king's guide)
        Numbers of horses: 0 .. N-1 are Tianji's, N .. 2N-1 the King's. Where Tianji's slowest is
        the faster, the slowest race, else it is given away to the King's fastest. Where both
        slowest are equal, the fastest decide alike.
    """
    n = len(tianji)
    slow, fast, king_slow, king_fast = n - 1, 0, n - 1, 0
    races = []
    for stranger in strangers:
        if tianji[slow] < king[king_slow]:
            races.append((slow, 0, n + king_slow, slow))
            slow, king_slow = slow - 1, king_slow - 1
        elif tianji[slow] == king[king_slow] and tianji[fast] < king[king_fast]:
            races.append((fast, 0, n + king_fast, fast))
            fast, king_fast = fast + 1, king_fast + 1
        else:
            races.append((slow, stranger, n + king_fast, n))
            slow, king_fast = slow - 1, king_fast + 1
    return races


class THRO:
    """A swarm that can be run, given a new fitness and run on.

    Parameters
    ----------
    n_dims : int
    variant : {"hc-thro", "thro", "no-hcl", "no-acm"}
        "hc-thro": Eqs. 4 and 5; "no-hcl", "no-acm": one of them left out; "thro": the base
        optimiser, races and training, all races of an iteration at once.
    population : int, default 30
        Horses of both populations together; an odd one is left out.
    iterations : int, default 100
        T of the schedules, over all runs.
    scale : float, default 1.0
        Start positions are uniform in [-scale, scale].
    bound : float, default 1.0
        Positions are clipped to [-bound, bound].
    greedy : bool, default True
        A horse moves only where that improves it; then its best position is where it stands, and
        Eq. 5's term of memory is 0. False: it moves always, and remembers its best (not for
        "thro", which is greedy).
    seeds : sequence of torch.Tensor of shape (n_dims,)
        Positions that some horses start from, at most as many as there are horses.
    random_state : int
        Same seed, same device: same result, whatever the number of threads.
    device : torch.device

    Raises
    ------
    ConfigError
        If the population, the iterations or the seeds do not fit.
    """

    def __init__(
        self,
        n_dims: int,
        *,
        variant: Variant = "hc-thro",
        population: int = 30,
        iterations: int = 100,
        scale: float = 1.0,
        bound: float = 1.0,
        greedy: bool = True,
        seeds: Sequence[torch.Tensor] = (),
        random_state: int = 0,
        device: torch.device | None = None,
    ) -> None:
        if population < SMALLEST:
            raise ConfigError(
                f"a swarm of {population} horses is too small: give at least {SMALLEST}"
            )
        if iterations < 1:
            raise ConfigError(f"a swarm of {iterations} iterations does nothing: give at least 1")
        self._n = population // 2
        if len(seeds) > 2 * self._n:
            raise ConfigError(
                f"{len(seeds)} seeds do not fit {2 * self._n} horses: give fewer seeds or a larger "
                "population"
            )
        self._variant, self._greedy = variant, greedy or variant == "thro"
        self._iterations, self._bound = iterations, bound
        self._done = 0
        self._device = torch.device("cpu") if device is None else device
        self._generator = torch.Generator(self._device)
        self._generator.manual_seed(random_state)
        self._x = (2.0 * self._uniform(2 * self._n, n_dims) - 1.0) * scale
        for number, seed in enumerate(seeds):
            self._x[self._n * (number % 2) + number // 2] = seed
        self._x.clamp_(-bound, bound)
        self._worst = 2 * self._n - 1

    @torch.no_grad()
    def run(self, fitness: Fitness, iterations: int | None = None) -> SwarmResult:
        """Search on from the best position of every horse.

        Parameters
        ----------
        fitness : callable
            May differ from the last run's: all horses are rated anew.
        iterations : int, optional
            By default all that are left of T, at least 1.
        """
        if iterations is None:
            iterations = max(self._iterations - self._done, 1)
        step = self._race_and_train if self._variant == "thro" else self._learn
        with one_intra_op_thread():
            herd = _Herd(self._x, fitness)
            history = [herd.best]
            for _ in range(iterations):
                self._done += 1
                step(herd, min(self._done / self._iterations, 1.0))
                history.append(herd.best)
        self._x = herd.memory
        self._worst = int(herd.record.argmax())
        position = herd.memory[int(herd.record.argmin())].clone()
        return SwarmResult(position, history[-1], tuple(history), herd.evaluations)

    def place(self, position: torch.Tensor) -> None:
        """Put a position from elsewhere in the place of the worst horse, for the next run."""
        self._x[self._worst] = position.clamp(-self._bound, self._bound)

    def _learn(self, herd: _Herd, time: float) -> None:
        """Eqs. 4 and 5 for both populations at once."""
        n, x = self._n, herd.x
        own = torch.arange(2 * n, device=self._device) // n
        best = herd.fitness.view(2, n).argmin(dim=1)
        rival = best[1 - own] + n * (1 - own)
        peer = torch.randint(0, n - 1, (2 * n,), **self._drawn)
        peer += peer >= torch.arange(2 * n, device=self._device) % n
        peer += n * own
        mean = x.view(2, n, -1).mean(dim=1)
        moved = torch.empty_like(x)
        for rows in torch.arange(2 * n).split(max(BLOCK_CELLS // x.shape[1], 1)):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            step = x[part]
            if self._variant != "no-hcl":
                draws = (self._uniform(*step.shape), self._uniform(*step.shape))
                step = competitive_learning(step, x[rival[part]], x[peer[part]], draws, time)
            if self._variant != "no-acm":
                memory = x[part] if self._greedy else herd.memory[part]
                step = cognitive_mapping(step, x[part], memory, mean[own[part]], time)
            torch.clamp(step, -self._bound, self._bound, out=moved[part])
        herd.move(moved, self._greedy)

    def _race_and_train(self, herd: _Herd, time: float) -> None:
        """One iteration of the base optimiser: shuffle, race, train."""
        n, left = self._n, 1.0 - time
        dealt = torch.randperm(2 * n, **self._drawn).view(2, n)
        ranks = herd.fitness[dealt].argsort(dim=1, stable=True)
        dealt = dealt.gather(1, ranks)
        herd.reorder(dealt.flatten())
        tianji, king = herd.fitness.view(2, n).tolist()
        strangers = torch.randint(0, n, (n,), **self._drawn).tolist()
        races = torch.tensor(pair_races(tianji, king, strangers), device=self._device)
        runner = torch.cat([races[:, 0], races[:, 2]])
        guide = herd.x[torch.cat([races[:, 1], races[:, 3]])]
        x = herd.x[runner]
        gap = herd.x[:n].mean(dim=0) - herd.x[n:].mean(dim=0)
        share = torch.sin(math.pi / 2 * self._uniform(2 * n, 1))
        pull = self._levy(2 * n, 1) * (self._uniform(*x.shape) < share)
        # every second horse is stretched and every tenth shifted, both switched by rounding
        stretch = 1.0 + torch.round(0.5 * (0.5 + self._uniform(2 * n, 1))) * self._normal(2 * n, 1)
        shift = torch.round(0.5 * (0.1 + self._uniform(2 * n, 1))) * self._normal(2 * n, 1)
        moved = left * x + time * guide + pull * (guide - x + left * gap)
        moved = (moved * stretch + shift).clamp_(-self._bound, self._bound)
        herd.move(torch.empty_like(moved).index_copy_(0, runner, moved), greedy=True)

        x = herd.x.view(2, n, -1)
        best = x[torch.arange(2, device=self._device), herd.fitness.view(2, n).argmin(dim=1)]
        pairs = self._uniform(2, n, n).argsort(dim=2)[:, :, :2]
        groups = torch.arange(2, device=self._device)[:, None]
        apart = x[groups, pairs[..., 0]] - x[groups, pairs[..., 1]]
        wander = x + TRAINING * self._levy(*x.shape) * apart
        swing = 0.5 * (1.0 + 0.001 * left**2 * torch.sin(math.pi * self._uniform(*x.shape)))
        follow = best[:, None] + swing * (best[:, None] - x)
        moved = torch.where(self._uniform(*x.shape) > 0.5, wander, follow)
        herd.move(moved.clamp_(-self._bound, self._bound).flatten(0, 1), greedy=True)

    @property
    def _drawn(self) -> dict:
        return {"generator": self._generator, "device": self._device}

    def _uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, dtype=torch.float64, **self._drawn)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, **self._drawn)

    def _levy(self, *shape: int) -> torch.Tensor:
        return LEVY_SIGMA * self._normal(*shape) / self._normal(*shape).abs() ** (1 / LEVY)


class _Herd:
    """Where the horses of both populations are, and have been best, during one run."""

    def __init__(self, x: torch.Tensor, rate: Fitness) -> None:
        self._rate = rate
        self.x = x.clone()
        self.fitness = rate(self.x)
        self.memory, self.record = self.x, self.fitness
        self.evaluations = len(x)

    @property
    def best(self) -> float:
        return float(self.record.min())

    def move(self, moved: torch.Tensor, greedy: bool) -> None:
        """Rate proposals and take those that improve a horse, or all."""
        rated = self._rate(moved)
        self.evaluations += len(moved)
        better = rated < self.record
        self.memory[better] = moved[better]
        self.record = torch.where(better, rated, self.record)
        self.x, self.fitness = (self.memory, self.record) if greedy else (moved, rated)

    def reorder(self, order: torch.Tensor) -> None:
        """Renumber the horses of a greedy herd."""
        self.memory, self.record = self.memory[order], self.record[order]
        self.x, self.fitness = self.memory, self.record
