"""A site's identity: the Ed25519 key by which the others know that a message is the site's own.

The private key never leaves the site. Its public half is one line of text that the site hands to
the operator, who puts it into the federation's roster (`privacy.roster`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from configs.errors import ConfigError
from configs.processes import PASSPHRASE
from privacy.key_files import read_private, replace_file, write_new

__all__ = [
    "PASSPHRASE",
    "PUBLIC_BYTES",
    "fingerprint",
    "given_passphrase",
    "identity_locked",
    "make_identity",
    "public_text",
    "read_identity",
    "read_public_text",
]

#: Length of a public key.
PUBLIC_BYTES = 32
#: Heights y of the points of small order, also where written as y + p: a signature under such a key
#: proves nothing, for anybody can make one. libsodium refuses the same.
_PRIME = 2**255 - 19
_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_WEAK_HEIGHTS = frozenset((0, 1, _PRIME - 1, _PRIME, _PRIME + 1, _ORDER_8, _PRIME - _ORDER_8))
_LOCKED = b"ENCRYPTED"  # in the first line of a PEM file
_WHAT = "identity key"
_WAY_OUT = "run `fedmvc-client keygen` at the site"


def make_identity(path: Path, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Draw an identity key and write it as PKCS8 PEM, readable by its owner only.

    Its public half is written beside it as text, with the ending ``.pub``.

    Parameters
    ----------
    path : Path
        File to make; missing folders above it are made.
    passphrase : bytes, optional
        Locks the file; without it the file's mode (0600) alone protects the key.

    Returns
    -------
    Ed25519PrivateKey

    Raises
    ------
    ConfigError
        If the file exists (a key is never overwritten) or cannot be written.
    """
    lock: KeySerializationEncryption = NoEncryption()
    if passphrase:
        lock = BestAvailableEncryption(passphrase)
    path, key = Path(path), Ed25519PrivateKey.generate()
    write_new(
        path,
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock),
        _WHAT,
        "name another file, or remove it first where the site is to get a new identity and the "
        "federation a new roster",
    )
    text = f"{public_text(key)}\n"
    replace_file(path.with_suffix(".pub"), text.encode(), "public key", mode=0o644)
    return key


def read_identity(path: Path, passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Read a site's identity key.

    Parameters
    ----------
    path : Path
        A file as `make_identity` writes it.
    passphrase : bytes, optional
        What locks the file; not needed for a file that none locks.

    Returns
    -------
    Ed25519PrivateKey

    Raises
    ------
    ConfigError
        If there is no such file, other users may read it, it holds no such key, or the passphrase
        does not open it; with the way out.
    """
    path = Path(path)
    named, detail = f"{_WHAT} '{path.name}'", str(path)
    body = read_private(path, _WHAT, _WAY_OUT)
    locked = _LOCKED in body
    if locked and not passphrase:
        raise ConfigError(
            f"{named} is locked by a passphrase and none was given: put it into the environment "
            f"variable {PASSPHRASE}",
            local_detail=detail,
        )
    try:
        key = load_pem_private_key(body, passphrase if locked else None)
    except (ValueError, TypeError) as error:
        fault = (
            "is damaged, or the passphrase is not the one that locks it: give the right one"
            if locked
            else "is damaged: restore it from a safe copy"
        )
        raise ConfigError(
            f"{named} {fault}, or remove it and {_WAY_OUT}, then hand the operator the new public "
            "text",
            local_detail=f"{detail}: {error}",
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{named} holds a key of another kind, not Ed25519: remove it and {_WAY_OUT}",
            local_detail=detail,
        )
    return key


def identity_locked(path: Path) -> bool:
    """Say whether a passphrase locks an identity key.

    Raises
    ------
    ConfigError
        If there is no such file, it cannot be read or other users may read it; with the way out.
    """
    return _LOCKED in read_private(path, _WHAT, _WAY_OUT)


def given_passphrase() -> bytes | None:
    """Return the passphrase in the environment; None where there is none."""
    given = os.environ.get(PASSPHRASE)
    return given.encode() if given else None


def public_text(key: Ed25519PrivateKey) -> str:
    """Return the public half of an identity as text: base64 of its 32 bytes."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def read_public_text(text: str, named: str) -> bytes:
    """Read what `public_text` wrote.

    Parameters
    ----------
    text : str
        White space around it is ignored.
    named : str
        Whose it is, for the message: ``"site 'st-anna'"``.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    ConfigError
        If the text is no public key, or one under which anybody can sign.
    """
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != PUBLIC_BYTES or base64.b64encode(key).decode() != text.strip():
        raise ConfigError(
            f"{named}: its public key is not the base64 text of {PUBLIC_BYTES} bytes: copy the "
            "line of identity.pub that `fedmvc-client keygen` made at the site"
        )
    if int.from_bytes(key, "little") & (2**255 - 1) in _WEAK_HEIGHTS:  # whatever the sign's bit
        raise ConfigError(
            f"{named}: under its public key anybody could sign: copy the line of identity.pub that "
            "`fedmvc-client keygen` made at the site"
        )
    return key


def fingerprint(public: bytes) -> str:
    """Return a short name of a public key, to be compared by telephone.

    Parameters
    ----------
    public : bytes
        The 32 bytes of an Ed25519 public key.

    Returns
    -------
    str
        The first 16 bytes of its SHA-256 as hexadecimal digits in groups of four.
    """
    digits = hashlib.sha256(public).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))
