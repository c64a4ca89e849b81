"""FedHK-MVFC at a site of a protected run: every answer becomes sums of at most 1 a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.feature_choice import describe_chosen
from fedmvc_client.outcomes import SiteResult
from fedmvc_client.participants.declared import declared_bounds
from fedmvc_client.participants.fedhk_mvfc import FedHKParticipant
from fedmvc_client.sources import Records, Source
from privacy.mechanisms import GaussianNoise
from privacy.protection import cell_mass, heat_kernel_noise
from strategies.messages import (
    FinalFigures,
    FinishRequest,
    HeatKernelUnits,
    LocalModelReply,
    Message,
    PrepareReply,
    PrepareRequest,
    RoundRequest,
    SeedRequest,
    StatisticsReply,
    SurveyedView,
    declared_scaling,
    pack_figures,
    pack_local_model,
    pack_survey,
)

__all__ = ["FedHKSums"]

Floats = NDArray[np.float64]

#: Centres may lie outside the declared bounds by rounding, in widths of the bounds.
_SLACK = 1e-9


class FedHKSums:
    """The site half of FedHK-MVFC behind masks or noise (see `Summands`).

    Values are cut to the declared bounds, since masks and noise are made for sums within them. With
    noise, a missing cell takes the middle of its bounds, and scaling and shares come from nobody's
    data.

    Parameters
    ----------
    plan : RunPlan
    run_id : str
    source : Source
    records : Records
    """

    def __init__(self, plan: RunPlan, run_id: str, source: Source, records: Records) -> None:
        self.plan = plan
        self._noisy = plan.privacy.mechanism == "gaussian"
        self._declared = declared_bounds(describe_chosen(source, plan))
        views = {name: self._bounded(name, view) for name, view in records.views.items()}
        self._inner = FedHKParticipant.begin(plan, run_id, source, Records(records.ids, views))
        self._bounds: list[Floats] = []
        self._units: HeatKernelUnits | None = None

    @property
    def noise(self) -> GaussianNoise | None:
        """The noise of one release; None where the plan has none."""
        return heat_kernel_noise(self.plan, [len(b) for b in self._bounds])

    def adopt(self, request: Message) -> None:
        """Take what a round needs to know, and answer nothing.

        Raises
        ------
        ProtocolError
        """
        if isinstance(request, PrepareRequest):
            self._prepare(request)
        elif isinstance(request, SeedRequest):
            self._seed(request)
        else:
            raise ProtocolError(f"a {type(request).__name__} cannot be adopted before a sum")

    def ask(self, request: Message) -> Message:
        """Refuse: everything this method sends is a sum.

        Raises
        ------
        ProtocolError
        """
        raise ProtocolError(f"a {_named(request)} has no answer in the clear")

    def sums(self, request: Message) -> Floats:
        """Answer a request with sums (k,) in which one record counts at most 1.

        Raises
        ------
        ProtocolError
        DataRefused
            Where a record would count more.
        """
        if isinstance(request, RoundRequest):
            return self._round(request)
        if self._noisy:
            raise ProtocolError(f"with noise nothing but rounds is summed: {_named(request)}")
        if isinstance(request, PrepareRequest):
            return self._survey(self._prepare(request))
        if isinstance(request, SeedRequest):
            sums = self._seed(request)
            return self._ready().pack_spread(sums)
        if isinstance(request, FinishRequest):
            return self._figures(request)
        raise ProtocolError(f"a {_named(request)} cannot be summed")

    def finish(self, request: Message) -> SiteResult:
        """Label the site's records; nothing leaves.

        Raises
        ------
        ProtocolError
        """
        if not isinstance(request, FinishRequest):
            raise ProtocolError(f"a {_named(request)} does not end a run")
        return self._inner.finish(request)[1]

    def state(self) -> Mapping[str, NDArray[np.generic]]:
        """Return nothing: all that a round needs comes with it."""
        return {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take back nothing."""

    # -- one request each --------------------------------------------------------------------

    def _prepare(self, request: PrepareRequest) -> PrepareReply:
        reply = self._inner.prepare(request)
        unknown = [name for name in request.views if name not in self._declared]
        if unknown:
            raise ProtocolError(f"the server names view '{unknown[0]}', which no schema here has")
        self._bounds = [self._declared[name] for name in request.views]
        self._units = None
        return reply

    def _survey(self, reply: PrepareReply) -> Floats:
        views = [
            SurveyedView(float(holding), float(partly), moments)
            for holding, partly, moments in zip(
                reply.holding, reply.partly_missing, reply.moments, strict=True
            )
        ]
        return pack_survey(reply.n_rows, views, self._bounds)

    def _seed(self, request: SeedRequest) -> tuple[Floats, ...]:
        if self._noisy:
            self._check_declared(request)
        sums = self._inner.seed(request).spread_sums
        kernel = self.plan.settings(sum(len(b) for b in self._bounds)).heat_kernel
        self._units = HeatKernelUnits(
            request.scaling, self._bounds, kernel, request.cell_mass, imputed=self._noisy
        )
        return sums

    def _check_declared(self, request: SeedRequest) -> None:
        """Refuse scaling, shares or mass rules that do not follow from the bounds alone."""
        kernel = self.plan.settings(1).heat_kernel
        fits = len(request.scaling) == len(self._bounds) and all(
            np.array_equal(getattr(given, part), getattr(own, part))
            for given, own in zip(
                request.scaling, (declared_scaling(b, kernel) for b in self._bounds), strict=False
            )
            for part in ("offset", "scale", "delta_a", "delta_b")
        )
        shares = np.ones(len(self._bounds))
        masses = cell_mass(self.plan, len(self._bounds))
        if (
            not fits
            or not np.array_equal(request.holding_share, shares)
            or request.cell_mass != masses
        ):
            raise ProtocolError(
                "with noise, scaling and shares follow from the declared bounds alone, and the "
                "server's do not: use the same schema.toml and version at both ends"
            )

    def _round(self, request: RoundRequest) -> Floats:
        units = self._ready()
        self._check_inside(request.centers, request.view_weights, units)
        if self._noisy:
            self._check_bandwidth(request.bandwidth)
        try:
            reply = self._inner.round(request)
        except FloatingPointError as error:
            raise DataRefused(f"{error}: no noise is made for that") from error
        if isinstance(reply, StatisticsReply):
            return units.pack(reply.statistics)
        if isinstance(reply, LocalModelReply):
            return pack_local_model(reply, units, self._inner.held, self.plan.fedhk.aggregation)
        raise ProtocolError("coded statistics cannot be summed")

    def _check_bandwidth(self, bandwidth: Floats) -> None:
        """Refuse another bandwidth than the plan's: an enormous one enlarges what rounding leaves.

        A plan with noise names a number.
        """
        planned = float(self.plan.settings(sum(len(b) for b in self._bounds)).bandwidth)
        if not (bandwidth == planned).all():
            raise ProtocolError(f"with noise the bandwidth is the plan's {planned:g}, no other")

    def _check_inside(
        self, views: Sequence[Floats], view_weights: Floats, units: HeatKernelUnits
    ) -> None:
        """Refuse centres outside the declared bounds: far ones could single a record out."""
        s = len(units.low)
        if len(views) != s or any(
            a.shape[-1:] != low.shape for a, low in zip(views, units.low, strict=True)
        ):
            raise ProtocolError(f"the centres do not fit {s} views of {list(units.dims)} columns")
        for centers, low, high in zip(views, units.low, units.high, strict=True):
            room = _SLACK * (high - low)
            # written so that NaN fails too
            if not ((centers >= low - room) & (centers <= high + room)).all():
                raise ProtocolError(
                    "centres lie outside the declared bounds, where sums could single a record out"
                )
        if not np.allclose(view_weights.sum(axis=-1), 1.0, rtol=0.0, atol=1e-6):
            raise ProtocolError("view weights do not sum to 1")

    def _figures(self, request: FinishRequest) -> Floats:
        model = request.model
        self._check_inside(model.scaled_centers, model.view_weights, self._ready())
        reply, _ = self._inner.finish(request)
        n = reply.n_rows
        return pack_figures(
            FinalFigures(
                n, n * reply.mean_membership, reply.dispersion, n * reply.partition_coefficient
            )
        )

    def _ready(self) -> HeatKernelUnits:
        if self._units is None:
            raise ProtocolError("a sum came before the scaling: the run was not set up here")
        return self._units

    def _bounded(self, name: str, view: Floats) -> Floats:
        """Cut a view's values to its bounds; with noise, fill partly missing rows."""
        bounds = self._declared[name]
        cut = np.clip(view, bounds[:, 0], bounds[:, 1])
        if self._noisy:
            missing = ~np.isfinite(cut)
            partly = missing & ~missing.all(axis=1, keepdims=True)
            cut = np.where(partly, bounds.mean(axis=1), cut)
        return cut


def _named(request: Message) -> str:
    return type(request).__name__
