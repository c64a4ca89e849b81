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
from fedmvc_client.solvers.heat_kernel import heat_kernel_pass
from fedmvc_client.solvers.views import PreparedViews
from privacy.sensitivity import Blocks, HeatKernel, heat_kernel_blocks
from strategies.unit_sums import HeatKernelUnits, declared_scaling

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


# -- the solver, where a server picks the centres ------------------------------------------------


def solver_movement(
    records: Floats, extra: Floats, place: int, model: Model, *, separate: bool = True
) -> float:
    """How far the solver's sums move when a record comes, in units of S.

    Parameters
    ----------
    records : ndarray of shape (n, d)
        One view, values in [0, 1].
    extra : ndarray of shape (d,)
        The record that comes.
    place : int
        Row that it becomes.
    model : Model
    separate : bool
        As the product computes with noise; False is how it does without.
    """
    d, kernel = records.shape[1], model.heat_kernel
    bounds, masses = np.tile([0.0, 1.0], (d, 1)), [kernel != "one"]
    scaling = [declared_scaling(bounds, kernel)]
    units = HeatKernelUnits(scaling, [bounds], kernel, masses, imputed=True)

    def sums(rows: Floats) -> Floats:
        prepared = PreparedViews([rows], scaling, kernel, cell_mass=masses, separate=separate)
        return units.pack(
            heat_kernel_pass(
                prepared,
                [model.centers[0][None]],
                np.ones((1, 1)),
                bandwidth=np.full((1, 1), model.bandwidth),
                holding_share=np.ones(1),
                fuzzifier=model.fuzzifier,
                view_exponent=model.view_exponent,
            )
        )

    blocks = blocks_of([d], model)
    moved = sums(np.insert(records, place, extra, axis=0)) - sums(records)
    return float(np.linalg.norm(moved / blocks.weights) / blocks.sensitivity)


def near_centres(
    n_rows: int, gaps: Sequence[float], seed: int, *, separate: bool = True
) -> list[float]:
    """Movements where most records share values and the centres nearly meet there.

    What rounding leaves of such distances decides the memberships, so a record that changed the
    rounding of the others would move far more than itself.
    """
    rng = np.random.default_rng(seed)
    records = np.where(rng.random((n_rows, 2)) < 0.5, 0.3, 0.7)
    records[: 3 * n_rows // 4] = [0.3, 0.7]
    moved = []
    for kernel in _KERNELS:
        for gap in gaps:
            centers = np.array([[0.3 + gap, 0.7], [0.3 - 1.3 * gap, 0.7 + gap / 2]])
            model = Model([centers], np.ones(1), kernel, 2.0, 5.0, 1.0)
            for extra in ([0.0, 0.0], [1.0, 1.0], [0.123, 0.456]):
                for place in (0, int(rng.integers(n_rows)), n_rows):
                    new = np.array(extra)
                    moved.append(solver_movement(records, new, place, model, separate=separate))
    return moved


def rounding_row(n_rows: int = 20_000, seed: int = 0) -> Row:
    """Let a server choose centres that nearly meet where most records are."""
    gaps = (1e-5, 1e-6, 1e-7, 5e-8, 2e-8, 1e-9)
    found = near_centres(n_rows, gaps, seed)
    plain = near_centres(n_rows, gaps, seed, separate=False)
    return Row(
        f"one record among {n_rows:,}, {len(found)} sets of centres that nearly meet",
        f"largest movement of the solver's sums {max(found):.4f} S (as without noise: "
        f"{max(plain):.4f} S)",
        "at most S; more as without noise, where rounding may depend on the other records",
        max(found) <= 1 + 1e-9 and max(plain) > 1,
    )


def main() -> None:
    """Print the figures; exit with 1 where one fails."""
    raise SystemExit(print_rows("sensitivity", [sensitivity_row, rounding_row]))


if __name__ == "__main__":
    main()
