"""FedHK-MVFC over sums alone: what replaces set-up, rounds and finish in a protected run.

Without noise one sum gives counts and moments, another, where the bandwidth is automatic, the
spread; with noise everything before round 1 follows from declared bounds and costs nothing. After
the rounds a sum of final figures, again without noise only, measures the result.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from configs.errors import DataRefused
from configs.plan import RunPlan
from privacy.mechanisms import GaussianNoise
from privacy.protection import cell_mass, grid, heat_kernel_noise
from strategies.agreed_views import AgreedViews
from strategies.base import FederatedStrategy
from strategies.messages import (
    FinishRequest,
    HelloReply,
    Message,
    PrepareRequest,
    SeedRequest,
)
from strategies.preparation import Preparation, view_spread
from strategies.run_state import Exchange
from strategies.secure_sum import SumCollector, Total
from strategies.statistics import Floats, Moments, SufficientStatistics
from strategies.unit_models import PooledModel, model_sizes, unpack_local_models
from strategies.unit_sums import (
    FinalFigures,
    HeatKernelUnits,
    SurveyedView,
    declared_scaling,
    survey_size,
    unpack_figures,
    unpack_survey,
)

__all__ = ["ProtectedSums"]

Replies = dict[str, Any]
Sums = Generator[Exchange, Replies, Any]


class ProtectedSums:
    """The sums of one protected FedHK-MVFC run.

    Parameters
    ----------
    strategy : FederatedStrategy
    hello : dict of str to HelloReply
        Sites that were admitted.
    views : AgreedViews

    Attributes
    ----------
    noise : GaussianNoise or None
        What the sites add to each round's sums.
    """

    def __init__(
        self, strategy: FederatedStrategy, hello: dict[str, HelloReply], views: AgreedViews
    ) -> None:
        self._strategy = strategy
        self._plan: RunPlan = strategy.plan
        self._views = views
        self._bounds = [v.bounds for v in views.descriptions]
        self.noise: GaussianNoise | None = heat_kernel_noise(self._plan, views.dims)
        self._collector = SumCollector(strategy, hello, grid(self._plan, self.noise))
        self._units: HeatKernelUnits | None = None
        #: Requests that every sum carries along: a site that was away adopts them then.
        self._carried: list[Message] = []
        self.contributors: tuple[str, ...] = ()

    @property
    def releases_left(self) -> bool:
        """Whether the plan's noisy releases allow another round."""
        return self.noise is None or self._collector.exchanges < self.noise.releases

    # -- before round 1 ----------------------------------------------------------------------

    def prepared(self) -> Generator[Exchange, Replies, tuple[Preparation, Floats]]:
        """Agree on scaling and bandwidth; return them with the latter's (s,) values."""
        yield from self._collector.set_up()
        ids, views = self._strategy.ids, self._views
        first = PrepareRequest(*ids, views.names, np.array(views.dims))
        if self.noise is not None:
            preparation = self._declared()
            self._carried = [first, self._scaling(preparation)]
            return preparation, preparation.bandwidth([])
        total = yield from self._sum([first], survey_size(views.dims))
        rows, surveyed = unpack_survey(total.vector, self._bounds)
        if self._plan.n_clusters > rows:
            raise DataRefused(
                f"n_clusters is {self._plan.n_clusters} but the sites hold {rows} rows together: "
                "ask for fewer clusters"
            )
        preparation = self._pooled(rows, surveyed)
        scaling = self._scaling(preparation)
        self._carried = [first]
        spread: list[Floats] = []
        if preparation.settings.bandwidth == "auto":
            total = yield from self._sum([scaling], 3 * sum(views.dims))
            spread = self._ready.unpack_spread(total.vector)
        self._carried = [first, scaling]
        return preparation, preparation.bandwidth(spread)

    def _pooled(self, rows: int, surveyed: Sequence[SurveyedView]) -> Preparation:
        return Preparation.pool(
            self._plan.settings(self._views.n_columns),
            [rows],
            [np.array([round(v.holding) for v in surveyed])],
            [np.array([round(v.partly_missing) for v in surveyed])],
            [[v.moments for v in surveyed]],
        )

    def _declared(self) -> Preparation:
        """Prepare from the bounds alone, as if values were spread evenly between them."""
        settings = self._plan.settings(self._views.n_columns)
        scaling = tuple(declared_scaling(b, settings.heat_kernel) for b in self._bounds)
        moments = tuple(
            Moments(np.ones(len(b)), b.mean(axis=1), np.diff(b)[:, 0] ** 2 / 12, b[:, 0], b[:, 1])
            for b in self._bounds
        )
        s = len(self._bounds)
        return Preparation(
            settings,
            0,
            moments,
            scaling,
            np.ones(s),
            cell_mass(self._plan, s),
            np.array([view_spread(m, sc) for m, sc in zip(moments, scaling, strict=True)]),
            np.ones(s, dtype=bool),
        )

    def _scaling(self, preparation: Preparation) -> SeedRequest:
        self._units = HeatKernelUnits(
            preparation.scaling,
            self._bounds,
            preparation.settings.heat_kernel,
            preparation.cell_mass,
            imputed=self.noise is not None,
        )
        return SeedRequest(
            *self._strategy.ids,
            preparation.scaling,
            preparation.holding_share,
            preparation.cell_mass,
            preparation.spread,
            preparation.mean,
            self._plan.n_clusters,
            0,
            self._plan.seed,
        )

    @property
    def _ready(self) -> HeatKernelUnits:
        assert self._units is not None
        return self._units

    @property
    def box(self) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
        """Declared bounds of each view in scaled units; centres never leave them."""
        return self._ready.low, self._ready.high

    # -- rounds ------------------------------------------------------------------------------

    def statistics(
        self, request: Message, number: int, n_starts: int
    ) -> Generator[Exchange, Replies, SufficientStatistics]:
        """Return the pooled statistics of one round; with noise, what it leaves usable of them."""
        c = self._plan.n_clusters
        size = sum(self._ready.sizes(n_starts, c))
        total = yield from self._sum([request], size, number)
        found = self._ready.unpack(total.vector, n_starts, c)
        if self.noise is None:
            floor = np.maximum(found.dispersion, 0.0)
            mass = tuple(np.maximum(w, 0.0) for w in found.mass)
            return SufficientStatistics(found.numerator, mass, floor)
        return usable(found, self.noise.sum_sigma(len(total.sites)))

    def models(
        self, request: Message, number: int, n_starts: int
    ) -> Generator[Exchange, Replies, PooledModel]:
        """Return the weighted mean of the sites' models after one round."""
        c = self._plan.n_clusters
        size = sum(model_sizes(self._ready, n_starts, c))
        total = yield from self._sum([request], size, number)
        return unpack_local_models(total.vector, self._ready, n_starts, c)

    # -- after the rounds --------------------------------------------------------------------

    def figures(
        self, request: FinishRequest, round_: int
    ) -> Generator[Exchange, Replies, FinalFigures | None]:
        """Measure the final model; None with noise, where that would be one more release."""
        if self.noise is not None:
            return None
        c, s = self._plan.n_clusters, len(self._bounds)
        total = yield from self._sum([request], 1 + c + s + 1, round_)
        return unpack_figures(total.vector, c, s)

    def close(self, request: Message | None, round_: int) -> Sums:
        """End the run at the sites."""
        return (yield from self._collector.close(request, round_))

    def _sum(
        self, requests: Sequence[Message], n_numbers: int, round_: int = 0
    ) -> Generator[Exchange, Replies, Total]:
        total = yield from self._collector.sum([*self._carried, *requests], n_numbers, round_)
        self.contributors = total.sites
        return total


def usable(noisy: SufficientStatistics, sigma: dict[str, float]) -> SufficientStatistics:
    """Make noisy sums, of values scaled to [0, 1], safe to divide.

    A mass below twice its noise's standard deviation says nothing: it becomes 0, and the coordinate
    keeps its old value. Other quotients are cut to [0, 1]. A dispersion is at least its noise.
    """
    numerators, masses = [], []
    for numerator, mass in zip(noisy.numerator, noisy.mass, strict=True):
        kept = np.where(mass >= 2.0 * sigma["mass"], mass, 0.0)
        weight = kept if kept.ndim == numerator.ndim else kept[..., None]
        numerators.append(np.where(weight > 0, np.clip(numerator, 0.0, weight), 0.0))
        masses.append(kept)
    floor = np.maximum(noisy.dispersion, sigma["dispersion"])
    return SufficientStatistics(tuple(numerators), tuple(masses), floor)
