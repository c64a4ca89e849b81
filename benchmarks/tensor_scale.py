"""Cost of TensorFMVC in the number of rows: seconds, memory and bytes, beside a naive form.

Each figure of a size comes from a process of its own, so that its peak memory is that step's:
the server (unpack labels, Gram, G, Q and mu, int8 code of every Z), and one site (its set-up:
graph, embedding, start; its round: int8 Z in, packed labels out). Seconds are medians by the
clock; run it on a quiet machine. The naive form is the same arithmetic as the formulas stand.

Usage: ``python -m benchmarks.tensor_scale [--quick]``
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from benchmarks.common import Floats, Ints, print_table
from benchmarks.communication import mean_parts, tapped
from configs.plan import RunPlan
from configs.tensor_profiles import TensorSettings, resolve_tensor
from fedmvc_client.solvers.tensor_site import TensorSite
from fedmvc_server.simulation import simulate
from strategies.label_coding import pack_labels, unpack_labels
from strategies.messages import SweepRequest
from strategies.tensor_admm import TensorDriver
from strategies.tensor_svd import gst

N_CLUSTERS, N_SITES, N_ANCHORS, N_COLUMNS = 10, 3, 100, 20
SIZES = (10_000, 100_000, 1_000_000)
#: What has to hold at a million rows: seconds, GB of memory, log-log slope from 1e4.
GOALS: dict[str, tuple[float, float]] = {
    "server step": (0.5, 1.4),
    "server step, labels at rest": (0.5, 1.4),
    "site round": (2.0, 1.4),
    "site set-up": (float("inf"), 1.15),
}
MEMORY_GOAL = 3.0
#: Bytes a round of all sites, at 10,000 rows.
WIRE_GOALS = {"up": 16_000, "down": 310_000}


def settings() -> TensorSettings:
    """Profile "plus" with a fixed number of anchors."""
    return resolve_tensor("plus", anchors=N_ANCHORS)


def make_view(labels: Ints, seed: int) -> Floats:
    """Gaussian clusters that overlap a little."""
    rng = np.random.default_rng(seed)
    view = rng.standard_normal((labels.size, N_COLUMNS))
    centers = rng.normal(scale=1.5, size=(N_CLUSTERS, N_COLUMNS))
    for first in range(0, labels.size, 10_000):
        view[first : first + 10_000] += centers[labels[first : first + 10_000]]
    return view


def with_errors(labels: Ints, rng: np.random.Generator, share: float) -> Ints:
    """Return the labels, some of them at random."""
    wrong = rng.random(labels.size) < share
    return np.where(wrong, rng.integers(N_CLUSTERS, size=labels.size), labels)


class Seconds(NamedTuple):
    """Of some runs: the median and the least by the clock, the median of the CPU time."""

    median: float
    least: float
    cpu: float


#: Seconds of each step, and the peak "memory" of the process in GB.
Measured = dict[str, Any]


def timed(function: Callable[[], object], repeats: int) -> Seconds:
    """Time some runs after one to warm up."""
    function()
    wall, cpu = [], []
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        function()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    return Seconds(float(np.median(wall)), min(wall), float(np.median(cpu)))


def peak_memory() -> float:
    """Peak resident memory of this process in GB.

    Not getrusage: its maximum survives exec, so it would include the parent's.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9


# -- what a process measures ---------------------------------------------------------------------


