"""The site half of FedHK-MVFC: typed requests in, sums or a local model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.outcomes import SiteResult
from fedmvc_client.participants.fedhk_averaging import LocalModels, personal_model
from fedmvc_client.participants.fedhk_checks import (
    check_finish,
    check_prepare,
    check_round,
    check_seed,
    site_clusters,
)
from fedmvc_client.policy import enforce_view
from fedmvc_client.solvers.fuzzifier import hard_labels
from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, memberships, spread_sums
from fedmvc_client.solvers.initialisation import local_seeds
from fedmvc_client.solvers.views import PreparedViews
from fedmvc_client.sources import Records, Source
from strategies.messages import (
    LIMITS,
    ChangeCoder,
    ClusterModel,
    CodedStatistics,
    FinishReply,
    FinishRequest,
    LocalModelReply,
    Message,
    Moments,
    PrepareReply,
    PrepareRequest,
    RoundRequest,
    SeedReply,
    SeedRequest,
    StatisticsReply,
    SufficientStatistics,
)

Floats = NDArray[np.float64]

#: Beyond this many records a random sample of them is clustered for the starting centres.
_SEED_ROWS = 20_000


class FedHKParticipant:
    """One site in one run of FedHK-MVFC (see `Participant`).

    Parameters
    ----------
    plan : RunPlan
    run_id, site : str
    records : Records
    device, dtype : str
        As in :mod:`fedmvc_client.solvers.devices`.
    min_cell : int
        Fewest records that a proposed centre, or a view's moments, may stand for.
    """

    ACTIONS: ClassVar[Mapping[str, type]] = {
        "prepare": PrepareRequest,
        "seed": SeedRequest,
        "round": RoundRequest,
        "finish": FinishRequest,
    }
    REPLAYED: ClassVar[tuple[str, ...]] = ("prepare", "seed")
    noise: ClassVar[None] = None

    def __init__(
        self,
        plan: RunPlan,
        run_id: str,
        site: str,
        records: Records,
        device: str,
        dtype: str,
        *,
        min_cell: int,
    ) -> None:
        self.plan = plan
        self.run_id = run_id
        self.site = site
        self.records = records
        self.n_rows = len(records.ids)
        self._device, self._dtype = device, dtype
        #: With noise no record may change what another adds to a sum, not even by rounding.
        self._separate = plan.privacy.mechanism == "gaussian"
        self._min_cell = min_cell
        self._last_round = 0
        self._names: tuple[str, ...] = ()
        encoding = plan.fedhk.encoding
        self._coder = ChangeCoder(encoding) if encoding in LIMITS else None
        self._views: list[Floats | None] = []
        self._dims: list[int] = []
        self._prepared: PreparedViews | None = None
        self._seed_request: SeedRequest | None = None
        self._own_seeds: tuple[Floats, ...] = ()
        self._averaging: LocalModels | None = None

    @classmethod
    def begin(
        cls, plan: RunPlan, run_id: str, source: Source, records: Records
    ) -> FedHKParticipant:
        """Take part in a run with the records that were read."""
        device = source.device
        return cls(
            plan,
            run_id,
            source.name,
            records,
            device.device,
            device.dtype,
            min_cell=source.policy.min_cell,
        )

    @property
    def held(self) -> NDArray[np.bool_]:
        """Which of the run's views (s,) the site holds."""
        return np.array([view is not None for view in self._views], dtype=bool)

    def answer(self, request: PrepareRequest | SeedRequest | RoundRequest) -> Message:
        """Answer a request of any action but finish."""
        if isinstance(request, PrepareRequest):
            return self.prepare(request)
        if isinstance(request, SeedRequest):
            return self.seed(request)
        return self.round(request)

    # -- before round 1 ----------------------------------------------------------------------

    def prepare(self, request: PrepareRequest) -> PrepareReply:
        """Count records and missing cells and sum the moments of each view.

        Raises
        ------
        ProtocolError
        DataRefused
            Where the squares of a column overflow.
        PolicyRefused
            Where fewer than ``min_cell`` records hold a view.
        """
        check_prepare(request)
        self._names = request.views
        self._dims = [int(d) for d in request.n_columns]
        self._views = [self.records.views.get(name) for name in request.views]
        for name, view, dim in zip(request.views, self._views, self._dims, strict=True):
            if view is not None and view.shape[1] != dim:
                raise ProtocolError(
                    f"the server counts {dim} columns in view '{name}', this site {view.shape[1]}"
                )
        holding, partly, moments = [], [], []
        for name, view, dim in zip(self._names, self._views, self._dims, strict=True):
            values = np.empty((0, dim)) if view is None else view
            observed = np.isfinite(values).sum(axis=1)
            holding.append(int((observed > 0).sum()))
            enforce_view(self.site, self._min_cell, name, holding[-1])
            partly.append(int(((observed > 0) & (observed < dim)).sum()))
            moments.append(self._moments(name, values))
        return PrepareReply(
            self.run_id, self.n_rows, np.array(holding), np.array(partly), tuple(moments)
        )

    def _moments(self, name: str, values: Floats) -> Moments:
        with np.errstate(over="ignore", invalid="ignore"):
            found = Moments.of(values)
        finite = np.isfinite(found.mean) & np.isfinite(found.m2)
        if not finite.all():
            raise DataRefused(
                f"site '{self.site}': column {int(np.argmin(finite)) + 1} of view '{name}' holds "
                "numbers so large that their squares overflow: give it in another unit"
            )
        return found

    def seed(self, request: SeedRequest) -> SeedReply:
        """Scale the records, sum their spread, and propose starting centres where asked.

        A centre of fewer than ``min_cell`` records is close to a single one: it stays here, and
        the pooled mean with count 0 takes its place.
        """
        check_seed(self.plan, self.site, request, self._dims)
        self._prepared = PreparedViews(
            self._views,
            request.scaling,
            self.plan.settings(sum(self._dims)).heat_kernel,
            cell_mass=request.cell_mass,
            device=self._device,
            dtype="float64" if self._separate else self._dtype,
            separate=self._separate,
        )
        self._seed_request = request
        centers: Sequence[Floats] = [np.zeros((0, 0, d)) for d in self._dims]
        counts: Floats = np.zeros((0, 0))
        if request.n_starts > 0:
            centers, counts = local_seeds(
                self._prepared,
                request.n_clusters,
                request.n_starts,
                request.seed,
                view_spread=request.view_spread,
                mean=request.mean,
                max_rows=_SEED_ROWS,
                min_cell=self._min_cell,
            )
        self._own_seeds = tuple(centers)
        if self._min_cell > 1:
            drawn = counts * (min(self.n_rows, _SEED_ROWS) / self.n_rows)
            few = np.rint(drawn) < self._min_cell
            counts = np.where(few, 0.0, counts)
            centers = [
                np.where(few[:, :, None], mean, a)
                for a, mean in zip(centers, request.mean, strict=True)
            ]
        return SeedReply(self.run_id, tuple(centers), counts, tuple(spread_sums(self._prepared)))

    # -- rounds ------------------------------------------------------------------------------

    def round(self, request: RoundRequest) -> StatisticsReply | CodedStatistics | LocalModelReply:
        """Answer one round of the plan's aggregation.

        Raises
        ------
        ProtocolError
            Where the round is not one of the plan's (see `check_round`).
        """
        self._ready()
        check_round(self.plan, self.site, request, self._dims, self._last_round)
        self._last_round = request.round
        if self.plan.fedhk.aggregation == "exact":
            return self._statistics(request)
        return self._local_models().reply(self.run_id, request)

    def state(self) -> dict[str, Floats]:
        """Return what a restarted worker could not compute again; often nothing."""
        return {} if self._averaging is None else self._averaging.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` gave."""
        self._local_models().restore(state)

    def _local_models(self) -> LocalModels:
        prepared, _ = self._ready()
        if self._averaging is None:
            self._averaging = LocalModels(
                self.plan,
                prepared,
                site_clusters(self.plan, self.site),
                self._own_seeds,
            )
        return self._averaging

    def _ready(self) -> tuple[PreparedViews, SeedRequest]:
        if self._prepared is None or self._seed_request is None:
            raise ProtocolError("a round came before the scaling: the run was not set up here")
        return self._prepared, self._seed_request

    def _statistics(self, request: RoundRequest) -> StatisticsReply | CodedStatistics:
        prepared, seed = self._ready()
        settings = self.plan.settings(sum(self._dims))
        sums = heat_kernel_pass(
            prepared,
            request.centers,
            request.view_weights,
            bandwidth=request.bandwidth,
            holding_share=seed.holding_share,
            fuzzifier=settings.fuzzifier,
            view_exponent=settings.view_exponent,
        )
        blocks = [*sums.numerator, *sums.mass, sums.dispersion]
        if self._coder is not None:
            if request.reference != self._coder.round:
                self._coder.restart()
            base = self._coder.round
            codes, scales = self._coder.encode(request.round, request.starts.tolist(), blocks)
            return CodedStatistics(self.run_id, request.round, base, codes, scales)
        wire = np.dtype(self.plan.fedhk.encoding)
        s = len(request.centers)
        cast = tuple(b.astype(wire) for b in blocks)
        return StatisticsReply(
            self.run_id,
            request.round,
            SufficientStatistics(cast[:s], cast[s : 2 * s], cast[-1]),
        )

    # -- after the rounds --------------------------------------------------------------------

    def finish(self, request: FinishRequest) -> tuple[FinishReply, SiteResult]:
        """Label the site's records under the final model and blend the personal one (Eqs. 63-64).

        Only sums over all records go into the reply; memberships and the personal model stay in
        the :class:`SiteResult`.
        """
        prepared, _ = self._ready()
        check_finish(self.plan, request, self._names, self._dims)
        model = request.model
        centers = model.scaled_centers
        options: dict[str, Any] = {
            "holding_share": model.holding_share,
            "fuzzifier": model.fuzzifier,
            "view_exponent": model.view_exponent,
        }
        membership = memberships(
            prepared, centers, model.view_weights, bandwidth=model.bandwidth, **options
        )
        sums = heat_kernel_pass(
            prepared,
            [a[None] for a in centers],
            model.view_weights[None],
            bandwidth=model.bandwidth[None],
            **options,
        )
        coefficient = (membership**2).sum(axis=1).mean()
        reply = FinishReply(
            self.run_id,
            self.n_rows,
            sums.dispersion[0],
            membership.mean(axis=0),
            float(coefficient),
        )
        result = SiteResult(
            self.records.ids,
            hard_labels(membership, prepared.held),
            membership,
            model,
            self._personal_model(model, prepared),
        )
        return reply, result

    def _personal_model(self, model: ClusterModel, prepared: PreparedViews) -> ClusterModel:
        centers, weights = personal_model(
            prepared,
            [a[None] for a in model.scaled_centers],
            model.view_weights[None],
            self.plan.fedhk,
            bandwidth=model.bandwidth[None],
            fuzzifier=model.fuzzifier,
            view_exponent=model.view_exponent,
        )
        return replace(
            model,
            centers=tuple(
                sc.offset + sc.scale * a[0] for a, sc in zip(centers, model.scaling, strict=True)
            ),
            view_weights=weights[0],
        )
