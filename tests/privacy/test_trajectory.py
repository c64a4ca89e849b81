"""What exact sums over some rounds give away, and noise does not: a small version of the attack."""

from benchmarks.trust_runs import far_centres_row
from benchmarks.trust_trajectory import trajectory_row


def test_three_records_are_rebuilt_from_exact_sums_and_none_from_noisy_ones():
    row = trajectory_row(n_rows=3, cohorts=1, starts=4)
    assert row.passed, row.figure


def test_no_site_computes_sums_for_centres_outside_the_bounds():
    row = far_centres_row()
    assert row.passed, row.figure
    assert row.figure.startswith("18 of 18")
