"""A site's solver makes the very sums that the sensitivity was proved and searched for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.dp_reference import Model, record_terms
from benchmarks.trust_sensitivity import near_centres
from fedmvc_client.solvers.heat_kernel import heat_kernel_pass
from fedmvc_client.solvers.views import PreparedViews
from privacy.sensitivity import heat_kernel_blocks
from strategies.unit_sums import HeatKernelUnits, declared_scaling

DIMS, CLUSTERS = (2, 3), 4


@pytest.mark.parametrize("heat_kernel", ["minmax", "absdev", "one"])
def test_the_solver_sums_the_terms_of_the_records(heat_kernel):
    rng = np.random.default_rng(3)
    bounds = [
        np.stack([low, low + rng.uniform(1, 50, d)], axis=1)
        for d, low in ((d, rng.normal(0, 20, d)) for d in DIMS)
    ]
    places = [np.round(rng.uniform(size=(40, d)), 1) for d in DIMS]
    views = [b[:, 0] + p * (b[:, 1] - b[:, 0]) for b, p in zip(bounds, places, strict=True)]
    model = Model(
        [rng.uniform(size=(CLUSTERS, d)) for d in DIMS],
        np.array([0.3, 0.7]),
        heat_kernel,
        fuzzifier=1.7,
        view_exponent=3.0,
        bandwidth=2.5,
    )
    scaling = [declared_scaling(b, heat_kernel) for b in bounds]
    cell_mass = [heat_kernel != "one"] * 2
    statistics = heat_kernel_pass(
        PreparedViews(views, scaling, heat_kernel, cell_mass=cell_mass, separate=True),
        [a[None] for a in model.centers],
        model.view_weights[None],
        bandwidth=np.full((1, 2), model.bandwidth),
        holding_share=np.ones(2),
        fuzzifier=model.fuzzifier,
        view_exponent=model.view_exponent,
    )
    units = HeatKernelUnits(scaling, bounds, heat_kernel, cell_mass, imputed=True)
    packed = units.pack(statistics)
    blocks = heat_kernel_blocks(DIMS, CLUSTERS, heat_kernel, cell_mass)
    assert packed.size == blocks.size
    terms = record_terms(places, model)
    np.testing.assert_allclose(packed, terms.sum(axis=0), rtol=1e-10, atol=1e-10)
    assert (np.abs(terms) <= blocks.record_bounds + 1e-12).all()


def test_rounding_lets_no_record_move_the_others():
    gaps = (1e-6, 5e-8, 2e-8)
    assert max(near_centres(20_000, gaps, seed=1)) < 0.5
    assert max(near_centres(20_000, gaps, seed=1, separate=False)) > 1.0


@given(
    rows=st.integers(1, 60),
    place=st.floats(0, 1),
    gap=st.sampled_from([0.0, 1e-17, 1e-12, 1e-8, 0.1]),
    heat_kernel=st.sampled_from(["minmax", "absdev", "one"]),
    fuzzifier=st.sampled_from([1.003, 1.37, 2.0, 3.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_separate_record_adds_the_same_in_any_company(
    rows, place, gap, heat_kernel, fuzzifier, seed
):
    rng = np.random.default_rng(seed)
    records = np.round(rng.uniform(size=(rows, 3)), 1)
    extra = np.round(rng.uniform(size=3), 1)
    at = int(place * rows)
    centers = records[0] + gap * rng.normal(size=(1, CLUSTERS, 3))
    scaling = [declared_scaling(np.tile([0.0, 1.0], (3, 1)), heat_kernel)]

    def sums(views):
        statistics = heat_kernel_pass(
            PreparedViews(
                [views], scaling, heat_kernel, cell_mass=[heat_kernel != "one"], separate=True
            ),
            [centers],
            np.ones((1, 1)),
            bandwidth=np.ones((1, 1)),
            holding_share=np.ones(1),
            fuzzifier=fuzzifier,
            view_exponent=3.0,
        )
        return np.concatenate(
            [statistics.numerator[0].ravel(), statistics.mass[0].ravel(), statistics.dispersion[0]]
        )

    together = sums(np.insert(records, at, extra, axis=0))
    np.testing.assert_allclose(together, sums(records) + sums(extra[None]), rtol=0, atol=1e-11)
