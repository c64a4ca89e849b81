"""The server's arithmetic of a selection: pooled scaling, site weights, means, votes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from configs.errors import DataRefused
from configs.mufsht_profiles import resolve_mufsht
from strategies.feature_ranking import procrustes_align
from strategies.feature_rounds import (
    FeatureSurvey,
    aggregate,
    by_votes,
    initial_weights,
    quality_weights,
    rank_weights,
    summed,
)

SIZES = (2, 1)
QUALITIES = st.dictionaries(
    st.sampled_from(["ulm", "kiel", "bonn", "jena"]), st.floats(0.0, 1.0), min_size=1
)


def survey(*, text=False, **changes):
    """Return ten records of which eight hold the first view of two and all the second."""
    fields = {
        "rows": [10.0],
        "holding": [8.0, 10.0],
        "count": [8.0, 4.0, 10.0],
        "exposed": [10.0, 5.0, 10.0],
        "first": [16.0, -4.0, 5.0],
        "fractional": [0.0, 0.0],
        **changes,
    }
    return FeatureSurvey.of([np.array(x) for x in fields.values()], SIZES, text=text)


# -- before round 1 --------------------------------------------------------------------------


def test_sums_do_not_depend_on_the_order_in_which_sites_answer():
    parts = {site: (np.array([x, 1.0]),) for site, x in (("b", 1e16), ("a", -1e16), ("c", 1.0))}
    turned = dict(reversed(parts.items()))
    assert np.array_equal(summed(parts)[0], summed(turned)[0])
    assert summed(parts)[0][1] == 3.0


def test_numbers_are_centred_where_they_lie():
    found = survey()
    assert found.origin.tolist() == [2.0, -1.0, 0.5]
    assert found.documents.tolist() == [0.0, 0.0]
    assert not found.frequencies.any()
    assert found.observed_share.tolist() == [0.8, 0.8, 1.0]
    assert found.samples == 7  # 22 cells of 3 features


def test_a_feature_that_nobody_observes_divides_nothing_by_zero():
    found = survey(count=[0.0, 4.0, 10.0], exposed=[0.0, 5.0, 10.0], first=[0.0, -4.0, 5.0])
    assert found.origin[0] == 0.0
    assert found.observed_share[0] == 0.0


def test_text_is_weighted_by_documents_unless_a_site_has_weights_already():
    counts = survey(text=True, first=[3.0, 4.0, 5.0])
    assert not counts.origin.any()
    assert counts.documents.tolist() == [8.0, 10.0]
    assert counts.frequencies.tolist() == [3.0, 4.0, 5.0]
    mixed = survey(text=True, first=[3.0, 4.0, 5.0], fractional=[2.0, 0.0])
    assert mixed.documents.tolist() == [0.0, 10.0]
    assert mixed.frequencies.tolist() == [0.0, 0.0, 5.0]


def test_pooled_scaling_is_that_of_all_rows_side_by_side():
    """Two sites with offsets of their own, far from 0."""
    rng = np.random.default_rng(0)
    sites = [rng.normal(1e6, 2.0, (7, 3)), rng.normal(1e6 + 5, 0.5, (4, 3))]
    sites[0][:3, 1] = np.nan
    every = np.concatenate(sites)
    n = (~np.isnan(every)).sum(axis=0).astype(float)
    found = survey(
        rows=[11.0],
        holding=[11.0, 11.0],
        count=n,
        exposed=np.full(3, 11.0),
        first=np.nansum(every, axis=0),
    )
    shifted = every - found.origin
    first, second = found.scaling(np.nansum(shifted, axis=0), np.nansum(shifted**2, axis=0))
    np.testing.assert_allclose(
        np.concatenate([first.center, second.center]), np.nanmean(every, axis=0), rtol=1e-14
    )
    np.testing.assert_allclose(
        np.concatenate([first.spread, second.spread]), np.nanstd(every, axis=0), rtol=1e-9
    )


def test_one_feature_that_varies_is_enough_and_none_is_refused():
    still = np.zeros(3)
    moving = np.array([0.0, 0.0, 2.0])
    first, second = survey().scaling(still, moving)
    assert first.dead.tolist() == [True, True]
    assert second.dead.tolist() == [False]
    with pytest.raises(DataRefused, match="0 of 3 features vary over the 10 rows of all sites"):
        survey().scaling(still, still)


def test_the_start_depends_on_the_seed_alone_and_has_rows_of_length_about_1():
    start = initial_weights(4000, 5, 3)
    assert start.shape == (4000, 5)
    assert np.array_equal(start, initial_weights(4000, 5, 3))
    assert not np.array_equal(start, initial_weights(4000, 5, 4))
    np.testing.assert_allclose(np.linalg.norm(start, axis=0), 1.0, atol=0.05)


# -- weights of the sites ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("softmax", {"a": 1 / (1 + np.e + np.e**2), "b": np.e / (1 + np.e + np.e**2)}),
        ("linear", {"a": 0.2 / 0.9, "b": 0.3 / 0.9}),
        ("uniform", {"a": 1 / 3, "b": 1 / 3}),
    ],
)
def test_site_weights_by_hand(weighting, expected):
    found = quality_weights({"c": 0.4, "a": 0.2, "b": 0.3}, weighting, 0.1)
    assert list(found) == ["a", "b", "c"]
    expected = expected | {"c": 1 - sum(expected.values())}
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weighting", ["softmax", "linear", "uniform"])
@settings(max_examples=50, deadline=None)
@given(quality=QUALITIES, temperature=st.floats(1e-6, 1e6))
def test_site_weights_are_shares_in_the_order_of_quality(weighting, quality, temperature):
    found = quality_weights(quality, weighting, temperature)
    assert found.keys() == quality.keys()
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    assert min(found.values()) >= 0
    best = max(quality, key=quality.__getitem__)
    assert found[best] == max(found.values())


@pytest.mark.parametrize("weighting", ["softmax", "linear", "uniform"])
@settings(max_examples=25, deadline=None)
@given(quality=QUALITIES)
def test_site_weights_do_not_depend_on_who_answers_first(weighting, quality):
    found = quality_weights(quality, weighting, 0.1)
    assert quality_weights(dict(reversed(quality.items())), weighting, 0.1) == found
    assert list(found) == sorted(quality)


@settings(max_examples=50, deadline=None)
@given(quality=QUALITIES, shift=st.floats(-1e3, 1e3), temperature=st.floats(0.05, 10.0))
def test_softmax_depends_on_differences_alone(quality, shift, temperature):
    shifted = {site: q + shift for site, q in quality.items()}
    assert quality_weights(shifted, "softmax", temperature) == pytest.approx(
        quality_weights(quality, "softmax", temperature), abs=1e-9
    )


def test_softmax_goes_from_the_best_site_alone_to_all_alike():
    quality = {"a": 0.2, "b": 0.9, "c": 0.8}
    assert quality_weights(quality, "softmax", 1e-6) == {"a": 0.0, "b": 1.0, "c": 0.0}
    alike = quality_weights(quality, "softmax", 1e9)
    assert alike == pytest.approx(dict.fromkeys("abc", 1 / 3), abs=1e-9)
    tied = quality_weights({"a": 0.9, "b": 0.9, "c": 0.8}, "softmax", 1e-6)
    assert tied == {"a": 0.5, "b": 0.5, "c": 0.0}


def test_linear_weights_of_sites_without_any_agreement_are_equal():
    assert quality_weights({"a": 0.0, "b": 0.0}, "linear", 0.1) == {"a": 0.5, "b": 0.5}


# -- the mean ------------------------------------------------------------------------------------


def share(gamma, weights, observes=(1, 1, 1), objective=0.0):
    """Return the sums of one site, which has the views that it observes a feature of."""
    weights = np.where(np.array(observes, dtype=bool)[:, None], weights, 0.0)
    parts = np.split(weights, [SIZES[0]])
    held = np.array([any(observes[:2]), bool(observes[2])], dtype=float)
    return (
        gamma * weights,
        gamma * np.array(observes, dtype=float),
        gamma * held / held.sum(),
        gamma * np.array([np.linalg.norm(part) for part in parts]),
        np.array([objective]),
    )


A = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])
B = np.array([[3.0, 0.0], [1.0, 0.0], [6.0, 0.0]])


def test_a_round_by_hand():
    sums = summed({"a": share(0.75, A, objective=2.0), "b": share(0.25, B, objective=4.0)})
    found = aggregate(sums, SIZES, 2)
    assert found.weights.tolist() == [[3.0, 3.0], [0.25, 0.0], [1.5, 1.5]]
    assert found.observed.tolist() == [True, True, True]
    assert found.view_weights.tolist() == [0.5, 0.5]
    assert found.objective == 3.0
    # view norms are .75 * 5 + .25 * sqrt(10) and .75 * 2 + .25 * 6
    assert found.kept == pytest.approx(
        np.sqrt(18 + 0.0625 + 4.5) / np.hypot(3.75 + 0.25 * np.sqrt(10), 3.0)
    )


def test_a_site_without_a_view_or_a_feature_takes_nothing_from_its_mean():
    sums = summed({"a": share(0.75, A), "b": share(0.25, B, observes=(0, 1, 0))})
    found = aggregate(sums, SIZES, 2)
    np.testing.assert_allclose(found.weights, [A[0], 0.25 * B[1], A[2]])
    assert found.view_weights.tolist() == [0.625, 0.375]


def test_a_feature_that_no_site_observes_is_0_and_known_as_such():
    sums = summed({s: share(0.5, A, observes=(1, 1, 0)) for s in "ab"})
    found = aggregate(sums, SIZES, 2)
    assert found.weights[2].tolist() == [0.0, 0.0]
    assert found.observed.tolist() == [True, True, False]
    assert found.view_weights.tolist() == [1.0, 0.0]
    assert found.kept == pytest.approx(1.0)


def test_weights_that_cancel_keep_nothing_and_weights_of_0_are_no_division():
    opposed = summed({"a": share(0.5, A), "b": share(0.5, -A)})
    assert aggregate(opposed, SIZES, 2).kept == 0.0
    nothing = summed({"a": share(1.0, np.zeros((3, 2)))})
    assert aggregate(nothing, SIZES, 1).kept == 0.0


def test_weights_turned_by_each_site_lose_their_norm_unless_turned_back():
    """W and W Q rank alike: their naive mean over eight sites keeps little of either."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(60, 5))
    turns = [np.linalg.qr(rng.normal(size=(5, 5)))[0] for _ in range(8)]

    def mean(parts):
        sums = [(w / 8, np.full(60, 1 / 8), np.full(1, 1 / 8), norm(w) / 8, one) for w in parts]
        return aggregate(summed({f"{i}": s for i, s in enumerate(sums)}), (60,), 8)

    def norm(w):
        return np.array([np.linalg.norm(w)])

    one = np.ones(1)
    naive = mean([weights @ turn for turn in turns])
    assert naive.kept < 0.5
    assert np.linalg.norm(naive.weights) < 0.5 * np.linalg.norm(weights)
    back = mean([procrustes_align([weights @ turn], [weights])[0] for turn in turns])
    assert back.kept == pytest.approx(1.0)
    np.testing.assert_allclose(back.weights, weights, atol=1e-12)


