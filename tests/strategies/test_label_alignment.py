"""Hungarian matching of clusters, common names of several labellings, and votes."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.label_alignment import align_labels, contingency, majority_vote, match_clusters

REFERENCE = [np.array([[0.0], [10.0], [20.0], [30.0]]), np.array([[0.0], [1.0], [2.0], [3.0]])]
SPREAD = np.array([100.0, 1.0])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]])
def test_a_permutation_is_found(order):
    local = [a[order] for a in REFERENCE]
    assert match_clusters(local, REFERENCE, SPREAD).tolist() == order


def test_fewer_clusters_match_different_rows():
    local = [np.array([[21.0], [1.0]]), np.array([[2.1], [0.1]])]
    assert match_clusters(local, REFERENCE, SPREAD).tolist() == [2, 0]


def test_two_clusters_never_share_a_row():
    """Both are nearest to row 1; the total distance decides who gets it."""
    local = [np.array([[10.0], [12.0]]), np.array([[1.0], [1.2]])]
    assert match_clusters(local, REFERENCE, SPREAD).tolist() == [1, 2]


def test_views_weigh_alike_whatever_their_unit():
    """In raw units view 0 would win; divided by its spread view 1 says rows 3 and 0."""
    local = [np.array([[0.0], [10.0]]), np.array([[30.0], [0.0]])]
    assert match_clusters(local, REFERENCE, np.array([1e6, 1.0])).tolist() == [3, 0]
    assert match_clusters(local, REFERENCE, np.array([1.0, 1e9])).tolist() == [0, 1]


def test_a_view_without_spread_does_not_divide_by_zero():
    # the cancelled square of a constant view is exactly 0 here
    local = [REFERENCE[0][[1, 0]], np.zeros((2, 1))]
    reference = [REFERENCE[0], np.zeros((4, 1))]
    assert match_clusters(local, reference, np.array([100.0, 0.0])).tolist() == [1, 0]


# -- labels of the same rows ----------------------------------------------------------------------


def noisy(seed, n_rows=60, n_clusters=4, n_sites=3, noise=0.4, missing=0.1):
    """Return labellings that agree in part, each under its own names, -1 where missing."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, n_clusters, n_rows)
    found = []
    for _ in range(n_sites):
        labels = np.where(rng.random(n_rows) < noise, rng.integers(0, n_clusters, n_rows), base)
        labels = rng.permutation(n_clusters)[labels]
        found.append(np.where(rng.random(n_rows) < missing, -1, labels))
    return base, found


def renamed(labels, names):
    return np.where(labels >= 0, names[labels], -1)


def aligned_vote(labelings, n_clusters=4):
    names = align_labels(labelings, n_clusters)
    for found in names:
        assert sorted(found.tolist()) == list(range(n_clusters))
    common = [renamed(a, n) for a, n in zip(labelings, names, strict=True)]
    return majority_vote(common, np.ones(len(common)), n_clusters)


def same_partition(a, b):
    return len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a.tolist())) and len(
        set(b.tolist())
    ) == len(set(a.tolist()))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000), st.integers(2, 5))
def test_no_renaming_and_no_row_order_changes_the_vote(seed, n_sites):
    """Names are given by what clusters hold, so not even the vote's own names change."""
    _, labelings = noisy(seed, n_sites=n_sites)
    rng = np.random.default_rng(seed)
    order = rng.permutation(60)
    others = [renamed(a, rng.permutation(4))[order] for a in labelings]
    assert np.array_equal(aligned_vote(others), aligned_vote(labelings)[order])


def test_one_clustering_under_three_names_is_found_again():
    base = np.repeat([0, 1, 2], [5, 4, 3])
    labelings = [np.array(names)[base] for names in ([2, 0, 1], [0, 1, 2], [1, 2, 0])]
    assert np.array_equal(aligned_vote(labelings, 3), base)  # the largest cluster is 0


def test_the_vote_of_four_noisy_sites_beats_each_of_them():
    base, labelings = noisy(0, n_rows=400, n_sites=4, missing=0.0)

    def share(labels):
        return max((np.array(names)[labels] == base).mean() for names in permutations(range(4)))

    assert share(aligned_vote(labelings)) > max(share(a) for a in labelings) + 0.05


def test_without_alignment_the_vote_is_lost():
    base = np.repeat([0, 1, 2], [5, 4, 3])
    labelings = [np.array(names)[base] for names in ([2, 0, 1], [0, 1, 2], [1, 2, 0])]
    assert not same_partition(majority_vote(labelings, [1.0, 1.0, 1.0], 3), base)


def test_alignment_is_the_best_of_all_names():
    """Two sites: the Hungarian choice against every permutation."""
    for seed in range(20):
        _, (a, b) = noisy(seed, n_sites=2, noise=0.7)
        both = (a >= 0) & (b >= 0)
        best = max((a == renamed(b, np.array(q)))[both].sum() for q in permutations(range(4)))
        names = align_labels([a, b], 4)
        assert (renamed(a, names[0]) == renamed(b, names[1]))[both].sum() == best


def test_symmetric_clusterings_still_get_names():
    """Every pair of labels once: nothing tells the clusters apart, and any names will do."""
    names = align_labels([np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])], 2)
    assert [sorted(found.tolist()) for found in names] == [[0, 1], [0, 1]]


def test_a_site_without_any_row_and_empty_clusters_are_carried():
    vote = aligned_vote([np.array([1, 1, 1, 0]), np.full(4, -1)])
    assert vote.tolist() == [0, 0, 0, 1]


def test_contingency_counts_rows_that_both_have():
    first, second = np.array([0, 0, 1, -1, 1]), np.array([1, 1, 0, 0, -1])
    assert contingency(first, second, 2).tolist() == [[0.0, 2.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("weights", "vote"),
    [
        ([1.0, 1.0, 1.0], [0, 1, 2, -1]),  # a tie goes to the lowest label
        ([1.0, 3.0, 1.0], [2, 1, 2, -1]),
        ([0.0, 0.0, 1.0], [1, 0, 2, -1]),
    ],
)
def test_votes(weights, vote):
    labelings = [np.array([0, 1, -1, -1]), np.array([2, 1, -1, -1]), np.array([1, 0, 2, -1])]
    assert majority_vote(labelings, weights, 3).tolist() == vote


def test_a_row_whose_sites_have_no_weight_still_gets_a_label():
    assert majority_vote([np.array([1, -1])], [0.0], 2).tolist() == [0, -1]
