"""The ServerApp: reads the run's configuration, runs the plan, leaves the artefacts."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from configs.errors import ConfigError, error_for_code
from configs.plan import RunPlan
from fedmvc_server.progress import log_round
from fedmvc_server.runner import new_run_id, run

__all__ = ["app", "main"]

#: Seconds to wait for further sites once the quorum is there.
_SETTLE_S = 3.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the plan named in the run's configuration.

    Keys: ``plan`` (a plan file's path, or the plan as JSON), ``data`` (site folders, simulation
    only: they are served on this machine) and ``out`` (results folder, required).

    Raises
    ------
    FedMVCError
        Where the run did not complete, so that Flower reports it as failed.
    """
    logging.getLogger("fedmvc").setLevel(logging.INFO)
    config = {key: str(context.run_config.get(key, "")) for key in ("plan", "data", "out")}
    for key in ("plan", "out"):
        if not config[key]:
            raise ConfigError(f"run-config key '{key}' is empty: set it with --run-config")
    plan = _plan(config["plan"])
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


def _match_nodes(grid: Grid, n_sites: int) -> None:
    n_nodes = len(list(grid.get_node_ids()))
    if n_nodes != n_sites:
        raise ConfigError(
            f"the simulation has {n_nodes} nodes for {n_sites} site folders: run with "
            f"--federation-config 'num-supernodes={n_sites}'"
        )