MATRICES = hnp.arrays(float, (3, 3, 2), elements=st.floats(-1e3, 1e3))
GAMMAS = hnp.arrays(float, 3, elements=st.floats(0.01, 1.0))


@settings(max_examples=50, deadline=None)
@given(weights=MATRICES, gamma=GAMMAS)
def test_a_mean_lies_between_the_sites_and_keeps_at_most_their_norm(weights, gamma):
    gamma = gamma / gamma.sum()
    sums = summed({s: share(g, w) for s, g, w in zip("abc", gamma, weights, strict=True)})
    found = aggregate(sums, SIZES, 3)
    assert (found.weights <= weights.max(axis=0) + 1e-9).all()
    assert (found.weights >= weights.min(axis=0) - 1e-9).all()
    assert found.kept <= 1 + 1e-9
    assert found.view_weights.sum() == pytest.approx(1.0)


@settings(max_examples=50, deadline=None)
@given(weights=MATRICES, gamma=GAMMAS)
def test_a_site_that_never_came_leaves_the_mean_of_the_others(weights, gamma):
    """What is received is divided by its own weight, so gamma need not sum to 1."""
    left = zip("ab", gamma[:2], weights[:2], strict=True)
    found = aggregate(summed({s: share(g, w) for s, g, w in left}), SIZES, 2)
    expected = np.tensordot(gamma[:2] / gamma[:2].sum(), weights[:2], axes=1)
    np.testing.assert_allclose(found.weights, expected, atol=1e-9)
    twice = aggregate(summed({s: share(1.0, weights[0]) for s in "ab"}), SIZES, 2)
    np.testing.assert_allclose(twice.weights, weights[0], atol=1e-9)
    if np.linalg.norm(weights[0]) > 1e-100:
        assert twice.kept == pytest.approx(1.0)


