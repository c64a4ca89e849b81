"""Make the start kits of a federation: all of them, or none."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from configs.errors import ConfigError
from configs.federation import FederationConfig
from configs.values import check_whole
from fedmvc_server.certificates import (
    AUTHORITY_DAYS,
    Issued,
    issue_server,
    make_authority,
    read_authority,
)
from fedmvc_server.kit_folders import make_folder, refuse_taken, whole_or_nothing
from fedmvc_server.kits import (
    write_authority_kit,
    write_server_kit,
    write_site_kit,
)
from fedmvc_server.node_keys import NodeKey
from fedmvc_server.site_keys import write_keys
from privacy.key_files import read_private, replace_file

__all__ = ["DEFAULT_DAYS", "Provisioned", "provision", "renew"]

#: How long a server certificate is valid.
DEFAULT_DAYS = 365
_OWN_NAMES = ("localhost",)
_OWN_ADDRESSES = ("127.0.0.1", "::1")
_ANOTHER_OUT = "name another with --out"


@dataclass(frozen=True)
class Provisioned:
    """What was made.

    Attributes
    ----------
    address : str
        ``HOST:PORT`` that sites connect to.
    expires : datetime
        When the server's certificate ends, in UTC.
    compose : bool
        Whether the sites' kits have a compose file.
    """

    address: str
    expires: datetime.datetime
    compose: bool


def provision(
    federation: FederationConfig,
    out: Path,
    *,
    days: int = DEFAULT_DAYS,
    with_identity_keys: bool = False,
    now: datetime.datetime | None = None,
) -> Provisioned:
    """Write the kits ``out/server``, ``out/ca`` and ``out/SITE`` of every site.

    They are written into a folder beside `out` that takes its name when all are complete.

    Parameters
    ----------
    federation : FederationConfig
    out : Path
        A folder that does not exist or is empty.
    days : int
        How long the server's certificate is valid, 1 to `AUTHORITY_DAYS`.
    with_identity_keys : bool
        For trials: also make the sites' identity keys, and the roster.
    now : datetime, optional
        When the certificates are made, in UTC; now where left out.

    Returns
    -------
    Provisioned

    Raises
    ------
    ConfigError
        If `out` holds something, cannot be written, or `days` does not fit.
    """
    _check_days(days)
    refuse_taken(out, _ANOTHER_OUT)
    authority = make_authority(federation.name, now=now)
    server = _certify(authority, federation, days, now)
    nodes = {name: NodeKey() for name in federation.site_names}
    compose = False
    with whole_or_nothing(out, _ANOTHER_OUT) as folder:
        (folder / ".gitignore").write_text("# keys: nothing of this goes into git\n*\n")
        write_server_kit(make_folder(folder / "server"), federation, authority, server, nodes)
        write_authority_kit(make_folder(folder / "ca"), federation, authority, server)
        for name, node in nodes.items():
            kit = make_folder(folder / name)
            compose = write_site_kit(
                kit,
                name,
                federation,
                authority.certificate,
                node,
                with_identity=with_identity_keys,
            )
        if with_identity_keys:
            write_keys(folder, federation.site_names, federation.name)
    return Provisioned(federation.server.address, server.expires, compose)


def renew(
    federation: FederationConfig,
    kit: Path,
    ca: Path,
    *,
    days: int = DEFAULT_DAYS,
    now: datetime.datetime | None = None,
) -> datetime.datetime:
    """Replace the server's certificate and key by new ones that the same authority signed.

    Parameters
    ----------
    federation : FederationConfig
        Of the server's kit.
    kit : Path
        The server's kit.
    ca : Path
        Folder with ``ca.key``.
    days, now
        As for `provision`.

    Returns
    -------
    datetime
        When the new certificate ends, in UTC.

    Raises
    ------
    ConfigError
        If the authority's key cannot be read or is another's, or the kit cannot be written.
    """
    _check_days(days)
    key = read_private(ca / "ca.key", "CA key", "give the folder that `provision` made for it")
    authority = read_authority((kit / "ca.crt").read_bytes(), key)
    server = _certify(authority, federation, days, now)
    replace_file(kit / "server.key", server.key_pem, "server key")
    replace_file(kit / "server.pem", server.certificate_pem, "server certificate", mode=0o644)
    return server.expires


def _certify(
    authority: Issued, federation: FederationConfig, days: int, now: datetime.datetime | None
) -> Issued:
    # the operator's own commands reach the server from its machine, past any proxy
    names = dict.fromkeys([*federation.server.names, *_OWN_NAMES])
    addresses = dict.fromkeys([*federation.server.addresses, *_OWN_ADDRESSES])
    return issue_server(authority, list(names), list(addresses), days=days, now=now)


def _check_days(days: int) -> None:
    if check_whole("days", days, 1) > AUTHORITY_DAYS:
        raise ConfigError(
            f"days is {days}: give at most {AUTHORITY_DAYS}, for which the authority is valid"
        )
