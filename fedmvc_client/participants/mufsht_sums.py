"""Fed-MUFSHT at a site of a protected run: sums within bounds, or one clipped update a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.feature_choice import describe_chosen
from fedmvc_client.outcomes import SelectionResult
from fedmvc_client.participants.declared import declared_bounds
from fedmvc_client.participants.fed_mufsht import FedMUFSHTParticipant
from fedmvc_client.participants.mufsht_sum_checks import (
    check_broadcast,
    check_declared,
    check_history,
    check_next,
    check_origin,
    check_start,
    own_weight,
)
from fedmvc_client.sources import Records, Source
from privacy.mechanisms import GaussianNoise
from privacy.protection import update_noise
from privacy.sensitivity import clip_to_norm
from strategies.messages import (
    FeatureUnits,
    FitReply,
    FitRequest,
    Message,
    RefineRequest,
    ScalingReply,
    ScalingRequest,
    SelectionRequest,
    ShareReply,
    ShareRequest,
    ShareTableRequest,
    SurveyReply,
    SurveyRequest,
    history_of,
)

__all__ = ["MUFSHTSums"]

Floats = NDArray[np.float64]


class MUFSHTSums:
    """The site half of Fed-MUFSHT behind masks or noise (see `Summands`).

    Without noise it sends the sums of the plain participant, each within a bound (see
    `strategies.feature_units`), and gives its NMI in the clear where the plan weighs sites by it.
    With noise it sends its weights, shortened to ``privacy.clip``, and nothing else: the noise is
    made for the whole of a site's part, so that part may depend on its records at will.

    Without noise what a sum may hold depends on all sites having been sent the same from the
    survey on, also in the clear and in sums that were never opened: each request says what it
    follows (see `history_of`), and this site refuses one that does not follow its own.

    Values are cut to the declared bounds; text needs none.

    Parameters
    ----------
    plan : RunPlan
    run_id : str
    source : Source
    records : Records

    Raises
    ------
    ConfigError
        Where a column has no bounds and needs them.
    DataRefused
        Where there are fewer records than clusters.
    """

    def __init__(self, plan: RunPlan, run_id: str, source: Source, records: Records) -> None:
        self.plan = plan
        self._site = source.name
        self._noisy = plan.privacy.mechanism == "gaussian"
        self._weighs = not self._noisy and plan.mufsht.weighting != "uniform"
        self._declared: dict[str, Floats] = {}
        if plan.needs_bounds:
            self._declared = declared_bounds(describe_chosen(source, plan))
        views = {name: self._bounded(name, view) for name, view in records.views.items()}
        self._inner = FedMUFSHTParticipant.begin(
            plan, run_id, source, replace(records, views=views)
        )
        #: Bounds (d_v, 2) of the run's views; any for text, and for a view that is not here.
        self._bounds: list[Floats] = []
        self._held: list[bool] = []
        self._observed = np.zeros(0, dtype=bool)
        #: Hashes of the survey, and of the last request that the next answer depends on.
        self._surveyed, self._history = "", ""

    @property
    def noise(self) -> GaussianNoise | None:
        """The noise of one release; None where the plan has none."""
        return update_noise(self.plan, sum(map(len, self._bounds)) * self.plan.n_clusters)

    def adopt(self, request: Message) -> None:
        """Take what a round needs to know, and answer nothing.

        Raises
        ------
        ProtocolError
        """
        if isinstance(request, SurveyRequest):
            self._survey(request)
        elif isinstance(request, ScalingRequest):
            self._scale(request)
        else:
            raise ProtocolError(f"a {_named(request)} cannot be adopted before a sum")

    def ask(self, request: Message) -> Message:
        """Fit the site's weights and tell their NMI; the weights wait for the site's gamma.

        Raises
        ------
        ProtocolError
            Where the plan has no such figure, or the request does not fit.
        """
        if self._weighs and isinstance(request, FitRequest):
            return self._fit(request)
        raise ProtocolError(f"the plan has no answer in the clear to a {_named(request)}")

    def sums(self, request: Message) -> Floats:
        """Answer a request with sums (k,) within their bounds, or with the clipped update.

        Raises
        ------
        ProtocolError
        DataRefused
            Where the site's weights are larger than the masks have room for.
        """
        if self._noisy:
            return self._update(request)
        if isinstance(request, SurveyRequest):
            return self._survey_sums(request)
        if isinstance(request, ScalingRequest):
            return self._units.pack_scaling(self._scale(request).sums)
        if isinstance(request, FitRequest) and not self._weighs:
            return self._share(self._fit(request))
        if isinstance(request, ShareTableRequest) and self._weighs:
            check_history(self._site, request.history, self._history)
            weight = own_weight(self.plan, self._site, request)
            ids = request.run_id, request.plan_id
            return self._share(self._inner.share(ShareRequest(*ids, request.round, weight)))
        if isinstance(request, RefineRequest):
            check_history(self._site, request.history, self._history)
            votes = self._inner.refine(request).sums[0]
            self._history = history_of(request)
            return votes
        raise ProtocolError(f"a {_named(request)} cannot be summed under this plan")

    def finish(self, request: Message) -> SelectionResult:
        """Keep the selection and the site's own clusters; nothing leaves.

        Raises
        ------
        ProtocolError
        """
        if not isinstance(request, SelectionRequest):
            raise ProtocolError(f"a {_named(request)} does not end a run")
        return self._inner.finish(request)[1]

    def state(self) -> Mapping[str, NDArray[np.generic]]:
        """Return the plain participant's state, and what it follows from."""
        return {**self._inner.state(), "history": np.array(self._history)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take back what `state` gave."""
        self._inner.restore(state)
        self._history = str(state["history"])

    # -- one request each ------------------------------------------------------------------------

    def _survey(self, request: SurveyRequest) -> SurveyReply:
        reply = self._inner.survey(request)
        held = self._inner.records.views
        self._held = [name in held for name in request.views]
        anything = np.array([0.0, 1.0])
        self._bounds = [
            self._declared[name] if name in held and self._declared else np.tile(anything, (d, 1))
            for name, d in zip(request.views, request.n_columns.tolist(), strict=True)
        ]
        self._observed = reply.sums[2] > 0
        self._surveyed = self._history = history_of(request)
        return reply

    def _survey_sums(self, request: SurveyRequest) -> Floats:
        reply = self._survey(request)
        return self._units.pack_survey(reply.sums)

    def _scale(self, request: ScalingRequest) -> ScalingReply:
        if not self._noisy and self._surveyed:
            check_history(self._site, request.history, self._surveyed)
        if self._declared and request.origin.shape == self._observed.shape:
            check_origin(self._site, request.origin, self._bounds, self._observed)
        reply = self._inner.scale(request)
        self._history = history_of(request)
        return reply

    def _fit(self, request: FitRequest) -> FitReply | ShareReply:
        if self._noisy:
            check_declared(self._site, request.scaling, self._bounds, self._held)
            if self._inner.scaled:  # it comes with every round, for sites that missed the first
                request = replace(request, scaling=())
        else:
            limits = self._units.weight_bounds
            check_broadcast(self._site, request.weights, self._units.dims, limits)
            check_history(self._site, request.history, self._history)
            check_next(self._site, request, self._inner.begun)
        check_start(self.plan, self._site, request, sum(map(len, self._bounds)))
        history = history_of(request)
        reply = self._inner.round(request)
        self._history = history
        return reply

    def _update(self, request: Message) -> Floats:
        """Return the site's weights as one vector, at most ``privacy.clip`` long."""
        if not isinstance(request, FitRequest):
            raise ProtocolError(f"with noise nothing but rounds is summed: {_named(request)}")
        reply, clip = self._fit(request), self.plan.privacy.clip
        assert isinstance(reply, ShareReply) and clip is not None
        return clip_to_norm(reply.sums[0].ravel(), clip)

    def _share(self, reply: FitReply | ShareReply) -> Floats:
        """Pack a round's sums; refuse what is above the bounds that the masks are made for."""
        assert isinstance(reply, ShareReply)
        vector, most = self._units.pack_share(reply.sums), self.plan.privacy.max_rows
        if not (np.abs(vector) <= most).all():
            raise DataRefused(
                f"site '{self._site}' has weights W that are longer than masks made for {most} "
                "records a site (privacy.max_rows) have room for: raise max_rows or leave the run"
            )
        return vector

    @property
    def _units(self) -> FeatureUnits:
        if not self._bounds:
            raise ProtocolError("a sum came before the survey: the run was not set up here")
        return FeatureUnits(self.plan, self._bounds)

    def _bounded(self, name: str, view: Floats) -> Floats:
        """Cut a view's values to its bounds."""
        if not self._declared:
            return view
        bounds = self._declared[name]
        return np.clip(view, bounds[:, 0], bounds[:, 1])


def _named(request: Message) -> str:
    return type(request).__name__
