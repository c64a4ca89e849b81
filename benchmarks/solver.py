"""Cost of one heat-kernel pass on the CPU, beside what it replaces and its peers.

Prints, and asserts nothing: the speed-up over the float64 NumPy broadcast form, the time of an
iteration of scikit-learn's k-means and of a plain fuzzy c-means, the growth of time with the number
of records, and the peak memory of a whole process. Timings are CPU seconds on one thread (wall time
where two threads are named), the minimum of several runs; run it on a quiet machine.

Usage: ``python benchmarks/solver.py [--quick]``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_info, threadpool_limits

from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, memberships
from fedmvc_client.solvers.views import HeatKernel, PreparedViews
from strategies.messages import ViewScaling

N_VIEWS, N_COLUMNS, N_CLUSTERS = 2, 50, 10
Floats = NDArray[np.float64]


def make_views(n_rows: int, seed: int = 0) -> list[Floats]:
    """Overlapping Gaussian clusters, so that no method stops early."""
    rng = np.random.default_rng(seed)
    label = rng.integers(N_CLUSTERS, size=n_rows)
    views = []
    for _ in range(N_VIEWS):
        view = rng.standard_normal((n_rows, N_COLUMNS))
        centers = rng.normal(scale=0.5, size=(N_CLUSTERS, N_COLUMNS))
        for first in range(0, n_rows, 10_000):
            view[first : first + 10_000] += centers[label[first : first + 10_000]]
        views.append(view)
    return views


def pooled_scaling(raw: Floats, heat_kernel: HeatKernel) -> ViewScaling:
    """Min-max scaling for the kernels of the paper, standardisation for kernel "one"."""
    zero, one = np.zeros(raw.shape[1]), np.ones(raw.shape[1])
    if heat_kernel == "one":
        return ViewScaling(raw.mean(axis=0), raw.std(axis=0), zero, one)
    low = raw.min(axis=0)
    return ViewScaling(low, raw.max(axis=0) - low, zero, one)


class Pass:
    """A prepared data set and the arguments of its first pass."""

    def __init__(
        self, views: Sequence[Floats], heat_kernel: HeatKernel, dtype: str, n_starts: int = 1
    ) -> None:
        self.scaling = [pooled_scaling(raw, heat_kernel) for raw in views]
        self.prepared = PreparedViews(
            views,
            self.scaling,
            heat_kernel,
            cell_mass=[heat_kernel != "one"] * len(views),
            dtype=dtype,
        )
        rows = np.arange(n_starts * N_CLUSTERS).reshape(n_starts, N_CLUSTERS)
        self.centers = [
            (raw[rows] - s.offset) / s.scale for raw, s in zip(views, self.scaling, strict=True)
        ]
        self.weights = np.full((n_starts, len(views)), 1.0 / len(views))
        beta = 0.1 / N_COLUMNS if heat_kernel == "one" else 1.0
        self.bandwidth = np.full((n_starts, len(views)), beta)

    def __call__(self, fuzzifier: float = 2.0, n_threads: int = 1) -> None:
        """Run the pass."""
        heat_kernel_pass(
            self.prepared,
            self.centers,
            self.weights,
            bandwidth=self.bandwidth,
            holding_share=np.ones(self.prepared.n_views),
            fuzzifier=fuzzifier,
            view_exponent=5.0,
            n_threads=n_threads,
        )


def broadcast_pass(
    x: Sequence[Floats], delta: Sequence[Floats], centers: Sequence[Floats], beta: float, rows: int
) -> None:
    """Run the same pass with (rows, c, d) arrays, in float64 NumPy, in blocks of rows.

    The large array is allocated once: fresh pages for each block would double its time.
    """
    weight = (1.0 / N_VIEWS) ** 5
    buffer = np.empty((rows, N_CLUSTERS, N_COLUMNS))
    for first in range(0, len(x[0]), rows):
        block = slice(first, first + rows)
        distance, kernel = [], []
        for xh, dh, a in zip(x, delta, centers, strict=True):
            difference = buffer[: len(xh[block])]
            np.subtract(xh[block, None, :], a[None], out=difference)
            np.square(difference, out=difference)
            np.multiply(difference, dh[block, None, :], out=difference)
            phi = difference.sum(axis=2)
            phi *= beta
            distance.append(-np.expm1(-phi))
            kernel.append(np.exp(-phi))
        total = sum(weight * d for d in distance)
        inverse = 1.0 / np.maximum(total, 1e-15)
        u2 = (inverse / inverse.sum(axis=1, keepdims=True)) ** 2
        for xh, dh, d, e in zip(x, delta, distance, kernel, strict=True):
            g = u2 * e
            g.T @ (dh[block] * xh[block])
            g.T @ dh[block]
            (u2 * d).sum()


def fuzzy_c_means_iteration(x: Floats, squares: Floats, centers: Floats) -> Floats:
    """Run one iteration of plain fuzzy c-means, m = 2, in its matrix-product form."""
    distance = x @ (-2.0 * centers.T)
    distance += squares[:, None]
    distance += (centers**2).sum(axis=1)
    inverse = 1.0 / np.maximum(distance, 1e-15)
    u2 = (inverse / inverse.sum(axis=1, keepdims=True)) ** 2
    return (u2.T @ x) / u2.sum(axis=0)[:, None]


def fastest(
    function: Callable[[], object],
    repeats: int = 3,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Seconds by the clock (CPU time: fit for one thread), minimum of runs after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = clock()
        function()
        times.append(clock() - start)
    return min(times)


def kmeans_iteration(x: Floats, repeats: int) -> float:
    """Seconds of one Lloyd iteration: the difference of a run of 12 and a run of 2."""

    def run(n_iterations: int) -> Callable[[], object]:
        model = KMeans(N_CLUSTERS, init=x[:N_CLUSTERS], n_init=1, max_iter=n_iterations, tol=0.0)
        return lambda: model.fit(x)

    return (fastest(run(12), repeats) - fastest(run(2), repeats)) / 10


def report_speed(n_rows: int, repeats: int) -> None:
    """Print the time of a pass, the broadcast form and the peers."""
    views = make_views(n_rows)
    size = f"n = {n_rows:,}, d = {N_VIEWS} x {N_COLUMNS}, c = {N_CLUSTERS}"
    print(f"\none pass, {size}, one thread, CPU time")
    print(f"{'':48}{'ms':>9}{'x broadcast':>13}")
    for heat_kernel in ("minmax", "one"):
        double, single = Pass(views, heat_kernel, "float64"), Pass(views, heat_kernel, "float32")
        x = [(raw - s.offset) / s.scale for raw, s in zip(views, double.scaling, strict=True)]
        delta = x if heat_kernel == "minmax" else [np.ones_like(raw) for raw in x]
        centers, beta = [a[0] for a in double.centers], float(double.bandwidth[0, 0])
        slow = {
            rows: fastest(partial(broadcast_pass, x, delta, centers, beta, rows), repeats)
            for rows in (1_000, 10_000, n_rows)
        }
        best = min(slow, key=lambda rows: slow[rows])
        base = slow[best]
        for rows, seconds in slow.items():
            mark = "  <- the base" if rows == best else ""
            name = f"{heat_kernel}: broadcast, blocks of {rows:,}"
            print(f"{name:48}{1e3 * seconds:9.1f}{base / seconds:13.1f}{mark}")
        for dtype, run in (("float64", double), ("float32", single)):
            for fuzzifier in (2.0, 1.1, 1.7):
                seconds = fastest(partial(run, fuzzifier), repeats)
                name = f"{heat_kernel}: two products, {dtype}, m = {fuzzifier}"
                print(f"{name:48}{1e3 * seconds:9.1f}{base / seconds:13.1f}")
            seconds = fastest(partial(run, n_threads=2), repeats, time.perf_counter)
            name = f"{heat_kernel}: two products, {dtype}, 2 threads (wall)"
            print(f"{name:48}{1e3 * seconds:9.1f}{base / seconds:13.1f}")
            ten = Pass(views, heat_kernel, dtype, n_starts=10)
            seconds = fastest(ten, repeats) / 10
            name = f"{heat_kernel}: {dtype}, each of 10 batched starts"
            print(f"{name:48}{1e3 * seconds:9.1f}{base / seconds:13.1f}")
    table = np.hstack(views)
    squares = (table**2).sum(axis=1)
    seconds = kmeans_iteration(table, repeats)
    print(f"{'peer: scikit-learn k-means (lloyd), iteration':48}{1e3 * seconds:9.1f}")
    seconds = fastest(lambda: fuzzy_c_means_iteration(table, squares, table[:N_CLUSTERS]), repeats)
    print(f"{'peer: fuzzy c-means (NumPy), iteration':48}{1e3 * seconds:9.1f}")


def report_growth(sizes: Sequence[int], repeats: int) -> None:
    """Print the log-log slope of time in n."""
    times = []
    for n_rows in sizes:
        times.append(fastest(Pass(make_views(n_rows), "minmax", "float64"), repeats))
    slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
    listed = ", ".join(f"{n:,}: {1e3 * t:.1f} ms" for n, t in zip(sizes, times, strict=True))
    print(f"\ngrowth of a pass (minmax, float64): {listed}")
    print(f"log-log slope in n: {slope:.3f}")


def measure_memory(n_rows: int, heat_kernel: HeatKernel, dtype: str) -> None:
    """Print this process's peak memory after data, preparation, a pass and memberships (JSON)."""
    views = make_views(n_rows)
    run = Pass(views, heat_kernel, dtype)
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    memberships(
        run.prepared,
        [a[0] for a in run.centers],
        run.weights[0],
        bandwidth=run.bandwidth[0],
        holding_share=np.ones(N_VIEWS),
        fuzzifier=2.0,
        view_exponent=5.0,
    )
    # Not getrusage: its maximum survives exec, so it would include the parent's.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024**2
    print(json.dumps({"peak_gib": peak, "pass_s": seconds}))