def measure_server(n_rows: int, repeats: int) -> Measured:
    """Time the server's step, where labels move and where they rest."""
    rng = np.random.default_rng(0)
    truth = rng.integers(N_CLUSTERS, size=n_rows)
    names = [f"site-{m}" for m in range(N_SITES)]
    starts = {name: with_errors(truth, rng, 0.2) for name in names}
    traces = {name: 0.1 * n_rows * (m + 1) for m, name in enumerate(names)}
    driver = TensorDriver(settings(), N_CLUSTERS, starts, traces, tol=1e-6, max_rounds=sys.maxsize)
    rounds = [
        [pack_labels(with_errors(starts[name], rng, 0.01), N_CLUSTERS) for name in names]
        for _ in range(2)
    ]
    turn = 0

    def step(packed: Sequence[np.ndarray[Any, Any]]) -> None:
        labels = {
            name: unpack_labels(part, n_rows, N_CLUSTERS)
            for name, part in zip(names, packed, strict=True)
        }
        driver.advance(labels, traces)
        for name in names:
            driver.query(name)

    def moving() -> None:
        nonlocal turn
        turn += 1
        step(rounds[turn % 2])

    return {
        "server step": timed(moving, repeats),
        "server step, labels at rest": timed(lambda: step(rounds[turn % 2]), repeats),
        "memory": peak_memory(),
    }


def naive_server_step(labels: Sequence[Ints], dual: Floats, mu: float, lam: float) -> list[Any]:
    """One step with whole (N, K, M) tensors and an SVD."""
    n_rows = labels[0].size
    blend = np.zeros((n_rows, N_CLUSTERS, len(labels)))
    for m, own in enumerate(labels):
        blend[np.arange(n_rows), own, m] = 1.0
    shifted = blend + dual / mu
    u, sigma, v = np.linalg.svd(shifted.reshape(-1, len(labels)), full_matrices=False)
    shrunk = ((u * gst(sigma, lam / mu, 0.9, 10)) @ v).reshape(shifted.shape)
    dual += mu * (blend - shrunk)
    z = shrunk - dual / (1.05 * mu)
    scales = np.abs(z).max(axis=(0, 1)) / 127
    return [np.rint(z[:, :, m] / scales[m]).astype(np.int8) for m in range(len(labels))]


def measure_naive_server(n_rows: int, repeats: int) -> Measured:
    """Time the naive step."""
    rng = np.random.default_rng(0)
    truth = rng.integers(N_CLUSTERS, size=n_rows)
    packed = [pack_labels(with_errors(truth, rng, 0.2), N_CLUSTERS) for _ in range(N_SITES)]
    dual = np.zeros((n_rows, N_CLUSTERS, N_SITES))

    def step() -> None:
        labels = [unpack_labels(part, n_rows, N_CLUSTERS) for part in packed]
        naive_server_step(labels, dual, 1.0, 0.4 * n_rows**0.5)

    return {"server step": timed(step, repeats), "memory": peak_memory()}


def blend_of(labels: Ints) -> np.ndarray[Any, Any]:
    """Return an int8 blend that leans to some labels."""
    z = np.zeros((labels.size, N_CLUSTERS), dtype=np.int8)
    z[np.arange(labels.size), labels] = 127
    return z


def measure_site(n_rows: int, repeats: int) -> Measured:
    """Time a site's set-up and its round."""
    rng = np.random.default_rng(0)
    truth = rng.integers(N_CLUSTERS, size=n_rows)
    view = make_view(truth, 1)
    made: list[TensorSite] = []

    def set_up() -> None:
        made.clear()
        made.append(TensorSite(view, settings(), N_CLUSTERS, seed=0, position=0, device="cpu"))
        made[0].start()

    setup_s = timed(set_up, min(repeats, 3))
    site, z = made[0], blend_of(with_errors(truth, rng, 0.2))

    def one_round() -> None:
        labels, _ = site.sweep(1.0, 1.0, z, 0.005)
        pack_labels(labels, N_CLUSTERS)

    round_s = timed(one_round, repeats)
    return {"site set-up": setup_s, "site round": round_s, "memory": peak_memory()}


