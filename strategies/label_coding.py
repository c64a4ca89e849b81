"""What a vertical round sends: labels in ceil(log2 K) bits up, the blend Z in a few bytes down.

A packed label list is the labels' bits, most significant first, one label after the other, the
last byte filled up with zeros. A blend is sent as an array and one scale: value = array * scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError, ProtocolError
from strategies.statistics import Floats

__all__ = [
    "Blend",
    "blend_scale",
    "encode_blend",
    "encode_with",
    "label_bits",
    "pack_labels",
    "unpack_labels",
]

Labels = NDArray[np.int64]
Blend = NDArray[np.float64] | NDArray[np.float16] | NDArray[np.int8]

#: Largest code of int8; -128 is not used, so that codes are symmetric.
INT8_LIMIT = 127
#: Largest finite float16.
FLOAT16_LIMIT = 65504.0
#: Labels unpacked at once, a multiple of 8 so that every block begins a byte.
BLOCK = 1 << 16


def label_bits(n_clusters: int) -> int:
    """Bits of one label: ceil(log2 K), at least 1."""
    return max(int(n_clusters - 1).bit_length(), 1)


def packed_length(n: int, n_clusters: int) -> int:
    """Bytes of ``n`` packed labels: ceil(n * bits / 8)."""
    return -(-n * label_bits(n_clusters) // 8)


def pack_labels(labels: Labels, n_clusters: int) -> NDArray[np.uint8]:
    """Pack labels into ceil(log2 K) bits each.

    Parameters
    ----------
    labels : ndarray of shape (n,), integer
        In 0 .. K-1; a row without a label is left out by the caller.
    n_clusters : int

    Returns
    -------
    ndarray of shape (ceil(n * bits / 8),), uint8

    Raises
    ------
    ProtocolError
        Where a label is not in 0 .. K-1.
    """
    values = np.asarray(labels)
    if values.size and not (values.min() >= 0 and values.max() < n_clusters):
        raise ProtocolError(
            f"labels to pack run from {values.min()} to {values.max()}, but {n_clusters} clusters "
            f"are numbered 0 to {n_clusters - 1}: leave rows without a label out"
        )
    bits = label_bits(n_clusters)
    planes = np.empty((values.size, bits), dtype=np.uint8)
    for j in range(bits):
        planes[:, j] = (values >> (bits - 1 - j)) & 1
    return np.packbits(planes)


def unpack_labels(packed: NDArray[np.uint8], n: int, n_clusters: int) -> Labels:
    """Undo `pack_labels`.

    Parameters
    ----------
    packed : ndarray of shape (ceil(n * bits / 8),), uint8
    n : int
        Labels to expect.
    n_clusters : int

    Returns
    -------
    ndarray of shape (n,), int64

    Raises
    ------
    ProtocolError
        Where the length is another one, a label is K or more, or the filling is not zero.
    """
    bits = label_bits(n_clusters)
    length = packed_length(n, n_clusters)
    if packed.shape != (length,) or packed.dtype != np.uint8:
        raise ProtocolError(
            f"packed labels have shape {packed.shape} and type {packed.dtype}, but {n} labels of "
            f"{bits} bits are {length} bytes of uint8: the sender counts other rows or clusters"
        )
    labels = np.empty(n, dtype=np.int64)
    largest = 0
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        piece = packed[start * bits // 8 : -(-stop * bits // 8)]
        planes = np.unpackbits(piece, count=(stop - start) * bits).reshape(-1, bits)
        block = planes[:, 0].astype(np.int32)
        for j in range(1, bits):
            block <<= 1
            block |= planes[:, j]
        labels[start:stop] = block
        largest = max(largest, int(block.max()))
    if largest >= n_clusters:
        raise ProtocolError(
            f"a packed label is {largest}, but {n_clusters} clusters are numbered 0 to "
            f"{n_clusters - 1}: the sender counts other clusters"
        )
    filling = 8 * length - n * bits
    if filling and int(packed[-1]) & ((1 << filling) - 1):
        raise ProtocolError(
            f"the last {filling} bits of {length} bytes of packed labels are not zero: the sender "
            f"packed more than {n} labels"
        )
    return labels


def blend_scale(largest: float, encoding: str) -> float:
    """Scale of a blend whose largest magnitude is ``largest``.

    ``largest / 127`` for "int8" (1 where all is zero); 1 for the floats, more only where float16
    would overflow.
    """
    if encoding == "int8":
        scale = largest / INT8_LIMIT
        return scale if scale >= np.finfo(np.float64).tiny else 1.0
    if encoding == "float16":
        return max(1.0, largest / FLOAT16_LIMIT)
    if encoding == "float64":
        return 1.0
    raise ConfigError(f"z_encoding is {encoding!r}: give float64, float16 or int8")


def encode_with(z: Floats, scale: float, encoding: str) -> Blend:
    """Encode an array, or a part of one, whose scale is known."""
    if encoding == "int8":
        return np.rint(z / scale).astype(np.int8)
    if encoding == "float16":
        return (z / scale).astype(np.float16)
    return z


def encode_blend(z: Floats, encoding: str) -> tuple[Blend, float]:
    """Encode Z = G - Q/mu of one site.

    Parameters
    ----------
    z : ndarray of shape (N, K), float64
    encoding : {"float64", "float16", "int8"}

    Returns
    -------
    array : ndarray of shape (N, K), float64, float16 or int8
    scale : float
        ``array * scale`` is the value: exact for float64, within scale / 2 for int8 and within
        2**-11 of each value (2**-25 where it is smaller than 2**-14) for float16.
    """
    scale = blend_scale(float(np.abs(z).max(initial=0.0)), encoding)
    return encode_with(z, scale, encoding), scale
