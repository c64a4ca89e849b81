"""Node keys: how a site's SuperNode proves itself to the server (P-384).

Both halves are in OpenSSH's forms, the only ones that Flower 1.42 takes. The operator registers
the public half under the site's name.
"""

from __future__ import annotations

import base64

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
    ssh_key_fingerprint,
)

from configs.errors import ConfigError

__all__ = ["NodeKey", "node_fingerprint"]


class NodeKey:
    """A new key for one site."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP384R1())

    @property
    def private(self) -> bytes:
        """The private half: a secret."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())

    @property
    def public(self) -> bytes:
        """The public half, one line."""
        key = self._key.public_key()
        return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"

    def __repr__(self) -> str:
        return f"NodeKey({node_fingerprint(self.public, 'node key')})"


def node_fingerprint(public: bytes, what: str) -> str:
    """Return the fingerprint of a node's public key, as ``ssh-keygen -lf node.pub`` prints it.

    Parameters
    ----------
    public : bytes
        One line in OpenSSH's form.
    what : str
        Whose it is, for the message.

    Returns
    -------
    str
        ``SHA256:`` and 43 characters of base64.

    Raises
    ------
    ConfigError
        If it is no P-384 key in that form.
    """
    try:
        key = load_ssh_public_key(public)
    except (ValueError, UnsupportedAlgorithm):
        raise _no_node_key(what) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise _no_node_key(what)
    digest = ssh_key_fingerprint(key, hashes.SHA256())
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _no_node_key(what: str) -> ConfigError:
    return ConfigError(
        f"{what} is no P-384 public key in OpenSSH's form (one line 'ecdsa-sha2-nistp384 ...'): "
        "copy node.pub again from the site"
    )
