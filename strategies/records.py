"""A message's bytes as a Flower ``RecordDict``, and back.

Flower sees opaque bytes: what they mean is settled in :mod:`strategies.messages` alone. Each object
of a message is a request of its own on each of its ways, and an array is three (its record, itself,
its pieces), so a small message travels as one value instead.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from configs.errors import ProtocolError
from strategies.messages import MAX_BYTES

__all__ = ["SMALL", "from_record", "to_record"]

SMALL = 2**18
"""Bytes of the largest message that travels as one value; Flower cuts larger ones into pieces."""

_RECORD = "fedmvc"
_BODY = "message"
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
        One ``ConfigRecord`` with the bytes, or above `SMALL` bytes one ``ArrayRecord`` with one raw
        uint8 array of shape ``(len(body),)``.

    Raises
    ------
    ProtocolError
        If the body is empty or too large.
    """
    _check_size(len(body))
    if len(body) <= SMALL:
        return RecordDict({_RECORD: ConfigRecord({_BODY: bytes(body)})})
    array = Array(dtype=_DTYPE, shape=(len(body),), stype=_STYPE, data=bytes(body))
    return RecordDict({_RECORD: ArrayRecord({_BODY: array})})


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
        If the content is anything but one record of 1 to `strategies.messages.MAX_BYTES` bytes.
    """
    if set(content) != {_RECORD}:
        raise ProtocolError(
            f"a message holds {len(content)} records that are not the one FedMVC record: "
            "run the same FedMVC version on the server and at every site"
        )
    record = content[_RECORD]
    if set(record) != {_BODY}:
        raise ProtocolError(
            f"a message's record holds {len(record)} entries instead of the one FedMVC message: "
            "run the same FedMVC version on the server and at every site"
        )
    data = _bytes_of(record[_BODY])
    _check_size(len(data))
    return data


def _bytes_of(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Array):
        data = value.data
        if (value.dtype, value.stype, tuple(value.shape)) == (_DTYPE, _STYPE, (len(data),)):
            return data
    raise ProtocolError(
        "a message's content is neither bytes nor a raw uint8 array of their number: "
        "run the same FedMVC version on the server and at every site"
    )


def _check_size(n_bytes: int) -> None:
    if n_bytes == 0:
        raise ProtocolError("a message has 0 bytes; at least 1 is needed: check what sent it")
    if n_bytes > MAX_BYTES:
        raise ProtocolError(
            f"a message has {n_bytes} bytes; at most {MAX_BYTES} are allowed: "
            "use fewer starts (n_init) or clusters"
        )