def measure_naive_site(n_rows: int, repeats: int) -> Measured:
    """Time the site's work row by row: distances, graph and SVD; costs and means."""
    rng = np.random.default_rng(0)
    truth = rng.integers(N_CLUSTERS, size=n_rows)
    view, made = make_view(truth, 1), {}

    def set_up() -> None:
        x = (view - view.min(axis=0)) / (view.max(axis=0) - view.min(axis=0))
        anchors = x[np.sort(rng.choice(n_rows, size=N_ANCHORS, replace=False))]
        graph = np.zeros((n_rows, N_ANCHORS))
        for i in range(n_rows):
            squared = ((x[i] - anchors) ** 2).sum(axis=1)
            nearest = np.argsort(squared)[:11]
            gap = squared[nearest[10]] - squared[nearest[:10]]
            graph[i, nearest[:10]] = gap / gap.sum()
        u = np.linalg.svd(graph / np.sqrt(graph.sum(axis=0)), full_matrices=False)[0]
        f = u[:, :N_CLUSTERS]
        made["f"] = f / np.linalg.norm(f, axis=1, keepdims=True)
        made["y"] = KMeans(N_CLUSTERS, n_init=10, random_state=0).fit_predict(made["f"])

    setup_s = timed(set_up, 1)
    f, labels, z = made["f"], made["y"], blend_of(truth)

    def one_round() -> None:
        centers = np.array([f[labels == k].mean(axis=0) for k in range(N_CLUSTERS)])
        counts = np.bincount(labels, minlength=N_CLUSTERS)
        extra = 0.1 * (counts * N_CLUSTERS / n_rows - 1.0)
        for i in range(n_rows):
            cost = ((f[i] - centers) ** 2).sum(axis=1) + extra - 0.005 * z[i]
            labels[i] = np.argmin(cost)

    round_s = timed(one_round, min(repeats, 3))
    return {"site set-up": setup_s, "site round": round_s, "memory": peak_memory()}


MEASURES: dict[str, Callable[[int, int], Measured]] = {
    "server": measure_server,
    "site": measure_site,
    "naive server": measure_naive_server,
    "naive site": measure_naive_site,
}


def measured(what: str, n_rows: int, repeats: int) -> Measured:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tensor_scale", "--measure", what]
    out = subprocess.run(
        [*command, str(n_rows), str(repeats)], check=True, capture_output=True, text=True
    )
    found = json.loads(out.stdout)
    return {name: Seconds(*x) if name != "memory" else x for name, x in found.items()}


# -- bytes ---------------------------------------------------------------------------------------


def wire_bytes(n_rows: int = 10_000, rounds: int = 5) -> dict[str, dict[str, float]]:
    """Bytes a round of all sites in a run in this process: payload, message and Flower's record."""
    rng = np.random.default_rng(0)
    truth = rng.integers(N_CLUSTERS, size=n_rows)
    plan = RunPlan.parse(
        {
            "method": "tensor-fmvc",
            "n_clusters": N_CLUSTERS,
            "max_rounds": rounds,
            "tensor": {"anchors": N_ANCHORS, "link_cost": 1},
        }
    )
    sites = {f"site-{m}": {"views": [make_view(truth, m)]} for m in range(N_SITES)}
    logging.getLogger("fedmvc").setLevel(logging.ERROR)  # the rounds are few on purpose
    with tapped(SweepRequest) as wire:
        result = simulate(plan, sites)
    if result.status != "completed":
        raise RuntimeError(f"the run {result.status}: {result.stop_reason}")
    found: dict[str, dict[str, float]] = {}
    for way, bodies in (("up", wire.up), ("down", wire.down)):
        payload, header, envelope = (N_SITES * part for part in mean_parts(bodies))
        counted = [record[f"bytes_{way}"] for record in result.history]
        found[way] = {
            "payload": payload,
            "message": payload + header,
            "on the wire": payload + header + envelope,
            "history": float(np.median(counted)),
            "history, most": float(max(counted)),
        }
    return found


# -- printing ------------------------------------------------------------------------------------


def slope(times: Mapping[int, float], first: int, last: int) -> float:
    """Log-log slope of time between two sizes."""
    return float(np.log(times[last] / times[first]) / np.log(last / first))


