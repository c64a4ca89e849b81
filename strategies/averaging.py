"""Parameter averaging of FedHK-MVFC (Eqs. 59-62, 71): the server's state between rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.acceleration import Query, first_among_best
from strategies.aggregation import average, median, on_simplex, site_weights
from strategies.label_alignment import match_clusters
from strategies.statistics import Floats
from strategies.unit_models import PooledModel


class SiteModel:
    """What one site sends after its local iterations.

    Parameters
    ----------
    centers : sequence of ndarray of shape (R, c', d_h)
    view_weights : ndarray of shape (R, s)
    objective, partition_coefficient, agreement : ndarray of shape (R,)
    n_rows : int
    held : ndarray of shape (s,), bool
    """

    def __init__(
        self,
        centers: Sequence[Floats],
        view_weights: Floats,
        objective: Floats,
        partition_coefficient: Floats,
        agreement: Floats,
        n_rows: int,
        held: NDArray[np.bool_],
    ) -> None:
        self.centers = centers
        self.view_weights = view_weights
        self.objective = objective
        self.partition_coefficient = partition_coefficient
        self.agreement = agreement
        self.n_rows = n_rows
        self.held = held

    @property
    def n_clusters(self) -> int:
        """The site's own number of clusters c'."""
        return int(self.centers[0].shape[1])


class AveragingDriver:
    """R starts of parameter averaging; each stops at Eq. 71 or at a relative change of J.

    J is the sum over sites of the local objective at the broadcast model; averaging does not
    descend it, so it is watched and never relied on.

    Parameters
    ----------
    centers : sequence of ndarray of shape (R, c, d_h)
    view_weights : ndarray of shape (R, s)
    aggregation : {"weighted", "fedavg", "median", "quality", "nmi_softmax"}
    temperature : float
        Of "nmi_softmax".
    spread : ndarray of shape (s,)
        Total scaled variance of each view, for matching clusters.
    tol : float
        Eq. 71's epsilon, and the relative change of J.
    max_rounds : int

    Attributes
    ----------
    weights : dict of str to ndarray of shape (R',)
        Each site's weight in the last round, one for each start that was asked.
    best_weights : dict of str to float
        The same for the best of the starts asked.
    """

    def __init__(
        self,
        centers: Sequence[Floats],
        view_weights: Floats,
        *,
        aggregation: str,
        temperature: float,
        spread: Floats,
        tol: float,
        max_rounds: int,
    ) -> None:
        self.centers = [np.array(a) for a in centers]
        self.view_weights = np.array(view_weights)
        self.aggregation = aggregation
        self.temperature = temperature
        self.spread = spread
        self.tol = tol
        self.max_rounds = max_rounds
        self.rounds = 0
        n_starts = view_weights.shape[0]
        self.objectives = np.full(n_starts, np.inf)
        self.settled = np.zeros(n_starts, dtype=bool)
        self.weights: dict[str, Floats] = {}
        self.best_weights: dict[str, float] = {}
        self._held = np.ones(view_weights.shape[1], dtype=bool)
        self._rows: dict[str, dict[int, NDArray[np.int64]]] = {}

    @property
    def done(self) -> bool:
        """Whether every start has settled or the rounds are used up."""
        return bool(self.settled.all()) or self.rounds >= self.max_rounds

    @property
    def converged(self) -> bool:
        """Whether the best start has settled."""
        return bool(self.settled[self.best])

    @property
    def best(self) -> int:
        """Number of the start with the smallest J; the first of those that agree within ``tol``."""
        return first_among_best(self.objectives, self.tol)

    @property
    def objective(self) -> float:
        """J of the best start at the last broadcast."""
        return float(self.objectives[self.best])

    def query(self) -> Query:
        """Return the models to broadcast: one a start that has not settled."""
        starts = np.flatnonzero(~self.settled).astype(np.int64)
        return Query(
            starts,
            tuple(a[starts] for a in self.centers),
            self.view_weights[starts],
            np.ones(starts.shape[0]),
        )

    def restart(self, held: NDArray[np.bool_]) -> None:
        """Forget every J and go on with every start: the set of sites behind J has changed.

        Parameters
        ----------
        held : ndarray of shape (s,), bool
            Views that anybody still holds; another's weight becomes 0, its centres stay.
        """
        self._held = held
        self.objectives[:] = np.inf
        self.settled[:] = False

    def rows(self, site: str, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Global clusters that a site with fewer of them works on, (R', c'); (R', 0): all."""
        known = self._rows.get(site)
        if known is None:
            return np.zeros((starts.shape[0], 0), dtype=np.int64)
        return np.stack([known[int(r)] for r in starts])

    def advance(self, query: Query, models: Mapping[str, SiteModel]) -> None:
        """Aggregate the sites' models (in name order) into the next broadcast."""
        self.rounds += 1
        names = sorted(models)
        n_clusters = self.centers[0].shape[1]
        weights = site_weights(
            self.aggregation,
            np.array([models[n].n_rows for n in names], dtype=np.float64),
            np.stack([models[n].partition_coefficient for n in names]),
            np.stack([models[n].agreement for n in names]),
            n_clusters,
            self.temperature,
        )
        new_centers = []
        for h, old in enumerate(query.centers):
            stacked = np.full((len(names), *old.shape), np.nan)
            for i, name in enumerate(names):
                self._place(stacked[i], models[name], name, query, h)
            new_centers.append(self._combine(stacked, weights, old))
        shares = np.stack([np.where(models[n].held, models[n].view_weights, np.nan) for n in names])
        combined = self._combine(shares, weights, query.view_weights)
        new_weights = on_simplex(np.where(self._held, combined, 0.0), query.view_weights)
        objective = np.sum([models[n].objective for n in names], axis=0)
        self._move(query, new_centers, new_weights, objective)
        self.weights = {name: weights[i] for i, name in enumerate(names)}
        leader = first_among_best(self.objectives[query.starts], self.tol)
        self.best_weights = {name: float(w[leader]) for name, w in self.weights.items()}

    def advance_pooled(self, query: Query, pooled: PooledModel) -> None:
        """Take the weighted mean of models that nobody saw alone into the next broadcast."""
        self.rounds += 1
        centers = [
            new if held else old
            for new, old, held in zip(pooled.centers, query.centers, pooled.held, strict=True)
        ]
        weights = np.where(pooled.held & self._held, pooled.view_weights, 0.0)
        self._move(query, centers, on_simplex(weights, query.view_weights), pooled.objective)

    def _combine(self, values: Floats, weights: Floats, previous: Floats) -> Floats:
        if self.aggregation == "median":
            return median(values, previous)
        return average(values, weights, previous)

    def _place(self, target: Floats, model: SiteModel, name: str, query: Query, h: int) -> None:
        """Write a site's centres of view h into its global rows; NaN stays where it has none."""
        if not model.held[h]:
            return
        if model.n_clusters == target.shape[1]:
            target[:] = model.centers[h]
            return
        known = self._rows.setdefault(name, {})
        held = [int(v) for v in np.flatnonzero(model.held)]
        for i, start in enumerate(query.starts):
            if int(start) not in known:
                known[int(start)] = match_clusters(
                    [model.centers[v][i] for v in held],
                    [query.centers[v][i] for v in held],
                    self.spread[held],
                )
            target[i, known[int(start)]] = model.centers[h][i]

    def _move(
        self,
        query: Query,
        centers: list[Floats],
        view_weights: Floats,
        objective: Floats,
    ) -> None:
        for i, start in enumerate(query.starts):
            moved = np.sqrt(
                sum(
                    float(((new[i] - old[i]) ** 2).sum())
                    for new, old in zip(centers, query.centers, strict=True)
                )
            )
            turned = float(np.linalg.norm(view_weights[i] - query.view_weights[i]))
            before = self.objectives[start]
            still = np.isfinite(before) and abs(before - objective[i]) <= self.tol * abs(
                objective[i]
            )
            self.settled[start] = still or (moved < self.tol and turned < self.tol)
            self.objectives[start] = objective[i]
            for h, new in enumerate(centers):
                self.centers[h][start] = new[i]
            self.view_weights[start] = view_weights[i]

    def solution(self) -> tuple[tuple[Floats, ...], Floats]:
        """Centres (c, d_h) a view and view weights (s,) of the best start's last aggregate."""
        return tuple(a[self.best] for a in self.centers), self.view_weights[self.best]
