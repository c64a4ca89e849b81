"""Fed-MUFSHT over sums alone: what replaces survey, scaling and shares in a protected run.

Without noise all sums are masked, and where the sites' NMI decide their weights it comes first, in
the clear. With noise a site sends its clipped weights in each round and nothing else: the scaling
follows from declared bounds, all sites weigh the same, and what they hold is what they declare.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from configs.plan import RunPlan
from privacy.mechanisms import GaussianNoise
from privacy.protection import grid, update_noise
from strategies.agreed_views import AgreedViews
from strategies.base import FederatedStrategy
from strategies.feature_rounds import FeatureSurvey, MeanWeights, RoundOutcome, aggregate
from strategies.feature_scaling import FeatureScaling, declared_feature_scaling
from strategies.feature_units import FeatureUnits
from strategies.messages import (
    FitReply,
    FitRequest,
    HelloReply,
    Message,
    RefineRequest,
    ScalingRequest,
    SelectionRequest,
    ShareTableRequest,
    SurveyRequest,
    history_of,
)
from strategies.mufsht_replies import check_quality
from strategies.run_state import Exchange
from strategies.secure_sum import SumCollector, Total
from strategies.statistics import Floats

__all__ = ["ProtectedFeatures"]

Replies = dict[str, Any]
Scaling = tuple[FeatureScaling, ...]


class ProtectedFeatures:
    """The sums of one protected Fed-MUFSHT run.

    Parameters
    ----------
    strategy : FederatedStrategy
    hello : dict of str to HelloReply
        Sites that were admitted.
    views : AgreedViews

    Attributes
    ----------
    noise : GaussianNoise or None
        What the sites add to each round's weights.
    contributors : tuple of str
        Sites in the last sum.
    """

    def __init__(
        self, strategy: FederatedStrategy, hello: dict[str, HelloReply], views: AgreedViews
    ) -> None:
        self._strategy = strategy
        self._plan: RunPlan = strategy.plan
        self._views = views
        self._bounds = [v.bounds for v in views.descriptions]
        self._shape = (views.n_columns, self._plan.n_clusters)
        self.noise: GaussianNoise | None = update_noise(self._plan, int(np.prod(self._shape)))
        self._units = FeatureUnits(self._plan, self._bounds) if self.noise is None else None
        self._collector = SumCollector(strategy, hello, grid(self._plan, self.noise))
        #: Requests that everything asked carries along: a site that was away adopts them then.
        self._carried: list[Message] = []
        #: Hash of the last request that the sites' next sum depends on; "" with noise.
        self._history = ""
        self._scaling: Scaling = ()
        self.contributors: tuple[str, ...] = ()

    # -- before round 1 ----------------------------------------------------------------------

    def prepared(self) -> Generator[Exchange, Replies, tuple[FeatureSurvey, Scaling]]:
        """Agree on the scaling; return it with what is known of the records."""
        yield from self._collector.set_up()
        if self._units is None:
            return self._declared()
        units, dims = self._units, self._views.dims
        total = yield from self._sum([self._survey_request], sum(units.survey_sizes))
        sums, text = units.unpack_survey(total.vector), self._plan.mufsht_settings().text
        survey = FeatureSurvey.of(sums, dims, text=text)
        self._carried = [self._survey_request]
        self._history = history_of(self._survey_request)
        second = self._scaling_request(survey)
        total = yield from self._sum([second], sum(units.scaling_sizes))
        self._scaling = survey.scaling(*units.unpack_scaling(total.vector, survey.count))
        self._carried = [self._survey_request, second]
        self._history = history_of(second)
        return survey, self._scaling

    def _declared(self) -> tuple[FeatureSurvey, Scaling]:
        """Let the declared bounds stand for what nobody may count."""
        middles = np.concatenate(self._bounds).mean(axis=1)
        survey = FeatureSurvey.declared(middles, self._views.dims)
        self._scaling = tuple(declared_feature_scaling(b) for b in self._bounds)
        self._carried = [self._survey_request, self._scaling_request(survey)]
        return survey, self._scaling

    @property
    def _survey_request(self) -> SurveyRequest:
        views = self._views
        return SurveyRequest(*self._strategy.ids, views.names, np.array(views.dims))

    def _scaling_request(self, survey: FeatureSurvey) -> ScalingRequest:
        parts = survey.origin, survey.frequencies, survey.documents
        return ScalingRequest(*self._strategy.ids, *parts, self._history)

    # -- rounds ------------------------------------------------------------------------------

    def qualities(
        self, number: int, weights: Floats
    ) -> Generator[Exchange, Replies, dict[str, float]]:
        """Let every site fit from the broadcast weights; return their NMI by name."""
        request = self._fit(number, weights, 0.0)
        replies = yield from self._collector.ask(
            [*self._carried, request], FitReply, check_quality, number
        )
        self._history = history_of(request)
        return {site: reply.quality for site, reply in sorted(replies.items())}

    def weighted_mean(
        self, number: int, gamma: dict[str, float]
    ) -> Generator[Exchange, Replies, RoundOutcome]:
        """Return the mean of the weights that wait at the sites, each times its gamma."""
        names = tuple(sorted(gamma))
        table = np.array([gamma[site] for site in names])
        request = ShareTableRequest(*self._strategy.ids, number, names, table, self._history)
        return (yield from self._shares(request, number))

    def plain_mean(self, number: int, weights: Floats) -> Generator[Exchange, Replies, MeanWeights]:
        """Let every site fit; return the mean of their weights, all sites weighing the same.

        With noise the mean of a view goes over the sites in the sum that declare to hold it.
        """
        if self._units is not None:
            request = self._fit(number, weights, 1.0 / len(self._strategy.sites))
            outcome = yield from self._shares(request, number)
            self._history = history_of(request)
            return outcome
        request = self._fit(number, weights, 1.0)
        total = yield from self._sum([request], weights.size, number)
        holding = np.sum([self._views.held[site] for site in total.sites], axis=0)
        mass = np.repeat(holding, self._views.dims)
        mean = total.vector.reshape(self._shape) / np.maximum(mass, 1)[:, None]
        return MeanWeights(np.where(mass[:, None] > 0, mean, 0.0), mass > 0)

    def _fit(self, number: int, weights: Floats, weight: float) -> FitRequest:
        scaling = self._scaling if number == 1 or self.noise is not None else ()
        return FitRequest(*self._strategy.ids, number, weights, scaling, weight, self._history)

    def _shares(self, request: Message, number: int) -> Generator[Exchange, Replies, RoundOutcome]:
        units = self._units
        assert units is not None
        total = yield from self._sum([request], sum(units.share_sizes), number)
        sums = units.unpack_share(total.vector)
        return aggregate(sums, self._views.dims, len(total.sites))

    # -- after the rounds --------------------------------------------------------------------

    def votes(self, request: RefineRequest, round_: int) -> Generator[Exchange, Replies, Floats]:
        """Return how many sites would choose each feature (D,)."""
        request = replace(request, history=self._history)
        total = yield from self._sum([request], self._views.n_columns, round_)
        return total.vector

    def close(
        self, request: SelectionRequest | None, round_: int
    ) -> Generator[Exchange, Replies, Replies]:
        """End the run at the sites."""
        return (yield from self._collector.close(request, round_))

    def _sum(
        self, requests: Sequence[Message], n_numbers: int, round_: int = 0
    ) -> Generator[Exchange, Replies, Total]:
        total = yield from self._collector.sum([*self._carried, *requests], n_numbers, round_)
        self.contributors = total.sites
        return total
