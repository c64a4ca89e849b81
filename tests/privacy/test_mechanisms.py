"""Calibrated noise: literal multipliers, the grid, what the sum of the sites' noise is worth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from privacy.accountant import gaussian_delta
from privacy.mechanisms import calibrate
from privacy.sensitivity import clipped_update_blocks, heat_kernel_blocks

PAPER = heat_kernel_blocks((2, 2), 4, "minmax", (True, True))
OPTIONS = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "releases": 10,
    "n_sites": 4,
    "colluders": 1,
    "tolerated_dropouts": 1,
    "noise": "distributed",
    "max_rows": 100_000,
}


def noise_of(blocks=PAPER, **change):
    return calibrate(blocks, **{**OPTIONS, **change})


@pytest.mark.parametrize(
    ("epsilon", "z"), [(0.5, 22.24), (1, 11.80), (2, 6.31), (4, 3.42), (8, 1.90)]
)
def test_multipliers_of_the_paper_set(epsilon, z):
    noise = noise_of(epsilon=epsilon)
    assert noise.noise_multiplier == z
    # sigma is z S up to the room for rounding
    assert noise.sigma == pytest.approx(z * math.sqrt(5), rel=1e-4)
    assert noise.sigma > z * math.sqrt(5) * (1 + 1e-6)
    assert epsilon * 0.99 < noise.epsilon <= epsilon


def test_distributed_noise_adds_up_over_the_honest_sites_of_the_smallest_sum():
    noise = noise_of()
    assert noise.honest_sites == 2
    draws = sum(noise.add(np.zeros((20_000, PAPER.size), np.int64)) for _ in range(2))
    expected = noise.sigma * PAPER.weights
    np.testing.assert_allclose(draws.std(axis=0) * noise.codec.step, expected, rtol=0.04)
    assert noise.sum_sigma(2)["mass"] == pytest.approx(noise.sigma * PAPER.blocks[1].weight)
    assert noise.sum_sigma(4)["mass"] == pytest.approx(noise.sum_sigma(2)["mass"] * math.sqrt(2))


def test_local_noise_needs_nobody():
    noise = noise_of(noise="local", n_sites=2, tolerated_dropouts=0)
    assert noise.honest_sites == 1
    assert noise.epsilon_if_others_collude == noise.epsilon
    assert noise.rho_if_others_collude == noise.rho
    draws = noise.add(np.zeros((20_000, PAPER.size), np.int64)) * noise.codec.step
    np.testing.assert_allclose(draws.std(axis=0), noise.sigma * PAPER.weights, rtol=0.04)


def test_what_is_left_if_all_others_collude():
    noise = noise_of(n_sites=8, tolerated_dropouts=2)
    assert noise.honest_sites == 5
    assert noise.rho == pytest.approx(0.5 / 11.8**2)
    assert noise.rho_if_others_collude == pytest.approx(5 * noise.rho)
    mu = math.sqrt(5 * 10) / 11.8
    assert gaussian_delta(noise.epsilon_if_others_collude, mu) == pytest.approx(1e-5, rel=1e-3)


def test_the_grid_is_a_millionth_of_the_smallest_noise():
    noise = noise_of()
    smallest = noise.sigma * PAPER.weights.min() / math.sqrt(2)
    assert 2**20 <= smallest / noise.codec.step < 2**21
    largest = noise.sigma * PAPER.weights.max() / math.sqrt(2)
    assert noise.codec.clip == pytest.approx(100_000 + 12 * largest)
    assert noise.codec.n_sites == 4
    assert sorted(set(noise.limits)) == [50_000, 100_000]


@given(
    st.floats(0.01, 20),
    st.integers(1, 200),
    st.integers(2, 32),
    st.integers(1, 2000),
    st.floats(1e-6, 1e6),
)
def test_no_calibration_spends_more_than_it_says(epsilon, releases, n_sites, size, clip):
    blocks = clipped_update_blocks(size, clip)
    noise = noise_of(
        blocks,
        epsilon=epsilon,
        releases=releases,
        n_sites=n_sites,
        tolerated_dropouts=0,
        max_rows=1,
    )
    # integer sensitivity: the sums move by 2C, and rounding may move each number by one step
    steps = 2 * clip * (1 + 1e-6) / noise.codec.step + math.sqrt(size)
    mu = math.sqrt(releases) * steps / (noise.sigma / noise.codec.step)
    assert gaussian_delta(epsilon, mu) < 1e-5
    assert noise.epsilon <= epsilon
    assert noise.epsilon_if_others_collude >= noise.epsilon


def test_noise_is_fresh_and_whole():
    noise, sums = noise_of(), np.arange(PAPER.size, dtype=np.int64)
    first, second = noise.add(sums), noise.add(sums)
    assert first.dtype == np.int64
    assert first.shape == sums.shape
    assert not np.array_equal(first, second)


def test_the_sampler_is_paid_for():
    """A delta so small that the sampler's arithmetic matters asks for more noise, or is refused."""
    update = clipped_update_blocks(1000, 1.0)
    generous, tight = (noise_of(update, delta=d, max_rows=1) for d in (1e-5, 4.1e-10))
    assert tight.noise_multiplier > generous.noise_multiplier
    with pytest.raises(ConfigError, match="of which the sampler alone takes 4e-10"):
        noise_of(update, delta=4e-10, max_rows=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_sites": 2}, "2 - 1 - 1 here"),
        ({"colluders": 0}, "at least 1 colludes"),
        ({"max_rows": 2**40, "n_sites": 32}, "lower privacy.max_rows"),
        ({"epsilon": 0.0}, "epsilon 0"),
    ],
)
def test_refusals(change, words):
    with pytest.raises(ConfigError, match=words):
        noise_of(**change)


def test_equal_terms_make_equal_noise():
    assert noise_of() == noise_of()
    assert noise_of() != replace(noise_of(), releases=11)
