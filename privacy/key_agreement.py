"""Keys of two sites: X25519 (RFC 7748), then HKDF-SHA256 (RFC 5869) bound to what they are for."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from configs.errors import ProtocolError

__all__ = ["KEY_BYTES", "derive_key", "new_secret", "public_of", "shared_secret"]

#: Length of a secret, of a public key and of a derived key.
KEY_BYTES = 32


def new_secret() -> bytes:
    """Draw an X25519 secret from the operating system's generator."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(secret: bytes) -> bytes:
    """Return the public key of an X25519 secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def shared_secret(secret: bytes, public: bytes) -> bytes:
    """Return the X25519 secret that two sites share.

    Raises
    ------
    ProtocolError
        If the public key is of small order: whatever the secret, the result would be zero.
    """
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        raise ProtocolError(
            "a site's public key is not a usable X25519 key: start the run again, and replace that "
            "site's software if it happens twice"
        ) from None


def derive_key(secret: bytes, public: bytes, *, salt: bytes, info: bytes) -> bytes:
    """Derive the key of one purpose from two sites' keys.

    Parameters
    ----------
    secret : bytes
        Own X25519 secret.
    public : bytes
        The other's public key.
    salt : bytes
        The run's transcript.
    info : bytes
        What the key is for; see `privacy.canonical.pack`.

    Returns
    -------
    bytes
        32 bytes of HKDF-SHA256.

    Raises
    ------
    ProtocolError
        See `shared_secret`.
    """
    material = shared_secret(secret, public)
    return HKDF(hashes.SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(material)
