"""The paper's noise as printed, and where its accounting fails."""

import math

import numpy as np
import pytest

from privacy.paper_mechanism import NO_GUARANTEE, PaperMechanism

#: epsilon = 1 in the only round: the paper's example.
EXAMPLE = PaperMechanism(epsilon=1.0, delta=1e-5, rounds=1)


def test_the_example_of_the_paper_lost_a_factor():
    """Eq. 73 gives 23.47; the printed 23.03 is 2 log(1e5)."""
    assert EXAMPLE.center_sigma(0) ** 2 == pytest.approx(23.4722, abs=1e-4)
    assert 2 * math.log(1e5) == pytest.approx(23.03, abs=0.005)


def test_view_weights_of_the_printed_formula():
    assert EXAMPLE.view_weight_sigma(0, 500) == pytest.approx(math.sqrt(23.4722) / 500, rel=1e-5)
    assert PaperMechanism(1.0, 1e-5, 1, 0.5).center_sigma(0) == EXAMPLE.center_sigma(0) / 2


def test_later_rounds_get_less_epsilon_and_more_noise():
    paper = PaperMechanism(epsilon=2.0, delta=1e-5, rounds=4)
    assert [paper.round_epsilon(t) for t in range(4)] == pytest.approx(
        [1.0, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5]
    )
    assert paper.center_sigma(3) == pytest.approx(2 * paper.center_sigma(0))


@pytest.mark.parametrize(
    ("rounds", "overspent"),
    [(2, 1.21), (5, 1.45), (10, 1.59), (23, 1.72), (50, 1.80), (100, 1.86), (10_000, 1.985)],
)
def test_the_printed_schedule_spends_more_than_its_total(rounds, overspent):
    paper = PaperMechanism(epsilon=3.0, delta=1e-5, rounds=rounds)
    printed = [paper.round_epsilon(t) for t in range(rounds)]
    assert sum(printed) / 3.0 == pytest.approx(overspent, abs=0.006)
    assert sum(printed) > 3.0
    # divided by the sum of its weights it would not
    weights = [1 / math.sqrt(t + 1) for t in range(rounds)]
    assert sum(3.0 / sum(weights) * np.array(weights)) == pytest.approx(3.0)


def test_one_round_spends_its_total():
    assert EXAMPLE.round_epsilon(0) == 1.0


def test_one_patient_moves_a_centre_across_the_whole_range():
    """Why Eq. 73 needs a sensitivity of 1: with the patient gone the mass vanishes."""
    near, far = np.array([1e-9, 1.0]), np.array([0.0, 1.0])  # weights and values of two records
    assert (near * far).sum() / near.sum() > 0.999
    assert (near[:1] * far[:1]).sum() / near[:1].sum() == 0.0


def test_noise_has_the_printed_size():
    paper = PaperMechanism(epsilon=4.0, delta=1e-5, rounds=4)
    centers, weights = paper.perturb([np.zeros((1, 500, 40))], np.full((1, 20_000), 0.5), 1, 300)
    assert centers[0].shape == (1, 500, 40)
    assert centers[0].std() == pytest.approx(paper.center_sigma(1), rel=0.03)
    assert (weights - 0.5).std() == pytest.approx(paper.view_weight_sigma(1, 300), rel=0.03)
    again, _ = paper.perturb([np.zeros((1, 500, 40))], np.full((1, 20_000), 0.5), 1, 300)
    assert not np.array_equal(again[0], centers[0])


def test_the_sentence_says_that_there_is_no_guarantee():
    assert NO_GUARANTEE.startswith("no guarantee")
