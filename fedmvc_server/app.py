"""The ServerApp: reads the run's configuration, runs the plan, leaves the artefacts."""

from __future__ import annotations

import json
import logging
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from configs.errors import ConfigError, error_for_code
from configs.flower_waits import ask_again_soon
from configs.plan import RunPlan
from fedmvc_server.checkpoint import unfinished
from fedmvc_server.progress import log_round
from fedmvc_server.runner import new_run_id, run
from strategies.exchange import POLL_S

__all__ = ["app", "main"]

#: Seconds to wait for further sites once the quorum is there.
_SETTLE_S = 3.0
#: Keys of the run's configuration.
_KEYS = ("plan", "data", "out", "poll", "resume")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the plan named in the run's configuration.

    Keys: ``plan`` (a plan file's path, or the plan as JSON), ``data`` (site folders, simulation
    only: they are served on this machine), ``out`` (results folder, required), ``poll`` (seconds
    between two looks for replies, at first; empty for the default) and ``resume`` ("yes": go on
    with the run in ``out``, and without a plan).

    Raises
    ------
    FedMVCError
        Where the run did not complete, so that Flower reports it as failed.
    """
    logging.getLogger("fedmvc").setLevel(logging.INFO)
    ask_again_soon()
    config = {key: str(context.run_config.get(key, "")) for key in _KEYS}
    resume, poll_s = _resume(config["resume"]), _poll_s(config["poll"])
    for key in ("out",) if resume else ("plan", "out"):
        if not config[key]:
            raise ConfigError(f"run-config key '{key}' is empty: set it with --run-config")
    out, run_id = Path(config["out"]), new_run_id()
    if resume:
        known = unfinished(out)
        plan, run_id = RunPlan.parse(known.plan), known.run_id
    else:
        plan = _plan(config["plan"])
    sites: Any = nullcontext()
    if config["data"]:
        from fedmvc_server.simulation import hosted_sites
        from fedmvc_server.site_folders import site_folders

        _match_nodes(grid, len(site_folders(Path(config["data"]))))
        sites = hosted_sites(Path(config["data"]), context.run_id)
    with sites:
        result = run(
            grid,
            plan,
            run_id,
            out=out,
            observer=log_round,
            settle_s=0.0 if config["data"] else _SETTLE_S,
            poll_s=poll_s,
            resumable=not config["data"],
            resume=resume,
            flower_run_id=str(context.run_id),
        )
    if result.status != "completed":
        raise error_for_code(result.exit_code)(result.stop_reason)


def _resume(given: str) -> bool:
    if given not in ("", "yes"):
        raise ConfigError(f"run-config key 'resume' is '{given[:20]}': leave it out, or set 'yes'")
    return given == "yes"


def _plan(given: str) -> RunPlan:
    """Read a plan file, or a plan written as JSON."""
    if given.lstrip().startswith("{"):
        try:
            fields = json.loads(given)
        except json.JSONDecodeError as error:
            raise ConfigError(
                "run-config key 'plan' starts like JSON and is none: give a plan file's path"
            ) from error
        return RunPlan.parse(fields)
    return RunPlan.load(Path(given))


def _poll_s(given: str) -> float:
    """Read seconds between two looks for replies."""
    if not given:
        return POLL_S
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0.001 <= seconds <= 60.0:
        raise ConfigError(
            f"run-config key 'poll' is '{given}' and must be a number of seconds from 0.001 to 60: "
            "leave it out"
        )
    return seconds


def _match_nodes(grid: Grid, n_sites: int) -> None:
    n_nodes = len(list(grid.get_node_ids()))
    if n_nodes != n_sites:
        raise ConfigError(
            f"the simulation has {n_nodes} nodes for {n_sites} site folders: run with "
            f"--federation-config 'num-supernodes={n_sites}'"
        )
