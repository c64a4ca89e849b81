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
from strategies.feature_scaling import (
    FeatureMoments,
    FeatureScaling,
    declared_feature_scaling,
    feature_scaling,
)
from strategies.feature_selection import FeatureSelection, n_selected
from strategies.feature_start import initial_weights
from strategies.feature_units import FeatureUnits
from strategies.fedhk_messages import (
    CodedStatistics,
    FinishReply,
    FinishRequest,
    LocalModelReply,
    PrepareReply,
    PrepareRequest,
    RoundRequest,
    SeedReply,
    SeedRequest,
    StatisticsReply,
)
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
    ShareTableRequest,
    SurveyReply,
    SurveyRequest,
    history_of,
)
from strategies.protected_messages import (
    AskRequest,
    CloseReply,
    CloseRequest,
    KeysReply,
    KeysRequest,
    SharesReply,
    SharesRequest,
    SumReply,
    SumRequest,
    UnmaskReply,
    UnmaskRequest,
    as_array,
    body_of,
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
from strategies.unit_models import pack_local_model
from strategies.unit_sums import (
    FinalFigures,
    HeatKernelUnits,
    SurveyedView,
    declared_scaling,
    pack_figures,
    pack_survey,
)

__all__ = [
    "LIMITS",
    "MAX_BYTES",
    "AlignRequest",
    "AskRequest",
    "BundleRefused",
    "ChangeCoder",
    "CloseReply",
    "CloseRequest",
    "ClusterModel",
    "CodedStatistics",
    "FeatureMoments",
    "FeatureScaling",
    "FeatureSelection",
    "FeatureUnits",
    "FinalFigures",
    "FinishReply",
    "FinishRequest",
    "FitReply",
    "FitRequest",
    "HeatKernelUnits",
    "HelloReply",
    "HelloRequest",
    "KeysReply",
    "KeysRequest",
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
    "ShareTableRequest",
    "SharesReply",
    "SharesRequest",
    "StartReply",
    "StatisticsReply",
    "SufficientStatistics",
    "SumReply",
    "SumRequest",
    "SurveyReply",
    "SurveyRequest",
    "SurveyedView",
    "SweepReply",
    "SweepRequest",
    "UnmaskReply",
    "UnmaskRequest",
    "ViewDescription",
    "ViewScaling",
    "as_array",
    "body_of",
    "declared_feature_scaling",
    "declared_scaling",
    "feature_scaling",
    "from_bytes",
    "history_of",
    "initial_weights",
    "n_selected",
    "pack_figures",
    "pack_labels",
    "pack_local_model",
    "pack_survey",
    "pooled",
    "to_bytes",
    "unpack_labels",
]

#: A message above this many bytes is refused before it is parsed.
MAX_BYTES = 256 * 2**20
#: The only field where infinity has a meaning: a constant column.
_MAY_BE_INFINITE = {"delta_b"}


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
    """Who answers, which views it knows, and the hash of its roster (hexadecimal; "" for none)."""

    run_id: str
    site: str
    version: str
    views: tuple[ViewDescription, ...]
    roster: str = ""


@dataclass(frozen=True)
class BundleRefused:
    """What a site's executor tells its own worker: it ran nothing of a bundle, and why.

    ``sha256`` is the bundle's (hexadecimal), ``code`` an exit code. It never leaves the site; the
    worker's reply is the same message.

    Raises
    ------
    ProtocolError
        Where ``sha256`` is none.
    """

    sha256: str
    code: int
    sentence: str

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise ProtocolError("a report of a refused bundle holds no SHA-256")


Message = (
    Refusal
    | BundleRefused
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
    | ShareTableRequest
    | ShareReply
    | RefineRequest
    | RefineReply
    | SelectionRequest
    | SelectionReply
    | KeysRequest
    | KeysReply
    | SharesRequest
    | SharesReply
    | AskRequest
    | SumRequest
    | SumReply
    | UnmaskRequest
    | UnmaskReply
    | CloseRequest
    | CloseReply
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
