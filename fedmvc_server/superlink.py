"""The SuperLink and its executor as commands: every argument, and why it is there."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from configs.endpoint import CertificateFacts
from configs.errors import ConfigError
from configs.federation import BEHIND_PROXY_PORT
from configs.processes import flower_environment, program
from fedmvc_server.kit import ServerKit

__all__ = ["Listening", "environment", "is_loopback", "superexec_command", "superlink_command"]


@dataclass(frozen=True)
class Listening:
    """Where the SuperLink listens.

    Parameters
    ----------
    host : str
        Host name or IP address of an interface; ``0.0.0.0`` or ``::`` for all.
    port : int
        The port.
    local : str
        Host by which processes of this machine reach it, and which its certificate is for.
    """

    host: str
    port: int
    local: str

    @classmethod
    def choose(
        cls,
        kit: ServerKit,
        certificate: CertificateFacts,
        host: str,
        port: int | None,
        behind_proxy: bool,
    ) -> Listening:
        """Choose port and local host.

        Parameters
        ----------
        kit : ServerKit
        certificate : CertificateFacts
            The server's certificate.
        host : str
            As the attribute.
        port : int or None
            None: the port of ``federation.toml``; behind a proxy, which has that one, 8000.
        behind_proxy : bool
            A proxy lets no path but Fleet's through to `host`.

        Raises
        ------
        ConfigError
            If `host` can be reached from other machines and no proxy is before it, or the
            certificate is for no name by which this machine reaches it.
        """
        if not is_loopback(host) and not behind_proxy:
            raise ConfigError(
                f"--host is '{host}', which other machines reach, and whoever reaches the "
                "SuperLink's control API can start runs at every site: put a proxy before it that "
                "lets /v1/fleet/ alone through and say --behind-proxy, or listen at 127.0.0.1"
            )
        server = kit.federation().server
        if port is None:
            port = BEHIND_PROXY_PORT if behind_proxy else server.own_port
        everywhere = host in ("0.0.0.0", "::")
        ways = [*([] if everywhere else [host]), "127.0.0.1", "localhost"]
        local = next((way for way in ways if way in certificate.names), None)
        if local is None:
            raise ConfigError(
                f"the server's certificate is for {', '.join(certificate.names) or 'no name'} and "
                f"not for {' or '.join(ways)}, by which its own executor reaches it: add "
                "'127.0.0.1' to server.addresses in the kit's federation.toml and run "
                "'fedmvc-server renew'"
            )
        return cls(host, port, local)

    @property
    def address(self) -> str:
        """``HOST:PORT`` for processes of this machine."""
        return f"[{self.local}]:{self.port}" if ":" in self.local else f"{self.local}:{self.port}"


def is_loopback(host: str) -> bool:
    """Say whether a host can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def superlink_command(kit: ServerKit, listening: Listening) -> list[str]:
    """Return the SuperLink's command.

    TLS, registered sites only, a database that outlives it, ServerApps in the executor's process
    (they go on while the SuperLink is away), and nothing installed at run time.
    """
    return [
        program("flower-superlink"),
        *("--host", listening.host, "--port", str(listening.port)),
        *("--ssl-ca-certfile", str(kit.ca)),
        *("--ssl-certfile", str(kit.certificate)),
        *("--ssl-keyfile", str(kit.key)),
        "--enable-supernode-auth",
        *("--database", str(kit.state / "state.db")),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(kit.secret)),
        "--disable-runtime-dependency-installation",
    ]


def superexec_command(kit: ServerKit, listening: Listening) -> list[str]:
    """Return the command of the executor that starts ServerApps beside the SuperLink.

    Unlike a SuperLink, it installs nothing at run time unless it is told to.
    """
    return [
        program("flower-superexec"),
        *("--root-certificates", str(kit.ca)),
        *("--runtime-api-address", listening.address),
        *("--superexec-auth-secret-file", str(kit.secret)),
    ]


def environment(kit: ServerKit, listening: Listening) -> dict[str, str]:
    """Return the environment of both."""
    return flower_environment(kit.state / "flower", [listening.local])
