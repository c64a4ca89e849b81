"""Fed-MUFSHT as a Flower strategy: hello, survey, scale, rounds, finish.

Sites have their own patients and the same views, or some of them. The server learns sums for the
pooled scaling, an NMI and the weighted weights of each site; it publishes features ranked by name.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from configs.errors import ConfigError, QuorumLost
from configs.mufsht_profiles import MUFSHTSettings
from strategies.agreed_views import AgreedViews, agree_on_views, schema_conflicts
from strategies.base import FederatedStrategy, Protocol
from strategies.feature_rounds import (
    FeatureSurvey,
    RoundOutcome,
    aggregate,
    by_votes,
    initial_weights,
    quality_weights,
    rank_weights,
    summed,
)
from strategies.feature_scaling import FeatureScaling
from strategies.feature_selection import FeatureSelection, n_selected
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

#: Below this share of the sites' norm the mean has lost more than it kept: the sites disagree.
AGREEMENT = 0.5
#: Features that a warning names at most.
_NAMED = 5


class FedMUFSHTStrategy(FederatedStrategy):
    """Server half of Fed-MUFSHT.

    Attributes
    ----------
    selection : FeatureSelection or None
        The published result.
    metrics : dict
        Sizes, what was selected of each view, each site's NMI and weight, how far they agree.
    """

    _settings: MUFSHTSettings
    _views: AgreedViews
    _survey: FeatureSurvey
    _scaling: tuple[FeatureScaling, ...]
    _last: RoundOutcome
    _quality: dict[str, float]
    _gamma: dict[str, float]

    def protocol(self, hello: dict[str, HelloReply]) -> Protocol:
        """Yield the exchanges of one run."""
        self._settings = self.plan.mufsht_settings()
        for site, error in schema_conflicts(hello).items():
            self.refuse(site, error)
        self._views = agree_on_views({site: hello[site] for site in self.sites})
        while not (yield from self._pool()):
            continue  # a site that was counted has left: count again without it
        self._warn_of_dead()
        self._warn_of_mixed_text()
        if self.plan.n_clusters > max(self._views.dims):
            self.warn(
                f"n_clusters is {self.plan.n_clusters} but no view has more than "
                f"{max(self._views.dims)} columns: the embeddings are larger than what they explain"
            )
        self.start_rounds()
        yield from self._rounds()
        ranking, scores = rank_weights(self._last.weights, self._survey, self._settings)
        self._require_weights()
        if self._settings.search == "keys":
            ranking = yield from self._refine(ranking)
        yield from self._finish(ranking, scores)

    def model_arrays(self) -> ArrayRecord:
        """Arrays of ``selection.npz``, empty before there is a selection."""
        arrays = {} if self.selection is None else self.selection.arrays()
        return ArrayRecord({name: Array(value) for name, value in arrays.items()})

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

    def _require_weights(self) -> None:
        if self._last.norm == 0:
            raise ConfigError(
                f"0 of {self._views.n_columns} columns have weights after round "
                f"{len(self.state.history)}: lower mufsht.beta ({self._settings.beta:g})"
            )

    def _warn_of_mixed_text(self) -> None:
        """Name views whose cells are counts at some sites and weights at others."""
        for h, view in enumerate(self._views.names):
            holding = sum(bool(self._views.held[site][h]) for site in self.sites)
            weighted = round(float(self._survey.fractional[h]))
            if 0 < weighted < holding:
                self.warn(
                    f"view '{view}' holds weights of words at {weighted} of {holding} sites and "
                    "counts at the others: TF-IDF is applied at none; give counts at all of them"
                )

    def _warn_of_dead(self) -> None:
        never = self._survey.count == 0
        self._warn_of_columns(never, "are never observed")
        self._warn_of_columns(self._dead & ~never, "are constant")

    def _warn_of_columns(self, features: NDArray[np.bool_], why: str) -> None:
        """Name the features (D,) that score 0, a view at a time."""
        parts = np.split(features, np.cumsum(self._views.dims)[:-1])
        for view, part in zip(self._views.descriptions, parts, strict=True):
            found = [c for c, chosen in zip(view.columns, part, strict=True) if chosen]
            if found:
                named = ", ".join(f"'{c}'" for c in found[:_NAMED])
                self.warn(
                    f"{len(found)} of {len(view.columns)} columns of view '{view.name}' {why} "
                    f"and score 0 ({named}{', ...' if len(found) > _NAMED else ''})"
                )

    @property
    def _dead(self) -> NDArray[np.bool_]:
        return np.concatenate([s.dead for s in self._scaling])

    # -- rounds ------------------------------------------------------------------------------

    def _rounds(self) -> Generator[Exchange, Replies, None]:
        k = self.plan.n_clusters
        weights = initial_weights(self._views.n_columns, k, self.plan.seed)
        before: float | None = None
        for number in range(1, self.plan.max_rounds + 1):
            replies = yield from self._round(number, weights)
            self._keep(number, replies)
            self._last = aggregate(
                summed({site: reply.sums for site, reply in replies.items()}),
                self._views.dims,
                len(replies),
            )
            weights = self._last.weights
            self.record_round(
                number, self._last.objective, self._last.view_weights.tolist(), self._gamma
            )
            if self._quality:
                now = float(np.mean([self._quality[site] for site in sorted(self._quality)]))
                if before is not None and abs(now - before) < self.plan.tol:
                    return
                before = now

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
        survey, settings = self._survey, self._settings
        selection = FeatureSelection(
            views=self._views.names,
            columns=tuple(view.columns for view in self._views.descriptions),
            ranking=ranking,
            scores=scores,
            observed_share=survey.observed_share,
            weights=self._last.weights,
            scaling=self._scaling,
            frequencies=survey.frequencies,
            documents=survey.documents,
            ratio=settings.ratio,
            rank=settings.rank,
            text=settings.text,
            plan_id=self.plan.plan_id,
        )
        request = SelectionRequest(*self.ids, selection)
        replies = yield Exchange(
            "finish",
            dict.fromkeys(self.sites, request),
            (SelectionReply,),
            len(self.state.history),
        )
        self.checked(replies, lambda site, reply: None)
        self.selection = selection
        self._measure(selection)

    def _measure(self, selection: FeatureSelection) -> None:
        last = self._last
        if last.kept < AGREEMENT:
            self.warn(
                f"the mean keeps {last.kept:.2f} of the norm of the sites' weights (below "
                f"{AGREEMENT} they do not agree): the ranking says little about single sites"
            )
        empty = int((selection.scores[selection.support()] == 0).sum())
        if empty and selection.scores.any():
            self.warn(
                f"{empty} of {int(selection.support().sum())} selected columns have score 0 and "
                "say nothing: lower mufsht.ratio or mufsht.beta"
            )
        self._warn_of_columns(
            ~last.observed & (self._survey.count > 0),
            "are observed by no site with a weight in the last round",
        )
        names = selection.names
        self.metrics = {
            "objective": last.objective,
            "rows": self._survey.rows,
            "features": dict(zip(selection.views, selection.sizes, strict=True)),
            "selected": {view: len(columns) for view, columns in selection.selected().items()},
            "dead": [list(names[j]) for j in np.flatnonzero(self._dead)],
            "quality": dict(self._quality),
            "weights": dict(self._gamma),
            "kept": last.kept,
            "view_weights": dict(zip(selection.views, last.view_weights.tolist(), strict=True)),
            "rank": selection.rank,
            "ratio": selection.ratio,
            "settings": asdict(self._settings),
        }
