"""A Fed-MUFSHT run over masked or noisy sums."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from configs.errors import FedMVCError
from privacy.selection_privacy import SITE_LEVEL_UTILITY
from strategies.feature_rounds import (
    MeanWeights,
    RoundOutcome,
    by_votes,
    quality_weights,
    rank_weights,
)
from strategies.feature_selection import n_selected
from strategies.messages import RefineRequest, SelectionRequest
from strategies.mufsht_protected import ProtectedFeatures
from strategies.mufsht_run import MUFSHTRun
from strategies.run_state import Exchange
from strategies.statistics import Floats

__all__ = ["ProtectedMUFSHTRun"]

Replies = dict[str, Any]


class ProtectedMUFSHTRun(MUFSHTRun):
    """Rounds in which the server sees sums over sites and, at most, the NMI of a single one."""

    def _protected(self, sums: ProtectedFeatures) -> Generator[Exchange, Replies, None]:
        """Run over masked or noisy sums; whatever ends it, the sites are told."""
        self.noise = sums.noise
        if self.noise is not None:
            self.warn(SITE_LEVEL_UTILITY)
        try:
            self._survey, self._scaling = yield from sums.prepared()
            self._warn_of_data()
            yield from self._rounds(partial(self._protected_play, sums))
            ranking, scores = rank_weights(self._last.weights, self._survey, self._settings)
            self._require_weights()
            last = len(self.state.history)
            if self._settings.search == "keys":
                wanted = n_selected(self._settings.ratio, len(ranking))
                request = RefineRequest(*self.ids, self._last.weights, ranking, wanted)
                ranking = by_votes(ranking, (yield from sums.votes(request, last)))
            selection = self._selection(ranking, scores)
            yield from sums.close(SelectionRequest(*self.ids, selection), last)
        except FedMVCError:
            yield from sums.close(None, len(self.state.history))
            raise
        self._publish(selection)

    def _protected_play(
        self, sums: ProtectedFeatures, number: int, weights: Floats
    ) -> Generator[Exchange, Replies, MeanWeights]:
        """Play one round: fit, weigh where the weights are not known before, add up."""
        settings = self._settings
        self._quality = {}
        outcome: MeanWeights
        if settings.weighting == "uniform":
            outcome = yield from sums.plain_mean(number, weights)
            contributors = dict.fromkeys(sums.contributors, 1.0)
            self._gamma = quality_weights(contributors, "uniform", 1.0)
        else:
            self._quality = yield from sums.qualities(number, weights)
            self._gamma = quality_weights(self._quality, settings.weighting, settings.agg_temp)
            outcome = yield from sums.weighted_mean(number, self._gamma)
        objective, view_weights = float("nan"), []
        if isinstance(outcome, RoundOutcome):
            objective, view_weights = outcome.objective, outcome.view_weights.tolist()
        self.record_round(number, objective, view_weights, self._gamma, sums.contributors)
        return outcome
