"""Scaling, bandwidth and starting centres agreed before round 1."""

import numpy as np
import pytest

from configs.profiles import resolve_heat_kernel
from strategies.preparation import (
    Preparation,
    auto_bandwidth,
    box_seeds,
    pooled_seeds,
    spread_seeds,
    view_scaling,
    view_spread,
    weighted_kmeans,
)
from strategies.statistics import Moments
from tests.solvers.cases import KERNELS, SCALINGS
from tests.solvers.reference import coefficients, pooled_scaling

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(50, 3)) * [1.0, 10.0, 0.1] + [5.0, -100.0, 1e4]


def scaling_of(table, scaling="minmax", kernel="minmax"):
    return view_scaling(Moments.of(table), scaling, kernel)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_coefficients_are_those_of_the_slow_reference(scaling, kernel):
    """Another offset gives other scaled values, never another heat-kernel coefficient."""
    found, expected = scaling_of(TABLE, scaling, kernel), pooled_scaling(TABLE, scaling, kernel)
    assert found.scale == pytest.approx(expected.scale)
    a = coefficients((TABLE - found.offset) / found.scale, found, kernel)
    b = coefficients((TABLE - expected.offset) / expected.scale, expected, kernel)
    np.testing.assert_allclose(a, b, atol=1e-9)


def test_minmax_scaling_by_hand():
    found = scaling_of(np.array([[2.0], [6.0], [4.0]]))
    assert (found.offset.item(), found.scale.item()) == (2.0, 4.0)
    assert (found.delta_a.item(), found.delta_b.item()) == (0.0, 1.0)


def test_a_constant_column_has_scale_1_and_no_coefficient():
    for scaling in SCALINGS:
        for kernel in KERNELS:
            found = scaling_of(np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 4.0]]), scaling, kernel)
            assert found.scale[0] == 1.0
            assert found.offset[0] == pytest.approx(0.1)
            assert np.isinf(found.delta_b).tolist() == [True, False]


def test_spread_is_the_total_scaled_variance():
    assert view_spread(Moments.of(TABLE), scaling_of(TABLE, "standard")) == pytest.approx(3.0)
    flat = np.ones((4, 2))
    assert view_spread(Moments.of(flat), scaling_of(flat)) == 1.0


def test_auto_bandwidth_by_hand():
    """Values 0 and 2 with delta 1: squared distance to the mean 2 over 2 records, beta = .1."""
    sums = np.array([[4.0], [2.0], [2.0]])
    assert auto_bandwidth(sums, 2.0, 0.1) == pytest.approx(0.1)
    assert auto_bandwidth(np.zeros((3, 1)), 2.0, 0.1) == 1.0


def test_auto_bandwidth_is_invariant_to_unit_and_copies_of_columns():
    x = TABLE[:, :1] - TABLE[:, :1].mean()

    def beta_phi(values):
        sums = np.stack([(values**2).sum(0), values.sum(0), np.full(values.shape[1], len(values))])
        return auto_bandwidth(sums, len(values), 0.1) * (values**2).sum(axis=1)

    np.testing.assert_allclose(beta_phi(x), beta_phi(1000.0 * x), rtol=1e-9)
    np.testing.assert_allclose(beta_phi(x), beta_phi(np.hstack([x, x, x])), rtol=1e-9)


def test_pooling_counts_who_holds_a_view_and_who_sends_masses_by_column():
    settings = resolve_heat_kernel("robust", 3)
    parts = [Moments.of(TABLE[:20]), Moments.of(TABLE[20:])]
    nothing = Moments.of(np.empty((0, 1)))
    some = Moments.of(np.arange(30.0)[:, None])
    found = Preparation.pool(
        settings,
        [20, 30],
        [np.array([20, 0]), np.array([30, 15])],
        [np.array([0, 0]), np.array([0, 3])],
        [[parts[0], nothing], [parts[1], some]],
    )
    assert found.n_rows == 50
    assert found.holding_share.tolist() == [1.0, 0.3]
    assert found.cell_mass == (False, True)
    assert found.active.tolist() == [True, True]
    assert found.equal_weights.tolist() == [0.5, 0.5]
    assert found.stages == (0.05, 0.2, 0.5, 1.0)
    assert found.mean[0] == pytest.approx(np.zeros(3), abs=1e-9)


