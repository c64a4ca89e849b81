"""The site half of Fed-MUFSHT: sums for the scaling, then an NMI and weighted weights a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.outcomes import SelectionResult
from fedmvc_client.participants.mufsht_checks import (
    check_fit,
    check_refine,
    check_scaling,
    check_selection,
    check_share,
    check_survey,
)
from fedmvc_client.participants.mufsht_views import require_variation, view_of
from fedmvc_client.policy import enforce_view
from fedmvc_client.solvers.feature_preparation import (
    feature_moments,
    holds_counts,
    text_rows,
)
from fedmvc_client.solvers.feature_site import FeatureSite, SiteFit
from fedmvc_client.sources import Records, Source
from strategies.messages import (
    FeatureScaling,
    FitReply,
    FitRequest,
    Message,
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

Floats = NDArray[np.float64]


class FedMUFSHTParticipant:
    """One site in one run of Fed-MUFSHT (see `Participant`).

    Parameters
    ----------
    plan : RunPlan
    run_id : str
    source : Source
        Name, policy, device, and what it says of its columns.
    records : Records

    Raises
    ------
    DataRefused
        Where there are fewer records than clusters.
    """

    ACTIONS: ClassVar[Mapping[str, type]] = {
        "survey": SurveyRequest,
        "scale": ScalingRequest,
        "round": FitRequest,
        "share": ShareRequest,
        "refine": RefineRequest,
        "finish": SelectionRequest,
    }
    REPLAYED: ClassVar[tuple[str, ...]] = ()
    noise: ClassVar[None] = None

    def __init__(self, plan: RunPlan, run_id: str, source: Source, records: Records) -> None:
        self.plan = plan
        self.run_id = run_id
        self.site = source.name
        self.records = records
        self._source = source
        self._settings = plan.mufsht_settings()
        n_rows = len(records.ids)
        if n_rows < plan.n_clusters:
            raise DataRefused(
                f"site '{self.site}' has {n_rows} rows but n_clusters is {plan.n_clusters}: ask "
                "for fewer clusters or leave the run"
            )
        self._names: tuple[str, ...] = ()
        self._dims: list[int] = []
        #: Views (n, d_v) with NaN where missing, all NaN where the site lacks one; later as text.
        self._views: list[Floats] = []
        self._rows: list[Floats] = []
        self._frequencies, self._documents = np.zeros(0), np.zeros(0)
        self._scaling: tuple[FeatureScaling, ...] = ()
        self._solver: FeatureSite | None = None
        self._fit: SiteFit | None = None
        self._last_round = 0
        #: The round whose weights wait for the site's weight gamma; 0: none.
        self._waiting = 0

    @classmethod
    def begin(
        cls, plan: RunPlan, run_id: str, source: Source, records: Records
    ) -> FedMUFSHTParticipant:
        """Take part in a run with the records that were read."""
        return cls(plan, run_id, source, records)

    def answer(
        self, request: SurveyRequest | ScalingRequest | FitRequest | ShareRequest | RefineRequest
    ) -> Message:
        """Answer a request of any action but finish."""
        if isinstance(request, SurveyRequest):
            return self.survey(request)
        if isinstance(request, ScalingRequest):
            return self.scale(request)
        if isinstance(request, FitRequest):
            return self.round(request)
        if isinstance(request, ShareRequest):
            return self.share(request)
        return self.refine(request)

    # -- before round 1 ----------------------------------------------------------------------

    def survey(self, request: SurveyRequest) -> SurveyReply:
        """Count records and cells, and sum each feature.

        Raises
        ------
        ProtocolError
            Where the request does not fit the site's views, or rounds have been answered: a new
            start would be a way to more rounds than the plan has.
        DataRefused
            Where a cell is too large, nothing varies, or text has negative cells or rows with some
            missing.
        PolicyRefused
            Where fewer than ``policy.min_cell`` records hold a view.
        """
        self._require_no_round("survey")
        check_survey(self.site, request)
        views = self._read(request.views, request.n_columns)
        require_variation(self.site, views)
        n_rows = len(self.records.ids)
        holding, weighted, count, first = [], [], [], []
        for name, view in zip(request.views, views, strict=True):
            observed = ~np.isnan(view)
            holding.append(float(observed.any(axis=1).sum()))
            enforce_view(self.site, self._source.policy.min_cell, name, int(holding[-1]))
            count.append(observed.sum(axis=0).astype(np.float64))
            text = self._settings.text
            weighted.append(float(text and not holds_counts(view)))
            cells = np.where(observed, view, 0.0)
            first.append((cells > 0).sum(axis=0) if text else cells.sum(axis=0))
        # Only now: views that are refused must not be there for a scale.
        self._hold(request.views, views)
        counted = np.concatenate(count)
        sums = (
            np.array([float(n_rows)]),
            np.array(holding),
            counted,
            np.where(counted > 0, float(n_rows), 0.0),
            np.concatenate(first).astype(np.float64),
            np.array(weighted),
        )
        return SurveyReply(self.run_id, sums)

    def _hold(self, names: Sequence[str], views: list[Floats]) -> None:
        """Make these the run's views; what was scaled before is void."""
        self._names, self._dims = tuple(names), [view.shape[1] for view in views]
        self._views, self._rows = views, []

    def _read(self, names: Sequence[str], n_columns: NDArray[np.int64]) -> list[Floats]:
        """Read the named views from the records."""
        least = self._source.policy.min_cell
        return [
            view_of(self.site, self.records, name, int(d), text=self._settings.text, min_cell=least)
            for name, d in zip(names, n_columns, strict=True)
        ]

    def scale(self, request: ScalingRequest) -> ScalingReply:
        """Weight text as all sites agreed, and sum each feature's cells about the origin.

        Raises
        ------
        ProtocolError
            Where there was no survey, the request does not fit it, or rounds have been answered.
        """
        self._require_no_round("scale")
        if not self._views:
            raise ProtocolError(f"site '{self.site}' was sent scale before survey")
        check_scaling(self.plan, self.site, request, self._dims)
        self._weigh(request.frequencies, request.documents)
        ends = np.cumsum(self._dims)[:-1]
        moments = [
            feature_moments(rows, origin)
            for rows, origin in zip(self._rows, np.split(request.origin, ends), strict=True)
        ]
        sums = (
            np.concatenate([m.total for m in moments]),
            np.concatenate([m.squares for m in moments]),
        )
        return ScalingReply(self.run_id, sums)

    def _weigh(self, frequencies: Floats, documents: Floats) -> None:
        """Make of the views what is scaled: text becomes unit rows."""
        self._frequencies, self._documents = frequencies, documents
        self._rows = self._views
        if self._settings.text:
            parts = np.split(frequencies, np.cumsum(self._dims)[:-1])
            self._rows = [
                text_rows(view, (part, int(n)) if n > 0 else None)
                for view, part, n in zip(self._views, parts, documents, strict=True)
            ]

    @property
    def scaled(self) -> bool:
        """Whether the scaling has come: it comes once."""
        return bool(self._scaling)

    @property
    def begun(self) -> int:
        """The last round that was fitted, whether its weights have left or wait; 0: none."""
        return max(self._last_round, self._waiting)

    # -- rounds ------------------------------------------------------------------------------

    def round(self, request: FitRequest) -> FitReply | ShareReply:
        """Fit the site's weights and send their quality; the weights, where gamma came along.

        Raises
        ------
        ProtocolError
            Where the request does not fit the plan, the columns or the order of rounds.
        DataRefused
            Where no feature of the run varies at this site.
        """
        if not self._rows:
            raise ProtocolError(f"site '{self.site}' was sent a round before scale")
        check_fit(
            self.plan,
            self.site,
            request,
            self._dims,
            last_round=self.begun,
            scaled=bool(self._scaling),
        )
        solver = self._solver or self._scaled(self._scaling or request.scaling)
        own = None if self._fit is None else self._fit.weights
        # A fit that fails leaves nothing behind: neither its scaling nor its weights.
        fit = solver.fit(request.weights, own)
        quality = 0.0 if request.weight > 0 else solver.quality(fit.weights)
        self._fit, self._solver, self._waiting = fit, solver, request.round
        self._scaling = self._scaling or request.scaling
        if request.weight > 0:
            return self._weighted(request.round, request.weight)
        return FitReply(self.run_id, request.round, quality)

    def share(self, request: ShareRequest) -> ShareReply:
        """Send the weights of the round that waits, times the site's weight gamma (Eq. 17).

        Raises
        ------
        ProtocolError
            Where no round waits, or another one.
        """
        check_share(self.site, request, self._waiting)
        return self._weighted(request.round, request.weight)

    def _weighted(self, number: int, gamma: float) -> ShareReply:
        fit = self._fit
        if fit is None:
            raise ProtocolError(f"site '{self.site}' was sent a weight before a round")
        self._last_round, self._waiting = number, 0
        sums = (
            gamma * fit.weights,
            np.where(self._ready().observes, gamma, 0.0),
            gamma * fit.view_weights,
            gamma * self._norms(fit.weights),
            np.array([fit.objective]),
        )
        return ShareReply(self.run_id, number, sums)

    def _norms(self, weights: Floats) -> Floats:
        """Norm of each view's weights (V,)."""
        parts = np.split(weights, np.cumsum(self._dims)[:-1])
        return np.array([np.linalg.norm(part) for part in parts])

    def _ready(self) -> FeatureSite:
        """Return the solver; made when first needed, also after a restart."""
        if self._solver is None:
            self._solver = self._scaled(self._scaling)
        return self._solver

    def _scaled(self, scaling: tuple[FeatureScaling, ...]) -> FeatureSite:
        return FeatureSite(
            self._rows,
            scaling,
            self._settings,
            self.plan.n_clusters,
            seed=self.plan.seed,
            device=self._source.device.device,
            name=f"site '{self.site}'",
        )

    # -- after the rounds --------------------------------------------------------------------

    def refine(self, request: RefineRequest) -> RefineReply:
        """Search for the features that explain the site's embeddings best, and name them.

        Raises
        ------
        ProtocolError
            Where the plan has no such search.
        """
        self._require_round("refine")
        check_refine(self.plan, self.site, request, sum(self._dims))
        solver = self._ready()
        solver.settle(request.weights)
        chosen = solver.refined(request.ranking, request.wanted)
        return RefineReply(self.run_id, (chosen,))

    def finish(self, request: SelectionRequest) -> tuple[SelectionReply, SelectionResult]:
        """Keep the selection and the site's own consensus clusters; nothing leaves.

        Raises
        ------
        ProtocolError
            Where the selection is not of this run.
        """
        self._require_round("finish")
        check_selection(
            self.plan, self.site, request, self._names, self._dims, self._source.describe()
        )
        solver = self._ready()
        solver.settle(request.selection.weights)
        result = SelectionResult(
            self.records.ids, solver.labels(), request.selection, self.plan.n_clusters
        )
        return SelectionReply(self.run_id), result

    def _require_round(self, action: str) -> None:
        if self._last_round == 0:
            raise ProtocolError(f"site '{self.site}' was sent {action} before a round")

    def _require_no_round(self, action: str) -> None:
        if self.begun > 0:
            raise ProtocolError(
                f"site '{self.site}' was sent {action} after round {self.begun}: start another run"
            )

    # -- restart -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was agreed on, the last fit and where the run stands.

        Rows and solver are made again from the records.
        """
        state: dict[str, NDArray[Any]] = {
            "views": np.array(self._names),
            "n_columns": np.array(self._dims),
        }
        if self._rows:
            state |= {"frequencies": self._frequencies, "documents": self._documents}
        if self._fit is not None:
            state |= {
                "progress": np.array([self._last_round, self._waiting]),
                "weights": self._fit.weights,
                "view_weights": self._fit.view_weights,
                "objective": np.array(self._fit.objective),
            }
            for key in ("center", "spread", "dead"):
                state[key] = np.concatenate([getattr(s, key) for s in self._scaling])
        return state

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` gave."""
        names = state["views"].tolist()
        self._hold(names, self._read(names, state["n_columns"]))
        if "documents" in state:
            self._weigh(state["frequencies"], state["documents"])
        if "weights" not in state:
            return
        ends = np.cumsum(self._dims)[:-1]
        parts = (np.split(state[key], ends) for key in ("center", "spread", "dead"))
        self._scaling = tuple(FeatureScaling(*part) for part in zip(*parts, strict=True))
        self._fit = SiteFit(state["weights"], state["view_weights"], float(state["objective"]))
        self._last_round, self._waiting = (int(x) for x in state["progress"])
