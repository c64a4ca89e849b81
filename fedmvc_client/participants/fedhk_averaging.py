"""Local iterations, personalisation and quality of one site in parameter averaging.

With ``privacy.mechanism = "paper"`` a site's model leaves with the noise of Eqs. 73, 74 and 76; the
site itself goes on with its own model. Centres are sent as printed, in scaled units. View weights
are repaired as little as the server needs: negative ones become 0 and they sum to 1 again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError
from configs.plan import RunPlan
from configs.plan_tables import FedHKOptions
from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, memberships
from fedmvc_client.solvers.local import local_iterations
from fedmvc_client.solvers.views import PreparedViews
from privacy.paper_mechanism import PaperMechanism
from strategies.messages import LocalModelReply, RoundRequest

Floats = NDArray[np.float64]


class LocalModels:
    """The local models of one site, one a start, kept between rounds.

    Parameters
    ----------
    plan : RunPlan
    prepared : PreparedViews
    n_clusters : int
        The site's own number of clusters c', at most the plan's c.
    own_seeds : tuple of ndarray of shape (R, c', d_h)
        Where a site with c' < c starts in round 1.
    """

    def __init__(
        self,
        plan: RunPlan,
        prepared: PreparedViews,
        n_clusters: int,
        own_seeds: tuple[Floats, ...],
    ) -> None:
        self.plan = plan
        self.prepared = prepared
        self.n_clusters = n_clusters
        self._own_seeds = own_seeds
        self._share, self._active = own_share(prepared)
        self._local: dict[int, tuple[list[Floats], Floats]] = {}
        self._noise = _paper_noise(plan)

    def reply(self, run_id: str, request: RoundRequest) -> LocalModelReply:
        """Run E local iterations from the (personalised) broadcast model of each start."""
        settings = self.plan.settings(sum(v.n_columns for v in self.prepared.views))
        options: dict[str, Any] = {
            "bandwidth": request.bandwidth,
            "holding_share": self._share,
            "fuzzifier": settings.fuzzifier,
            "view_exponent": settings.view_exponent,
        }
        centers = self._global_rows(request)
        weights = on_active(request.view_weights, self._active)
        centers, weights = self._personalised(request, centers, weights, options)
        new_centers, new_weights, first = local_iterations(
            self.prepared,
            centers,
            weights,
            self.plan.fedhk.local_iterations,
            active=self._active,
            **options,
        )
        for i, start in enumerate(request.starts.tolist()):
            self._local[start] = ([a[i] for a in new_centers], new_weights[i])
        coefficient, agreement = self._quality(request, new_centers, new_weights, options)
        sent_centers, sent_weights = self._sent(request.round, new_centers, new_weights)
        wire = np.dtype(self.plan.fedhk.encoding)
        return LocalModelReply(
            run_id,
            request.round,
            self.prepared.n_rows,
            tuple(a.astype(wire) for a in sent_centers),
            sent_weights.astype(wire),
            first.objective(weights, self._share, settings.view_exponent),
            coefficient,
            agreement,
        )

    def _sent(
        self, number: int, centers: Sequence[Floats], weights: Floats
    ) -> tuple[Sequence[Floats], Floats]:
        """Return what leaves of the local models of a round: with the paper's noise, if any."""
        if self._noise is None:
            return centers, weights
        noisy, shares = self._noise.perturb(centers, weights, number - 1, self.prepared.n_rows)
        return noisy, on_active(np.maximum(shares, 0.0), self._active)

    def state(self) -> dict[str, Floats]:
        """Return the local models where the plan blends them with the broadcast, else nothing."""
        if self.plan.fedhk.gamma == 1.0 and self.plan.fedhk.rho == 1.0:
            return {}
        out: dict[str, Floats] = {}
        for start, (centers, weights) in self._local.items():
            out[f"{start}_weights"] = weights
            out |= {f"{start}_{h}": a for h, a in enumerate(centers)}
        return out

    def restore(self, state: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        views = range(len(self.prepared.views))
        for name, weights in state.items():
            start, _, kind = name.partition("_")
            if kind == "weights":
                self._local[int(start)] = ([state[f"{start}_{h}"] for h in views], weights)

    def _global_rows(self, request: RoundRequest) -> list[Floats]:
        """Broadcast centres this site works on: all, its own rows, or its own seeds at first."""
        if self.n_clusters == request.centers[0].shape[1]:
            return [np.asarray(a, dtype=np.float64) for a in request.centers]
        starts = request.starts.tolist()
        if request.rows.shape[1] == 0:
            found = self._own_seeds[0].shape[1]
            if found < self.n_clusters:
                raise ProtocolError(
                    f"this site has {found} distinct records for its {self.n_clusters} clusters"
                )
            return [a[starts] for a in self._own_seeds]
        rows = request.rows
        if (
            rows.shape[1] != self.n_clusters
            or rows.min() < 0
            or rows.max() >= request.centers[0].shape[1]
        ):
            raise ProtocolError("the rows given to this site are not rows of the global model")
        return [np.take_along_axis(a, rows[:, :, None], axis=1) for a in request.centers]

    def _personalised(
        self,
        request: RoundRequest,
        centers: list[Floats],
        weights: Floats,
        options: dict[str, Any],
    ) -> tuple[list[Floats], Floats]:
        """Blend the broadcast with the last local model of each start (Eqs. 63-64)."""
        chosen = self.plan.fedhk
        starts = request.starts.tolist()
        if (chosen.gamma == 1.0 and chosen.rho == 1.0) or any(s not in self._local for s in starts):
            return centers, weights
        local = [np.stack([self._local[s][0][h] for s in starts]) for h in range(len(centers))]
        local_weights = np.stack([self._local[s][1] for s in starts])
        return blend(self.prepared, (centers, weights), (local, local_weights), chosen, options)

    def _quality(
        self,
        request: RoundRequest,
        centers: Sequence[Floats],
        weights: Floats,
        options: dict[str, Any],
    ) -> tuple[Floats, Floats]:
        """Partition coefficient and label agreement, each only where the aggregation uses it."""
        n_starts = request.starts.shape[0]
        coefficient, agreement = np.ones(n_starts), np.ones(n_starts)
        aggregation = self.plan.fedhk.aggregation
        if aggregation not in ("quality", "nmi_softmax"):
            return coefficient, agreement
        from sklearn.metrics import normalized_mutual_info_score

        broadcast = on_active(request.view_weights, self._active)
        for i in range(n_starts):
            one = {**options, "bandwidth": request.bandwidth[i]}
            own = memberships(self.prepared, [a[i] for a in centers], weights[i], **one)
            coefficient[i] = (own**2).sum(axis=1).mean()
            if aggregation == "nmi_softmax":
                other = memberships(
                    self.prepared, [a[i] for a in request.centers], broadcast[i], **one
                )
                score = normalized_mutual_info_score(own.argmax(axis=1), other.argmax(axis=1))
                agreement[i] = min(max(float(score), 0.0), 1.0)
        return coefficient, agreement


def _paper_noise(plan: RunPlan) -> PaperMechanism | None:
    privacy = plan.privacy
    if privacy.mechanism != "paper" or privacy.epsilon is None or privacy.delta is None:
        return None
    return PaperMechanism(privacy.epsilon, privacy.delta, plan.max_rounds)


def own_share(prepared: PreparedViews) -> tuple[Floats, NDArray[np.bool_]]:
    """Share of the site's own records that hold each view, and the views that vary there.

    Returns
    -------
    share : ndarray of shape (s,)
        1 where the site lacks the view.
    active : ndarray of shape (s,), bool
    """
    held = prepared.held.mean(axis=0)
    varies = [bool((view.weight > 0).any()) for view in prepared.views]
    return np.where(held > 0, held, 1.0), (held > 0) & np.array(varies)


def on_active(view_weights: Floats, active: NDArray[np.bool_]) -> Floats:
    """View weights (R, s) restricted to the active views and rescaled to sum 1."""
    kept = np.where(active, view_weights, 0.0)
    total = kept.sum(axis=1, keepdims=True)
    if not active.any():
        return np.full(view_weights.shape, 1.0 / view_weights.shape[1])
    equal = active / active.sum()
    return np.where(total > 0, kept / np.where(total > 0, total, 1.0), equal)


def blend(
    prepared: PreparedViews,
    broadcast: tuple[Sequence[Floats], Floats],
    local: tuple[Sequence[Floats], Floats],
    chosen: FedHKOptions,
    options: dict[str, Any],
) -> tuple[list[Floats], Floats]:
    """``gamma A_global + (1 - gamma) A_local``, ``rho V_global + (1 - rho) V_local`` (Eqs. 63-64).

    "adaptive" takes ``J(local) / (J(local) + J(global))`` on the site's own records: the better the
    local model does there, the more of it is kept. Both J weigh the views that vary at the site
    alone: weight on a view that the site lacks would lower the broadcast's J for nothing.
    """
    adaptive = np.ones(broadcast[1].shape[0])
    if "adaptive" in (chosen.gamma, chosen.rho):
        objectives = []
        _, active = own_share(prepared)
        for centers, view_weights in (broadcast, local):
            weights = on_active(view_weights, active)
            sums = heat_kernel_pass(prepared, list(centers), weights, **options)
            objectives.append(
                sums.objective(weights, options["holding_share"], options["view_exponent"])
            )
        total = objectives[0] + objectives[1]
        adaptive = np.where(total > 0, objectives[1] / np.where(total > 0, total, 1.0), 1.0)
    gamma = adaptive if chosen.gamma == "adaptive" else np.full_like(adaptive, chosen.gamma)
    rho = adaptive if chosen.rho == "adaptive" else np.full_like(adaptive, chosen.rho)
    mixed = [
        gamma[:, None, None] * a + (1.0 - gamma[:, None, None]) * b
        for a, b in zip(broadcast[0], local[0], strict=True)
    ]
    return mixed, rho[:, None] * broadcast[1] + (1.0 - rho[:, None]) * local[1]


def personal_model(
    prepared: PreparedViews,
    centers: Sequence[Floats],
    view_weights: Floats,
    chosen: FedHKOptions,
    *,
    bandwidth: Floats,
    fuzzifier: float,
    view_exponent: float,
) -> tuple[Sequence[Floats], Floats]:
    """Blend the final model with ``local_iterations`` local passes from it.

    Parameters
    ----------
    prepared : PreparedViews
    centers : sequence of ndarray of shape (1, c, d_h)
    view_weights, bandwidth : ndarray of shape (1, s)
    chosen : FedHKOptions
        gamma = rho = 1 gives the global model itself, 0 the local one.
    fuzzifier, view_exponent : float
    """
    if chosen.gamma == 1.0 and chosen.rho == 1.0:
        return centers, view_weights
    share, active = own_share(prepared)
    options: dict[str, Any] = {
        "bandwidth": bandwidth,
        "holding_share": share,
        "fuzzifier": fuzzifier,
        "view_exponent": view_exponent,
    }
    weights = on_active(view_weights, active)
    local_centers, local_weights, _ = local_iterations(
        prepared, centers, weights, chosen.local_iterations, active=active, **options
    )
    return blend(prepared, (centers, view_weights), (local_centers, local_weights), chosen, options)
