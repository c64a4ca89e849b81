"""Identity keys and rosters of sites that this machine makes up itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.site import Keys
from privacy.identity import make_identity
from privacy.roster import Roster

__all__ = ["draw_keys", "write_keys"]

_SIMULATION = "simulation"  # a federation's name


def draw_keys(names: Sequence[str]) -> tuple[dict[str, Ed25519PrivateKey], Roster]:
    """Draw an identity key for each simulated site, and the roster of them."""
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    return keys, _roster(keys)


def write_keys(folder: Path, names: Sequence[str], federation: str = _SIMULATION) -> None:
    """Make identity keys in the site folders ``folder/NAME`` and give each the roster of all.

    For trials: in earnest each site makes its own, so that nobody else ever had it.
    """
    files = Keys()
    keys = {name: make_identity(folder / name / files.identity) for name in names}
    roster = _roster(keys, federation)
    for name in names:
        roster.dump(folder / name / files.roster)


def _roster(keys: dict[str, Ed25519PrivateKey], federation: str = _SIMULATION) -> Roster:
    public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    return Roster(federation, public)
