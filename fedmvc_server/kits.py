"""What is in a start kit: the server's, the authority's, and each site's.

Texts come from the files beside this module, ``kit_templates``. Secrets are written with mode 0600
from their first moment, and folders with 0700.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from configs.connection import Connection
from configs.federation import FederationConfig
from configs.site import Keys
from configs.version import own_version
from fedmvc_server.certificates import Issued
from fedmvc_server.kit_folders import make_folder
from fedmvc_server.node_keys import NodeKey
from privacy.key_files import write_new

__all__ = [
    "NODE_KEY",
    "NODE_PUBLIC",
    "public_key_file",
    "write_authority_kit",
    "write_server_kit",
    "write_site_kit",
]

#: Where a site's kit has the key of its SuperNode.
NODE_KEY = Keys().node
NODE_PUBLIC = str(Path(NODE_KEY).with_suffix(".pub"))
_COMPOSE = Path("docker", "compose.site.yaml")
_ROOTS = (Path(__file__).parent, Path(__file__).parents[1])  # as packaged; as in a checkout
_WAY_OUT = "provision into another folder"
_OPEN = 0o644


def public_key_file(server_kit: Path, site: str) -> Path:
    """Where the server's kit has the public node key of a site."""
    return server_kit / "nodes" / f"{site}.pub"


def write_server_kit(
    folder: Path,
    federation: FederationConfig,
    authority: Issued,
    server: Issued,
    nodes: Mapping[str, NodeKey],
) -> None:
    """Write what the SuperLink's machine needs; the authority's key is not among it.

    Parameters
    ----------
    folder : Path
        An existing folder.
    federation : FederationConfig
    authority, server : Issued
    nodes : mapping of str to NodeKey
        The node key of each site, of which the public half is written.
    """
    _write(folder / "ca.crt", authority.certificate_pem, "CA certificate", _OPEN)
    _write(folder / "server.pem", server.certificate_pem, "server certificate", _OPEN)
    _write(folder / "server.key", server.key_pem, "server key")
    # Flower takes the bytes as they are, a line break included
    _write(folder / "superexec.secret", secrets.token_hex(32).encode(), "executor's secret")
    _write(folder / "federation.toml", federation.dumps().encode(), "federation file", _OPEN)
    make_folder(folder / "state")  # a container gets what exists before it starts
    make_folder(folder / "nodes")
    for name, key in nodes.items():
        _write(public_key_file(folder, name), key.public, "public key", _OPEN)


def write_authority_kit(
    folder: Path, federation: FederationConfig, authority: Issued, server: Issued
) -> None:
    """Write the authority's key, which belongs offline, and a page that says so."""
    _write(folder / "ca.key", authority.key_pem, "CA key")
    words = {
        "federation": federation.name,
        "expires": f"{server.expires:%Y-%m-%d}",
        "authority_expires": f"{authority.expires:%Y-%m-%d}",
    }
    _write(folder / "README.md", _filled("ca_readme.md", words), "page", _OPEN)


def write_site_kit(
    folder: Path,
    site: str,
    federation: FederationConfig,
    authority: x509.Certificate,
    node: NodeKey,
    *,
    with_identity: bool,
) -> bool:
    """Write what one site gets, but for identity key and roster (`fedmvc_server.site_keys`).

    Parameters
    ----------
    folder : Path
        An existing folder.
    site : str
        The site's name.
    federation : FederationConfig
    authority : Certificate
        By which the site knows the server.
    node : NodeKey
        The site's own.
    with_identity : bool
        Whether the kit also gets an identity key and a roster, for its page.

    Returns
    -------
    bool
        Whether there is a compose file: an installation without ``docker`` has none to give.
    """
    compose = _compose_file()
    words = {
        "site": site,
        "project": re.sub("[^a-z0-9]+", "-", f"fedmvc-{federation.name}-{site}".lower()),
        "federation": federation.name,
        "server": federation.server.address,
        "authority_expires": f"{authority.not_valid_after_utc:%Y-%m-%d}",
    }
    words["identity_step"] = _filled(
        "identity_here.md" if with_identity else "identity_to_make.md", words
    ).decode()
    words["version"] = own_version()
    words["containers_instead"] = _CONTAINERS if compose else ""
    words["roster_row"] = _ROSTER_ROW if with_identity else ""
    words["compose_row"] = _COMPOSE_ROW if compose else ""
    words["compose_step"] = _filled("site_containers.md", words).decode() if compose else ""
    _write(folder / "README.md", _filled("site_readme.md", words), "page", _OPEN)
    for name in ("site.toml", "schema.toml"):
        _write(folder / name, _filled(name, words), "template", _OPEN)
    Connection(server=federation.server.address, site=site).dump(folder)
    _write(folder / "ca.crt", authority.public_bytes(Encoding.PEM), "CA certificate", _OPEN)
    _write(folder / ".env", _filled("env", words), "environment", _OPEN)
    if compose:
        _write(folder / "compose.yaml", compose, "compose file", _OPEN)
    for name in ("data", "plans", "results"):  # a container gets what exists before it starts
        make_folder(folder / name)
    make_folder((folder / NODE_KEY).parent)
    _write(folder / NODE_KEY, node.private, "node key")
    _write(folder / NODE_PUBLIC, node.public, "public key", _OPEN)
    return bool(compose)


_ROSTER_ROW = """\
| `state/identity.pem` | **secret**: others know this site's messages by it; made for a trial |
| `roster.json` | the public identity keys of all sites |
"""
_CONTAINERS = ", or in containers (last section)"
_COMPOSE_ROW = "| `compose.yaml`, `.env` | the three processes of a site as containers |\n"


def _compose_file() -> bytes:
    """Return the compose file of a site; nothing where this installation has none."""
    for root in _ROOTS:
        if (root / _COMPOSE).is_file():
            return (root / _COMPOSE).read_bytes()
    return b""


def _filled(name: str, words: Mapping[str, str]) -> bytes:
    template = (files("fedmvc_server") / "kit_templates" / name).read_text(encoding="utf-8")
    return Template(template).substitute(words).encode()


def _write(path: Path, body: bytes, what: str, mode: int = 0o600) -> None:
    write_new(path, body, what, _WAY_OUT, mode=mode)
