"""How far one patient or site moves a release: literal bounds, a search, and what voids them."""

import math

import numpy as np
import pytest

from benchmarks.dp_reference import Model, record_terms
from benchmarks.trust_sensitivity import blocks_of, movement, random_cohorts, sensitivity_row
from configs.errors import ConfigError
from privacy.sensitivity import clip_to_norm, clipped_update_blocks, heat_kernel_blocks


def weights_of(blocks):
    return {block.name: block.weight for block in blocks.blocks}


# --- FedHK-MVFC ---


@pytest.mark.parametrize(
    ("dims", "heat_kernel", "cell_mass", "squared"),
    [
        ((2, 2), "minmax", (True, True), 5.0),  # 5/4 a column
        ((2, 2), "one", (False, False), 3.0),  # 1 + d/4 a view
        ((2, 2), "one", (True, True), 5.0),  # a mass for each cell
        ((2, 2), "absdev", (True, True), 2.0),  # 5/8 a view is less than what Q gives
        ((4, 1), "absdev", (True, True), 2.25),  # 5/4 and 1
        ((3, 1), "one", (False, True), 1.75 + 1.25),
    ],
)
def test_literal_bounds(dims, heat_kernel, cell_mass, squared):
    assert heat_kernel_blocks(dims, 4, heat_kernel, cell_mass).sensitivity ** 2 == pytest.approx(
        squared
    )


def test_which_numbers_are_sent():
    one = heat_kernel_blocks((2, 3), 4, "one", (False, True))
    assert [(b.name, b.size, b.record_bound) for b in one.blocks] == [
        ("numerator", 4 * 5, 0.5),
        ("mass", 4 * (1 + 3), 1.0),
        ("dispersion", 2, 1.0),
    ]
    assert one.size == one.weights.size == one.record_bounds.size == 38
    absdev = heat_kernel_blocks((2, 3), 4, "absdev", (True, True))
    assert [b.record_bound for b in absdev.blocks] == [0.25, 0.5, 1.0]


def test_weights_of_the_paper_set():
    """S times the weights is s_b / sqrt(f_b); what Q gets is free."""
    blocks = heat_kernel_blocks((2, 2), 4, "minmax", (True, True))
    sigma = {name: blocks.sensitivity * w for name, w in weights_of(blocks).items()}
    assert sigma["numerator"] == pytest.approx(1 / math.sqrt(2 / 3))
    assert sigma["mass"] == pytest.approx(2 / math.sqrt(1 / 3))
    assert sigma["dispersion"] == pytest.approx(math.sqrt(2))


def test_starts_in_one_message():
    one, ten = (heat_kernel_blocks((2, 2), 4, "minmax", (True, True), r) for r in (1, 10))
    assert ten.sensitivity == pytest.approx(one.sensitivity * math.sqrt(10))
    assert ten.size == 10 * one.size
    # the same noise would do for each start, were it not for the others
    assert weights_of(ten) == pytest.approx(weights_of(one))


def test_what_rounding_adds():
    update = clipped_update_blocks(9, 1.0)
    assert update.rounding == 3.0
    blocks = heat_kernel_blocks((2, 2), 4, "one", (False, False))
    assert blocks.rounding == pytest.approx(np.linalg.norm(1 / blocks.weights))


def test_no_small_cohort_exceeds_the_bound_and_some_patient_reaches_it():
    row = sensitivity_row(100, seed=1)
    assert row.passed, row.figure


def test_the_search_finds_a_bound_that_is_too_small():
    """Negative: the uncentred numerator is bounded by 1 a column, not by 1/4."""
    largest = 0.0
    for views, model in random_cohorts(100, seed=1):
        blocks = blocks_of([v.shape[1] for v in views], model)
        terms = record_terms(views, model)
        counted = sum(b.size for b in blocks.blocks[:2])
        n = blocks.blocks[0].size
        if model.heat_kernel != "one":
            terms[:, :n] += terms[:, n:counted] / 2
            largest = max(
                largest, np.linalg.norm(terms / blocks.weights, axis=1).max() / blocks.sensitivity
            )
    assert largest > 1.2


# --- what voids the bound ---


def test_imputation_by_the_mean_of_the_data():
    """Negative: one removed record moves the mean, and with it every imputed record's cluster."""
    observed, missing = np.array([[1.0], [0.0], [0.51], [0.49]]), 40
    model = Model([np.array([[0.0], [1.0]])], np.ones(1), "one", fuzzifier=1.001)

    def sums(values):
        filled = np.concatenate([values, np.full((missing, 1), values.mean())])
        return record_terms([filled], model).sum(axis=0)

    blocks = blocks_of((1,), model)
    moved = np.linalg.norm((sums(observed) - sums(observed[1:])) / blocks.weights)
    assert moved > 10 * blocks.sensitivity
    # with a declared middle the same patient stays within it
    declared = [np.concatenate([observed, np.full((missing, 1), 0.5)])]
    assert movement(declared, model, blocks).max() <= 1


def test_holding_shares_from_the_data():
    """Negative: removing a record that lacks a view moves pi_h, and with it all memberships."""
    rows = [np.full((40, 1), 0.5), np.full((40, 1), 0.5)]
    centers = [np.array([[0.5], [1.0]]), np.array([[1.0], [0.5]])]
    model = Model(centers, np.full(2, 0.5), "one", fuzzifier=1.001)
    blocks = blocks_of((1, 1), model)
    before = record_terms(rows, model, [1.0, 40 / 41]).sum(axis=0)
    after = record_terms(rows, model, [1.0, 1.0]).sum(axis=0)  # the 41st, without view 2, is gone
    assert np.linalg.norm((before - after) / blocks.weights) > 10 * blocks.sensitivity


def test_ten_starts_counted_as_one():
    """Negative: each start moves as far as the first."""
    one = heat_kernel_blocks((2, 2), 1, "minmax", (True, True))
    views, model = [np.ones((1, 2))] * 2, Model([np.ones((1, 2))] * 2, np.full(2, 0.5), "minmax")
    moved = np.linalg.norm(np.tile(record_terms(views, model)[0] / one.weights, 10))
    assert moved > 3 * one.sensitivity
    assert moved == pytest.approx(
        heat_kernel_blocks((2, 2), 1, "minmax", (True, True), 10).sensitivity
    )


# --- Fed-MUFSHT ---


def test_a_replaced_update_moves_the_sum_by_twice_its_clip():
    blocks = clipped_update_blocks(6, 0.7)
    assert blocks.sensitivity == pytest.approx(1.4)
    assert (blocks.relation, blocks.unit) == ("replace the update of one site", "one site")
    one = clip_to_norm(np.full(6, 5.0), 0.7)
    assert np.linalg.norm(one - clip_to_norm(np.full(6, -5.0), 0.7)) == pytest.approx(1.4)


def test_a_short_update_stays():
    update = np.array([0.3, -0.4])
    assert clip_to_norm(update, 0.5).tolist() == [0.3, -0.4]
    np.testing.assert_allclose(clip_to_norm(update, 0.05), [0.03, -0.04])
    assert clip_to_norm(np.zeros(3), 1.0).tolist() == [0.0] * 3


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_a_clip_that_is_no_length(clip):
    with pytest.raises(ConfigError, match=r"privacy\.clip is"):
        clipped_update_blocks(3, clip)
