"""Cost of Fed-MUFSHT: sweeps, a whole fit with its memory, the swarm, the pivoting, a run.

Each figure comes from a process of its own, so that its peak memory is that step's (interpreter,
libraries and data included). Seconds are medians by the clock and of CPU time over all threads;
run it on a quiet machine, and read a MISSED beside the load that is printed. Data is planted
(seed 0) in the shapes of the sets, and the sets themselves where they are there.

sweeps      n = 2000, D = 567, k = 10: ten sweeps of every block, Laplacian ready
fit         n = 400, D = 14150, k = 40, lam = 0: MUFSHT.fit, ranking of all features included
swarm       n = 2000, D = 2000, k = 10: HC-THRO on 30 horses rated together and one by one
pivot       D = 14150, k = 40, every feature relevant (the most work): gated pivot up to m
federated   digit4k over five sites, five rounds, all messages, in one process

  python -m benchmarks.mufsht_scale            everything (a minute or two)
  python -m benchmarks.mufsht_scale --quick    without the whole fit, fewer repeats
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.common import Floats, load_as_stored, print_table, skipped
from benchmarks.mufsht_sets import N_SITES, ROUNDS, federated_run, iid_parts, load_columns
from benchmarks.tensor_scale import Seconds, peak_memory, timed
from fedmvc_client.estimators import MUFSHT
from fedmvc_client.solvers.feature_preparation import standardise
from fedmvc_client.solvers.tensor_learning import TensorLearning
from fedmvc_client.solvers.thro import THRO
from fedmvc_client.solvers.thro_fitness import FreeEmbeddingFitness
from fedmvc_server.planted import planted_views
from strategies.feature_ranking import gated_pivot

#: Columns of each view.
DIGITS, FACES, SWARM_VIEWS = (240, 216, 47, 64), (4096, 3304, 6750), (1000, 600, 400)
SWEEPS, HORSES, ITERATIONS = 10, 30, 5
#: Share of the columns that the pivoting stops at.
PIVOT_RATIOS = (0.1, 0.4, 1.0)


@dataclass(frozen=True)
class Shape:
    """Size of the data that a step is measured on."""

    n_rows: int
    sizes: tuple[int, ...]
    n_clusters: int


#: What each measure runs on.
SHAPES = {
    "sweeps": Shape(2000, DIGITS, 10),
    "fit": Shape(400, FACES, 40),
    "swarm": Shape(2000, SWARM_VIEWS, 10),
    "pivot": Shape(400, FACES, 40),
    "federated": Shape(2000, DIGITS, 10),
}
Measured = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """What a figure has to stay under, or reach where it is a ratio."""

    measure: str
    figure: str
    limit: float
    unit: str
    reach: bool = False

    def met(self, value: float) -> bool:
        """Whether a value is within."""
        return value >= self.limit if self.reach else value < self.limit


GOALS = (
    Goal("sweeps", "cpu", 0.5, "s CPU"),
    Goal("fit", "clock", 30.0, "s"),
    Goal("fit", "memory", 1.5, "GB"),
    Goal("fit orl_faces", "clock", 30.0, "s"),
    Goal("fit orl_faces", "memory", 1.5, "GB"),
    Goal("swarm", "ratio", 1.5, "times", reach=True),
    Goal("pivot", "at 0.4", 5.0, "s"),
    Goal("federated", "clock", 15.0, "s"),
)


def drawn_views(shape: Shape) -> list[Floats]:
    """Draw planted views, a quarter of the columns informative."""
    sizes = [(d, d // 4) for d in shape.sizes]
    return planted_views(shape.n_rows, 0, sizes=sizes, n_clusters=shape.n_clusters).views


def _of(seconds: Seconds) -> Measured:
    return {"clock": seconds.median, "least": seconds.least, "cpu": seconds.cpu}


def measure_sweeps(shape: Shape, repeats: int) -> Measured:
    """Time ten sweeps."""
    prepared = [standardise(view)[0].values for view in drawn_views(shape)]
    model = TensorLearning(prepared, None, shape.n_clusters)
    model.start_svd()

    def sweeps() -> None:
        for _ in range(SWEEPS):
            model.sweep()

    return _of(timed(sweeps, repeats)) | {"memory": peak_memory()}


def measure_fit(shape: Shape, repeats: int) -> Measured:
    """Time one whole fit of planted views."""
    return _fit(drawn_views(shape), shape.n_clusters)


def measure_faces(shape: Shape, repeats: int) -> Measured:
    """Time one whole fit of the set itself; nothing where it is absent."""
    stored = load_as_stored("orl_faces")
    return {} if stored is None else _fit(stored.views, stored.n_clusters)


def _fit(views: Sequence[Floats], n_clusters: int) -> Measured:
    clock, cpu = time.perf_counter(), time.process_time()
    model = MUFSHT(n_clusters, lam=0.0, device="cpu").fit(views)
    return {
        "clock": time.perf_counter() - clock,
        "cpu": time.process_time() - cpu,
        "sweeps": model.n_iter_,
        "memory": peak_memory(),
    }


def measure_swarm(shape: Shape, repeats: int) -> Measured:
    """Time the swarm with its horses rated together and one by one, in turns."""
    views = [torch.from_numpy(standardise(view)[0].values) for view in drawn_views(shape)]
    fitness = FreeEmbeddingFitness(views)
    torch.set_num_threads(1)  # or the one form would use more cores than the other

    def one_by_one(positions: torch.Tensor) -> torch.Tensor:
        return torch.cat([fitness(position[None]) for position in positions])

    def race(rate: Callable[[torch.Tensor], torch.Tensor]) -> float:
        swarm = THRO(sum(shape.sizes) * shape.n_clusters, population=HORSES, iterations=ITERATIONS)
        begin = time.perf_counter()
        swarm.run(rate)
        return time.perf_counter() - begin

    race(fitness)
    pairs = [(race(fitness), race(one_by_one)) for _ in range(repeats)]
    return {
        "clock": float(np.median([a for a, _ in pairs])),
        "one by one": float(np.median([b for _, b in pairs])),
        "ratio": float(np.median([b / a for a, b in pairs])),
        "memory": peak_memory(),
    }


def measure_pivot(shape: Shape, repeats: int) -> Measured:
    """Time the pivoting up to some shares of the columns."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(d, shape.n_clusters)) for d in shape.sizes]
    found: Measured = {}
    for ratio in PIVOT_RATIOS:
        m = round(ratio * sum(shape.sizes))
        begin = time.perf_counter()
        order = gated_pivot(weights, shape.n_rows, m=m)
        found[f"at {ratio:g}"] = time.perf_counter() - begin
        if order.size != m:
            raise RuntimeError(f"the pivoting returned {order.size} features and not {m}")
    return found | {"memory": peak_memory()}


