"""One unambiguous encoding of a list of fields: each is preceded by its length.

Two different lists of fields never give the same bytes, which joined text cannot promise. What is
signed, hashed or bound into a key is written this way. Which kind of value stands at which place
is fixed by the message, so no kind is written.
"""

from __future__ import annotations

from configs.errors import ProtocolError

__all__ = ["pack", "unpack"]

_LENGTH_BYTES = 4
_INTEGER_BYTES = 8


def pack(*fields: bytes | str | int) -> bytes:
    """Encode fields one after the other.

    Parameters
    ----------
    *fields : bytes, str or int
        Text is written as UTF-8, an integer (0 <= value < 2^64) as 8 bytes, highest first.

    Returns
    -------
    bytes
        For each field its length in bytes (4 bytes, highest first), then the field.

    Raises
    ------
    OverflowError
        If an integer is negative or too large, or a field is longer than 2^32 - 1 bytes.
    """
    bodies = [_as_bytes(field) for field in fields]
    return b"".join(len(body).to_bytes(_LENGTH_BYTES, "big") + body for body in bodies)


def unpack(encoded: bytes) -> tuple[bytes, ...]:
    """Take apart what `pack` wrote.

    Parameters
    ----------
    encoded : bytes

    Returns
    -------
    tuple of bytes
        The fields; a text or an integer comes back as its bytes.

    Raises
    ------
    ProtocolError
        If a length or a field is cut short.
    """
    fields: list[bytes] = []
    place = 0
    while place < len(encoded):
        start = place + _LENGTH_BYTES
        end = start + int.from_bytes(encoded[place:start], "big")
        if start > len(encoded) or end > len(encoded):
            raise ProtocolError(
                f"a message of {len(encoded)} bytes ends within field {len(fields) + 1}: it was "
                "cut short, or its sender runs another version"
            )
        fields.append(encoded[start:end])
        place = end
    return tuple(fields)


def _as_bytes(field: bytes | str | int) -> bytes:
    if isinstance(field, int):
        return field.to_bytes(_INTEGER_BYTES, "big")
    return field.encode() if isinstance(field, str) else field
