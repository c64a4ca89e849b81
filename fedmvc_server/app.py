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
from configs.plan import RunPlan
from fedmvc_server.progress import log_round
from fedmvc_server.runner import new_run_id, run
from strategies.exchange import POLL_S

__all__ = ["app", "main"]

#: Seconds to wait for further sites once the quorum is there.
_SETTLE_S = 3.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the plan named in the run's configuration.

    Keys: ``plan`` (a plan file's path, or the plan as JSON), ``data`` (site folders, simulation
    only: they are served on this machine), ``out`` (results folder, required) and ``poll`` (seconds
    between two looks for replies, at first; empty for the default).

    Raises
    ------
    FedMVCError
        Where the run did not complete, so that Flower reports it as failed.
    """
    logging.getLogger("fedmvc").setLevel(logging.INFO)
    config = {key: str(context.run_config.get(key, "")) for key in ("plan", "data", "out", "poll")}
    for key in ("plan", "out"):
        if not config[key]:
            raise ConfigError(f"run-config key '{key}' is empty: set it with --run-config")
    plan, poll_s = _plan(config["plan"]), _poll_s(config["poll"])
    sites: Any = nullcontext()
    if config["data"]:
        from fedmvc_server.simulation import hosted_sites, site_folders

        _match_nodes(grid, len(site_folders(Path(config["data"]))))
        sites = hosted_sites(Path(config["data"]), context.run_id)
    with sites:
        result = run(
            grid,
            plan,
            new_run_id(),
            out=Path(config["out"]),
            observer=log_round,
            settle_s=0.0 if config["data"] else _SETTLE_S,
            poll_s=poll_s,
        )
    if result.status != "completed":
        raise error_for_code(result.exit_code)(result.stop_reason)


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
