"""One heat-kernel pass on a CUDA device: time, and share of the memory bandwidth measured there.

The pass must read every stored feature once for the exponents and once for the sums; the share is
that traffic over the time, relative to the bandwidth of a plain device copy in the same run.

Usage: ``python benchmarks/gpu.py [--rows N]``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from fedmvc_client.solvers.heat_kernel import heat_kernel_pass
from fedmvc_client.solvers.views import HeatKernel, PreparedViews
from strategies.messages import ViewScaling

N_VIEWS, N_COLUMNS, N_CLUSTERS = 2, 50, 10


def fastest(function: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest run, device work included."""
    function()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def copy_bandwidth() -> float:
    """Bytes a second of a device copy (one read and one write of 1 GiB)."""
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / fastest(lambda: target.copy_(source))


def report(views: list[np.ndarray], heat_kernel: HeatKernel, dtype: str, bandwidth: float) -> None:
    """Print one line."""
    ones = np.ones(N_COLUMNS)
    scaling = [ViewScaling(raw.min(axis=0), np.ptp(raw, axis=0), 0.0 * ones, ones) for raw in views]
    start = time.perf_counter()
    prepared = PreparedViews(
        views,
        scaling,
        heat_kernel,
        cell_mass=[heat_kernel != "one"] * len(views),
        device="cuda",
        dtype=dtype,
    )
    preparation = time.perf_counter() - start
    centers = [
        ((raw[:N_CLUSTERS] - s.offset) / s.scale)[None]
        for raw, s in zip(views, scaling, strict=True)
    ]
    seconds = fastest(
        lambda: heat_kernel_pass(
            prepared,
            centers,
            np.full((1, len(views)), 1.0 / len(views)),
            bandwidth=np.ones((1, len(views))),
            holding_share=np.ones(len(views)),
            fuzzifier=2.0,
            view_exponent=5.0,
        )
    )
    stored = sum(
        view.chunks.numel() * view.chunks.element_size()
        for view in prepared.views
        if view.chunks is not None
    )
    print(
        f"{heat_kernel:7} {dtype}: pass {1e3 * seconds:8.1f} ms, "
        f"{2 * stored / seconds / bandwidth:5.1%} of the bandwidth "
        f"(features {stored / 1e9:.1f} GB read twice), preparation {preparation:.1f} s"
    )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a CUDA device and this machine has none.", file=sys.stderr)
        raise SystemExit(2)
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: copy bandwidth {bandwidth / 1e9:.0f} GB/s")
    print(f"n = {arguments.rows:,}, d = {N_VIEWS} x {N_COLUMNS}, c = {N_CLUSTERS}, m = 2")
    rng = np.random.default_rng(0)
    views = [rng.standard_normal((arguments.rows, N_COLUMNS)) for _ in range(N_VIEWS)]
    for heat_kernel in ("minmax", "one"):
        for dtype in ("float64", "float32"):
            report(views, heat_kernel, dtype, bandwidth)


if __name__ == "__main__":
    main()
