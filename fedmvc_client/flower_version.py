"""The one version of Flower whose inner names this package leans on."""

from __future__ import annotations

from importlib.metadata import version

from configs.errors import ConfigError

__all__ = ["FLOWER", "require_flower"]

FLOWER = "1.42.0"
"""Release of flwr that `fedmvc_client.executor` and `fedmvc_client.fast_poll` were read against."""


def require_flower(what: str, way_out: str = "") -> None:
    """Refuse any other Flower: what has no public name may mean something else there.

    Parameters
    ----------
    what : str
        What leans on them, as the user calls it.
    way_out : str
        What to do instead of installing that version.

    Raises
    ------
    ConfigError
        Where another version is installed.
    """
    found = version("flwr")
    if found != FLOWER:
        raise ConfigError(
            f"{what} replaces inner parts of Flower {FLOWER}, and Flower {found} is installed: "
            f"install flwr=={FLOWER}{way_out}"
        )
