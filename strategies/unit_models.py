"""Weighted sums of site models in which a site counts at most its records (Eqs. 59-60, 62).

A weighted mean travels as numerator and denominator, both sums over sites, so the server needs no
single model. Shapes: R starts, c clusters, s views, view h with d_h columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.fedhk_messages import LocalModelReply
from strategies.statistics import Floats
from strategies.unit_sums import HeatKernelUnits, split

__all__ = ["PooledModel", "model_sizes", "pack_local_model", "unpack_local_models"]


@dataclass(frozen=True)
class PooledModel:
    """The weighted mean of the sites' models.

    Parameters
    ----------
    centers : tuple of ndarray of shape (R, c, d_h)
    view_weights : ndarray of shape (R, s)
    held : ndarray of shape (s,), bool
        Views that a site with a weight holds; the others' numbers mean nothing.
    objective : ndarray of shape (R,)
        Sum of the sites' J.
    """

    centers: tuple[Floats, ...]
    view_weights: Floats
    held: NDArray[np.bool_]
    objective: Floats


def model_sizes(units: HeatKernelUnits, n_starts: int, n_clusters: int) -> list[int]:
    """Lengths of the blocks of a packed model: centres, view weights, weights, objective."""
    s = len(units.dims)
    return [*(n_starts * n_clusters * d for d in units.dims), n_starts * s, s, n_starts]


def pack_local_model(
    reply: LocalModelReply, units: HeatKernelUnits, held: NDArray[np.bool_], aggregation: str
) -> Floats:
    """Pack a site's model times its weight: its records ("weighted") or 1 ("fedavg").

    Centres are those of records within the declared bounds; with noise they may lie outside, where
    masked sums have no room, and are cut to the bounds.

    Parameters
    ----------
    reply : LocalModelReply
    units : HeatKernelUnits
    held : ndarray of shape (s,), bool
        Views that the site holds; the others count nothing.
    aggregation : {"weighted", "fedavg"}
    """
    weight = float(reply.n_rows) if aggregation == "weighted" else 1.0
    weights = weight * held
    centers = [
        (own * np.clip(units.place(h, np.asarray(a, dtype=np.float64)), -0.5, 0.5)).ravel()
        for h, (own, a) in enumerate(zip(weights, reply.centers, strict=True))
    ]
    shares = np.asarray(reply.view_weights, dtype=np.float64) * weights
    return np.concatenate([*centers, shares.ravel(), weights, reply.objective])


def unpack_local_models(
    total: Floats, units: HeatKernelUnits, n_starts: int, n_clusters: int
) -> PooledModel:
    """Return the weighted mean that a sum of packed models stands for."""
    *places, shares, weights, objective = split(total, model_sizes(units, n_starts, n_clusters))
    # a weight is a whole number of records or sites; what masks round off is far below one half
    weights = np.rint(weights)
    held = weights > 0
    divisor = np.where(held, weights, 1.0)
    centers = tuple(
        units.value(h, place.reshape(n_starts, n_clusters, d) / divisor[h])
        for h, (place, d) in enumerate(zip(places, units.dims, strict=True))
    )
    return PooledModel(
        centers, shares.reshape(n_starts, len(units.dims)) / divisor, held, objective
    )
