"""One machine's fixed-point runs, exchange by exchange: what the exchange figures are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.common import Floats, Ints, same_labels
from configs.profiles import HeatKernelSettings
from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, memberships, spread_sums
from fedmvc_client.solvers.initialisation import local_seeds
from fedmvc_client.solvers.views import PreparedViews
from strategies.acceleration import FixedPointDriver
from strategies.messages import Moments
from strategies.preparation import Preparation, pooled_seeds


@dataclass(frozen=True)
class Trace:
    """What the server knows after each exchange of one run, T exchanges.

    ``objective`` (T,) is J of the best start in its last annealing stage (infinite before that);
    ``labels`` (T, n) are those of the best start; ``starts`` (T,) is how many
    starts each exchange carried.
    """

    objective: Floats
    labels: Ints
    starts: Ints
    converged: bool
    best: int

    @property
    def end(self) -> float:
        """J at the end."""
        return float(self.objective[-1])

    @property
    def exchanges(self) -> int:
        """Exchanges of the whole run."""
        return int(self.objective.size)

    def until_objective(self, end: float | None = None, within: float = 1e-4) -> int:
        """Exchanges until J stays within a relative distance of its end (or of ``end``)."""
        target = self.end if end is None else end
        outside = np.flatnonzero(~(self.objective <= target * (1.0 + within)))
        return int(outside[-1]) + 2 if outside.size else 1

    def until_labels(self) -> int:
        """Exchanges until every row keeps its final label."""
        different = np.flatnonzero((self.labels != self.labels[-1]).any(axis=1))
        return int(different[-1]) + 2 if different.size else 1

    def agreement(self, other: Trace) -> float:
        """Share of rows with the same final label in both runs."""
        return same_labels(self.labels[-1], other.labels[-1])


class Problem:
    """One data set under one set of heat-kernel settings, ready to be iterated on.

    Parameters
    ----------
    views : sequence of ndarray of shape (n, d_h)
    n_clusters : int
    settings : HeatKernelSettings
    """

    def __init__(
        self, views: Sequence[Floats], n_clusters: int, settings: HeatKernelSettings
    ) -> None:
        observed = [np.isfinite(view).sum(axis=1) for view in views]
        self.n_clusters = n_clusters
        self.settings = settings
        self.preparation = Preparation.pool(
            settings,
            [views[0].shape[0]],
            [np.array([int((count > 0).sum()) for count in observed])],
            [
                np.array(
                    [
                        int(((count > 0) & (count < view.shape[1])).sum())
                        for count, view in zip(observed, views, strict=True)
                    ]
                )
            ],
            [[Moments.of(view) for view in views]],
        )
        self.prepared = PreparedViews(
            list(views),
            self.preparation.scaling,
            settings.heat_kernel,
            cell_mass=self.preparation.cell_mass,
            device="cpu",
        )

    @cached_property
    def bandwidth(self) -> Floats:
        """Bandwidth of each view, (s,)."""
        return self.preparation.bandwidth(spread_sums(self.prepared))

    def seeds(self, n_starts: int, seed: int) -> tuple[Floats, ...]:
        """Return the starting centres, (R, c, d_h) a view, that a run with this seed takes."""
        centers, counts = local_seeds(
            self.prepared,
            self.n_clusters,
            n_starts,
            seed,
            view_spread=self.preparation.spread,
            mean=self.preparation.mean,
        )
        return pooled_seeds(
            [centers],
            [counts],
            np.ones((1, len(centers)), dtype=bool),
            self.preparation.spread,
            self.preparation.mean,
            self.n_clusters,
            seed,
        )

    def run(
        self,
        centers: Sequence[Floats],
        acceleration: str,
        *,
        tol: float = 1e-6,
        max_evaluations: int = 3000,
        labels: bool = True,
    ) -> Trace:
        """Iterate from the given starts to ``tol`` and keep what each exchange brought."""
        preparation, settings = self.preparation, self.settings
        driver = FixedPointDriver(
            centers,
            np.tile(preparation.equal_weights, (centers[0].shape[0], 1)),
            view_exponent=settings.view_exponent,
            holding_share=preparation.holding_share,
            active=preparation.active,
            tol=tol,
            max_evaluations=max_evaluations,
            acceleration=acceleration,
            stages=preparation.stages,
        )
        objective: list[float] = []
        found: list[Ints] = []
        carried: list[int] = []
        while not driver.done:
            query = driver.query()
            sums = heat_kernel_pass(
                self.prepared,
                query.centers,
                query.view_weights,
                bandwidth=query.bandwidth_factor[:, None] * self.bandwidth,
                holding_share=preparation.holding_share,
                fuzzifier=settings.fuzzifier,
                view_exponent=settings.view_exponent,
            )
            driver.advance(query, sums)
            objective.append(np.inf if driver.objective is None else driver.objective)
            carried.append(query.starts.size)
            if labels:
                found.append(self.labels(*driver.solution()))
        return Trace(
            np.array(objective),
            np.array(found) if labels else np.zeros((len(objective), 0), dtype=np.int64),
            np.array(carried),
            driver.converged,
            driver.best,
        )

    def labels(self, centers: Sequence[Floats], view_weights: Floats) -> Ints:
        """Labels (n,) under centres (c, d_h) and view weights (s,) in scaled units."""
        found = memberships(
            self.prepared,
            centers,
            view_weights,
            bandwidth=self.bandwidth,
            holding_share=self.preparation.holding_share,
            fuzzifier=self.settings.fuzzifier,
            view_exponent=self.settings.view_exponent,
        )
        return np.asarray(found.argmax(axis=1), dtype=np.int64)
