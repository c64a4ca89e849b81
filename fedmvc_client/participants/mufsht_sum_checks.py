"""What a site demands of requests whose answer leaves masked or noisy in a Fed-MUFSHT run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError
from configs.plan import RunPlan
from strategies.messages import (
    FeatureScaling,
    FitRequest,
    ShareTableRequest,
    declared_feature_scaling,
    initial_weights,
)

__all__ = [
    "check_broadcast",
    "check_declared",
    "check_history",
    "check_next",
    "check_origin",
    "check_start",
    "own_weight",
]

Floats = NDArray[np.float64]

#: How far a number may be off by rounding, relative to what it is compared with.
_ROUNDING = 1e-9


def check_history(site: str, told: str, own: str) -> None:
    """Refuse a request that follows others than this site was sent (see `history_of`).

    Raises
    ------
    ProtocolError
    """
    if told != own:
        raise ProtocolError(
            f"site '{site}' was sent other requests before than the server says that all sites "
            "were: different ones would leave one site alone in the sum; start another run"
        )


def check_next(site: str, request: FitRequest, last_round: int) -> None:
    """Refuse a round that leaves one out: with masks alone every site is in every sum.

    Raises
    ------
    ProtocolError
    """
    if request.round > last_round + 1:
        raise ProtocolError(
            f"site '{site}' was asked for round {request.round} after round {last_round}: with "
            "masks and no noise none is left out"
        )


def check_start(plan: RunPlan, site: str, request: FitRequest, n_features: int) -> None:
    """Refuse a round 1 that starts from other weights (D, k) than the plan's seed gives.

    Raises
    ------
    ProtocolError
    """
    shape = (n_features, plan.n_clusters)
    if request.round != 1 or request.weights.shape != shape:
        return  # another shape than the run's is refused by its own sentence
    start = initial_weights(*shape, plan.seed)
    if not np.allclose(request.weights, start, rtol=_ROUNDING, atol=0.0):
        raise ProtocolError(
            f"site '{site}' was sent a start of round 1 that does not follow from the plan's seed: "
            "a server that chooses the start can single out a record; use the same version at "
            "both ends"
        )


def check_origin(
    site: str, origin: Floats, bounds: Sequence[Floats], observed: NDArray[np.bool_]
) -> None:
    """Refuse an origin outside the declared bounds of a feature (D,) that this site observes.

    Raises
    ------
    ProtocolError
    """
    low, high = np.concatenate(list(bounds)).T
    room = _ROUNDING * (high - low)
    if (observed & ((origin < low - room) | (origin > high + room))).any():
        raise ProtocolError(f"site '{site}' was sent an origin outside the declared bounds")


def check_declared(
    site: str,
    scaling: Sequence[FeatureScaling],
    bounds: Sequence[Floats],
    held: Sequence[bool],
) -> None:
    """Refuse a scaling of held views that does not follow from the declared bounds, to the bit.

    Raises
    ------
    ProtocolError
    """
    fits = len(scaling) == len(bounds) and all(
        np.array_equal(getattr(given, part), getattr(declared_feature_scaling(own), part))
        for given, own, here in zip(scaling, bounds, held, strict=True)
        if here
        for part in ("center", "spread", "dead")
    )
    if not fits:
        raise ProtocolError(
            f"site '{site}': with noise the scaling follows from the declared bounds alone, and "
            "the server's does not: use the same schema.toml and version at both ends"
        )


def check_broadcast(site: str, weights: Floats, dims: Sequence[int], limits: Floats) -> None:
    """Refuse broadcast weights (D, k) that are longer than any site may send (V,).

    Raises
    ------
    ProtocolError
    """
    if len(weights) != sum(dims):
        return  # of another shape than the run's, which is refused by its own sentence
    parts = np.split(weights, np.cumsum(dims)[:-1])
    norms = np.array([np.linalg.norm(part) for part in parts])
    if (norms > limits * (1.0 + _ROUNDING)).any():
        raise ProtocolError(f"site '{site}' was sent weights that no mean of sites' weights has")


def own_weight(plan: RunPlan, site: str, request: ShareTableRequest) -> float:
    """Return this site's weight gamma from the table of all sites.

    The table must be one that NMI in [0, 1] can give under the plan (Eq. 16). The plan's
    ``agg_temp`` is large enough that such a table gives no site more than half of all weight.

    Raises
    ------
    ProtocolError
        Where it does not name the participants, each once, or its weights are not such weights.
    """
    names, weights = request.sites, request.weights
    settings = plan.mufsht_settings()
    fits = (
        names == tuple(sorted(plan.privacy.participants))
        and weights.shape == (len(names),)
        and (weights >= 0).all()
        and abs(float(weights.sum()) - 1.0) <= _ROUNDING
    )
    if fits:
        least = float(weights.max()) * math.exp(-1.0 / settings.agg_temp)
        fits = bool(weights.min() >= least * (1.0 - _ROUNDING))
    if not fits:
        raise ProtocolError(f"site '{site}' was sent a table of weights that no NMI can give")
    return float(weights[names.index(site)])
