"""Site folders on this machine: which there are, and whether a plan can do with so many."""

from __future__ import annotations

from pathlib import Path

from configs.errors import ConfigError, QuorumLost
from configs.plan import RunPlan

__all__ = ["refuse_too_few", "site_folders"]


def site_folders(data: Path) -> list[Path]:
    """Folders in ``data`` that hold a ``site.toml``, in name order.

    Raises
    ------
    ConfigError
        Where there is none.
    """
    found = sorted(path.parent for path in data.glob("*/site.toml")) if data.is_dir() else []
    if not found:
        raise ConfigError(
            f"'{data.name}' holds 0 site folders (a folder with a site.toml): make some with "
            "'fedmvc-server synthesize cardio --out DIR'",
            local_detail=str(data),
        )
    return found


def refuse_too_few(plan: RunPlan, sites: int, what: str) -> None:
    """Refuse to wait for sites that nobody will start: ``what`` has all that there will be.

    Raises
    ------
    QuorumLost
        Where there are fewer than ``quorum.min_sites``.
    """
    if sites >= plan.quorum.min_sites:
        return
    raise QuorumLost(
        f"{what} has {sites} sites but "
        + (
            f"privacy.participants lists {len(plan.privacy.participants)}, which all set the "
            "sums up: add the missing ones or change the list"
            if plan.privacy.secure_aggregation
            else f"quorum.min_sites is {plan.quorum.min_sites}: add sites or lower it"
        )
    )
