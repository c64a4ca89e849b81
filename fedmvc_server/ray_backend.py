"""Flower's Ray simulation behind one call that fails as FedMVC fails."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from configs.errors import ConfigError, InternalError

__all__ = ["run_in_ray"]


def run_in_ray(
    server_main: Callable[[Grid, Context], None],
    client_app: ClientApp,
    n_sites: int,
    *,
    n_actors: int = 2,
) -> None:
    """Run a ServerApp's main function with simulated nodes on Ray.

    Parameters
    ----------
    server_main : callable
        ``server_main(grid, context)``, called in a thread of this process. Its ``context.run_id``
        is the run id that the nodes see too.
    client_app : ClientApp
        The app that every node runs. A node's ``node_config`` holds ``partition-id`` and
        ``num-partitions`` only.
    n_sites : int
        Number of nodes.
    n_actors : int
        Number of processes that run the ClientApps, one CPU each.

    Raises
    ------
    ConfigError
        If Ray is not installed.
    InternalError
        If the simulation engine itself fails.
    Exception
        What `server_main` raises.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "backend 'ray' needs the package ray, which is not installed: "
            "install flwr[simulation] or use backend 'inprocess'"
        )
    from flwr.simulation import run_simulation

    raised: list[BaseException] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        # Kept here: Flower would first wait 3 s for a result and log a traceback.
        try:
            server_main(grid, context)
        except BaseException as error:
            raised.append(error)

    with _quiet(), _own_ray(n_actors):
        try:
            run_simulation(
                app,
                client_app,
                num_supernodes=n_sites,
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
            )
        except RuntimeError as error:
            if not raised:
                raise InternalError(
                    "Flower's simulation engine failed: run again with FLWR_LOG_LEVEL=DEBUG, or "
                    "use backend 'inprocess'",
                    local_detail=str(error),
                ) from error
    if raised:
        raise raised[0]


@contextmanager
def _own_ray(n_actors: int) -> Iterator[None]:
    """Start a private Ray before Flower does: then its failure is seen before any thread waits.

    Flower finds it running, uses it, and shuts it down; a second shutdown does nothing.
    """
    import ray

    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    try:
        try:
            ray.init(
                address="local",
                num_cpus=n_actors,
                num_gpus=0,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                runtime_env={"env_vars": {"PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0"}},
            )
        except (RuntimeError, OSError, ValueError) as error:
            raise InternalError(
                "Ray could not be started on this machine: use backend 'inprocess'",
                local_detail=str(error),
            ) from error
        yield
    finally:
        ray.shutdown()
        gc.collect()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Flower's log unless FLWR_LOG_LEVEL asks for it, and their usage reports."""
    from flwr.supercore import telemetry

    # Read from the environment when Flower was imported, which may be long ago.
    telemetry.FLWR_TELEMETRY_ENABLED = os.environ.get("FLWR_TELEMETRY_ENABLED", "0")
    environment = dict(os.environ)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The default of Ray's next versions; without it Ray warns.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logger = logging.getLogger("flwr")
    level = logger.level
    if "FLWR_LOG_LEVEL" not in os.environ:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            # Ray leaves open files and its processes to the collector; that is not the caller's.
            warnings.simplefilter("ignore", ResourceWarning)
            yield
    finally:
        logger.setLevel(level)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
