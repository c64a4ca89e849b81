"""``fedmvc-client doctor``: what would keep a site out of its federation."""

from __future__ import annotations

import os
from pathlib import Path

from configs.connection import Connection
from configs.diagnosis import (
    Finding,
    describe_authority,
    describe_certificate,
    describe_clock,
    disk,
    examine,
)
from configs.endpoint import reach
from configs.errors import ConfigError, FedMVCError, TransportError
from configs.flower_version import check_flower
from configs.processes import go_direct
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.node_key import NodeKey, Standing, ask_standing
from privacy.identity import (
    fingerprint,
    given_passphrase,
    identity_locked,
    read_identity,
    read_public_text,
)
from privacy.roster import Roster

__all__ = ["diagnose"]

_NEW_KIT = "ask the operator for a new kit"
_RENEW = "let the operator renew it with 'fedmvc-server renew'"


def diagnose(folder: Path) -> list[Finding]:
    """Look at a site's folder and at its server.

    Parameters
    ----------
    folder : Path
        The site's folder.

    Returns
    -------
    list of Finding
        One a check, in the order in which to mend them. A check that needs what an earlier one
        found wrong is left out.
    """
    found = [examine("versions", check_flower)]
    try:
        config = SiteConfig.load(folder)
    except FedMVCError as error:
        return [*found, Finding("site", "problem", error.public_message, error.code)]
    found += [
        Finding("site", "ok", f"'{config.name}'"),
        examine("data", lambda: _data(folder, config)),
        examine("state", lambda: _state(folder)),
        examine("disk", lambda: disk(folder / "state")),
        *_identity(folder, config),
    ]
    return found + _connection(folder, config)


def _data(folder: Path, config: SiteConfig) -> str:
    from fedmvc_client.data import load_site  # loads pyarrow: only where it is needed

    schema = DataSchema.load(folder / "schema.toml")
    data = load_site(folder, schema, config)
    views = ", ".join(f"{view} (schema {schema.schema_hash(view)[:12]})" for view in data.views)
    return f"{len(data.ids)} rows; views {views}"


def _state(folder: Path) -> str:
    state = folder / "state"
    there = state if state.exists() else folder
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"folder '{there.name}' cannot be written by this user: give it the right"
        )
    return "folder 'state' can be written"


def _identity(folder: Path, config: SiteConfig) -> list[Finding]:
    """Look at identity key and roster, which runs with secure aggregation need."""
    key, roster = folder / config.keys.identity, folder / config.keys.roster
    try:
        there = key.exists() or roster.exists()
    except OSError:  # a folder that this user may not enter: reading says so
        there = True
    if not there:
        none = "no identity key and no roster: this site takes part in open runs only"
        return [Finding("identity", "warning", f"{none}; 'fedmvc-client keygen' makes a key")]
    found = [examine("identity", lambda: f"key {fingerprint(_own_public(key))}")]
    return [*found, examine("roster", lambda: _roster(roster, config.name, key))]


def _own_public(key: Path) -> bytes:
    passphrase = given_passphrase()
    if not passphrase and identity_locked(key):  # its public half lies beside it
        public = key.with_suffix(".pub")
        try:
            return read_public_text(public.read_text(encoding="ascii"), "this site")
        except (OSError, UnicodeDecodeError):
            pass
    return read_identity(key, passphrase).public_key().public_bytes_raw()


def _roster(path: Path, site: str, key: Path) -> str | Finding:
    if not path.exists():
        return Finding(
            "roster",
            "warning",
            f"no '{path.name}' yet: runs with secure aggregation need the operator's",
        )
    roster = Roster.load(path)
    if site not in roster.keys:
        raise ConfigError(
            f"the roster of federation '{roster.federation}' names no site '{site}': let the "
            "operator build one with this site's public key"
        )
    own = _own_public(key)
    if roster.keys[site] != own:
        raise ConfigError(
            f"the roster has another identity key of site '{site}' "
            f"({roster.fingerprint(site)}) than this folder ({fingerprint(own)}): hand the "
            "operator identity.pub again, or restore the key"
        )
    names = len(roster.names)
    return f"federation '{roster.federation}', {names} sites, hash {roster.hash.hex()[:12]}"


def _connection(folder: Path, config: SiteConfig) -> list[Finding]:
    try:
        connection = Connection.load(folder)
    except FedMVCError as error:
        return [Finding("connection", "problem", error.public_message, error.code)]
    ca, server = folder / connection.ca, connection.server
    found = [
        examine("connection", lambda: _server(connection, config)),
        examine("CA certificate", lambda: describe_authority(ca, _NEW_KIT)),
        examine("node key", lambda: NodeKey.load(folder / config.keys.node).fingerprint),
    ]
    go_direct()
    try:
        reached = reach(server, ca)
    except FedMVCError as error:
        return [*found, Finding("reachability", "problem", error.public_message, error.code)]
    found.append(Finding("reachability", "ok", f"the server answers at {server} with TLS"))
    if reached.certificate is not None:
        found.append(describe_certificate(reached.certificate, "server certificate", _RENEW))
    found.append(examine("clock", lambda: describe_clock(reached, server)))
    return [*found, examine("registration", lambda: _registration(folder, config, server, ca))]


def _server(connection: Connection, config: SiteConfig) -> str:
    connection.check_site(config.name)
    return f"server {connection.server}"


def _registration(folder: Path, config: SiteConfig, server: str, ca: Path) -> str | Finding:
    standing = ask_standing(server, ca, NodeKey.load(folder / config.keys.node))
    if standing is Standing.REGISTERED:
        return "the server knows this site's node key"
    if standing is Standing.UNKNOWN:
        raise TransportError(
            f"the server at {server} does not know the node key of site '{config.name}' (never "
            "registered, or revoked): let the operator run 'fedmvc-server register'"
        )
    if standing is Standing.REJECTED:
        raise TransportError(
            f"the server at {server} takes no signature of this site: set this machine's clock "
            "(NTP)"
        )
    return Finding("registration", "warning", "the server gave no clear answer: see its log")
