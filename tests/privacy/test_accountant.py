"""What Gaussian noise costs: literal multipliers, the exact curve, other accountants' bounds."""

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.trust_accountant import accountant_row
from configs.errors import ConfigError
from privacy.accountant import (
    epsilon_of_rho,
    gaussian_delta,
    gaussian_epsilon,
    noise_multiplier,
    rdp_epsilon,
)

DELTAS = st.floats(1e-12, 0.5)


def delta_in_60_digits(epsilon, mu):
    with mpmath.workdps(60):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        outer = mpmath.ncdf(mu / 2 - epsilon / mu)
        return outer - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("epsilon", "exact", "by_rdp"),
    [(0.5, 22.24, 24.25), (1, 11.80, 12.79), (2, 6.31, 6.80), (4, 3.42, 3.66), (8, 1.90, 2.02)],
)
def test_multipliers_of_ten_releases(epsilon, exact, by_rdp):
    assert noise_multiplier(epsilon, 1e-5, 10) == exact
    # the multiplier that opacus' accountant asks for, printed to two decimals
    assert rdp_epsilon(by_rdp + 0.01, 10, 1e-5) < epsilon < rdp_epsilon(by_rdp - 0.01, 10, 1e-5)


@pytest.mark.parametrize("mu", [1e-4, 1e-2, 0.142, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 8.0, 700.0])
def test_the_curve_to_nine_digits_in_both_tails(mu, epsilon):
    expected = delta_in_60_digits(epsilon, mu)
    if expected < 1e-300:
        assert gaussian_delta(epsilon, mu) < 1e-299
    else:
        assert gaussian_delta(epsilon, mu) == pytest.approx(float(expected), rel=1e-9)


def test_without_epsilon_delta_is_the_total_variation():
    assert gaussian_delta(0.0, 1.0) == pytest.approx(0.38292492254802624, rel=1e-12)


def test_a_vanishing_mu_is_never_free():
    # a difference of two equal tails would be 0 here
    assert gaussian_delta(1e-6, 1e-9) > 0


@given(st.floats(1e-3, 50), DELTAS, st.integers(1, 500))
def test_a_multiplier_never_overshoots_and_is_tight(epsilon, delta, releases):
    z = noise_multiplier(epsilon, delta, releases)
    assert gaussian_delta(epsilon, math.sqrt(releases) / z) <= delta
    less = z - 0.01 if z > 1.005 else z * 0.99
    assert gaussian_delta(epsilon, math.sqrt(releases) / less) > delta


@given(st.floats(1e-3, 50), DELTAS)
def test_epsilon_inverts_delta_and_is_never_rounded_down(mu, delta):
    epsilon = gaussian_epsilon(delta, mu)
    assert gaussian_delta(epsilon, mu) <= delta * (1 + 1e-12)
    if epsilon > 1e-6:
        assert gaussian_delta(epsilon * (1 - 1e-6), mu) > delta


@given(st.floats(1e-4, 5), DELTAS)
def test_one_gaussian_costs_no_more_than_its_rho_says(mu, delta):
    assert gaussian_epsilon(delta, mu) <= epsilon_of_rho(mu**2 / 2, delta) + 1e-12


@given(st.floats(0, 50), st.floats(0, 50), DELTAS)
def test_epsilon_of_rho_never_falls_and_beats_the_plain_formula(rho, more, delta):
    epsilon = epsilon_of_rho(rho, delta)
    assert 0 <= epsilon <= epsilon_of_rho(rho + more, delta) + 1e-9
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-9


def test_epsilon_of_rho_against_a_fine_search():
    rho, delta = 0.0101, 1e-5
    orders = [1 + i / 1000 for i in range(1, 100_000)]
    searched = min(
        a * rho + math.log(1 / (a * delta)) / (a - 1) + math.log(1 - 1 / a) for a in orders
    )
    assert epsilon_of_rho(rho, delta) == pytest.approx(searched, abs=1e-7)
    assert epsilon_of_rho(rho, delta) <= searched
    assert epsilon_of_rho(0.0, delta) == 0.0


def test_other_accountants_agree_on_a_small_grid():
    row = accountant_row(multipliers=(1.9, 22.24), releases=(1, 10), deltas=(1e-5,))
    assert row.passed, row.figure


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: noise_multiplier(0.0, 1e-5, 10), "privacy.epsilon is 0 for 10"),
        (lambda: noise_multiplier(math.nan, 1e-5, 10), "privacy.epsilon is nan"),
        (lambda: noise_multiplier(1.0, 1e-5, 0), "0 noisy releases"),
        (lambda: noise_multiplier(1.0, 0.0, 10), "privacy.delta is 0"),
        (lambda: gaussian_epsilon(1.0, 0.1), "privacy.delta is 1"),
        (lambda: epsilon_of_rho(0.1, math.nan), "privacy.delta is nan"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
