"""Pooled scaling of features, and text."""

import numpy as np
import pytest

from configs.errors import DataRefused
from fedmvc_client.solvers.feature_preparation import (
    FeatureMoments,
    check_text,
    document_frequencies,
    feature_moments,
    feature_scaling,
    holds_counts,
    prepare_features,
    raw_values,
    standardise,
    text_rows,
)

NAN = np.nan
SMALL = np.array([[1.0, 5.0, NAN], [3.0, 5.0, NAN], [NAN, 5.0, NAN], [5.0, 5.0, NAN]])


def with_holes(seed=0, shape=(90, 7), share=0.2):
    rng = np.random.default_rng(seed)
    view = rng.normal(size=shape) * rng.uniform(0.1, 20, size=shape[1]) + rng.normal(size=shape[1])
    return np.where(rng.random(shape) < share, NAN, view)


def test_moments_count_observed_cells_only():
    moments = feature_moments(SMALL)
    assert moments.count.tolist() == [3, 4, 0]
    assert moments.total.tolist() == [9, 20, 0]
    assert moments.squares.tolist() == [35, 100, 0]
    assert feature_moments(SMALL, np.array([3.0, 5.0, 0.0])).squares.tolist() == [8, 0, 0]


def test_a_small_view_by_hand():
    prepared, scaling = standardise(SMALL)
    assert scaling.center.tolist() == [3.0, 5.0, 0.0]
    assert scaling.dead.tolist() == [False, True, True]
    # deviations -2, 0, 2 over sqrt(8/3) sqrt(4)
    unit = 2 / np.sqrt(8 / 3) / 2
    np.testing.assert_allclose(prepared.values[0], [-unit, 0, 0, unit])
    assert not prepared.values[1:].any()
    assert prepared.observed[0].tolist() == [True, True, False, True]


def test_squared_length_is_the_observed_share():
    view = with_holes()
    prepared, _ = standardise(view)
    np.testing.assert_allclose(
        np.square(prepared.values).sum(axis=1), (~np.isnan(view)).mean(axis=0), rtol=1e-12
    )
    np.testing.assert_allclose(prepared.values.sum(axis=1), 0.0, atol=1e-12)


@pytest.mark.parametrize("text", [False, True])
def test_sites_together_scale_as_one_would(text):
    view = with_holes()
    parts = [view[:20], view[20:21], view[21:]]
    first, *others = [feature_moments(part) for part in parts]
    pooled = first
    for moments in others:
        pooled = pooled + moments
    shared = feature_scaling(pooled, text=text)

    whole, alone = standardise(view, text=text)

    np.testing.assert_allclose(shared.center, alone.center, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(shared.spread, alone.spread, rtol=1e-10)
    found = [
        prepare_features(part, shared).values * np.sqrt(len(part) / len(view)) for part in parts
    ]
    np.testing.assert_allclose(np.hstack(found), whole.values, rtol=1e-9, atol=1e-12)


def test_an_affine_change_of_the_raw_data_changes_nothing():
    view = with_holes(1)
    changed = view * np.linspace(0.01, 900, 7) + np.linspace(-4e3, 7e3, 7)
    np.testing.assert_allclose(
        standardise(changed)[0].values, standardise(view)[0].values, atol=1e-10
    )


def test_far_from_zero_an_origin_keeps_the_digits():
    view = with_holes(2) + 1e8
    reference = standardise(view - 1e8)[0].values
    np.testing.assert_allclose(standardise(view)[0].values, reference, atol=1e-7)
    # why there is an origin: plain sums have lost them
    plain = feature_scaling(feature_moments(view))
    assert not np.allclose(prepare_features(view, plain).values, reference, atol=1e-3)


@pytest.mark.parametrize("constant", [0.1, -3.3e7, 1 / 3, 0.0])
def test_a_constant_feature_is_dead_whatever_its_rounding(constant):
    view = np.column_stack([np.full(97, constant), np.arange(97.0)])
    for scaling in (standardise(view)[1], feature_scaling(feature_moments(view))):
        assert scaling.dead.tolist() == [True, False]
    assert not standardise(view)[0].values[0].any()


def test_a_small_spread_is_not_taken_for_rounding():
    view = 1e3 + 1e-5 * np.random.default_rng(0).normal(size=(60, 1))
    prepared, scaling = standardise(view)
    assert not scaling.dead.any()
    np.testing.assert_allclose(np.linalg.norm(prepared.values), 1.0)


def test_raw_values_undo_the_scaling():
    view = with_holes(3)
    prepared, scaling = standardise(view)
    back = raw_values(prepared.values, scaling)
    observed = ~np.isnan(view)
    np.testing.assert_allclose(back[observed], view[observed], rtol=1e-12, atol=1e-12)
    means = np.broadcast_to(scaling.center, view.shape)
    np.testing.assert_allclose(back[~observed], means[~observed])


def test_memory_layout_does_not_matter():
    view = with_holes(4)
    found = standardise(np.asfortranarray(view))[0].values
    assert np.array_equal(found, standardise(view)[0].values)


def test_moments_of_one_row():
    moments = feature_moments(np.array([[2.0, NAN]])) + FeatureMoments(*np.zeros((3, 2)))
    assert feature_scaling(moments).dead.tolist() == [True, True]


# -- text ------------------------------------------------------------------------------------------

COUNTS = np.array([[2.0, 0, 1, 0], [0, 0, 3, 0], [0, 0, 0, 0], [NAN] * 4, [1, 1, 1, 0]])


def test_words_are_weighted_and_rows_have_unit_length():
    frequencies = document_frequencies(COUNTS)
    assert frequencies[0].tolist() == [2, 1, 3, 0]
    assert frequencies[1] == 4
    found = text_rows(COUNTS, frequencies)
    first = np.array([2 * (np.log(5 / 3) + 1), 0, np.log(5 / 4) + 1, 0])
    np.testing.assert_allclose(found[0], first / np.linalg.norm(first))
    assert found[1].tolist() == [0, 0, 1, 0]
    assert found[2].tolist() == [0, 0, 0, 0]
    assert np.isnan(found[3]).all()


def test_weights_stay_as_they_are():
    np.testing.assert_allclose(text_rows(np.array([[3.0, 4.0]]), None), [[0.6, 0.8]])


def test_counts_are_told_from_weights():
    assert holds_counts(COUNTS)
    assert not holds_counts(COUNTS * 0.3)


def test_a_view_of_text_has_one_scale():
    rows = text_rows(COUNTS, document_frequencies(COUNTS))
    prepared, scaling = standardise(rows, text=True)
    assert scaling.dead.tolist() == [False, False, False, True]
    assert len(set(scaling.spread[:3])) == 1
    # ||X||^2 = d over complete rows; here four of five are there
    assert np.square(prepared.values).sum() == pytest.approx(4 * 4 / 5)


@pytest.mark.parametrize(
    ("cell", "words"), [(-1.0, "1 negative cells"), (NAN, "1 rows with some cells missing")]
)
def test_what_is_no_text_is_refused(cell, words):
    view = COUNTS.copy()
    check_text(view, "view 'notes'")
    view[0, 1] = cell
    with pytest.raises(DataRefused, match=f"view 'notes' has {words}") as refused:
        check_text(view, "view 'notes'")
    assert "\n" not in str(refused.value)
