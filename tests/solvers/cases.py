"""Small data sets and a prepared pair (fast, reference) for the solver tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmvc_client.solvers.heat_kernel import heat_kernel_pass
from fedmvc_client.solvers.views import PreparedViews
from tests.solvers.reference import Reference, pooled_scaling

KERNELS = ("minmax", "absdev", "one")
SCALINGS = ("minmax", "standard", "none")


def blobs(n=200, dims=(2, 3), n_clusters=3, seed=0, separation=4.0):
    """Gaussian clusters, raw units that differ by view; every view separates them."""
    rng = np.random.default_rng(seed)
    label = rng.integers(n_clusters, size=n)
    views = []
    for h, d in enumerate(dims):
        centers = rng.normal(scale=separation, size=(n_clusters, d))
        views.append((centers[label] + rng.normal(size=(n, d))) * (1.0 + 3.0 * h) + 10.0 * h)
    return views


@dataclass
class Case:
    """One data set with everything a pass needs."""

    views: list
    scaling: list
    heat_kernel: str
    cell_mass: list
    prepared: PreparedViews
    reference: Reference
    share: np.ndarray
    bandwidth: np.ndarray  # (s,)

    def settings(self, n_starts, fuzzifier=2.0, view_exponent=5.0):
        """Keyword arguments of heat_kernel_pass and local_iterations."""
        return {
            "bandwidth": np.tile(self.bandwidth, (n_starts, 1)),
            "holding_share": self.share,
            "fuzzifier": fuzzifier,
            "view_exponent": view_exponent,
        }

    def starts(self, n_starts, n_clusters, seed=1):
        """Centres on records that hold every view, and uneven view weights."""
        rng = np.random.default_rng(seed)
        full = np.flatnonzero(self.reference.held.all(axis=1))
        rows = np.stack([rng.choice(full, n_clusters, replace=False) for _ in range(n_starts)])
        centers = [x[rows] + 1e-3 * rng.normal(size=(*rows.shape, 1)) for x in self.reference.x]
        return centers, rng.dirichlet(np.full(len(self.views), 4.0), size=n_starts)

    def run(self, centers, weights, fuzzifier=2.0, view_exponent=5.0, **options):
        """One fast pass."""
        settings = self.settings(len(weights), fuzzifier, view_exponent)
        return heat_kernel_pass(self.prepared, centers, weights, **settings, **options)


def make_case(
    views,
    heat_kernel="minmax",
    scaling="minmax",
    *,
    factor=0.5,
    cell_mass=None,
    dtype="float64",
    pooled=None,
):
    """Prepare a data set; bandwidth is ``factor`` over the mean squared distance to the middle."""
    pooled = pooled or [pooled_scaling(raw, scaling, heat_kernel) for raw in views]
    if cell_mass is None:
        partly = [(np.isnan(v).any(axis=1) & ~np.isnan(v).all(axis=1)).any() for v in views]
        cell_mass = [heat_kernel != "one" or bool(some) for some in partly]
    reference = Reference.of(views, pooled, heat_kernel, cell_mass)
    spread = []
    for h, (x, delta) in enumerate(zip(reference.x, reference.delta, strict=True)):
        middle = (delta * x).sum(axis=0) / np.maximum(delta.sum(axis=0), 1e-300)
        spread.append((delta * (x - middle) ** 2).sum() / reference.held[:, h].sum())
    bandwidth = np.array([factor / value if value > 0 else 1.0 for value in spread])
    prepared = PreparedViews(views, pooled, heat_kernel, cell_mass=cell_mass, dtype=dtype)
    share = reference.held.mean(axis=0)
    return Case(views, pooled, heat_kernel, cell_mass, prepared, reference, share, bandwidth)


def assert_statistics_close(found, expected, rtol):
    """Compare two SufficientStatistics relative to the largest entry of each array."""
    pairs = [
        *zip(found.numerator, expected.numerator, strict=True),
        *zip(found.mass, expected.mass, strict=True),
        (found.dispersion, expected.dispersion),
    ]
    for a, b in pairs:
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0.0, atol=rtol * np.abs(b).max())


def statistics_equal(a, b):
    """Bit-identical statistics."""
    return (
        all(np.array_equal(x, y) for x, y in zip(a.numerator, b.numerator, strict=True))
        and all(np.array_equal(x, y) for x, y in zip(a.mass, b.mass, strict=True))
        and np.array_equal(a.dispersion, b.dispersion)
    )