def test_a_view_that_nobody_holds_is_inactive_and_divides_by_nothing():
    nothing = Moments.of(np.empty((0, 1)))
    found = Preparation.pool(
        resolve_heat_kernel("paper", 4),
        [50],
        [np.array([50, 0])],
        [np.array([0, 0])],
        [[Moments.of(TABLE), nothing]],
    )
    assert found.holding_share.tolist() == [1.0, 1.0]
    assert found.active.tolist() == [True, False]
    assert found.equal_weights.tolist() == [1.0, 0.0]
    assert [(h, j) for h, j, _ in found.silent_columns()] == [(1, 0)]


# -- starting centres ------------------------------------------------------------------------


def test_box_seeds_lie_between_the_extremes_and_follow_the_seed():
    low, high = [np.array([0.0, -1.0])], [np.array([1.0, 5.0])]
    (seeds,) = box_seeds(low, high, 3, 4, 7)
    assert seeds.shape == (4, 3, 2)
    assert (seeds >= low[0]).all()
    assert (seeds <= high[0]).all()
    assert np.array_equal(seeds, box_seeds(low, high, 3, 4, 7)[0])
    assert not np.array_equal(seeds, box_seeds(low, high, 3, 4, 8)[0])


def smallest_gap(points):
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    return distance[np.triu_indices(len(points), 1)].min()


def test_spread_seeds_are_the_widest_of_their_candidates():
    low, high = [np.zeros(2)], [np.ones(2)]
    for start in range(3):
        kept = spread_seeds(low, high, np.ones(1), 4, 3, 0, n_candidates=50)[0][start]
        sets = box_seeds(low, high, 4, 50, [0, start])[0]
        assert smallest_gap(kept) == pytest.approx(max(smallest_gap(s) for s in sets))


def test_spread_seeds_of_one_cluster_need_no_gap():
    (seeds,) = spread_seeds([np.zeros(1)], [np.ones(1)], np.ones(1), 1, 2, 0)
    assert seeds.shape == (2, 1, 1)


def test_weighted_kmeans_follows_the_weights():
    points = np.array([[0.0], [1.0], [10.0], [13.0]])
    centers = weighted_kmeans(points, np.array([3.0, 1.0, 1.0, 2.0]), 2, 0)
    assert sorted(centers.ravel()) == pytest.approx([0.25, 12.0])


def test_weighted_kmeans_of_few_points_repeats_them():
    points = np.array([[1.0], [5.0], [7.0]])
    weights = np.array([2.0, 0.0, 1.0])
    assert weighted_kmeans(points, weights, 3, 0).ravel().tolist() == [1.0, 7.0, 1.0]
    twice = np.array([[1.0], [1.0], [1.0], [7.0]])
    assert sorted(weighted_kmeans(twice, np.ones(4), 3, 0).ravel()) == [1.0, 1.0, 7.0]


def seeds_of(*sites):
    """One start, one view of one column: centres and counts by site."""
    return (
        [[np.reshape(c, (1, -1, 1)) for c in site] for site in sites],
        [np.ones((1, len(site[0]))) for site in sites],
    )


def test_pooled_seeds_join_the_sites_centres():
    centers, counts = seeds_of([[0.0, 10.0]], [[20.0, 10.0]])
    held = np.ones((2, 1), dtype=bool)
    (found,) = pooled_seeds(centers, counts, held, np.ones(1), [np.zeros(1)], 3, 0)
    assert sorted(found.ravel()) == pytest.approx([0.0, 10.0, 20.0])


