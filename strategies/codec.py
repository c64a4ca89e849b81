"""Frozen dataclasses and arrays as bytes, and back: what any message's format is made of.

The bytes are: four bytes of header length (little-endian), a JSON header, the raw little-endian
arrays one after the other. No pickle, nothing executable; a NaN never passes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import struct
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError

_MAX_HEADER = 8 * 2**20
_LARGEST_INT = 2**63 - 1
_DTYPES = {"<f8", "<f4", "<f2", "<i8", "<u8", "<i2", "|i1", "|b1", "|u1"}

_Arrays = list[NDArray[np.generic]]


def encode(value: Any) -> bytes:
    """Serialise a dataclass of texts, numbers, arrays, and tuples or dataclasses of them.

    Raises
    ------
    ProtocolError
        Where an array has a type the format does not carry.
    """
    arrays: _Arrays = []
    tree = _flatten(value, arrays)
    header = json.dumps(
        {"m": tree, "a": [[a.dtype.str, list(a.shape)] for a in arrays]},
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    return b"".join([struct.pack("<I", len(header)), header, *(a.tobytes() for a in arrays)])


def decode(body: bytes, kinds: Mapping[str, type], may_be_infinite: Collection[str]) -> Any:
    """Parse what `encode` made and check every field's type.

    Parameters
    ----------
    body : bytes
    kinds : mapping
        The dataclasses that may occur, by name.
    may_be_infinite : collection of str
        Fields where infinity has a meaning.

    Raises
    ------
    ProtocolError
        One sentence that names the field, never a value.
    """
    try:
        (length,) = struct.unpack_from("<I", body)
        if length > min(_MAX_HEADER, len(body) - 4):
            raise ValueError("header length")
        header = json.loads(body[4 : 4 + length], parse_constant=_refuse_constant)
        arrays = _read_arrays(body, 4 + length, header["a"])
        return _Decoder(arrays, kinds, may_be_infinite).rebuild(header["m"], "message")
    except ProtocolError:
        raise
    except (struct.error, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ProtocolError("the bytes are not a message of this version") from error


def _flatten(value: Any, arrays: _Arrays) -> Any:
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


def _refuse_constant(token: str) -> float:
    raise ProtocolError(f"the message holds the number {token}, which is not finite")


def _read_arrays(body: bytes, offset: int, specs: list[Any]) -> _Arrays:
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


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


class _Decoder:
    """Rebuilds dataclasses from the header's tree and the arrays read."""

    def __init__(
        self, arrays: _Arrays, kinds: Mapping[str, type], may_be_infinite: Collection[str]
    ) -> None:
        self._arrays = arrays
        self._kinds = kinds
        self._may_be_infinite = may_be_infinite

    def rebuild(self, node: Any, name: str) -> Any:
        """Return the value of a node; ``name`` is the field it stands in."""
        if isinstance(node, dict):
            return self._dataclass(node) if "@" in node else self._array(node, name)
        if isinstance(node, list):
            return tuple(self.rebuild(v, name) for v in node)
        if isinstance(node, float) and not math.isfinite(node):  # JSON's 1e999 is infinity
            raise ProtocolError(f"field {name} holds a number that is not finite")
        if isinstance(node, int) and not -_LARGEST_INT <= node <= _LARGEST_INT:
            raise ProtocolError(f"field {name} holds a whole number above 64 bits")
        return node

    def _dataclass(self, node: dict[str, Any]) -> Any:
        kind = self._kinds[node["@"]]
        fields = {f.name for f in dataclasses.fields(kind)}
        if fields != set(node) - {"@"}:
            raise ProtocolError(f"a {kind.__name__} must hold exactly {', '.join(sorted(fields))}")
        values = {field: self.rebuild(node[field], field) for field in fields}
        for field, hint in _hints(kind).items():
            if not _matches(values[field], hint):
                raise ProtocolError(f"field {field} of a {kind.__name__} has the wrong type")
        return kind(**values)

    def _array(self, node: dict[str, Any], name: str) -> NDArray[np.generic]:
        array: NDArray[np.generic] = self._arrays[node["$"]]
        if array.dtype.kind == "f":
            infinite_too = name in self._may_be_infinite
            finite = ~np.isnan(array) if infinite_too else np.isfinite(array)
            if not finite.all():
                raise ProtocolError(f"field {name} holds a number that is not finite")
        return array


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
