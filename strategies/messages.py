"""Every request and reply of a run, their validation and their bytes.

A message is a frozen dataclass; :mod:`strategies.codec` has the format of its bytes. They are
size-capped and typed, and a NaN never passes. Shapes: R starts, c clusters, s views, view h with
d_h columns.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError
from strategies.codec import decode, encode
from strategies.encoding import LIMITS, ChangeCoder
from strategies.feature_scaling import FeatureMoments, FeatureScaling, feature_scaling
from strategies.feature_selection import FeatureSelection, n_selected
from strategies.label_coding import pack_labels, unpack_labels
from strategies.model import ClusterModel
from strategies.mufsht_messages import (
    FitReply,
    FitRequest,
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
from strategies.statistics import Floats, Moments, SufficientStatistics, ViewScaling, pooled
from strategies.tensor_messages import (
    AlignRequest,
    LinkReply,
    LinkRequest,
    OutcomeReply,
    OutcomeRequest,
    StartReply,
    SweepReply,
    SweepRequest,
)

__all__ = [
    "LIMITS",
    "MAX_BYTES",
    "AlignRequest",
    "ChangeCoder",
    "ClusterModel",
    "CodedStatistics",
    "FeatureMoments",
    "FeatureScaling",
    "FeatureSelection",
    "FinishReply",
    "FinishRequest",
    "FitReply",
    "FitRequest",
    "HelloReply",
    "HelloRequest",
    "LinkReply",
    "LinkRequest",
    "LocalModelReply",
    "Message",
    "Moments",
    "OutcomeReply",
    "OutcomeRequest",
    "PrepareReply",
    "PrepareRequest",
    "RefineReply",
    "RefineRequest",
    "Refusal",
    "RoundRequest",
    "ScalingReply",
    "ScalingRequest",
    "SeedReply",
    "SeedRequest",
    "SelectionReply",
    "SelectionRequest",
    "ShareReply",
    "ShareRequest",
    "StartReply",
    "StatisticsReply",
    "SufficientStatistics",
    "SurveyReply",
    "SurveyRequest",
    "SweepReply",
    "SweepRequest",
    "ViewDescription",
    "ViewScaling",
    "feature_scaling",
    "from_bytes",
    "n_selected",
    "pack_labels",
    "pooled",
    "to_bytes",
    "unpack_labels",
]

#: A message above this many bytes is refused before it is parsed.
MAX_BYTES = 256 * 2**20
#: The only field where infinity has a meaning: a constant column.
_MAY_BE_INFINITE = {"delta_b"}

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ViewDescription:
    """One view of a site's schema: names, units and bounds; no values.

    ``bounds`` has shape (d_h, 2); a column without declared bounds holds (0, 0) and
    ``bounded`` False.

    Raises
    ------
    ProtocolError
        Where there is no column, or units and bounds do not fit the columns.
    """

    name: str
    columns: tuple[str, ...]
    units: tuple[str, ...]
    bounds: Floats
    bounded: NDArray[np.bool_]
    schema_hash: str
    held: bool

    def __post_init__(self) -> None:
        d = len(self.columns)
        fits = self.bounds.shape == (d, 2) and self.bounded.shape == (d,) and len(self.units) == d
        if d == 0 or not fits:
            raise ProtocolError(f"the units or bounds of a view do not fit its {d} columns")


@dataclass(frozen=True)
class Refusal:
    """A site's (or relay's) typed refusal: an exit code and one sentence that names no value."""

    code: int
    message: str


@dataclass(frozen=True)
class HelloRequest:
    """The plan (canonical JSON) and the run it belongs to."""

    run_id: str
    plan_id: str
    plan: str


@dataclass(frozen=True)
class HelloReply:
    """Who answers and which views it knows."""

    run_id: str
    site: str
    version: str
    views: tuple[ViewDescription, ...]


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


Message = (
    Refusal
    | HelloRequest
    | HelloReply
    | PrepareRequest
    | PrepareReply
    | SeedRequest
    | SeedReply
    | RoundRequest
    | StatisticsReply
    | CodedStatistics
    | LocalModelReply
    | FinishRequest
    | FinishReply
    | LinkRequest
    | LinkReply
    | AlignRequest
    | StartReply
    | SweepRequest
    | SweepReply
    | OutcomeRequest
    | OutcomeReply
    | SurveyRequest
    | SurveyReply
    | ScalingRequest
    | ScalingReply
    | FitRequest
    | FitReply
    | ShareRequest
    | ShareReply
    | RefineRequest
    | RefineReply
    | SelectionRequest
    | SelectionReply
)

_PARTS: tuple[type, ...] = (
    ViewDescription,
    ViewScaling,
    Moments,
    SufficientStatistics,
    ClusterModel,
    FeatureScaling,
    FeatureSelection,
)
_KINDS: dict[str, type] = {c.__name__: c for c in (*typing.get_args(Message), *_PARTS)}


def to_bytes(message: Message) -> bytes:
    """Serialise a message.

    Raises
    ------
    ProtocolError
        Where an array has a type the format does not carry or the message is above the cap.
    """
    body = encode(message)
    if len(body) > MAX_BYTES:
        raise ProtocolError(
            f"a message of {len(body)} bytes is above the limit of {MAX_BYTES}: use fewer starts "
            "or a smaller encoding"
        )
    return body


def from_bytes(body: bytes) -> Message:
    """Parse and validate a message.

    Raises
    ------
    ProtocolError
        Where the bytes are not a message of this version: one sentence that names the field, never
        a value.
    """
    if len(body) > MAX_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes is above the limit of {MAX_BYTES}")
    message = decode(body, _KINDS, _MAY_BE_INFINITE)
    if not isinstance(message, typing.get_args(Message)):
        raise ProtocolError("the bytes are not a message of this version")
    return typing.cast("Message", message)
