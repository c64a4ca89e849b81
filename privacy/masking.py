"""Masks that vanish in the sum (Bonawitz et al., CCS 2017, section 4).

Site u sends

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(k_uv) - sum_{v < u} PRG(k_uv)   mod 2^64

with a seed b_u of its own and a key k_uv = k_vu for each other site; u < v is name order.
PRG is the ChaCha20 keystream (RFC 8439) read as little-endian 64-bit integers; every key is used
once, so counter and nonce start at zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from privacy.canonical import pack
from privacy.key_agreement import derive_key

__all__ = ["add_keystream", "add_pair_masks", "mask", "pair_key"]

Ring = NDArray[np.uint64]

_FROM_THE_START = bytes(16)
#: Numbers made and added at once: what stays in the processor's cache is twice as fast.
_CHUNK = 2**15
_ZEROS = bytes(8 * _CHUNK)


def add_keystream(total: Ring, key: bytes, *, sign: int = 1) -> None:
    """Add PRG(key) to a vector, or take it off, in place.

    Parameters
    ----------
    total : ndarray of shape (k,), uint64
        Changed in place.
    key : bytes
        32 bytes, used for nothing else.
    sign : {1, -1}
    """
    encryptor = Cipher(ChaCha20(key, _FROM_THE_START), mode=None).encryptor()
    stream = np.empty(_CHUNK, "<u8")
    target = stream.data.cast("B")
    combine = np.add if sign > 0 else np.subtract
    for first in range(0, total.size, _CHUNK):
        part = total[first : first + _CHUNK]
        encryptor.update_into(_ZEROS[: part.nbytes], target[: part.nbytes])
        combine(part, stream[: part.size], out=part)


def pair_key(
    secret: bytes,
    public: bytes,
    *,
    transcript: bytes,
    exchange: int,
    digest: bytes,
    pair: tuple[str, str],
) -> bytes:
    """Derive the key k_uv of one exchange; both sites of the pair, and either order, give the same.

    Parameters
    ----------
    secret : bytes
        One site's masking secret s_{u,e}.
    public : bytes
        The other's masking key S_{v,e}.
    transcript : bytes
        Hash of all signed key messages.
    exchange : int
        e.
    digest : bytes
        SHA-256 of the request. Sites that were shown different requests derive different keys, and
        their masks do not vanish.
    pair : tuple of str
        Names of both sites.

    Returns
    -------
    bytes
        32 bytes.
    """
    info = pack("mask", exchange, digest, *sorted(pair))
    return derive_key(secret, public, salt=transcript, info=info)


def add_pair_masks(
    total: Ring, site: str, pair_keys: Mapping[str, bytes], *, sign: int = 1
) -> None:
    """Add the masks that a site shares with others, in place.

    Parameters
    ----------
    total : ndarray of shape (k,), uint64
        Changed in place.
    site : str
        u.
    pair_keys : mapping of str to bytes
        k_uv of the other sites v.
    sign : {1, -1}
        1 as the site itself does; -1 takes these masks off again.
    """
    for other, key in pair_keys.items():
        add_keystream(total, key, sign=sign if other > site else -sign)


def mask(values: Ring, site: str, seed: bytes, pair_keys: Mapping[str, bytes]) -> Ring:
    """Return what a site sends in place of its values.

    Parameters
    ----------
    values : ndarray of shape (k,), uint64
        x_u, see `privacy.fixed_point.to_ring`.
    site : str
        u.
    seed : bytes
        b_u, the seed of its own mask.
    pair_keys : mapping of str to bytes
        k_uv of all other participants v.

    Returns
    -------
    ndarray of shape (k,), uint64
        y_u: uniform for whoever lacks the seed or a key.
    """
    masked = values.copy()
    add_keystream(masked, seed)
    add_pair_masks(masked, site, pair_keys)
    return masked
