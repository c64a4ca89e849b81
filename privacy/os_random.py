"""Random numbers that nobody can repeat: a ChaCha20 key stream under a key of the system's own.

The seed of a run never comes here: whoever knows it could subtract the noise.
"""

from __future__ import annotations

import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

__all__ = ["random_bytes", "random_words"]


def random_bytes(n: int) -> NDArray[np.uint8]:
    """Draw ``n`` uniform bytes, under a fresh key every time."""
    cipher = Cipher(ChaCha20(secrets.token_bytes(32), bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(n)), np.uint8)


def random_words(n: int) -> NDArray[np.uint64]:
    """Draw ``n`` uniform 64-bit words, under a fresh key every time."""
    return random_bytes(8 * n).view("<u8").astype(np.uint64)
