"""What Flower's SuperNode prints when it ends, as one sentence that names the cause.

Flower 1.42 exits with 1 whatever the fault is and has the number in its text; where the server does
not take its signature (a clock that is off, a key that was revoked) it exits with 0 and says
nothing, which `fedmvc_client.join` then looks into.
"""

from __future__ import annotations

import re

from configs.errors import ConfigError, FedMVCError, InternalError, ProtocolError, TransportError

__all__ = ["OTHER_RUNTIME", "KeyRefused", "connected_node", "plain", "translate"]

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONNECTED = re.compile(r"SuperNode ID: (\d+)")
_PEER_VERSION = re.compile(r"received \S+ version (\S+?)\.?(\s|$)")
_OWN_VERSION = re.compile(r"version (\S+) detected a runtime version mismatch")


#: The way out where the runtime's port is taken.
OTHER_RUNTIME = "give another --runtime to 'join' and to 'executor', or stop what listens there"


class KeyRefused(TransportError):
    """The server did not let this key's SuperNode in: unknown, or another one is online."""


def plain(line: bytes) -> str:
    """Return a line of a process's output as text, without colours and line end."""
    return _COLOUR.sub("", line.decode("utf-8", "replace")).rstrip()


def connected_node(line: str) -> str | None:
    """Return the node id, where a line says that the SuperNode is connected."""
    found = _CONNECTED.search(line)
    return None if found is None else found.group(1)


def translate(output: str, site: str, server: str, runtime: str) -> FedMVCError | None:
    """Return the refusal that a SuperNode's output tells of.

    Parameters
    ----------
    output : str
        Its last lines, without colours.
    site : str
        The site's name.
    server : str
        ``HOST:PORT`` of the SuperLink.
    runtime : str
        ``HOST:PORT`` at which the SuperNode serves the executor.

    Returns
    -------
    FedMVCError or None
        None where the output names no cause that staying away from the server would mend, so that
        the SuperNode may simply be started again.
    """
    if "[code: 1001]" in output or "Exit Code: 606" in output:
        return ProtocolError(_versions(output, site, server))
    if "[code: 2004]" in output:
        return KeyRefused(
            f"the server at {server} does not let the node key of site '{site}' in: the key is "
            "not registered there, or another SuperNode with it is online"
        )
    if "[code: 2001]" in output:
        return TransportError(
            f"the server at {server} takes registered SuperNodes only, and the one of site "
            f"'{site}' showed no key: let the operator register the site's key "
            "('fedmvc-server register')"
        )
    if "CERTIFICATE_VERIFY_FAILED" in output:
        return TransportError(_certificate(output, server))
    if "Exit Code: 302" in output:
        return TransportError(
            f"Flower cannot read the node key of site '{site}' (it takes an elliptic-curve key in "
            "OpenSSH's form): take it from the kit again"
        )
    if "Exit Code: 303" in output:
        return TransportError(
            f"the SuperNode of site '{site}' was started without TLS, which its key needs: start "
            "it with 'fedmvc-client join'"
        )
    if "address already in use" in output or "Runtime HTTP API failed to start" in output:
        return ConfigError(
            f"the SuperNode of site '{site}' cannot listen at {runtime} (is the port taken?): "
            f"{OTHER_RUNTIME}"
        )
    if "Exit Code: 600" in output:
        return ConfigError(
            f"Flower cannot parse the server's address '{server}': write HOST:PORT, for instance "
            "fl.example.org:8443"
        )
    if "error: unrecognized arguments" in output or "error: argument" in output:
        return InternalError(
            "flower-supernode does not know an argument that fedmvc gives it: install flwr 1.42.0"
        )
    return None  # a handshake that was cut off too: join asks for the certificate each time


def _versions(output: str, site: str, server: str) -> str:
    own, peer = _OWN_VERSION.search(output), _PEER_VERSION.search(output)
    numbers = (
        "" if own is None or peer is None else f" ({own.group(1)} there, {peer.group(1)} here)"
    )
    return (
        f"the server at {server} runs another release of flwr than site '{site}'{numbers}: install "
        "the same at both"
    )


def _certificate(output: str, server: str) -> str:
    whose = f"the certificate of the SuperLink at {server}"
    if "certificate has expired" in output:
        return (
            f"{whose} has expired: let the operator renew it with 'fedmvc-server renew', or "
            "set this machine's clock"
        )
    if "not yet valid" in output:
        return f"{whose} is not valid yet: set this machine's clock, or let the operator renew it"
    if "Hostname mismatch" in output or "IP address mismatch" in output:
        return (
            f"{whose} is for another name: use one of its names, or let the operator add this one "
            "to federation.toml of its kit and run 'fedmvc-server renew'"
        )
    return (
        f"{whose} is not from the CA of this site's kit: ask the operator for the ca.crt that the "
        "server was started with"
    )
