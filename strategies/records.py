"""A message's bytes as a Flower ``RecordDict``, and back.

Flower sees one opaque array: what the bytes mean is settled in :mod:`strategies.messages` alone.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from configs.errors import ProtocolError
from strategies.messages import MAX_BYTES

__all__ = ["from_record", "to_record"]

_RECORD = "fedmvc"
_ARRAY = "message"
_DTYPE = "uint8"
_STYPE = "fedmvc.bytes"


def to_record(body: bytes) -> RecordDict:
    """Wrap the bytes of one message as Flower content.

    Parameters
    ----------
    body : bytes
        An encoded message, 1 to `strategies.messages.MAX_BYTES` bytes.

    Returns
    -------
    RecordDict
        One ``ArrayRecord`` with one raw uint8 array of shape ``(len(body),)``.

    Raises
    ------
    ProtocolError
        If the body is empty or too large.
    """
    _check_size(len(body))
    array = Array(dtype=_DTYPE, shape=(len(body),), stype=_STYPE, data=bytes(body))
    return RecordDict({_RECORD: ArrayRecord({_ARRAY: array})})


def from_record(content: RecordDict) -> bytes:
    """Take the bytes of one message out of Flower content.

    Parameters
    ----------
    content : RecordDict
        What :func:`to_record` made at the other side.

    Returns
    -------
    bytes
        The encoded message, not decoded or checked any further.

    Raises
    ------
    ProtocolError
        If the content is anything but one non-empty raw uint8 array of at most
        `strategies.messages.MAX_BYTES` bytes.
    """
    if set(content) != {_RECORD} or set(content.array_records) != {_RECORD}:
        raise ProtocolError(
            f"a message holds {len(content)} records that are not the one FedMVC record: "
            "run the same FedMVC version on the server and at every site"
        )
    record = content.array_records[_RECORD]
    if set(record) != {_ARRAY}:
        raise ProtocolError(
            f"a message's record holds {len(record)} arrays instead of the one FedMVC array: "
            "run the same FedMVC version on the server and at every site"
        )
    array = record[_ARRAY]
    data = array.data
    if array.dtype != _DTYPE or array.stype != _STYPE or tuple(array.shape) != (len(data),):
        raise ProtocolError(
            f"a message's array is not a raw uint8 array of its own {len(data)} bytes: "
            "run the same FedMVC version on the server and at every site"
        )
    _check_size(len(data))
    return data


def _check_size(n_bytes: int) -> None:
    if n_bytes == 0:
        raise ProtocolError("a message has 0 bytes; at least 1 is needed: check what sent it")
    if n_bytes > MAX_BYTES:
        raise ProtocolError(
            f"a message has {n_bytes} bytes; at most {MAX_BYTES} are allowed: "
            "use fewer starts (n_init) or clusters"
        )
