"""Sums on a grid: rounding, bounds that cannot wrap, and what is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError, ProtocolError
from privacy.fixed_point import FixedPoint, to_ring

clips = st.floats(1e-6, 1e15)
sites = st.integers(1, 64)


def array(*values):
    return np.array(values, float)


def sum_of(grid, *vectors):
    return np.sum([to_ring(grid.encode(vector)) for vector in vectors], axis=0, dtype=np.uint64)


def test_a_small_sum_by_hand():
    grid = FixedPoint(fraction_bits=2, clip=10.0, n_sites=2)
    assert grid.step == 0.25
    assert grid.encode(array(1.3, -0.9, 10)).tolist() == [5, -4, 40]
    total = sum_of(grid, array(1.3, -0.9, 10), array(-2.3, 0.2, 10))
    assert total.tolist() == [2**64 - 4, 2**64 - 3, 80]
    assert grid.decode(total).tolist() == [-1.0, -0.75, 20.0]


def test_halves_go_to_the_even_neighbour():
    grid = FixedPoint(0, 10.0, 2)
    assert grid.encode(array(0.5, 1.5, 2.5, -0.5, -1.5)).tolist() == [0, 2, 2, 0, -2]


def test_a_grid_may_be_coarser_than_one():
    grid = FixedPoint(fraction_bits=-3, clip=100.0, n_sites=2)
    assert grid.encode(array(20, -13)).tolist() == [2, -2]
    assert grid.decode(to_ring(np.array([2, -2]))).tolist() == [16.0, -16.0]


@given(clips, sites)
def test_the_finest_grid_fits_and_the_next_would_not(clip, n_sites):
    grid = FixedPoint.finest(clip, n_sites)
    largest = n_sites * Fraction(clip) * Fraction(2) ** grid.fraction_bits
    assert largest < 2**63 <= 2 * largest
    with pytest.raises(ConfigError, match="more than 63 bits"):
        FixedPoint(grid.fraction_bits + 1, clip, n_sites)


@given(clips, sites, st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_rounding_is_at_most_half_a_step(clip, n_sites, shares):
    grid = FixedPoint.finest(clip, n_sites)
    values = np.array(shares) * clip
    for value, steps in zip(values.tolist(), grid.encode(values).tolist(), strict=True):
        assert abs(Fraction(value) - steps * Fraction(grid.step)) <= Fraction(grid.step) / 2


@given(clips, sites, st.sampled_from([-1.0, 1.0]))
def test_all_sites_at_their_bound_do_not_wrap(clip, n_sites, sign):
    grid = FixedPoint.finest(clip, n_sites)
    total = sum_of(grid, *[array(sign * clip)] * n_sites)
    # float64 may be coarser than the grid there
    assert grid.decode(total)[0] == pytest.approx(sign * n_sites * clip, rel=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 10.5, -10.5])
def test_a_number_that_is_not_within_its_bound_is_refused_without_its_value(value):
    grid = FixedPoint(4, 10.0, 3)
    with pytest.raises(ProtocolError, match=r"1 of the site's 3 sums .* bound 10:") as caught:
        grid.encode(array(1, value, 2))
    assert str(value) not in str(caught.value)
    assert caught.value.local_detail == "the first is number 1"


@pytest.mark.parametrize("steps", [31 * 16, -31 * 16, 2**63 - 1, -(2**63)])
def test_a_sum_that_no_sites_could_have_made_is_refused(steps):
    grid = FixedPoint(4, 10.0, 3)
    assert grid.decode(to_ring(np.array([480, -480]))).tolist() == [30.0, -30.0]
    with pytest.raises(ProtocolError, match=r"1 of 2 opened sums"):
        grid.decode(to_ring(np.array([0, steps])))


def test_every_sum_within_the_finest_grid_is_told_from_a_wrapped_one():
    grid = FixedPoint.finest(1.0, 3)
    assert math.isclose(grid.decode(sum_of(grid, *[array(-1.0)] * 3))[0], -3.0)
    with pytest.raises(ProtocolError, match="do not cancel"):
        grid.decode(to_ring(np.array([-(2**63)])))


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_has_to_be_positive(clip):
    for make in (lambda: FixedPoint(0, clip, 3), lambda: FixedPoint.finest(clip, 3)):
        with pytest.raises(ConfigError, match="positive bound"):
            make()


def test_signs_survive_the_ring():
    steps = np.array([0, 1, -1, 2**63 - 1, -(2**63)])
    assert to_ring(steps).tolist() == [0, 1, 2**64 - 1, 2**63 - 1, 2**63]
    assert to_ring(steps[::2]).tolist() == [0, 2**64 - 1, 2**63]
