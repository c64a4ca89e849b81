"""``fedmvc-server doctor``: what would keep this machine from serving a federation."""

from __future__ import annotations

from datetime import UTC, datetime

from configs.diagnosis import (
    Finding,
    describe_authority,
    describe_certificate,
    describe_clock,
    disk,
    examine,
)
from configs.endpoint import Reached, reach
from configs.errors import ConfigError, FedMVCError
from configs.flower_version import check_flower
from fedmvc_server.kit import ServerKit
from fedmvc_server.server_kit import read_nodes

__all__ = ["diagnose"]

_NEW_KITS = "provision anew and hand out all kits"
_RENEW = "make a new one with 'fedmvc-server renew' and restart 'fedmvc-server start'"


def diagnose(kit: ServerKit, server: str | None = None) -> list[Finding]:
    """Look at the installed versions, the kit, the disk and, where one is named, the server.

    Parameters
    ----------
    kit : ServerKit
        The server's kit.
    server : str, optional
        ``HOST:PORT`` of the SuperLink: also look whether it answers there, with the kit's
        certificate and with this machine's time.

    Returns
    -------
    list of Finding
        One a check, in the order in which to mend them.
    """
    found = [
        examine("versions", check_flower),
        examine("federation", lambda: _federation(kit)),
        examine("certificate", lambda: _certificate(kit)),
        examine("CA certificate", lambda: describe_authority(kit.ca, _NEW_KITS)),
        examine("CA key", lambda: _authority_key(kit)),
        examine("secrets", lambda: _secrets(kit)),
        examine("nodes", lambda: _nodes(kit)),
        examine("disk", lambda: disk(kit.state)),
    ]
    if server is not None:
        found += _reachability(kit, server)
    return found


def _federation(kit: ServerKit) -> str:
    federation = kit.federation()
    sites = ", ".join(federation.site_names)
    return f"'{federation.name}', sites {sites}; they connect to {federation.server.address}"


def _certificate(kit: ServerKit) -> Finding:
    facts = kit.certificate_facts()
    server = kit.federation().server
    missing = [name for name in (*server.names, *server.addresses) if name not in facts.names]
    if missing:
        raise ConfigError(
            f"server.pem is not for '{missing[0]}', which federation.toml names: {_RENEW}"
        )
    return describe_certificate(facts, "certificate", _RENEW)


def _authority_key(kit: ServerKit) -> str | Finding:
    for path in (kit.folder / "ca.key", kit.folder.parent / "ca" / "ca.key"):
        if path.exists():
            return Finding(
                "CA key",
                "warning",
                f"'{path.parent.name}/{path.name}' is on this machine, and whoever has it can "
                "forge the server: move it to a medium that is kept offline",
            )
    return "not on this machine"


def _secrets(kit: ServerKit) -> str:
    kit.check_secrets()
    return "server.key and superexec.secret are this user's alone; the key fits the certificate"


def _nodes(kit: ServerKit) -> str | Finding:
    recorded = read_nodes(kit.folder)
    names = kit.federation().site_names
    missing = [name for name in names if name not in recorded]
    revoked = [name for name in names if name in recorded and recorded[name].revoked_at]
    said = f"{len(names) - len(missing) - len(revoked)} of {len(names)} sites are registered"
    if revoked:
        said += f"; revoked: {', '.join(revoked)}"
    if missing:
        return Finding(
            "nodes",
            "warning",
            f"{said}; not yet: {', '.join(missing)}: run 'fedmvc-server register'",
        )
    return said


def _reachability(kit: ServerKit, server: str) -> list[Finding]:
    try:
        reached = reach(server, kit.ca, direct=True)
    except FedMVCError as error:
        return [Finding("reachability", "problem", error.public_message, error.code)]
    return [
        Finding("reachability", "ok", f"a SuperLink answers at {server} with TLS"),
        examine("served certificate", lambda: _served(kit, reached)),
        examine("clock", lambda: _clock(reached, server)),
    ]


def _served(kit: ServerKit, reached: Reached) -> str | Finding:
    if reached.certificate is None:
        return Finding("served certificate", "warning", "it could not be looked at")
    own = kit.certificate_facts()
    if reached.certificate != own:
        return Finding(
            "served certificate",
            "warning",
            f"valid until {reached.certificate.not_after:%Y-%m-%d}, and server.pem of this kit "
            f"until {own.not_after:%Y-%m-%d}: restart what serves it",
        )
    return "the one of this kit"


def _clock(reached: Reached, server: str) -> str | Finding:
    said = describe_clock(reached, server)
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"{now}, {said}" if isinstance(said, str) else said
