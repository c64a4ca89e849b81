"""Updates from sums, and pooled moments, against literal answers and numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.statistics import Moments, SufficientStatistics, pooled


def sums(numerator, mass, dispersion):
    return SufficientStatistics(
        tuple(np.array(a, dtype=float) for a in numerator),
        tuple(np.array(a, dtype=float) for a in mass),
        np.array(dispersion, dtype=float),
    )


def test_centres_are_numerator_over_mass():
    given_sums = sums([[[[2.0, 6.0], [9.0, 5.0]]]], [[[[1.0, 2.0], [3.0, 0.0]]]], [[1.0]])
    (centers,) = given_sums.next_centers([np.full((1, 2, 2), 7.0)])
    # the last coordinate has no weight and keeps its 7
    assert centers.tolist() == [[[2.0, 3.0], [3.0, 7.0]]]


def test_one_mass_a_cluster_divides_every_column():
    given_sums = sums([[[[2.0, 6.0], [9.0, 5.0]]]], [[[2.0, 0.0]]], [[1.0]])
    (centers,) = given_sums.next_centers([np.full((1, 2, 2), 7.0)])
    assert centers.tolist() == [[[1.0, 3.0], [7.0, 7.0]]]


def test_a_mass_of_nearly_nothing_keeps_the_old_centre():
    given_sums = sums([[[[1e-301]]]], [[[[1e-301]]]], [[1.0]])
    (centers,) = given_sums.next_centers([np.full((1, 1, 1), 7.0)])
    assert centers.item() == 7.0


def test_old_centres_are_not_written_to():
    old = np.full((1, 1, 1), 7.0)
    sums([[[[4.0]]]], [[[[2.0]]]], [[1.0]]).next_centers([old])
    assert old.item() == 7.0


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [(2.0, [2 / 3, 1 / 3]), (3.0, [2**0.5 / (1 + 2**0.5), 1 / (1 + 2**0.5)])],
)
def test_view_weights_by_hand(exponent, expected):
    """V_h is proportional to Q_h^(-1/(alpha-1)); here Q = 1 and 2."""
    found = sums([], [], [[1.0, 2.0]]).next_view_weights(
        np.ones(2), exponent, np.array([True, True])
    )
    np.testing.assert_allclose(found, [expected], rtol=1e-15)


def test_view_weights_divide_by_the_share_of_records_that_hold_the_view():
    both = np.array([True, True])
    rare = sums([], [], [[0.25, 1.0]]).next_view_weights(np.array([0.25, 1.0]), 2.0, both)
    np.testing.assert_allclose(rare, [[0.5, 0.5]], rtol=1e-15)


def test_an_inactive_view_has_weight_zero_though_its_dispersion_is_zero():
    found = sums([], [], [[0.0, 3.0, 3.0]]).next_view_weights(
        np.ones(3), 5.0, np.array([False, True, True])
    )
    assert found.tolist() == [[0.0, 0.5, 0.5]]


def test_no_active_view_gives_equal_weights():
    found = sums([], [], [[0.0, 0.0], [0.0, 0.0]]).next_view_weights(
        np.ones(2), 5.0, np.zeros(2, dtype=bool)
    )
    assert found.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("exponent", [1.001, 2.0, 5.0])
def test_dispersions_of_zero_give_equal_weights(exponent):
    found = sums([], [], [[0.0, 0.0]]).next_view_weights(np.ones(2), exponent, np.ones(2, bool))
    assert found.tolist() == [[0.5, 0.5]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 1e12), min_size=2, max_size=5),
    st.floats(1.0001, 50.0),
)
def test_view_weights_stay_on_the_simplex(dispersion, exponent):
    found = sums([], [], [dispersion]).next_view_weights(
        np.ones(len(dispersion)), exponent, np.ones(len(dispersion), bool)
    )
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert found[0, np.argmin(dispersion)] == found.max()


def test_objective_by_hand():
    """J = sum_h v_h^alpha Q_h / pi_h = .25 * 8 / .5 + .25 * 4 = 5."""
    found = sums([], [], [[8.0, 4.0]]).objective(np.array([[0.5, 0.5]]), np.array([0.5, 1.0]), 2.0)
    assert found.tolist() == [5.0]


def test_sums_of_sites_add_up():
    a = sums([[[[1.0]]]], [[[[2.0]]]], [[3.0]])
    b = sums([[[[10.0]]]], [[[[20.0]]]], [[30.0]])
    total = pooled([a, b])
    assert total.numerator[0].item() == 11.0
    assert total.mass[0].item() == 22.0
    assert total.dispersion.item() == 33.0
    assert a.dispersion.item() == 3.0


def test_sums_of_another_number_of_views_are_not_added():
    with pytest.raises(ValueError, match="zip"):
        pooled([sums([[1.0]], [[1.0]], [1.0]), sums([], [], [1.0])])


# -- moments ---------------------------------------------------------------------------------


def parts(offset, seed=0, sizes=(40, 1, 7, 200)):
    rng = np.random.default_rng(seed)
    return [
        offset + rng.normal(loc=3.0 * i, scale=1.0 + i, size=(n, 3)) for i, n in enumerate(sizes)
    ]


def assert_moments(found, table, tolerance=1e-10):
    assert np.array_equal(found.count, np.isfinite(table).sum(axis=0))
    np.testing.assert_allclose(found.mean, np.nanmean(table, axis=0), rtol=1e-15, atol=tolerance)
    np.testing.assert_allclose(found.variance, np.nanvar(table, axis=0), rtol=tolerance)
    assert np.array_equal(found.minimum, np.nanmin(table, axis=0))
    assert np.array_equal(found.maximum, np.nanmax(table, axis=0))


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
def test_moments_equal_numpy(offset):
    table = np.concatenate(parts(offset))
    assert_moments(Moments.of(table), table)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
@pytest.mark.parametrize("seed", range(3))
def test_pooled_moments_equal_numpy_on_the_concatenation(offset, seed):
    sites = parts(offset, seed)
    assert_moments(Moments.pool([Moments.of(s) for s in sites]), np.concatenate(sites))


def test_pooled_moments_skip_missing_cells_and_a_first_site_without_the_view():
    sites = [np.empty((0, 3)), *parts(1e6)]
    sites[1][::3, 0] = np.nan
    sites[4][:, 2] = np.inf
    table = np.concatenate(sites)
    table[~np.isfinite(table)] = np.nan
    found = Moments.pool([Moments.of(s) for s in sites])
    assert_moments(found, table)


def test_the_mean_of_site_variances_is_not_the_pooled_variance():
    """Eqs. 69-70 as printed lose the sites' sizes and the spread between them."""
    sites = parts(0.0)
    table = np.concatenate(sites)
    pooled_variance = Moments.pool([Moments.of(s) for s in sites]).variance
    printed = np.mean([Moments.of(s).variance for s in sites], axis=0)
    np.testing.assert_allclose(pooled_variance, table.var(axis=0), rtol=1e-10)
    assert (np.abs(printed - table.var(axis=0)) > 0.2 * table.var(axis=0)).all()


def test_moments_of_nothing_are_zero():
    for found in (Moments.of(np.empty((0, 2))), Moments.of(np.full((3, 2), np.nan))):
        for part in (found.count, found.mean, found.m2, found.minimum, found.maximum):
            assert part.tolist() == [0.0, 0.0]
    nothing = Moments.of(np.empty((0, 2)))
    total = Moments.pool([nothing, nothing])
    assert total.variance.tolist() == [0.0, 0.0]


def test_moments_of_a_constant_column_have_no_variance():
    # 0.1 is no binary fraction: a sum of squares minus the squared mean would leave some
    found = Moments.pool([Moments.of(np.full((n, 1), 0.1)) for n in (3, 7, 1000)])
    assert found.variance.item() == 0.0
    assert found.minimum.item() == found.maximum.item() == 0.1
