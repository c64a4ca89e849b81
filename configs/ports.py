"""Whether somebody listens at an address, and whether this machine could."""

from __future__ import annotations

import socket

from configs.errors import ConfigError

__all__ = ["listens", "refuse_taken_port"]


def listens(host: str, port: int) -> bool:
    """Say whether somebody accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except (OSError, UnicodeError):  # the second of a name that is none
        return False


def refuse_taken_port(host: str, port: int, who: str, way_out: str) -> None:
    """Refuse an address that this machine cannot listen at, mostly since something else does.

    Parameters
    ----------
    host : str
        A name or an address of this machine.
    port : int
    who : str
        What would listen there.
    way_out : str
        What to do, for the end of the sentence.

    Raises
    ------
    ConfigError
    """
    try:
        family, kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, UnicodeError) as error:
        fault = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise ConfigError(f"{who} cannot listen at {host}:{port} ({fault}): {way_out}") from None
