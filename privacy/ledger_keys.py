"""The site's own key, which no one else has: for the ledger's rows, and to tell its data apart."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from configs.errors import PolicyRefused
from privacy.canonical import pack
from privacy.key_files import own_secret

__all__ = ["data_fingerprint", "ledger_key"]


def ledger_key(state: Path) -> bytes:
    """Return the key of the ledger ``ledger.db`` in a state folder; the first call draws it.

    Raises
    ------
    ConfigError
        If it cannot be made or read.
    PolicyRefused
        If it is gone while the ledger is there.
    """
    path = state / "ledger.key"
    way_out = "restore it from a safe copy, as the privacy ledger cannot be read without it"
    if (state / "ledger.db").exists() and not path.exists():
        raise PolicyRefused(f"ledger key '{path.name}' does not exist: {way_out}")
    return own_secret(path, "ledger key", way_out)


def data_fingerprint(key: bytes, blocks: Iterable[bytes]) -> str:
    """Return what tells the site itself, and nobody else, whether two runs read the same data.

    Parameters
    ----------
    key : bytes
        The site's ledger key.
    blocks : iterable of bytes
        The data, in a fixed order.

    Returns
    -------
    str
        HMAC-SHA256, hexadecimal; it stays in the site's own files.
    """
    return hmac.digest(key, pack("fedmvc data", *blocks), hashlib.sha256).hex()
