"""Runs that nobody asks about any more: their secrets go, and what they reserved is forfeited.

A plan has no last day, and a server that was away may resume its run. So a run's deadline is
counted from the last request: one that reserved budget or holds secrets of masked sums, and of
which nothing was asked for `IDLE_DAYS`, is over at this site, whoever comes for it later.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from configs.errors import ConfigError
from fedmvc_client.run_folders import RunFolders
from fedmvc_client.safe import Safe
from privacy.secagg import end_run

__all__ = ["IDLE_DAYS", "abandoned_runs", "abort", "give_up"]

#: Days without a request after which a run is over.
IDLE_DAYS = 7


def abandoned_runs(safe: Safe, now: datetime | None = None) -> list[str]:
    """Return the ids of the site's abandoned runs.

    Parameters
    ----------
    safe : Safe
        One in memory has none: its runs end with the process.
    now : datetime, optional
        With its time zone; the clock's time by default.
    """
    if safe.state is None:
        return []
    runs = safe.state / "runs"
    open_runs = {path.parent.name for path in runs.glob("*/secure")}
    if (safe.state / "ledger.db").exists():
        open_runs |= set(safe.ledger.open_runs())
    since = (now or datetime.now(UTC)) - timedelta(days=IDLE_DAYS)
    return sorted(run_id for run_id in open_runs if _last_asked(runs / run_id) < since.timestamp())


def give_up(safe: Safe, run_id: str) -> None:
    """End a run without its server: its id is refused from now on, its budget counts as spent.

    Its folder is the caller's to remove, and with it the key files of its secrets.
    """
    safe.register.finished(run_id)
    if safe.state is None or (safe.state / "ledger.db").exists():
        safe.ledger.forfeit(run_id)
    safe.audit.write("run given up", run_id=run_id)


def abort(safe: Safe, text: str) -> str:
    """End the running run whose id begins with ``text``, now and for good; a worker sees it too.

    Returns
    -------
    str
        The run's whole id.

    Raises
    ------
    ConfigError
        Where no run begins so, or more than one.
    """
    folders = [] if safe.state is None else list((safe.state / "runs").glob("*"))
    running = {path.name for path in folders if path.is_dir()} | set(safe.ledger.open_runs())
    found = sorted(run_id for run_id in running if run_id.startswith(text))
    if len(found) != 1:
        raise ConfigError(
            f"{len(found)} of the {len(running)} running runs of site '{safe.site}' begin with "
            f"'{text[:36]}': a run that is over needs no end; else give more of its id (state/runs "
            "and budget show have it)"
        )
    (run_id,) = found
    if any(path.name == run_id and (path / "secure").is_dir() for path in folders):
        end_run(safe.vault(run_id))
    give_up(safe, run_id)
    RunFolders(safe.state).remove(run_id)
    return run_id


def _last_asked(folder: Path) -> float:
    """Return when anything in a run's folder was last written; 0 where it is gone."""
    if not folder.is_dir():
        return 0.0
    return max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