def measure_federated(shape: Shape, repeats: int) -> Measured:
    """Time a run over five sites, on the set where it is there."""
    columns = load_columns("digit4k", 0)
    whole = columns is not None and columns.dataset.labels.size == shape.n_rows
    views = columns.dataset.views if columns is not None and whole else drawn_views(shape)
    parts = iid_parts(np.zeros(shape.n_rows, dtype=np.int64), 0)
    clock, cpu = time.perf_counter(), time.process_time()
    result = federated_run(views, parts, shape.n_clusters, tol=0.0, max_rounds=ROUNDS)
    return {
        "clock": time.perf_counter() - clock,
        "cpu": time.process_time() - cpu,
        "rounds": result.rounds,
        "MB up": result.bytes_up / 1e6,
        "MB down": result.bytes_down / 1e6,
        "memory": peak_memory(),
    }


MEASURES: dict[str, Callable[[Shape, int], Measured]] = {
    "sweeps": measure_sweeps,
    "swarm": measure_swarm,
    "pivot": measure_pivot,
    "federated": measure_federated,
    "fit": measure_fit,
    "fit orl_faces": measure_faces,
}


def measured(what: str, repeats: int) -> Measured:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.mufsht_scale", "--measure", what, str(repeats)]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(out.stdout))


def print_figures(found: dict[str, Measured]) -> None:
    """Print every figure, then what was asked for."""
    rows = []
    for what, figures in found.items():
        shape = SHAPES[what.split()[0]]
        size = f"n {shape.n_rows}, D {sum(shape.sizes)}, k {shape.n_clusters}"
        rows += [
            ["" if i else what, "" if i else size, name, f"{value:.3f}"]
            for i, (name, value) in enumerate(figures.items())
        ]
    print_table("Seconds, GB (memory), counts", ["", "", "figure", "value"], rows)
    rows = []
    for goal in GOALS:
        if goal.figure in found.get(goal.measure, {}):
            value = found[goal.measure][goal.figure]
            limit = f"{'>=' if goal.reach else '<'} {goal.limit:g} {goal.unit}"
            mark = "met" if goal.met(value) else "MISSED"
            rows.append([f"{goal.measure}, {goal.figure}", limit, f"{value:.2f}", mark])
    print_table("Goals", ["", "goal", "reached", ""], rows)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="no whole fit, three repeats")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "REPEATS"), help="internal")
    given = parser.parse_args()
    if given.measure:
        what, repeats = given.measure
        print(json.dumps(MEASURES[what](SHAPES[what.split()[0]], int(repeats))))
        return
    print(f"load of this machine (1, 5, 15 min): {os.getloadavg()}, {os.cpu_count()} cores")
    names = [name for name in MEASURES if not (given.quick and name.startswith("fit"))]
    found = {name: measured(name, 3 if given.quick else 9) for name in names}
    skipped(name.removeprefix("fit ") for name, figures in found.items() if not figures)
    print_figures({name: figures for name, figures in found.items() if figures})
    print(f"load at the end: {os.getloadavg()}; federated: {N_SITES} sites on one machine")


if __name__ == "__main__":
    main()
