"""Requests and replies of FedHK-MVFC.

Shapes: R starts, c clusters, s views, view h with d_h columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.model import ClusterModel
from strategies.statistics import Floats, Moments, SufficientStatistics, ViewScaling

__all__ = [
    "CodedStatistics",
    "FinishReply",
    "FinishRequest",
    "LocalModelReply",
    "PrepareReply",
    "PrepareRequest",
    "RoundRequest",
    "SeedReply",
    "SeedRequest",
    "StatisticsReply",
]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PrepareRequest:
    """Ask for the moments of the views named, in this order; ``n_columns`` (s,) is d_h."""

    run_id: str
    plan_id: str
    views: tuple[str, ...]
    n_columns: Ints


@dataclass(frozen=True)
class PrepareReply:
    """Rows, rows holding each view (s,), rows with a partly missing view (s,), moments a view."""

    run_id: str
    n_rows: int
    holding: Ints
    partly_missing: Ints
    moments: tuple[Moments, ...]


@dataclass(frozen=True)
class SeedRequest:
    """Pooled scaling, and how many starting centres to propose (``n_starts`` 0: none).

    ``view_spread`` (s,) is the total scaled variance of each view, ``mean`` the scaled pooled mean
    of each column, ``cell_mass`` whether a view's mass is sent for each column.
    """

    run_id: str
    plan_id: str
    scaling: tuple[ViewScaling, ...]
    holding_share: Floats
    cell_mass: tuple[bool, ...]
    view_spread: Floats
    mean: tuple[Floats, ...]
    n_clusters: int
    n_starts: int
    seed: int


@dataclass(frozen=True)
class SeedReply:
    """Local k-means centres (R, c', d_h), their record counts (R, c') and delta-weighted sums.

    ``spread_sums`` holds, a view, ``sum delta x^2``, ``sum delta x`` and ``sum delta``: (3, d_h).
    """

    run_id: str
    centers: tuple[Floats, ...]
    counts: Floats
    spread_sums: tuple[Floats, ...]


@dataclass(frozen=True)
class RoundRequest:
    """The points to evaluate: centres (R, c, d_h), scaled; view weights and bandwidth (R, s).

    ``starts`` (R,) numbers the starts; ``reference`` is the round of the last reply the server
    decoded from this site (-1: none); ``rows`` (R, c') are the global clusters this site works on
    (shape (R, 0): all, or its own seeds where its plan gives it fewer clusters).
    """

    run_id: str
    plan_id: str
    round: int
    starts: Ints
    centers: tuple[Floats, ...]
    view_weights: Floats
    bandwidth: Floats
    reference: int
    rows: Ints


@dataclass(frozen=True)
class StatisticsReply:
    """Sufficient statistics of one pass, float64 or float32 on the wire."""

    run_id: str
    round: int
    statistics: SufficientStatistics


@dataclass(frozen=True)
class CodedStatistics:
    """Sufficient statistics as rounded changes since round ``base`` (-1: since zero)."""

    run_id: str
    round: int
    base: int
    codes: tuple[NDArray[np.generic], ...]
    scales: NDArray[np.float32]


@dataclass(frozen=True)
class LocalModelReply:
    """A site's model after its local iterations.

    ``centers`` (R, c', d_h), ``view_weights`` (R, s), ``objective`` (R,): the site's J where its
    local iterations start (the broadcast model where gamma = rho = 1), ``partition_coefficient``
    (R,) in [1/c, 1], ``agreement`` (R,): NMI in [0, 1] between the site's labels under its own and
    under the broadcast model.
    """

    run_id: str
    round: int
    n_rows: int
    centers: tuple[Floats, ...]
    view_weights: Floats
    objective: Floats
    partition_coefficient: Floats
    agreement: Floats


@dataclass(frozen=True)
class FinishRequest:
    """The final model; the site labels its records and keeps the labels."""

    run_id: str
    plan_id: str
    model: ClusterModel


@dataclass(frozen=True)
class FinishReply:
    """Dispersion (s,) at the final model and the mean membership (c,) of Eq. 66."""

    run_id: str
    n_rows: int
    dispersion: Floats
    mean_membership: Floats
    partition_coefficient: float
