"""What a round costs in a real deployment, beside Flower's own floor.

One SuperLink with TLS and node authentication, three SuperNodes and their workers, all on loopback.
Rounds of FedHK-MVFC exact (through the worker) alternate with exchanges whose handler is empty.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.plan import RunPlan
from configs.schema import DataSchema
from configs.site import SiteConfig
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


def measure(n_rows: int, n_columns: int, rounds: int) -> dict[str, list[float]]:
    """Return seconds of each round and of each empty exchange."""
    import json

    plan = RunPlan.parse(
        {
            "method": "fedhk-mvfc",
            "profile": "paper",
            "n_clusters": 10,
            "max_rounds": rounds,
            "tol": 0.0,
            "fedhk": {"n_init": 1, "acceleration": "none"},
            "quorum": {"min_sites": 3, "timeout_s": 300.0},
        }
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sites(folder / "data", n_rows, n_columns)
        (folder / "federation").mkdir()
        (folder / "out").mkdir()
        federation = Federation(folder / "federation", as_shipped=True)
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
    """Print medians of both and their difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows a site")
    parser.add_argument("--columns", type=int, default=50, help="columns a view (two views)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="2,000 rows, 3 rounds")
    given = parser.parse_args()
    rows, rounds = (2_000, 3) if given.quick else (given.rows, given.rounds)
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
