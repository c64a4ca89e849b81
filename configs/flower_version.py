"""The one release of Flower that this house is built on.

Sites lean on some of its inner names (`fedmvc_client.supernode`, `fedmvc_client.clientapp`,
`configs.flower_waits`); what has no public name may mean something else in another release.
"""

from __future__ import annotations

from importlib import metadata

from configs.errors import ProtocolError

__all__ = ["FLWR", "check_flower", "installed"]

FLWR = "1.42.0"
"""Release of flwr that both sides of a federation must have."""


def installed(distribution: str) -> str:
    """Return the version of an installed distribution; "not installed" where it is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def check_flower() -> str:
    """Return the installed versions.

    Raises
    ------
    ProtocolError
        If flwr is of another release than `FLWR` (exit code 8).
    """
    flower = installed("flwr")
    if flower != FLWR:
        raise ProtocolError(
            f"flwr {flower} is installed and fedmvc needs {FLWR}: install 'flwr=={FLWR}', the "
            "same at the server and at every site"
        )
    return f"fedmvc {installed('fedmvc')}, flwr {flower}"