def test_sites_that_lack_a_view_do_not_seed_where_others_hold_all():
    centers, counts = seeds_of([[0.0, 10.0], [1.0, 2.0]], [[99.0, 98.0], [0.0, 0.0]])
    held = np.array([[True, True], [True, False]])
    found = pooled_seeds(centers, counts, held, np.ones(2), [np.zeros(1), np.zeros(1)], 2, 0)
    assert sorted(found[0].ravel()) == [0.0, 10.0]
    assert sorted(found[1].ravel()) == [1.0, 2.0]


def test_where_no_site_holds_all_views_the_mean_stands_in():
    centers, counts = seeds_of([[0.0, 10.0], [0.0, 0.0]], [[0.0, 0.0], [5.0, 9.0]])
    held = np.array([[True, False], [False, True]])
    mean = [np.array([4.0]), np.array([7.0])]
    found = pooled_seeds(centers, counts, held, np.ones(2), mean, 4, 0)
    joint = np.concatenate([f[0] for f in found], axis=1)
    expected = [[0.0, 7.0], [4.0, 5.0], [4.0, 9.0], [10.0, 7.0]]
    assert sorted(joint.tolist()) == expected


BOX = ([np.zeros(1)], [np.ones(1)])


def test_centres_that_are_missing_are_drawn_from_the_box():
    """Two of the four centres coincide and one stands for no record."""
    centers, counts = seeds_of([[0.5, 0.5, 0.25, 0.75]])
    counts[0][0, 3] = 0.0
    held = np.ones((1, 1), dtype=bool)
    (found,) = pooled_seeds(centers, counts, held, np.ones(1), [np.zeros(1)], 4, 0, BOX)
    assert found[0, :2].ravel().tolist() == [0.5, 0.25]
    assert np.unique(found).size == 4
    assert ((found > 0) & (found < 1)).all()


def test_starts_without_any_centre_are_drawn_from_the_box():
    centers = [[np.zeros((2, 3, 1))], [np.zeros((2, 3, 1))]]
    counts = [np.array([[0.0, 0, 0], [1, 1, 1]])] * 2
    held = np.ones((2, 1), dtype=bool)
    (found,) = pooled_seeds(centers, counts, held, np.ones(1), [np.zeros(1)], 3, 0, BOX)
    assert np.unique(found[0]).size == 3
    assert found[1, 0].item() == 0.0
    assert np.unique(found[1]).size == 3


def test_where_all_records_are_the_same_so_are_the_centres():
    centers, counts = seeds_of([[2.0]])
    held, box = np.ones((1, 1), dtype=bool), ([np.full(1, 2.0)], [np.full(1, 2.0)])
    (found,) = pooled_seeds(centers, counts, held, np.ones(1), [np.full(1, 2.0)], 3, 0, box)
    assert found.ravel().tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("seed", [0, 2**32 - 2, 2**32, 2**63 - 1])
def test_any_plan_seed_serves_and_its_neighbour_shares_no_start(seed):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(1, 30, 1)).repeat(3, axis=0)
    held = np.ones((1, 1), dtype=bool)
    low, high = [np.zeros(2)], [np.ones(2)]

    def starts(seed):
        drawn = pooled_seeds(
            [[table]], [np.ones((3, 30))], held, np.ones(1), [np.zeros(1)], 12, seed
        )
        return drawn[0], spread_seeds(low, high, np.ones(1), 3, 3, seed, n_candidates=5)[0]

    for one, other in zip(starts(seed), starts(max(seed - 1, 1)), strict=True):
        assert not any(np.array_equal(a, b) for a in one for b in other)


def test_complete_sites_with_too_few_records_do_not_seed_alone():
    """They would repeat their centres, and centres that coincide never part again."""
    centers, counts = seeds_of([[3.0], [3.0]], [[0.0, 10.0, 20.0], [0.0, 0.0, 0.0]])
    held = np.array([[True, True], [True, False]])
    found = pooled_seeds(centers, counts, held, np.ones(2), [np.zeros(1), np.zeros(1)], 3, 0)
    assert np.unique(found[0]).size == 3
