"""What a server may use of noisy sums, and when it stops asking for them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.fedhk_protected import usable
from strategies.messages import SumRequest, from_bytes
from strategies.statistics import SufficientStatistics
from tests.federation.protected_harness import (
    clustered_sites,
    inner,
    noisy_plan,
    protected_plan,
    run,
)

SIGMA = {"numerator": 1.0, "mass": 2.0, "dispersion": 0.5}


def test_noisy_sums_are_cut_to_what_records_could_give():
    """Masses below 2 sigma = 4 are dropped; quotients stay in [0, 1]; dispersions above sigma."""
    noisy = SufficientStatistics(
        (np.array([[[3.0, 12.0], [-1.0, 5.0], [1.0, 1.0]]]),),
        (np.array([[10.0, 4.0, 3.9]]),),
        np.array([[-7.0]]),
    )
    found = usable(noisy, SIGMA)
    assert found.mass[0].tolist() == [[10.0, 4.0, 0.0]]
    assert found.numerator[0].tolist() == [[[3.0, 10.0], [0.0, 4.0], [0.0, 0.0]]]
    assert found.dispersion.tolist() == [[0.5]]


def test_a_mass_a_column_is_judged_column_by_column():
    noisy = SufficientStatistics(
        (np.array([[[3.0, 3.0]]]),), (np.array([[[5.0, 1.0]]]),), np.array([[9.0]])
    )
    found = usable(noisy, SIGMA)
    assert found.numerator[0].tolist() == [[[3.0, 0.0]]]
    old = np.array([[[0.25, 0.25]]])
    assert found.next_centers((old,))[0].tolist() == [[[0.6, 0.25]]]


@given(st.integers(0, 10_000))
def test_centres_of_noisy_sums_never_leave_the_bounds(seed):
    rng = np.random.default_rng(seed)
    noisy = SufficientStatistics(
        (rng.normal(0, 9, (1, 3, 2)),), (rng.normal(0, 9, (1, 3)),), rng.normal(0, 9, (1, 1))
    )
    old = rng.uniform(size=(1, 3, 2))
    (centers,) = usable(noisy, SIGMA).next_centers((old,))
    assert ((centers >= 0.0) & (centers <= 1.0)).all()
    gone = noisy.mass[0] < 2 * SIGMA["mass"]
    np.testing.assert_array_equal(centers[gone], old[gone])


def test_every_round_is_one_release_and_a_plan_pays_for_no_more():
    sites, _ = clustered_sites(3)
    plan = noisy_plan(sites, max_rounds=3)
    asked = []

    def spy(worker, body):
        request = from_bytes(body)
        if isinstance(request, SumRequest):
            asked.append((request.exchange, type(inner(request)).__name__, len(request.bodies)))
        return worker.handle(body)

    result = run(plan, sites, change={"site-01": spy})
    assert result.status == "completed", result.stop_reason
    assert asked == [(i, "RoundRequest", 3) for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, ["PrepareRequest", "RoundRequest", "RoundRequest", "FinishRequest"]),
        (
            {"bandwidth": "auto"},
            ["PrepareRequest", "SeedRequest", "RoundRequest", "RoundRequest", "FinishRequest"],
        ),
    ],
)
def test_without_noise_counts_spread_and_figures_are_sums_too(options, kinds):
    """As many masked exchanges as the plan has keys for, spares aside."""
    sites, _ = clustered_sites(3)
    plan = protected_plan(sites, max_rounds=2, privacy={"spare_exchanges": 0}, **options)
    assert plan.secure_terms().exchanges == len(kinds)
    asked = []

    def spy(worker, body):
        asked.append(body)
        return worker.handle(body)

    result = run(plan, sites, change={"site-01": spy})
    assert result.status == "completed", result.stop_reason
    sums = [request for request in map(from_bytes, asked) if isinstance(request, SumRequest)]
    assert [type(inner(request)).__name__ for request in sums] == kinds
