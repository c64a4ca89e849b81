"""A run on a federation that lives on this machine for as long as the run does."""

from __future__ import annotations

import logging
import shutil
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from configs.errors import ConfigError
from configs.plan import RunPlan
from configs.ports import refuse_taken_port
from fedmvc_server.artefacts import read_result
from fedmvc_server.deployment import Progress, run_deployed
from fedmvc_server.local_federation import LOOPBACK, LocalFederation
from fedmvc_server.site_folders import refuse_too_few, site_folders
from fedmvc_server.synthesize import refuse_taken, synthesize_cardio

__all__ = ["Rehearsed", "Seconds", "rehearse"]

log = logging.getLogger("fedmvc")


@dataclass(frozen=True)
class Seconds:
    """How long it took, in seconds.

    Parameters
    ----------
    start : float
        From nothing to all sites online.
    run : float
        From handing in the plan to its result.
    round : float or None
        A round, the median; None where there was none.
    """

    start: float
    run: float
    round: float | None


@dataclass(frozen=True)
class Rehearsed:
    """A run that has ended, and where its parts lie.

    Parameters
    ----------
    code : int
        The run's exit code.
    result : dict
        What is in its ``result.json``.
    out, data : Path
        Results folder of the run, and the sites' folders.
    seconds : Seconds
    """

    code: int
    result: dict[str, Any]
    out: Path
    data: Path
    seconds: Seconds

    @property
    def stop_reason(self) -> str:
        """Why it ended, in one sentence."""
        said: str = self.result.get("stop_reason", "the run failed")
        return said


def rehearse(
    plan_path: Path,
    out: Path,
    *,
    data: Path | None = None,
    sites: int = 3,
    port: int | None = None,
    fast: bool = False,
    keep: bool = False,
    on_progress: Progress | None = None,
) -> Rehearsed:
    """Start a server and sites on this machine, run a plan over them, and stop them.

    Parameters
    ----------
    plan_path : Path
        The plan.
    out : Path
        Folder to make: ``run`` (what `run_deployed` leaves), ``sites`` (where no `data` are given)
        and, until the run has completed, ``federation`` (kits and logs).
    data : Path, optional
        Site folders; by default the cardio set is dealt to so many `sites`.
    sites : int
        Number of synthetic hospitals.
    port : int, optional
        The SuperLink's; by default a free one.
    fast : bool
        Shorter waits everywhere, and warm executors.
    keep : bool
        Leave ``out/federation`` where the run has completed, too.
    on_progress : callable, optional
        Called with each new row of ``rounds.csv``.

    Returns
    -------
    Rehearsed
        Also of a run that failed.

    Raises
    ------
    FedMVCError
        Where the plan, the data or a setting is unusable (nothing is written then), a process did
        not come up, or the run left no result.
    KeyboardInterrupt
        After Ctrl-C or SIGTERM, when all has been stopped.
    """
    plan = RunPlan.load(plan_path)
    refuse_taken(out)
    refuse_too_few(plan, sites if data is None else len(site_folders(data)), "the federation")
    if port is not None:
        way_out = "give another --port, or stop what listens there"
        refuse_taken_port(LOOPBACK, port, "the SuperLink", way_out)
    if data is None:
        _refuse_vertical(plan)
        data = out / "sites"
        synthesize_cardio(data, sites=sites)
    federation = LocalFederation(out / "federation", data, port=port, fast=fast)
    rounds: list[float] = []

    def note(row: dict[str, str]) -> None:
        rounds.append(float(row["seconds"]))
        if on_progress is not None:
            on_progress(row)

    log.info(
        "starting a server and %d sites at %s: %s",
        *(len(federation.names), federation.address, ", ".join(federation.names)),
    )
    code: int | None = None
    try:
        with _terminable():
            began = time.monotonic()
            federation.start()
            online = time.monotonic()
            log.info("all sites are online after %.1f s; the run begins", online - began)
            code = run_deployed(
                plan_path,
                *(federation.address, federation.ca, out / "run"),
                fast_poll=fast,
                on_progress=note,
            )
            ended = time.monotonic()
    finally:
        federation.stop()
        if code == 0 and not keep:
            shutil.rmtree(federation.folder)
        elif federation.folder.exists():
            log.info("kits and logs are left in %s", out / "federation")
    seconds = Seconds(online - began, ended - online, statistics.median(rounds) if rounds else None)
    return Rehearsed(code, read_result(out / "run"), out / "run", data, seconds)


def _refuse_vertical(plan: RunPlan) -> None:
    if plan.method == "tensor-fmvc":
        raise ConfigError(
            "the plan's method 'tensor-fmvc' needs sites with different views of the same patients "
            "and the cardio set has none: make them with 'fedmvc-server synthesize vertical' and "
            "give --data"
        )


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
