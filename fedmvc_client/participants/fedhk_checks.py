"""What a request of FedHK-MVFC may ask under the plan that the site agreed to.

A server that asks for more clusters, starts or rounds than the plan has could read records out of
the replies, so everything that the plan fixes is compared with it before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError
from configs.plan import RunPlan
from strategies.messages import (
    ClusterModel,
    FinishRequest,
    PrepareRequest,
    RoundRequest,
    SeedRequest,
    ViewScaling,
)

__all__ = ["check_finish", "check_prepare", "check_round", "check_seed", "site_clusters"]

#: No view has more columns than this.
_MAX_COLUMNS = 1_000_000

Floats = NDArray[np.float64]


def site_clusters(plan: RunPlan, site: str) -> int:
    """Clusters that a site works on: the plan's, or fewer where the plan says so."""
    return plan.fedhk.local_clusters.get(site, plan.n_clusters)


def check_prepare(request: PrepareRequest) -> None:
    """Check that every view is named once, with its number of columns.

    Raises
    ------
    ProtocolError
    """
    s = len(request.views)
    if s == 0 or len(set(request.views)) != s or request.n_columns.shape != (s,):
        raise ProtocolError(
            f"prepare names {s} views with {request.n_columns.size} column counts: each once"
        )
    if (request.n_columns < 1).any() or (request.n_columns > _MAX_COLUMNS).any():
        raise ProtocolError(f"a view's number of columns is not between 1 and {_MAX_COLUMNS}")


def check_seed(plan: RunPlan, site: str, request: SeedRequest, dims: Sequence[int]) -> None:
    """Compare the scaling's shapes with the views and the seeds asked for with the plan.

    Parameters
    ----------
    plan : RunPlan
    site : str
    request : SeedRequest
    dims : sequence of int
        Columns of each view, as prepared.

    Raises
    ------
    ProtocolError
    """
    if not dims or len(request.scaling) != len(dims):
        raise ProtocolError("seed came before prepare or with another number of views")
    s = len(dims)
    if (
        request.holding_share.shape != (s,)
        or request.view_spread.shape != (s,)
        or len(request.cell_mass) != s
        or len(request.mean) != s
        or any(m.shape != (d,) for m, d in zip(request.mean, dims, strict=True))
    ):
        raise ProtocolError(f"the arrays of seed do not fit {s} views of {list(dims)} columns")
    _check_scaling(request.scaling, dims)
    _check_share(request.holding_share)
    wanted = site_clusters(plan, site)
    if request.n_clusters != wanted:
        raise ProtocolError(
            f"seed asks for {request.n_clusters} clusters, the plan gives site '{site}' {wanted}"
        )
    options = plan.fedhk
    seeded = options.init == "kmeans" or bool(options.local_clusters)
    starts = plan.settings(sum(dims)).n_init if seeded else 0
    if request.n_starts != starts:
        raise ProtocolError(
            f"seed asks for {request.n_starts} starts, under the plan a site proposes {starts}"
        )
    if request.seed != plan.seed:
        raise ProtocolError(f"seed asks for seed {request.seed}, the plan has {plan.seed}")


def check_round(
    plan: RunPlan, site: str, request: RoundRequest, dims: Sequence[int], last: int
) -> None:
    """Compare a round's number and the points it asks about with the plan.

    Parameters
    ----------
    plan : RunPlan
    site : str
    request : RoundRequest
    dims : sequence of int
    last : int
        Number of the last round answered; the same may be asked again, no earlier one.

    Raises
    ------
    ProtocolError
    """
    if not 1 <= request.round <= plan.max_rounds:
        raise ProtocolError(
            f"round {request.round} is not one of the plan's rounds 1 to {plan.max_rounds}"
        )
    if request.round < last:
        raise ProtocolError(f"round {request.round} came after round {last}")
    n_init = plan.settings(sum(dims)).n_init
    starts = request.starts
    n = starts.shape[0] if starts.ndim == 1 else 0
    if not 1 <= n <= n_init:
        raise ProtocolError(f"a round asks about {starts.size} starts, the plan has {n_init}")
    if starts.min() < 0 or starts.max() >= n_init or len(np.unique(starts)) != n:
        raise ProtocolError(
            f"a round's start numbers are not distinct numbers from 0 to {n_init - 1}"
        )
    _check_points(plan, request, dims, n)
    own = site_clusters(plan, site)
    if (
        request.rows.ndim != 2
        or request.rows.shape[0] != n
        or request.rows.shape[1] not in (0, own)
    ):
        raise ProtocolError(f"a round's rows do not fit {n} starts and this site's {own} clusters")


