"""``fedmvc-server status``: who is there, what runs, and for whom it waits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from configs.errors import ConfigError
from fedmvc_server.control import Seen, look
from fedmvc_server.server_kit import load_server_kit, read_nodes

__all__ = ["SiteNow", "Status", "as_dict", "as_text", "read_progress", "status"]

_PROGRESS = "progress.json"


@dataclass(frozen=True)
class SiteNow:
    """One site.

    Parameters
    ----------
    name : str
        Its registered name.
    status : str
        ``online``, ``offline``, ``registered`` (never connected), ``revoked``, or
        ``not registered`` (in the kit alone).
    heartbeat_age_s : float or None
        Seconds since the server heard of its SuperNode last.
    since : str or None
        When it became so, ISO time in UTC.
    node_id : str or None
        Its node's id, a number as text.
    """

    name: str
    status: str
    heartbeat_age_s: float | None
    since: str | None
    node_id: str | None


@dataclass(frozen=True)
class Status:
    """What `status` found: the server's clock, sites by name, runs, and a run's progress."""

    server: str
    now: str
    sites: tuple[SiteNow, ...]
    runs: tuple[Mapping[str, Any], ...]
    progress: Mapping[str, Any] | None


def status(server: str, ca: Path, *, kit: Path | None = None, out: Path | None = None) -> Status:
    """Ask a SuperLink, and read a run's progress.

    Parameters
    ----------
    server : str
        ``HOST:PORT`` of the SuperLink itself.
    ca : Path
        The CA certificate.
    kit : Path, optional
        The server's kit: also list its sites that are not registered.
    out : Path, optional
        A run's output folder: also say how far it is and for whom it waits.

    Raises
    ------
    ConfigError
        If a file is unusable.
    TransportError
        If the SuperLink does not answer or its certificate is not right.
    """
    progress = None if out is None else read_progress(out)
    expected: tuple[str, ...] = ()
    named: dict[str, str] = {}
    if kit is not None:
        expected = load_server_kit(kit).site_names
        named = {record.node_id: name for name, record in read_nodes(kit).items()}
    seen = look(server, ca)
    runs = tuple(asdict(run) for run in seen.runs)
    return Status(server, seen.now, _sites(seen, expected, named), runs, progress)


def read_progress(out: Path) -> dict[str, Any]:
    """Read how far a run is: ``progress.json``, and ``result.json`` once it has ended.

    Returns
    -------
    dict
        The fields of ``progress.json``; ``phase`` is "ended" and ``result`` the run's status, exit
        code and reason where it has ended.

    Raises
    ------
    ConfigError
        If there is no such folder, or no run has begun in it.
    """
    if not out.is_dir():
        raise ConfigError(
            f"--out is '{out.name}', which is no folder of this machine: give the run's output "
            "folder, on the machine of the SuperLink",
            local_detail=str(out),
        )
    progress, result = _read(out / _PROGRESS), _read(out / "result.json")
    if result:
        said = {key: result.get(key) for key in ("status", "exit_code", "stop_reason")}
        same = progress.get("run_id") in (None, result.get("run_id"))
        if same:
            ended = {"run_id": result.get("run_id"), "round": result.get("rounds")}
            return {**progress, **ended, "phase": "ended", "waiting_for": [], "result": said}
    if not progress:
        raise ConfigError(
            f"folder '{out.name}' has no '{_PROGRESS}': no run has begun there yet, or it is not a "
            "run's output folder",
            local_detail=str(out),
        )
    return progress


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # not there, or just being replaced
    return found if isinstance(found, dict) else {}


def _sites(seen: Seen, expected: tuple[str, ...], named: Mapping[str, str]) -> tuple[SiteNow, ...]:
    found: dict[str, SiteNow] = {}
    for node in seen.nodes:
        name = node.name or named.get(node.node_id, "") or f"node {node.node_id}"
        state = "revoked" if node.status == "unregistered" else node.status
        other = found.get(name)
        if other is not None and (
            state == "revoked"  # an earlier key of a site that has a new one
            or (other.status != "revoked" and other.node_id in named)  # the key on record counts
        ):
            continue
        found[name] = SiteNow(name, state, node.heartbeat_age_s, node.since, node.node_id)
    for name in expected:
        found.setdefault(name, SiteNow(name, "not registered", None, None, None))
    return tuple(found[name] for name in sorted(found))


def as_dict(found: Status) -> dict[str, Any]:
    """Return what was found for ``--json``."""
    return {
        "server": found.server,
        "now": found.now,
        "sites": [asdict(site) for site in found.sites],
        "runs": [dict(run) for run in found.runs],
        "progress": None if found.progress is None else dict(found.progress),
    }


def as_text(found: Status) -> str:
    """Write what was found for people: a line a site, a line a run."""
    lines = [f"SuperLink at {found.server}, {len(found.sites)} sites"]
    width = max((len(site.name) for site in found.sites), default=0)
    for site in found.sites:
        age = _heard(site)
        since = "" if site.since is None else f"since {_time(site.since)}"
        lines.append(f"  {site.name:{width}}  {site.status:14}  {age:22}  {since}".rstrip())
    if not found.runs:
        lines.append("no run is going on")
    for run in found.runs:
        since = "" if run["since"] is None else f", submitted {_time(run['since'])}"
        lines.append(f"run {run['flower_run_id']} of Flower's: {run['status']}{since}")
    if found.progress is not None:
        lines.append(_progress(found.progress))
    return "\n".join(lines)


def _heard(site: SiteNow) -> str:
    if site.heartbeat_age_s is None:
        return "never connected" if site.status == "registered" else ""
    what = "heard" if site.status == "online" else "gone"
    return f"{what} {_duration(site.heartbeat_age_s)} {'ago' if what == 'heard' else ''}".rstrip()


def _progress(progress: Mapping[str, Any]) -> str:
    run = f"run {progress.get('run_id')}"
    if progress.get("phase") == "ended":
        result = progress.get("result") or {}
        return (
            f"{run}: {result.get('status')} after {progress.get('round')} rounds "
            f"(exit code {result.get('exit_code')}): {result.get('stop_reason')}"
        )
    waiting = progress.get("waiting_for") or []
    whom = f"waiting for {', '.join(map(str, waiting))}" if waiting else "waiting for no site"
    since = progress.get("since")
    how_long = "" if since is None else f" since {_time(since)}"
    return f"{run}: {progress.get('phase')}, round {progress.get('round')}, {whom}{how_long}"


def _time(text: Any) -> str:
    try:
        moment = (
            datetime.fromtimestamp(text, UTC)
            if isinstance(text, int | float)
            else datetime.fromisoformat(str(text))
        )
    except (ValueError, OverflowError, OSError):
        return str(text)
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
