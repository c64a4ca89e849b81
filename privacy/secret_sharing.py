"""Shamir's secret sharing of 32-byte secrets: any t of n shares give the secret, t - 1 nothing.

The library shares 16 bytes, over GF(2^128); a secret's halves are shared independently.
"""

from __future__ import annotations

from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir

__all__ = ["SHARE_BYTES", "recombine", "split_secret"]

#: Length of a share, and of a secret.
SHARE_BYTES = 32
_HALF = SHARE_BYTES // 2
#: The library's own form, not the one of the ``ssss`` tool.
_PLAIN = False


def split_secret(secret: bytes, threshold: int, n_shares: int) -> list[bytes]:
    """Share a secret.

    Parameters
    ----------
    secret : bytes
        32 bytes.
    threshold : int
        t, shares that give the secret.
    n_shares : int
        n >= t.

    Returns
    -------
    list of bytes
        n shares of 32 bytes; the i-th has index i + 1.
    """
    first = Shamir.split(threshold, n_shares, secret[:_HALF], _PLAIN)
    second = Shamir.split(threshold, n_shares, secret[_HALF:], _PLAIN)
    return [bytes(a + b) for (_, a), (_, b) in zip(first, second, strict=True)]


def recombine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of t shares.

    Parameters
    ----------
    shares : mapping of int to bytes
        Exactly t shares by index, 1 to n. Shares that do not fit give another secret, unnoticed:
        whoever calls checks the result.

    Returns
    -------
    bytes
        32 bytes.
    """
    return bytes(
        b"".join(
            Shamir.combine([(index, share[half]) for index, share in shares.items()], _PLAIN)
            for half in (slice(None, _HALF), slice(_HALF, None))
        )
    )
