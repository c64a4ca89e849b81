"""Every request and reply of a run, their validation and their bytes.

A message is a frozen dataclass. Its bytes are: four bytes of header length (little-endian), a JSON
header, the raw little-endian arrays one after the other. No pickle, nothing executable; size-capped;
a NaN never passes. Shapes: R starts, c clusters, s views, view h with d_h columns.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import types
import typing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError
from strategies.encoding import LIMITS, ChangeCoder
from strategies.model import ClusterModel
from strategies.statistics import Floats, Moments, SufficientStatistics, ViewScaling, pooled

__all__ = [
    "LIMITS",
    "MAX_BYTES",
    "ChangeCoder",
    "ClusterModel",
    "CodedStatistics",
    "FinishReply",
    "FinishRequest",
    "HelloReply",
    "HelloRequest",
    "LocalModelReply",
    "Message",
    "Moments",
    "PrepareReply",
    "PrepareRequest",
    "Refusal",
    "RoundRequest",
    "SeedReply",
    "SeedRequest",
    "StatisticsReply",
    "SufficientStatistics",
    "ViewDescription",
    "ViewScaling",
    "from_bytes",
    "pooled",
    "to_bytes",
]

#: A message above this many bytes is refused before it is parsed.
MAX_BYTES = 256 * 2**20
_MAX_HEADER = 8 * 2**20
_DTYPES = {"<f8", "<f4", "<i8", "<i2", "|i1", "|b1", "|u1"}
#: The only field where infinity has a meaning: a constant column.
_MAY_BE_INFINITE = {"delta_b"}

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ViewDescription:
    """One view of a site's schema: names, units and bounds; no values.

    ``bounds`` has shape (d_h, 2); a column without declared bounds holds (0, 0) and
    ``bounded`` False.
    """

    name: str
    columns: tuple[str, ...]
    units: tuple[str, ...]
    bounds: Floats
    bounded: NDArray[np.bool_]
    schema_hash: str
    held: bool


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
    """The points to evaluate: centres (R, c, d_h) in scaled units, view weights and bandwidth (R, s).

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
    local iterations start (the broadcast model where gamma = rho = 1), ``partition_coefficient`` (R,) in [1/c, 1], ``agreement`` (R,): NMI in [0, 1]
    between the site's labels under its own and under the broadcast model.
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
)

_PARTS: tuple[type, ...] = (
    ViewDescription,
    ViewScaling,
    Moments,
    SufficientStatistics,
    ClusterModel,
)
_KINDS: dict[str, type] = {c.__name__: c for c in (*typing.get_args(Message), *_PARTS)}
_HINTS: dict[str, dict[str, Any]] = {name: typing.get_type_hints(c) for name, c in _KINDS.items()}


def to_bytes(message: Message) -> bytes:
    """Serialise a message.

    Raises
    ------
    ProtocolError
        Where an array has a type the format does not carry or the message is above the cap.
    """
    arrays: list[NDArray[np.generic]] = []
    tree = _flatten(message, arrays)
    header = json.dumps(
        {"m": tree, "a": [[a.dtype.str, list(a.shape)] for a in arrays]},
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    body = b"".join([struct.pack("<I", len(header)), header, *(a.tobytes() for a in arrays)])
    if len(body) > MAX_BYTES:
        raise ProtocolError(
            f"a message of {len(body)} bytes is above the limit of {MAX_BYTES}: use fewer starts"
        )
    return body


def _flatten(value: Any, arrays: list[NDArray[np.generic]]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out: dict[str, Any] = {"@": type(value).__name__}
        for field in dataclasses.fields(value):
            out[field.name] = _flatten(getattr(value, field.name), arrays)
        return out
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        if array.dtype.str not in _DTYPES:
            raise ProtocolError(f"arrays of type {array.dtype} do not travel")
        arrays.append(array)
        return {"$": len(arrays) - 1}
    if isinstance(value, (tuple, list)):
        return [_flatten(v, arrays) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


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
    try:
        (length,) = struct.unpack_from("<I", body)
        if length > min(_MAX_HEADER, len(body) - 4):
            raise ValueError("header length")
        header = json.loads(body[4 : 4 + length], parse_constant=_refuse_constant)
        arrays = _read_arrays(body, 4 + length, header["a"])
        tree = header["m"]
        message = _rebuild(tree, arrays, "message")
    except ProtocolError:
        raise
    except (struct.error, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ProtocolError("the bytes are not a message of this version") from error
    if not isinstance(message, typing.get_args(Message)):
        raise ProtocolError("the bytes are not a message of this version")
    return typing.cast("Message", message)


def _refuse_constant(token: str) -> float:
    raise ProtocolError(f"the message holds the number {token}, which is not finite")


def _read_arrays(body: bytes, offset: int, specs: list[Any]) -> list[NDArray[np.generic]]:
    arrays = []
    for dtype, shape in specs:
        if dtype not in _DTYPES or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ProtocolError("the message holds an array of an unknown type or shape")
        count = 1
        for n in shape:
            count *= n
        if count * np.dtype(dtype).itemsize > len(body) - offset:
            raise ProtocolError("the message ends before its arrays do")
        array = np.frombuffer(body, dtype=dtype, count=count, offset=offset).reshape(shape)
        offset += array.nbytes
        arrays.append(array)
    if offset != len(body):
        raise ProtocolError("the message has bytes behind its last array")
    return arrays


def _rebuild(node: Any, arrays: list[NDArray[np.generic]], name: str) -> Any:
    if isinstance(node, dict) and "@" in node:
        kind = _KINDS[node["@"]]
        fields = {f.name for f in dataclasses.fields(kind)}
        if fields != set(node) - {"@"}:
            raise ProtocolError(f"a {kind.__name__} must hold exactly {', '.join(sorted(fields))}")
        values = {field: _rebuild(node[field], arrays, field) for field in fields}
        for field, hint in _HINTS[kind.__name__].items():
            if not _matches(values[field], hint):
                raise ProtocolError(f"field {field} of a {kind.__name__} has the wrong type")
        return kind(**values)
    if isinstance(node, dict):
        array = arrays[node["$"]]
        if array.dtype.kind == "f":
            finite = ~np.isnan(array) if name in _MAY_BE_INFINITE else np.isfinite(array)
            if not finite.all():
                raise ProtocolError(f"field {name} holds a number that is not finite")
        return array
    if isinstance(node, list):
        return tuple(_rebuild(v, arrays, name) for v in node)
    return node


def _matches(value: Any, hint: Any) -> bool:
    """Whether a decoded value has the declared type; arrays are matched by their scalar kind."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        args = typing.get_args(hint)
        return isinstance(value, tuple) and all(_matches(v, args[0]) for v in value)
    if origin is np.ndarray:
        scalar = typing.get_args(typing.get_args(hint)[1])[0]
        if not isinstance(value, np.ndarray):
            return False
        if scalar is np.float64:
            return bool(value.dtype.kind == "f")
        return scalar is np.generic or bool(np.issubdtype(value.dtype, scalar))
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, h) for h in typing.get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return bool(isinstance(value, hint))
