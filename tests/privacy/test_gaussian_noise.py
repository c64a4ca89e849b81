"""The sampler: normal in whole steps, unbiased, unrepeatable, and silent in its low bits."""

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from benchmarks.trust_sampler import low_bit_row
from privacy import gaussian_noise, os_random
from privacy.gaussian_noise import WORST_RELATIVE_ERROR, rounded_gaussian


def constant_words(monkeypatch, high, low, sign):
    monkeypatch.setattr(
        gaussian_noise, "random_words", lambda n: np.array([high, low], np.uint64).repeat(n // 2)
    )
    monkeypatch.setattr(gaussian_noise, "random_bytes", lambda n: np.full(n, sign, np.uint8))


@pytest.mark.parametrize(
    ("high", "low", "sign", "expected"),
    [
        (2**63, 0, 0, 674_490),  # u = 1/2: the upper quartile, 0.674490 sigma
        (2**63, 0, 1, -674_490),
        (2**64 - 1, 2**64 - 1, 0, 0),  # u = 1
        (0, 0, 0, 13_161_097),  # u = 2^-129, the farthest of all
    ],
)
def test_known_words(monkeypatch, high, low, sign, expected):
    constant_words(monkeypatch, high, low, sign)
    assert rounded_gaussian(np.full(3, 1e6)).tolist() == [expected] * 3


def test_the_distribution_is_normal():
    sigma = 2.0**20
    noise = rounded_gaussian(np.full(200_000, sigma)) / sigma
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / noise.size)


def test_each_number_has_its_own_sigma_and_the_shape_stays():
    sigma = np.array([[1.0, 1e3, 1e6]]).repeat(20_000, axis=0)
    noise = rounded_gaussian(sigma)
    assert noise.shape == sigma.shape
    assert noise.dtype == np.int64
    # rounding adds 1/12 of a step squared
    expected = np.sqrt(sigma[0] ** 2 + 1 / 12)
    np.testing.assert_allclose(noise.std(axis=0), expected, rtol=0.03)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.04


@pytest.mark.parametrize("sigma", [2.0**20, 3e6])
@pytest.mark.parametrize("deviations", [0.3, 2.0, 5.0, 7.6])
def test_a_step_has_the_probability_that_it_should_have(sigma, deviations):
    """The u that end in one step, found by bisection, against the normal distribution."""
    step = round(deviations * sigma)

    def upper_edge(k):
        """Largest float u whose magnitude is above k steps."""
        low, high = 1e-20, 1.0
        while np.nextafter(low, 1.0) < high:
            middle = (low + high) / 2
            above = np.rint(sigma * -ndtri(middle / 2)) > k
            low, high = (middle, high) if above else (low, middle)
        return low

    drawn = upper_edge(step - 1) - upper_edge(step)
    with mpmath.workdps(40):
        exact = 2 * (mpmath.ncdf((step + 0.5) / sigma) - mpmath.ncdf((step - 0.5) / sigma))
    assert drawn == pytest.approx(
        float(exact), rel=8 * deviations**2 * sigma * WORST_RELATIVE_ERROR
    )


def test_a_fresh_key_every_call():
    assert not np.array_equal(os_random.random_words(4), os_random.random_words(4))
    np.random.seed(0)
    first = rounded_gaussian(np.full(8, 1e6))
    np.random.seed(0)
    assert not np.array_equal(first, rounded_gaussian(np.full(8, 1e6)))


def test_words_are_uniform():
    words = os_random.random_words(100_000)
    ones = sum(int(((words >> np.uint64(b)) & np.uint64(1)).sum()) for b in range(64))
    assert abs(ones - 3_200_000) < 5 * np.sqrt(1_600_000)
    assert os_random.random_bytes(5).shape == (5,)


def test_low_bits_decide_nothing():
    row = low_bit_row(20_000)
    assert row.passed, row.figure
