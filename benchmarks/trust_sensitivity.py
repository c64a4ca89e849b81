"""Search for the patient who moves a release of FedHK-MVFC most, and build the worst one.

Run with ``python -m benchmarks.trust_sensitivity``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.dp_reference import Model, record_terms
from benchmarks.trust_rows import Row, print_rows
from privacy.sensitivity import Blocks, HeatKernel, heat_kernel_blocks

Floats = NDArray[np.float64]

_KERNELS: tuple[HeatKernel, ...] = ("minmax", "absdev", "one")


def blocks_of(dims: Sequence[int], model: Model) -> Blocks:
    """Describe a round of ``model`` with the product's noise weights."""
    cell_mass = [model.heat_kernel != "one"] * len(dims)
    return heat_kernel_blocks(dims, model.n_clusters, model.heat_kernel, cell_mass)


def equal_noise(blocks: Blocks) -> Blocks:
    """Return the same release with the same noise for every number."""
    return replace(blocks, blocks=tuple(replace(b, weight=1.0) for b in blocks.blocks))


def movement(views: Sequence[Floats], model: Model, blocks: Blocks) -> Floats:
    """How far the sums move when each record in turn is removed, in units of S: shape (n,)."""
    full = record_terms(views, model).sum(axis=0)
    moved = []
    for i in range(views[0].shape[0]):
        fewer = record_terms([np.delete(view, i, axis=0) for view in views], model).sum(axis=0)
        moved.append(np.linalg.norm((full - fewer) / blocks.weights) / blocks.sensitivity)
    return np.array(moved)


def random_cohorts(n_cohorts: int, seed: int) -> Iterator[tuple[list[Floats], Model]]:
    """Draw cohorts of 1 to 5 records, half of the values at the bounds, and a model for each."""
    rng = np.random.default_rng(seed)
    for _ in range(n_cohorts):
        n, c = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        dims = rng.integers(1, 5, rng.integers(1, 4))

        def values(rows: int, d: int) -> Floats:
            inner = rng.uniform(size=(rows, d))
            return np.where(rng.uniform(size=(rows, d)) < 0.5, np.round(inner), inner)

        yield (
            [values(n, d) for d in dims],
            Model(
                [values(c, d) for d in dims],
                rng.dirichlet(np.full(dims.size, 0.5)),
                _KERNELS[rng.integers(3)],
                fuzzifier=1 + 10 ** rng.uniform(-3, 0.5),
                view_exponent=1 + 10 ** rng.uniform(-1, 1),
                bandwidth=10 ** rng.uniform(-1, 4),
            ),
        )


def worst_record(
    near: Sequence[bool], dims: Sequence[int], n_clusters: int, heat_kernel: HeatKernel
) -> tuple[list[Floats], Model]:
    """Build the patient who moves the sums most: his values are all at the upper bound.

    He sits on centre 0 in the views that are ``near`` and far from all centres in the others; those
    hardly weigh, so that he belongs to cluster 0 alone.
    """
    centers = []
    for d, close in zip(dims, near, strict=True):
        view = np.zeros((n_clusters, d))
        view[0] = 1.0 if close else 0.0
        centers.append(view)
    weights = np.where(near, 1.0, 1e-9 if any(near) else 1.0)
    model = Model(centers, weights / weights.sum(), heat_kernel, bandwidth=1e3)
    return [np.ones((1, d)) for d in dims], model


def largest_movements() -> list[float]:
    """How far the worst records move the sums, in units of S."""
    moved = []
    for heat_kernel in _KERNELS:
        for dims, c in (((2, 2), 4), ((1, 3, 5), 3), ((2, 2), 1), ((2, 6), 4)):
            views, model = worst_record([True] * len(dims), dims, c, heat_kernel)
            moved.append(float(movement(views, model, blocks_of(dims, model))[0]))
            # under equal noise Q is what counts in the views where B_h < 1
            near = [_view_bound(heat_kernel, d) > 1 for d in dims]
            if any(near) or c == 1:
                views, model = worst_record(near, dims, c, heat_kernel)
                moved.append(float(movement(views, model, equal_noise(blocks_of(dims, model)))[0]))
    return moved


def _view_bound(heat_kernel: HeatKernel, d: int) -> float:
    """Return B_h of a view of d columns under equal noise."""
    return {"minmax": 5 / 4 * d, "absdev": 5 / 16 * d, "one": 1 + d / 4}[heat_kernel]


def sensitivity_row(n_cohorts: int = 5_000, seed: int = 0) -> Row:
    """Search random cohorts, and compare the worst records with the bound."""
    found = 0.0
    for views, model in random_cohorts(n_cohorts, seed):
        blocks = blocks_of([v.shape[1] for v in views], model)
        for release in (blocks, equal_noise(blocks)):
            found = max(found, float(movement(views, model, release).max()))
    built = largest_movements()
    return Row(
        f"brute-force sensitivity, {n_cohorts:,} cohorts and {len(built)} worst records",
        f"largest movement found {found:.6f} S, built {min(built):.9f} to {max(built):.9f} S",
        "at most S (1e-9); built at least (1 - 1e-6) S",
        found <= 1 + 1e-9 and min(built) >= 1 - 1e-6 and max(built) <= 1 + 1e-9,
    )


def main() -> None:
    """Print the figure; exit with 1 where it fails."""
    raise SystemExit(print_rows("sensitivity", [sensitivity_row]))


if __name__ == "__main__":
    main()