def report_memory(n_rows: int) -> None:
    """Print the peak memory of a process that holds n rows and runs a pass."""
    raw = n_rows * N_VIEWS * N_COLUMNS * 8 / 1024**3
    print(f"\npeak memory of a process, n = {n_rows:,} (the raw values alone: {raw:.2f} GiB)")
    for heat_kernel in ("minmax", "one"):
        for dtype in ("float64", "float32"):
            command = [sys.executable, __file__, "--memory"]
            out = subprocess.run(
                [*command, str(n_rows), heat_kernel, dtype],
                check=True,
                capture_output=True,
                text=True,
            )
            found = json.loads(out.stdout)
            print(
                f"{heat_kernel:7} {dtype}: {found['peak_gib']:.2f} GiB, "
                f"first pass {found['pass_s']:.2f} s"
            )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller data, for a first look")
    parser.add_argument("--memory", nargs=3, metavar=("N", "KERNEL", "DTYPE"), help="internal")
    arguments = parser.parse_args()
    if arguments.memory:
        n_rows, heat_kernel, dtype = arguments.memory
        measure_memory(int(n_rows), heat_kernel, dtype)
        return
    blas = {
        f"{entry['internal_api']} {entry['version']} ({entry.get('architecture')} kernels)"
        for entry in threadpool_info()
        if entry["user_api"] == "blas"
    }
    print(f"numpy {np.__version__} with {', '.join(sorted(blas))}")
    print(f"OPENBLAS_CORETYPE={os.environ.get('OPENBLAS_CORETYPE', 'not set')}")
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    print(f"load of this machine (1, 5, 15 min): {os.getloadavg()}, {os.cpu_count()} cores")
    with threadpool_limits(1):
        report_speed(20_000 if arguments.quick else 100_000, repeats=3)
        sizes = [10_000, 30_000, 100_000] if arguments.quick else [10_000, 100_000, 1_000_000]
        report_growth(sizes, repeats=3)
    report_memory(100_000 if arguments.quick else 1_000_000)
    print(f"load at the end: {os.getloadavg()}")


if __name__ == "__main__":
    main()
