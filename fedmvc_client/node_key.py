"""The key by which a site's SuperNode is known to the server, and whether the server knows it."""

from __future__ import annotations

import base64
import enum
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, ssh_key_fingerprint

from configs.errors import ConfigError
from privacy.key_files import read_private

__all__ = ["NodeKey", "Standing", "ask_standing"]

_WHAT = "node key"
_WAY_OUT = "take it from the kit that the operator made ('fedmvc-server provision')"
_UNKNOWN, _BAD_INTERVAL = 2004, 2003  # Flower's codes of a refused activation


@dataclass(frozen=True)
class NodeKey:
    """A SuperNode's key.

    Parameters
    ----------
    private : EllipticCurvePrivateKey
    fingerprint : str
        Of the public half, as ``ssh-keygen -l`` prints it.
    """

    private: ec.EllipticCurvePrivateKey
    fingerprint: str

    @classmethod
    def load(cls, path: Path) -> NodeKey:
        """Read a private key of mode 0600 in OpenSSH's form, the only one that Flower takes.

        Raises
        ------
        ConfigError
            If there is no such file, other users may read it, or it holds no such key.
        """
        body = read_private(path, _WHAT, _WAY_OUT)
        try:
            key = load_ssh_private_key(body, None)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{_WHAT} '{path.name}' is no unlocked OpenSSH private key: {_WAY_OUT}",
                local_detail=f"{path}: {error}",
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                f"{_WHAT} '{path.name}' is no elliptic-curve key: {_WAY_OUT}",
                local_detail=str(path),
            )
        digest = ssh_key_fingerprint(key.public_key(), hashes.SHA256())
        return cls(key, "SHA256:" + base64.b64encode(digest).decode().rstrip("="))


class Standing(enum.Enum):
    """What a server says of a node key."""

    REGISTERED = "registered"
    UNKNOWN = "unknown"
    REJECTED = "rejected"  # the signature: in practice the clock
    UNCLEAR = "unclear"


def ask_standing(server: str, ca: Path, key: NodeKey) -> Standing:
    """Ask a server whether a node key is registered with it, and change nothing there.

    It is an activation with a heartbeat of 0 s, which Flower 1.42 refuses: with one code where it
    knows the key, with another where it does not, with 401 where it takes no signature of ours.

    Parameters
    ----------
    server : str
        ``HOST:PORT``.
    ca : Path
        Its CA certificate.
    key : NodeKey
        The key.
    """
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.error import FlowerError
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    public = key.private.public_key()
    signed = NodeAuthHttpInterceptor(key.private, public)
    client = FleetHttpClient.from_server_address(server, False, ca.read_bytes(), [signed])
    request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=0.0)
    try:
        with client:
            client.ActivateNode(request)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            return Standing.REJECTED
        refusal = FlowerError.from_json(error.response.text)
        codes = {_UNKNOWN: Standing.UNKNOWN, _BAD_INTERVAL: Standing.REGISTERED}
        return Standing.UNCLEAR if refusal is None else codes.get(refusal.code, Standing.UNCLEAR)
    except httpx.HTTPError:
        return Standing.UNCLEAR
    return Standing.UNCLEAR
