"""What a site demands of the requests of a Fed-MUFSHT run before it computes anything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from configs.errors import ProtocolError
from configs.plan import RunPlan
from strategies.messages import (
    FeatureScaling,
    FitRequest,
    RefineRequest,
    ScalingRequest,
    SelectionRequest,
    ShareRequest,
    SurveyRequest,
    ViewDescription,
    n_selected,
)

__all__ = [
    "check_fit",
    "check_refine",
    "check_scaling",
    "check_selection",
    "check_share",
    "check_survey",
]

#: No view has more columns than this.
_MAX_COLUMNS = 1_000_000


def check_survey(site: str, request: SurveyRequest) -> None:
    """Check that every view is named once, with its number of columns.

    Raises
    ------
    ProtocolError
    """
    v = len(request.views)
    if v == 0 or len(set(request.views)) != v or request.n_columns.shape != (v,):
        raise ProtocolError(
            f"site '{site}' was asked to survey {v} views with {request.n_columns.size} column "
            "counts: each once"
        )
    if (request.n_columns < 1).any() or (request.n_columns > _MAX_COLUMNS).any():
        raise ProtocolError(
            f"site '{site}' was told a number of columns that is not between 1 and {_MAX_COLUMNS}"
        )


def check_scaling(plan: RunPlan, site: str, request: ScalingRequest, dims: Sequence[int]) -> None:
    """Check the shapes, and that only text has document frequencies, of at most its documents.

    Raises
    ------
    ProtocolError
    """
    d = sum(dims)
    fits = (
        request.origin.shape == request.frequencies.shape == (d,)
        and request.documents.shape == (len(dims),)
        and (request.frequencies >= 0).all()
        and (request.frequencies <= np.repeat(request.documents, dims)).all()
        and (plan.mufsht.text or not (request.frequencies.any() or request.documents.any()))
        and not (plan.mufsht.text and request.origin.any())
    )
    if not fits:
        raise ProtocolError(f"site '{site}' was sent an origin that does not fit its {d} columns")


def check_fit(
    plan: RunPlan,
    site: str,
    request: FitRequest,
    dims: Sequence[int],
    *,
    last_round: int,
    scaled: bool,
) -> None:
    """Refuse a round that is not one of the plan's.

    Parameters
    ----------
    plan : RunPlan
    site : str
    request : FitRequest
    dims : sequence of int
        Columns of each view.
    last_round : int
        The last round that was answered to its end.
    scaled : bool
        Whether the scaling is already known.

    Raises
    ------
    ProtocolError
    """
    if not last_round < request.round <= plan.max_rounds:
        raise ProtocolError(
            f"site '{site}' was asked for round {request.round} after {last_round} of at most "
            f"{plan.max_rounds}"
        )
    shape = (sum(dims), plan.n_clusters)
    if request.weights.shape != shape:
        raise ProtocolError(
            f"site '{site}' was sent weights of shape {request.weights.shape} for {shape[0]} "
            f"columns and {shape[1]} clusters"
        )
    if scaled == bool(request.scaling):
        raise ProtocolError(
            f"site '{site}' was sent {len(request.scaling)} scalings in round {request.round}: "
            "they come once, in its first round"
        )
    if not scaled:
        _check_scalings(site, request.scaling, dims)
    known_before = plan.mufsht.weighting == "uniform"
    if known_before != (0.0 < request.weight <= 1.0) or not 0.0 <= request.weight <= 1.0:
        raise ProtocolError(
            f"site '{site}' was sent a weight with round {request.round} that does not fit "
            f"mufsht.weighting = '{plan.mufsht.weighting}'"
        )


def _check_scalings(site: str, scaling: Sequence[FeatureScaling], dims: Sequence[int]) -> None:
    shapes = [(s.center.shape, s.spread.shape, s.dead.shape) for s in scaling]
    if shapes != [((d,),) * 3 for d in dims] or any((s.spread <= 0).any() for s in scaling):
        raise ProtocolError(f"site '{site}' was sent a scaling that does not fit its views")


def check_share(site: str, request: ShareRequest, fitted_round: int) -> None:
    """Refuse a weight for another round than the one that waits for it.

    Raises
    ------
    ProtocolError
    """
    if request.round != fitted_round:
        raise ProtocolError(
            f"site '{site}' was sent a weight for round {request.round} but "
            + (f"round {fitted_round} waits for one" if fitted_round else "no round waits for one")
        )
    if not 0.0 <= request.weight <= 1.0:
        raise ProtocolError(f"site '{site}' was sent a weight that is not between 0 and 1")


def check_refine(plan: RunPlan, site: str, request: RefineRequest, n_features: int) -> None:
    """Refuse a search that the plan does not have.

    Raises
    ------
    ProtocolError
    """
    settings = plan.mufsht_settings()
    fits = (
        settings.search == "keys"
        and request.weights.shape == (n_features, plan.n_clusters)
        and np.array_equal(np.sort(request.ranking), np.arange(n_features))
        and request.wanted == n_selected(settings.ratio, n_features)
    )
    if not fits:
        raise ProtocolError(f"site '{site}' was asked for a search that its plan does not have")


def check_selection(
    plan: RunPlan,
    site: str,
    request: SelectionRequest,
    views: Sequence[str],
    dims: Sequence[int],
    described: Sequence[ViewDescription],
) -> None:
    """Refuse a result of another plan, or of other views and columns than the run's.

    Raises
    ------
    ProtocolError
    """
    selection = request.selection
    own = {view.name: view.columns for view in described if view.held}
    fits = (
        selection.plan_id == plan.plan_id
        and selection.views == tuple(views)
        and selection.sizes == tuple(dims)
        and selection.weights.shape[1] == plan.n_clusters
        and all(
            columns == own.get(view, columns)
            for view, columns in zip(selection.views, selection.columns, strict=True)
        )
    )
    if not fits:
        raise ProtocolError(f"site '{site}' was sent a selection that is not of this run")
