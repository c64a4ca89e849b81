"""Fed-MUFSHT as a Flower strategy: hello, survey, scale, rounds, finish.

Sites have their own patients and the same views, or some of them. The server learns sums for the
pooled scaling, an NMI and the weighted weights of each site; it publishes features ranked by name.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import QuorumLost
from strategies.agreed_views import agree_on_views, schema_conflicts
from strategies.base import Protocol
from strategies.feature_rounds import (
    FeatureSurvey,
    RoundOutcome,
    aggregate,
    by_votes,
    quality_weights,
    rank_weights,
    summed,
)
from strategies.feature_selection import n_selected
from strategies.messages import (
    FitReply,
    FitRequest,
    HelloReply,
    RefineReply,
    RefineRequest,
    ScalingReply,
    ScalingRequest,
    SelectionReply,
    SelectionRequest,
    ShareReply,
    ShareRequest,
    SurveyReply,
    SurveyRequest,
)
from strategies.mufsht_protected import ProtectedFeatures
from strategies.mufsht_protected_run import ProtectedMUFSHTRun
from strategies.mufsht_replies import (
    check_quality,
    check_refined,
    check_scaling,
    check_share,
    check_survey,
)
from strategies.run_state import Exchange
from strategies.statistics import Floats

Replies = dict[str, Any]


class FedMUFSHTStrategy(ProtectedMUFSHTRun):
    """Server half of Fed-MUFSHT."""

    def protocol(self, hello: dict[str, HelloReply]) -> Protocol:
        """Yield the exchanges of one run."""
        self._settings = self.plan.mufsht_settings()
        for site, error in schema_conflicts(hello).items():
            self.refuse(site, error)
        self._views = agree_on_views({site: hello[site] for site in self.sites})
        if self.plan.protected:
            yield from self._protected(ProtectedFeatures(self, hello, self._views))
            return
        while not (yield from self._pool()):
            continue  # a site that was counted has left: count again without it
        self._warn_of_data()
        yield from self._rounds(self._play)
        ranking, scores = rank_weights(self._last.weights, self._survey, self._settings)
        self._require_weights()
        if self._settings.search == "keys":
            ranking = yield from self._refine(ranking)
        yield from self._finish(ranking, scores)

    # -- before round 1 ----------------------------------------------------------------------

    def _pool(self) -> Generator[Exchange, Replies, bool]:
        """Agree on the scaling; return whether the sites are the same at its end."""
        views, text = self._views, self._settings.text
        request = SurveyRequest(*self.ids, views.names, np.array(views.dims))
        replies = yield Exchange("survey", dict.fromkeys(self.sites, request), (SurveyReply,))
        replies = self.checked(replies, lambda site, reply: check_survey(reply, views, text=text))
        sums = summed({site: reply.sums for site, reply in replies.items()})
        self._survey = survey = FeatureSurvey.of(sums, views.dims, text=text)
        counted = self.sites
        second = ScalingRequest(*self.ids, survey.origin, survey.frequencies, survey.documents)
        replies = yield Exchange("scale", dict.fromkeys(self.sites, second), (ScalingReply,))
        replies = self.checked(replies, lambda site, reply: check_scaling(reply, views))
        if self.sites != counted:
            return False
        self._scaling = survey.scaling(
            *summed({site: reply.sums for site, reply in replies.items()})
        )
        return True

    # -- rounds ------------------------------------------------------------------------------

    def _play(self, number: int, weights: Floats) -> Generator[Exchange, Replies, RoundOutcome]:
        """Play one round: fit, weigh, add up."""
        replies = yield from self._round(number, weights)
        self._keep(number, replies)
        outcome = aggregate(
            summed({site: reply.sums for site, reply in replies.items()}),
            self._views.dims,
            len(replies),
        )
        self.record_round(number, outcome.objective, outcome.view_weights.tolist(), self._gamma)
        self.take_back()
        return outcome

    def _keep(self, number: int, replies: Replies) -> None:
        """Restrict q and gamma to the sites that sent their weights; gamma sums to 1 again.

        Raises
        ------
        QuorumLost
            Where all of these weigh 0, which "linear" and a very small ``agg_temp`` allow.
        """
        received = sum(self._gamma[site] for site in replies)
        if received <= 0:
            raise QuorumLost(
                f"all {len(replies)} sites left in round {number} have weight 0: set "
                "mufsht.weighting to 'uniform', or raise mufsht.agg_temp"
            )
        self._gamma = {site: self._gamma[site] / received for site in replies}
        self._quality = {site: self._quality[site] for site in replies if site in self._quality}

    def _round(
        self, number: int, weights: Floats
    ) -> Generator[Exchange, Replies, dict[str, ShareReply]]:
        """Let every site fit, weigh them, and return the weighted weights of those that sent them.

        Uniform weights are known beforehand: then it is one exchange, and no NMI is sent.
        """
        settings = self._settings
        uniform = settings.weighting == "uniform"
        self._quality = {}
        self._gamma = quality_weights(dict.fromkeys(self.sites, 1.0), "uniform", 1.0)
        scaling = self._scaling if number == 1 else ()
        replies = yield Exchange(
            "round",
            {
                s: FitRequest(
                    *self.ids, number, weights, scaling, self._gamma[s] if uniform else 0.0
                )
                for s in self.sites
            },
            (ShareReply,) if uniform else (FitReply,),
            number,
            open=number > 1,  # a site without the scaling of round 1 cannot come back
        )
        if not uniform:
            replies = self.checked(replies, lambda site, reply: check_quality(reply))
            self._quality = {site: reply.quality for site, reply in replies.items()}
            self._gamma = quality_weights(self._quality, settings.weighting, settings.agg_temp)
            replies = yield Exchange(
                "share",
                {s: ShareRequest(*self.ids, number, self._gamma[s]) for s in self.sites},
                (ShareReply,),
                number,
                open=number > 1,
            )
        return self.checked(
            replies,
            lambda site, reply: check_share(
                reply, self._views, self.plan.n_clusters, self._gamma[site]
            ),
        )

    # -- after the rounds --------------------------------------------------------------------

    def _refine(self, ranking: NDArray[np.int64]) -> Generator[Exchange, Replies, Any]:
        wanted = n_selected(self._settings.ratio, len(ranking))
        request = RefineRequest(*self.ids, self._last.weights, ranking, wanted)
        replies = yield Exchange(
            "refine",
            dict.fromkeys(self.sites, request),
            (RefineReply,),
            len(self.state.history),
        )
        replies = self.checked(
            replies, lambda site, reply: check_refined(reply, self._views, wanted)
        )
        (votes,) = summed({site: reply.sums for site, reply in replies.items()})
        return by_votes(ranking, votes)

    def _finish(
        self, ranking: NDArray[np.int64], scores: Floats
    ) -> Generator[Exchange, Replies, None]:
        selection = self._selection(ranking, scores)
        request = SelectionRequest(*self.ids, selection)
        replies = yield Exchange(
            "finish",
            dict.fromkeys(self.sites, request),
            (SelectionReply,),
            len(self.state.history),
        )
        self.checked(replies, lambda site, reply: None)
        self._publish(selection)
