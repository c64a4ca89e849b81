"""Weights, means and medians of site models, and the warnings about a collapsed one."""

import numpy as np
import pytest

from strategies.aggregation import average, collapse_warnings, median, on_simplex, site_weights

ROWS = np.array([30.0, 60.0, 10.0])
HALF = np.full((3, 1), 0.5)


def weights(aggregation, coefficient=HALF, agreement=HALF, n_rows=ROWS, temperature=0.5):
    return site_weights(aggregation, n_rows, coefficient, agreement, 4, temperature)


def test_weighted_follows_the_records():
    assert weights("weighted")[:, 0] == pytest.approx([0.3, 0.6, 0.1])


@pytest.mark.parametrize("aggregation", ["fedavg", "median"])
def test_fedavg_counts_every_site_alike(aggregation):
    assert weights(aggregation)[:, 0] == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_quality_multiplies_records_by_how_far_memberships_are_from_equal():
    """(PC - 1/4) / (3/4) = 1/3, 0, 1: records 30, 60, 10 become 10, 0, 10."""
    coefficient = np.array([[0.5], [0.25], [1.0]])
    assert weights("quality", coefficient)[:, 0] == pytest.approx([0.5, 0.0, 0.5])


def test_quality_without_any_structure_falls_back_to_the_records():
    assert weights("quality", np.full((3, 1), 0.25))[:, 0] == pytest.approx([0.3, 0.6, 0.1])


def test_quality_of_one_cluster_falls_back_to_the_records():
    found = site_weights("quality", ROWS, np.ones((3, 1)), HALF, 1, 0.5)
    assert found[:, 0] == pytest.approx([0.3, 0.6, 0.1])


def test_nmi_softmax_by_hand():
    """Agreements 1, 0, 0 at temperature 1: e / (e + 2), 1 / (e + 2), 1 / (e + 2)."""
    found = weights("nmi_softmax", agreement=np.array([[1.0], [0.0], [0.0]]), temperature=1.0)
    assert found[:, 0] == pytest.approx(np.array([np.e, 1.0, 1.0]) / (np.e + 2), abs=1e-15)


def test_nmi_softmax_becomes_fedavg_as_the_temperature_grows():
    agreement = np.array([[0.0, 1.0], [0.4, 0.2], [1.0, 0.0]])
    hot = weights("nmi_softmax", agreement=agreement, temperature=1e13)
    assert np.abs(hot - weights("fedavg", agreement=agreement)).max() < 1e-12
    warm = weights("nmi_softmax", agreement=agreement, temperature=10.0)
    assert np.abs(warm - 1 / 3).max() > 1e-3


def test_nmi_softmax_at_a_low_temperature_takes_the_best_site():
    found = weights("nmi_softmax", agreement=np.array([[0.2], [0.9], [0.3]]), temperature=1e-3)
    assert found[:, 0] == pytest.approx([0.0, 1.0, 0.0], abs=1e-200)


@pytest.mark.parametrize("aggregation", ["weighted", "fedavg", "quality", "nmi_softmax"])
def test_weights_sum_to_one_over_sites_for_every_start(aggregation):
    rng = np.random.default_rng(0)
    found = weights(aggregation, rng.uniform(0.25, 1, (3, 7)), rng.uniform(0, 1, (3, 7)))
    assert found.shape == (3, 7)
    np.testing.assert_allclose(found.sum(axis=0), 1.0, rtol=1e-15)


def test_average_by_hand():
    values = np.array([[[1.0, 2.0]], [[3.0, 10.0]]])
    found = average(values, np.array([[0.25], [0.75]]), np.zeros((1, 2)))
    assert found.tolist() == [[2.5, 8.0]]


def test_average_rescales_over_the_sites_that_hold_an_entry_and_keeps_the_rest():
    values = np.array([[[1.0, np.nan, np.nan]], [[3.0, 10.0, np.nan]], [[5.0, 20.0, np.nan]]])
    found = average(values, np.array([[0.5], [0.25], [0.25]]), np.full((1, 3), 7.0))
    assert found.tolist() == [[2.5, 15.0, 7.0]]


def test_average_of_sites_without_weight_keeps_the_previous():
    found = average(np.ones((2, 1, 1)), np.zeros((2, 1)), np.full((1, 1), 7.0))
    assert found.item() == 7.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        ([9.0, 1.0], 5.0),
        ([9.0, 1.0, 2.0], 2.0),
        ([100.0, 1.0, 4.0, 2.0], 3.0),
        ([np.nan, 1.0, 4.0, 2.0], 2.0),
        ([np.nan, 1.0, 4.0], 2.5),
        ([np.nan, np.nan], 7.0),
    ],
)
def test_median_of_an_even_count_is_the_mean_of_the_middle_two(values, expected):
    found = median(np.array(values)[:, None], np.array([7.0]))
    assert found.tolist() == [expected]


def test_median_equals_numpy():
    for n_sites in (2, 3, 4, 5, 8):
        values = np.random.default_rng(n_sites).normal(size=(n_sites, 3, 4, 2))
        assert np.array_equal(median(values, np.zeros((3, 4, 2))), np.median(values, axis=0))


def test_view_weights_come_back_onto_the_simplex():
    found = on_simplex(np.array([[0.2, 0.2], [0.9, 0.3], [0.0, 0.0]]), np.full((3, 2), [0.1, 0.9]))
    np.testing.assert_allclose(found, [[0.5, 0.5], [0.75, 0.25], [0.1, 0.9]], rtol=1e-15)


# -- warnings --------------------------------------------------------------------------------


def warned(
    centers=None, view_weights=(0.6, 0.4), coefficient=0.9, active=(True, True), shares=(0.5, 0.5)
):
    centers = [np.array([[0.0], [1.0]]), np.array([[0.0], [5.0]])] if centers is None else centers
    return collapse_warnings(
        centers,
        np.array(view_weights),
        np.array([1.0, 25.0]),
        coefficient,
        ["ecg", "lab"],
        list(active),
        np.array(shares),
    )


def test_an_empty_cluster_is_counted():
    (sentence,) = warned(shares=(1.0, 0.0))
    assert sentence.startswith("1 of 2 clusters hold no record: fewer than 2 distinct clusters")


def test_a_healthy_solution_is_not_warned_about():
    assert warned() == []


def test_memberships_near_one_over_c_are_no_structure():
    (sentence,) = warned(coefficient=0.505)
    assert sentence.startswith("no structure found")
    assert "1/2" in sentence
    assert "0.5050" in sentence


def test_identical_rows_are_no_structure():
    (sentence,) = warned(active=(False, False), coefficient=0.5)
    assert sentence.startswith("no structure: every row is the same")


def test_coinciding_centres_are_named():
    (sentence,) = warned(centers=[np.zeros((2, 1)), np.full((2, 1), 5.0)])
    assert "centres coincide" in sentence


def test_centres_that_coincide_in_one_view_only_are_fine():
    assert warned(centers=[np.zeros((2, 1)), np.array([[0.0], [5.0]])]) == []


def test_a_view_that_holds_nearly_all_the_weight_is_named():
    (sentence,) = warned(view_weights=(0.04, 0.96))
    assert "'lab' holds 0.960" in sentence
    assert warned(view_weights=(0.05, 0.95)) == []


def test_the_only_view_that_varies_may_hold_all_the_weight():
    assert warned(view_weights=(1.0, 0.0), active=(True, False)) == []


def test_one_cluster_is_neither_coinciding_nor_without_structure():
    assert warned(centers=[np.zeros((1, 1)), np.zeros((1, 1))], coefficient=1.0) == []
