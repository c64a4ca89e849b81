"""What a round costs in a real deployment, beside Flower's own floor.

One SuperLink with TLS and node authentication, three SuperNodes and their workers, all on loopback.
First ten-round runs of FedHK-MVFC exact by `fedmvc-server run`'s own function: as shipped, with
--fast-poll, with --fast-poll and --warm, and what share of a round no worker computes. Then rounds
that alternate with exchanges whose handler is empty, with Flower's own executor.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from configs.plan import RunPlan
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_server.deployment import run_deployed
from tests.network.federation import NAMES, Federation, site_worker_command


def write_sites(folder: Path, n_rows: int, n_columns: int) -> None:
    """Write site folders with two views of Gaussian clusters as Parquet."""
    views = ["first", "second"]
    schema = DataSchema.parse(
        {
            "id": "id",
            "views": [
                {
                    "name": view,
                    "columns": [{"name": f"x{j}", "dtype": "float"} for j in range(n_columns)],
                }
                for view in views
            ],
        }
    )
    rng = np.random.default_rng(0)
    centers = rng.normal(scale=3.0, size=(10, n_columns))
    for name in NAMES:
        site = folder / name
        site.mkdir(parents=True)
        schema.dump(site / "schema.toml")
        files = {view: f"{view}.parquet" for view in views}
        SiteConfig.parse({"name": name, "data": files, "policy": {"approval": "auto"}}).dump(site)
        cluster = rng.integers(10, size=n_rows)
        for view in views:
            values = centers[cluster] + rng.normal(size=(n_rows, n_columns))
            columns = {f"x{j}": values[:, j] for j in range(n_columns)}
            table = pa.table({"id": [f"{i:07d}" for i in range(n_rows)], **columns})
            pq.write_table(table, site / files[view])


#: How the sites are started (`tests.network.federation.SERVICES`), and seconds a round to aim at.
SERVED = {
    "shipped": ("as shipped", 6.0),
    "fast": ("--fast-poll", 1.65),
    "warm": ("and --warm", 0.7),
}


@dataclass(frozen=True)
class Run:
    """Seconds of one run: of all of it, of each round, and of the slowest worker in each round."""

    whole: float
    rounds: list[float]
    workers: list[float]

    @property
    def waiting(self) -> float:
        """Share of the rounds in which no worker computes."""
        return 1.0 - sum(self.workers) / sum(self.rounds)


def plan_of(rounds: int) -> dict[str, Any]:
    """Return a plan that takes exactly so many rounds."""
    return {
        "method": "fedhk-mvfc",
        "profile": "paper",
        "n_clusters": 10,
        "max_rounds": rounds,
        "tol": 0.0,
        "fedhk": {"n_init": 1, "acceleration": "none"},
        "quorum": {"min_sites": 3, "timeout_s": 300.0},
    }


def time_run(service: str, n_rows: int, n_columns: int, rounds: int) -> Run:
    """Run a plan from the server's command on, on a federation of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sites(folder / "data", n_rows, n_columns)
        (folder / "federation").mkdir()
        plan, out = folder / "plan.toml", folder / "out"
        plan.write_text(tomli_w.dumps(plan_of(rounds)), encoding="utf-8")

        def worker(site: str, socket: Path) -> list[str]:
            program = [sys.executable, "-m", "benchmarks.timed_worker"]
            return [*program, str(folder / "data" / site), str(socket), str(folder / site)]

        federation = Federation(folder / "federation", service=service)
        try:
            federation.start()
            federation.serve(worker)
            began = time.perf_counter()
            code = run_deployed(
                plan, federation.address, federation.ca, out, fast_poll=service != "shipped"
            )
            whole = time.perf_counter() - began
        finally:
            federation.stop()
        if code:
            raise SystemExit(f"the run ended with {code}")
        with (out / "rounds.csv").open(newline="", encoding="utf-8") as file:
            seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
        kept = [_seconds_of(folder / site, "RoundRequest") for site in NAMES]
        return Run(whole, seconds, [max(each) for each in zip(*kept, strict=True)])


def _seconds_of(file: Path, kind: str) -> list[float]:
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    return [float(seconds) for name, seconds in lines if name == kind]


def measure(n_rows: int, n_columns: int, rounds: int) -> dict[str, list[float]]:
    """Return seconds of each round and of each empty exchange."""
    plan = RunPlan.parse(plan_of(rounds))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sites(folder / "data", n_rows, n_columns)
        (folder / "federation").mkdir()
        (folder / "out").mkdir()
        federation = Federation(folder / "federation", service="flower")
        try:
            federation.start()
            federation.serve(site_worker_command(folder / "data"))
            status = federation.run(
                {"plan": plan.canonical(), "data": "", "out": str(folder / "out")},
                timeout=1800.0,
                server_app="benchmarks.deployed_apps:server",
                client_app="benchmarks.deployed_apps:client",
            )
            if status.outcome != "completed":
                raise SystemExit(f"the run ended as {status}")
            times: dict[str, list[float]] = json.loads((folder / "out" / "times.json").read_text())
            return times
        finally:
            federation.stop()


def main() -> None:
    """Print what each way of serving takes, then a round beside an empty exchange."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows a site")
    parser.add_argument("--columns", type=int, default=50, help="columns a view (two views)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="2,000 rows, 3 rounds")
    parser.add_argument("--runs-only", action="store_true", help="no empty exchanges")
    given = parser.parse_args()
    rows, rounds = (2_000, 3) if given.quick else (given.rows, given.rounds)
    small = min(rows, 10_000)
    print(f"runs of {rounds} rounds, 3 sites of {small} rows, 2 views of {given.columns} columns")
    for service, (words, aim) in SERVED.items():
        run = time_run(service, small, given.columns, rounds)
        print(
            f"{words:>12}: {run.whole:6.1f} s in all, a round "
            f"{statistics.median(run.rounds):5.2f} s (least {min(run.rounds):.2f}, most "
            f"{max(run.rounds):.2f}; aim: {aim:g}), of which no worker computes in "
            f"{run.waiting:.0%}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    if given.runs_only:
        return
    print(
        f"3 sites of {rows} rows, 2 views of {given.columns} columns, c = 10, TLS on loopback, "
        f"{rounds} rounds interleaved; load {os.getloadavg()[0]:.1f}"
    )
    times = measure(rows, given.columns, rounds)
    for kind, seconds in times.items():
        print(
            f"{kind:>6}: median {statistics.median(seconds):.2f} s "
            f"(least {min(seconds):.2f}, most {max(seconds):.2f})"
        )
    extra = statistics.median(times["round"]) - statistics.median(times["empty"])
    print(f"a round takes {extra:.2f} s more than Flower's floor (aim: at most 1 s)")


if __name__ == "__main__":
    main()