def _check_points(plan: RunPlan, request: RoundRequest, dims: Sequence[int], n: int) -> None:
    """Check centres, view weights and bandwidth of n starts."""
    s, c = len(dims), plan.n_clusters
    if len(request.centers) != s:
        raise ProtocolError(f"a round has centres of {len(request.centers)} views, the run has {s}")
    for center, d in zip(request.centers, dims, strict=True):
        if center.shape != (n, c, d):
            raise ProtocolError(
                f"a round's centres have shape {center.shape}; the plan's clusters and the view's "
                f"columns make it {(n, c, d)}"
            )
    if request.view_weights.shape != (n, s) or not (request.view_weights >= 0).all():
        raise ProtocolError(f"a round's view weights are not {(n, s)} numbers of 0 or more")
    if request.bandwidth.shape != (n, s) or not _positive(request.bandwidth):
        raise ProtocolError(f"a round's bandwidths are not {(n, s)} finite numbers above 0")


def check_finish(
    plan: RunPlan, request: FinishRequest, views: Sequence[str], dims: Sequence[int]
) -> None:
    """Compare the final model with the plan and the run's views.

    Parameters
    ----------
    plan : RunPlan
    request : FinishRequest
    views : sequence of str
        Names of the run's views, in the order of prepare.
    dims : sequence of int
        Their columns.

    Raises
    ------
    ProtocolError
    """
    model = request.model
    if model.plan_id != plan.plan_id:
        raise ProtocolError(
            f"the final model belongs to plan {model.plan_id[:12]}, not {plan.plan_id[:12]}"
        )
    if model.views != tuple(views):
        raise ProtocolError(
            f"the final model names {len(model.views)} views that are not the run's {len(views)}"
        )
    settings = plan.settings(sum(dims))
    if (model.heat_kernel, model.scaling_kind) != (settings.heat_kernel, settings.scaling):
        raise ProtocolError(
            f"the final model's kernel and scaling are not the plan's '{settings.heat_kernel}' and "
            f"'{settings.scaling}'"
        )
    if (model.fuzzifier, model.view_exponent) != (settings.fuzzifier, settings.view_exponent):
        raise ProtocolError(
            f"the final model's fuzzifier and view exponent are not the plan's "
            f"{settings.fuzzifier:g} and {settings.view_exponent:g}"
        )
    _check_model_arrays(model, plan.n_clusters, dims)


def _check_model_arrays(model: ClusterModel, c: int, dims: Sequence[int]) -> None:
    s = len(dims)
    if tuple(a.shape for a in model.centers) != tuple((c, d) for d in dims):
        raise ProtocolError(
            f"the final model's centres do not fit {c} clusters in views of {list(dims)} columns"
        )
    if len(model.scaling) != s or tuple(len(names) for names in model.columns) != tuple(dims):
        raise ProtocolError(f"the final model's columns do not fit views of {list(dims)} columns")
    _check_scaling(model.scaling, dims)
    if tuple(b.shape for b in model.bounds) != tuple((d, 2) for d in dims):
        raise ProtocolError(f"the final model's bounds do not fit views of {list(dims)} columns")
    if model.view_weights.shape != (s,) or not (model.view_weights >= 0).all():
        raise ProtocolError(f"the final model's view weights are not {s} numbers of 0 or more")
    if model.bandwidth.shape != (s,) or not _positive(model.bandwidth):
        raise ProtocolError(f"the final model's bandwidths are not {s} finite numbers above 0")
    if model.holding_share.shape != (s,):
        raise ProtocolError(f"the final model has no share of records for each of {s} views")
    _check_share(model.holding_share)


def _check_scaling(scaling: Sequence[ViewScaling], dims: Sequence[int]) -> None:
    for view, d in zip(scaling, dims, strict=True):
        parts = (view.offset, view.scale, view.delta_a, view.delta_b)
        if any(part.shape != (d,) for part in parts):
            raise ProtocolError(f"the scaling of a view does not fit its {d} columns")
        if not _positive(view.scale) or not (view.delta_b > 0).all():
            raise ProtocolError("the scaling of a view divides by a number that is not above 0")


def _check_share(share: Floats) -> None:
    if not ((share > 0) & (share <= 1)).all():
        raise ProtocolError("the share of records that hold a view is not above 0 and at most 1")


def _positive(values: Floats) -> bool:
    return bool((np.isfinite(values) & (values > 0)).all())