def print_times(found: Mapping[tuple[str, int], Measured], sizes: Sequence[int]) -> None:
    """Print seconds, slopes, memory and what was asked for."""
    rows = []
    for step, (most_seconds, most_slope) in GOALS.items():
        what = "server" if step.startswith("server") else "site"
        for field in Seconds._fields:
            times = {n: getattr(found[what, n][step], field) for n in sizes}
            whole = slope(times, sizes[0], sizes[-1])
            row = [step if field == "median" else "", field, *(f"{times[n]:.4f}" for n in sizes)]
            row += [f"{slope(times, a, b):.2f}" for a, b in pairwise(sizes)] + [f"{whole:.2f}"]
            marks = ["", ""]
            if field == "median":
                met = times[sizes[-1]] < most_seconds and whole <= most_slope
                least = "" if most_seconds == float("inf") else f"< {most_seconds:g} s, "
                marks = [f"{least}slope <= {most_slope:g}", "met" if met else "MISSED"]
            rows.append([*row, *marks])
    between = [f"{a:,} to {b:,}" for a, b in pairwise(sizes)]
    print_table(
        f"Profile plus, K = {N_CLUSTERS}, M = {N_SITES}, theta = {N_ANCHORS}, d = {N_COLUMNS}; "
        "log-log slopes between sizes",
        ["seconds", "", *(f"{n:,}" for n in sizes), *between, "first to last", "goal", ""],
        rows,
    )
    rows = []
    for what in ("server", "site"):
        peaks = [found[what, n]["memory"] for n in sizes]
        mark = "met" if peaks[-1] < MEMORY_GOAL else "MISSED"
        rows.append([what, *(f"{x:.2f}" for x in peaks), f"< {MEMORY_GOAL:g}", mark])
    print_table(
        "Peak memory of a process in GB (interpreter, libraries and data included)",
        ["", *(f"{n:,}" for n in sizes), "goal", ""],
        rows,
    )


def print_naive(found: Mapping[tuple[str, int], Measured]) -> None:
    """Print the naive form beside."""
    rows = []
    for (what, n_rows), naive in found.items():
        if not what.startswith("naive"):
            continue
        ours = found[what.removeprefix("naive "), n_rows]
        for step in sorted(set(naive) - {"memory"}):
            slow, fast = naive[step].median, ours[step].median
            memory = f"{naive['memory']:.2f} / {ours['memory']:.2f}"
            rows.append([step, f"{n_rows:,}", slow, fast, f"{slow / fast:.1f}", memory])
    print_table(
        "Naive form: whole tensors and SVD (server), a loop over rows (site)",
        ["", "rows", "naive s", "s", "ratio", "GB naive / here"],
        rows,
    )


def print_bytes(found: Mapping[str, Mapping[str, float]]) -> None:
    """Print the bytes of a round."""
    rows = []
    for way, counts in found.items():
        goal = WIRE_GOALS[way]
        met = "met" if counts["on the wire"] <= goal else "MISSED"
        rows.append([way, *(f"{x:,.0f}" for x in counts.values()), f"<= {goal:,}", met])
    print_table(
        "Bytes a round of all sites, N = 10,000, mean of a run's rounds; on the wire: Flower's "
        "record around it (gRPC and TLS come on top)",
        ["", *next(iter(found.values())), "goal", ""],
        rows,
    )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="no more than 100,000 rows")
    parser.add_argument("--measure", nargs=3, metavar=("WHAT", "N", "REPEATS"), help="internal")
    arguments = parser.parse_args()
    if arguments.measure:
        what, n_rows, repeats = arguments.measure
        print(json.dumps(MEASURES[what](int(n_rows), int(repeats))))
        return
    sizes = SIZES[:2] if arguments.quick else SIZES
    repeats = {10_000: 31, 100_000: 11, 1_000_000: 7}
    print(f"load of this machine (1, 5, 15 min): {os.getloadavg()}, {os.cpu_count()} cores")
    found = {(what, n): measured(what, n, repeats[n]) for n in sizes for what in ("server", "site")}
    for n in sizes:
        found["naive server", n] = measured("naive server", n, 3)
    found["naive site", sizes[0]] = measured("naive site", sizes[0], 3)
    print_times(found, sizes)
    print_naive(found)
    print_bytes(wire_bytes())
    print(f"load at the end: {os.getloadavg()}")


if __name__ == "__main__":
    main()
