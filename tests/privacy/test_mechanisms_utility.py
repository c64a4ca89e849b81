"""Noise of a useful size: the clusters of 10,000 patients survive it."""

import math

import pytest

from benchmarks.privacy_utility import Case, accuracies, central_run


@pytest.mark.parametrize("epsilon", [2.0, math.inf])
def test_ten_thousand_patients_keep_their_clusters(epsilon):
    found = accuracies(central_run, Case("one", 10_000), epsilon, 2)
    assert found.min() > 0.98


def test_four_hundred_patients_do_not():
    """What the documents say of small cohorts: at epsilon 1/2 noise is most of what is sent."""
    found = accuracies(central_run, Case("minmax", 400), 0.5, 8)
    assert found.mean() < 0.85
