"""Which version of FedMVC this is."""

from __future__ import annotations

from importlib import metadata

__all__ = ["own_version"]


def own_version() -> str:
    """Return the installed version; "0.0.0" in a source tree that is not installed."""
    try:
        return metadata.version("fedmvc")
    except metadata.PackageNotFoundError:
        return "0.0.0"
