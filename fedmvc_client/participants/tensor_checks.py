"""What a site demands of the requests of a vertical run before it computes anything."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError
from configs.plan import RunPlan
from strategies.messages import AlignRequest, SweepRequest

Mask = NDArray[np.bool_]

_MOST_SITES = 10_000


def unpacked_mask(packed: NDArray[np.uint8], n: int, site: str) -> Mask:
    """Return a bit mask as booleans (n,).

    Raises
    ------
    ProtocolError
        Where its length does not fit n rows.
    """
    if packed.dtype != np.uint8 or packed.shape != ((n + 7) // 8,):
        raise ProtocolError(
            f"site '{site}' was sent a mask of {packed.size} bytes for {(n + 7) // 8}"
        )
    return np.unpackbits(packed, count=n).astype(bool)


def shared_rows(plan: RunPlan, site: str, request: AlignRequest, n_records: int) -> Mask:
    """Return which of the site's tokens (n,) all sites hold.

    Raises
    ------
    ProtocolError
        Where the mask does not fit, or names fewer rows than the plan allows.
    """
    mask = unpacked_mask(request.shared, n_records, site)
    if int(mask.sum()) != request.n_shared:
        raise ProtocolError(f"site '{site}' was told another number of shared rows than it counts")
    if request.n_shared < plan.tensor.min_overlap:
        raise ProtocolError(
            f"site '{site}' was told fewer shared rows than tensor.min_overlap = "
            f"{plan.tensor.min_overlap}"
        )
    if not 0 <= request.position < _MOST_SITES:
        raise ProtocolError(f"site '{site}' was told it is number {request.position} of the sites")
    return mask


def check_sweep(
    plan: RunPlan, site: str, request: SweepRequest, n_rows: int, last_round: int
) -> None:
    """Refuse a round that is not one of the plan's.

    Raises
    ------
    ProtocolError
    """
    k = plan.n_clusters
    if not last_round < request.round <= plan.max_rounds:
        raise ProtocolError(
            f"site '{site}' was asked for round {request.round} after {last_round} of at most "
            f"{plan.max_rounds}"
        )
    blend = request.blend
    if blend.shape not in ((n_rows, k), (0, k)):
        raise ProtocolError(
            f"site '{site}' was sent a blend of shape {blend.shape} for {n_rows} rows and {k} "
            "clusters"
        )
    if blend.dtype.name != plan.tensor_settings().z_encoding:
        raise ProtocolError(f"site '{site}' was sent a blend of type {blend.dtype.name}")
    for name, value, positive in (
        ("weight", request.weight, False),
        ("mu", request.mu, True),
        ("scale", request.scale, True),
    ):
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            raise ProtocolError(f"site '{site}' was sent a {name} that is not a positive number")
    names = request.names
    if names.size and (names.shape != (k,) or sorted(names.tolist()) != list(range(k))):
        raise ProtocolError(f"site '{site}' was sent cluster names that are no permutation of {k}")
    if names.size and last_round > 0:
        raise ProtocolError(f"site '{site}' was sent new cluster names after round {last_round}")