# -- the order -----------------------------------------------------------------------------------


def test_ranking_by_norm_corrects_for_missing_cells():
    weights = np.array([[0.0, 0.9], [1.0, 0.0], [0.0, 0.0]])
    ranking, scores = rank_weights(
        weights,
        survey(count=[4.0, 10.0, 10.0], exposed=[10.0, 10.0, 10.0]),
        resolve_mufsht("paper"),
    )
    assert scores == pytest.approx([0.9 / np.sqrt(0.4), 1.0, 0.0])
    assert ranking.tolist() == [0, 1, 2]


def test_votes_come_before_the_order_and_ties_keep_it():
    ranking = np.array([4, 2, 0, 1, 3])
    votes = np.array([2.0, 0.0, 1.0, 2.0, 1.0])
    assert by_votes(ranking, votes).tolist() == [0, 3, 4, 2, 1]
    assert by_votes(ranking, np.zeros(5)).tolist() == ranking.tolist()


@given(st.integers(2, 6), st.floats(0.02, 2.0), st.integers(0, 2**32 - 1))
def test_one_site_changes_the_weighted_sum_by_twice_the_bound_times_its_larger_weight(
    n_sites, temperature, seed
):
    """Clipped to C, a site that changes its weights and its NMI moves the sum by 2 C max(gamma)."""
    rng = np.random.default_rng(seed)
    clip = 1.5
    weights = rng.normal(size=(n_sites + 1, 8))
    weights *= clip / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), clip)
    quality = rng.random(n_sites + 1)
    names = [f"s{i}" for i in range(n_sites)]
    before = quality_weights(dict(zip(names, quality[:-1], strict=True)), "softmax", temperature)
    after = quality_weights(
        dict(zip(names, [quality[-1], *quality[1:-1]], strict=True)), "softmax", temperature
    )
    first = sum(before[s] * w for s, w in zip(names, weights[:-1], strict=True))
    second = sum(after[s] * w for s, w in zip(names, [weights[-1], *weights[1:-1]], strict=True))
    bound = 2 * clip * max(before["s0"], after["s0"])
    assert np.linalg.norm(first - second) <= bound * (1 + 1e-12)
