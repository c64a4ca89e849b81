"""Feature orders: literal cases, a slow reference, symmetries, planted data, baselines."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, sparse
from scipy.stats import chi2

from strategies.feature_ranking import (
    communality_scores,
    gated_pivot,
    laplacian_scores,
    order_by_scores,
    procrustes_align,
    random_scores,
    rank_features,
    row_norm_scores,
    variance_scores,
)

N = 1000


def rotation(k, seed):
    return linalg.qr(np.random.default_rng(seed).normal(size=(k, k)))[0]


def weights(seed=0, sizes=(23, 17, 9), k=4):
    """Strong rows, weak ones, an exact zero and a nearly repeated row."""
    rng = np.random.default_rng(seed)
    views = [rng.normal(size=(d, k)) for d in sizes]
    for w in views:
        w[: len(w) // 3] *= 0.01
        w[len(w) // 3] = 0.0
        w[-1] = w[-2:][0] + 1e-3 * rng.normal(size=k)
    return views


def slow_gated_pivot(views, n_samples):
    """One view, one round, one step at a time: the residual by least squares on the rows taken."""
    joint = np.concatenate(views)
    n_features, k = joint.shape
    squared = (joint**2).sum(axis=1)
    gate = min(4 * chi2.ppf(1 - 1 / n_features, k) / n_samples, 0.25 * np.percentile(squared, 95))
    starts = np.cumsum([0] + [len(w) for w in views])
    left = [
        [i for i in range(starts[v], starts[v + 1]) if squared[i] > gate] for v in range(len(views))
    ]
    order = []
    while any(left):
        found = []
        for rows in left:
            taken = []
            while rows and len(taken) < k:
                residual = []
                for i in rows:
                    part = joint[i]
                    if taken:
                        basis = joint[taken].T
                        part = part - basis @ np.linalg.lstsq(basis, part, rcond=None)[0]
                    residual.append(part @ part)
                best = int(np.argmax(residual))
                found.append((len(taken), -residual[best], rows[best]))
                taken.append(rows.pop(best))
        order += [i for _, _, i in sorted(found)]
    rest = sorted(set(range(n_features)) - set(order), key=lambda i: (-squared[i], i))
    return order + rest


# -- the paper's rule -----------------------------------------------------------------------------


def test_row_norms_of_a_literal_matrix():
    scores = row_norm_scores(np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 1.0]]))
    assert scores.tolist() == [5.0, 0.0, 1.0]


def test_row_norms_are_corrected_for_what_is_missing():
    w = np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    scores = row_norm_scores(w, np.array([1.0, 0.25, 0.0]))
    assert scores.tolist() == [5.0, 10.0, 0.0]


def test_equal_scores_keep_their_order():
    assert order_by_scores(np.array([1.0, 2.0, 1.0, 2.0, 0.0])).tolist() == [1, 3, 0, 2, 4]


# -- gated pivot ----------------------------------------------------------------------------------


def test_redundant_features_come_late_and_noise_last():
    x, y = [1.0, 0.0], [0.0, 0.8]
    w = np.array([x, x, y, [0.0, 0.01], y, [0.02, 0.0]])
    assert gated_pivot([w], N).tolist() == [0, 2, 1, 4, 5, 3]
    assert rank_features([w], N, rule="row_norm").tolist() == [0, 1, 2, 4, 5, 3]


def test_views_take_turns_the_larger_residual_first():
    a = np.array([[1.0, 0.0], [0.0, 0.9], [0.8, 0.0]])
    b = np.array([[0.0, 2.0], [0.0, 1.9], [0.5, 0.0]])
    # first pivots 3, 0; second pivots 1, 5; the next round's 4, 2
    assert gated_pivot([a, b], N).tolist() == [3, 0, 1, 5, 4, 2]


def test_a_round_ends_early_where_the_span_is_used_up():
    w = np.array([[1.0, 0.0, 0.0], [0.9, 0.0, 0.0], [0.8, 0.0, 0.0], [0.0, 0.5, 0.0]])
    assert gated_pivot([w], N).tolist() == [0, 3, 1, 2]


def test_the_gate_is_the_lower_of_noise_and_percentile():
    # 19 equal features and one of another direction: second where relevant, last where not
    w = np.array([[1.0, 0.0]] * 19 + [[0.0, np.sqrt(0.2)]])
    noise = 4 * chi2.ppf(1 - 1 / 20, 2)
    assert gated_pivot([w], int(noise / 0.21)).tolist()[-1] == 19
    assert gated_pivot([w], int(noise / 0.19)).tolist()[1] == 19
    w[-1, 1] = np.sqrt(0.26)
    assert gated_pivot([w], 1).tolist()[1] == 19


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sizes", [(23, 17, 9), (40,), (5, 1, 30)])
def test_equals_the_slow_reference(seed, sizes):
    views = weights(seed, sizes)
    assert gated_pivot(views, N).tolist() == slow_gated_pivot(views, N)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 60))
def test_any_prefix_is_the_prefix_of_a_permutation(seed, k, m):
    views = weights(seed, k=k)
    whole = gated_pivot(views, N)
    assert sorted(whole) == list(range(49))
    assert gated_pivot(views, N, m=m).tolist() == whole[:m].tolist()
    assert rank_features(views, N, m=m).tolist() == whole[:m].tolist()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_rotation_changes_no_order(seed):
    views = weights(seed)
    turned = [w @ rotation(4, seed + 1 + v) for v, w in enumerate(views)]
    for rule in ("gated_pivot", "row_norm"):
        expected = rank_features(views, N, rule=rule).tolist()
        assert rank_features(turned, N, rule=rule).tolist() == expected
    before, after = (row_norm_scores(np.concatenate(w)) for w in (views, turned))
    assert np.abs(before - after).max() < 1e-13


def test_ties_go_by_index_whatever_the_rotation():
    for seed in range(20):
        turned = np.concatenate([np.eye(4), np.eye(4)]) @ rotation(4, seed)
        assert gated_pivot([turned], N).tolist() == list(range(8))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_permutation_of_features_permutes_the_order(seed):
    views = weights(seed)
    rng = np.random.default_rng(seed)
    moved = [rng.permutation(len(w)) for w in views]
    starts = np.cumsum([0] + [len(w) for w in views])
    where = np.concatenate([start + p for start, p in zip(starts, moved, strict=False)])
    shuffled = [w[p] for w, p in zip(views, moved, strict=True)]
    relevant = 49 - 3  # the zero rows are exact ties, which go by index
    for rule in ("gated_pivot", "row_norm"):
        found = where[rank_features(shuffled, N, rule=rule)]
        assert found[:relevant].tolist() == rank_features(views, N, rule=rule)[:relevant].tolist()


def test_missing_entries_do_not_push_a_feature_back():
    w = np.array([[1.0, 0.0], [0.0, 0.3], [0.0, 0.5]])
    share = np.array([1.0, 0.25, 1.0])
    assert gated_pivot([w], N).tolist() == [0, 2, 1]
    assert gated_pivot([w], N, observed_share=share).tolist() == [0, 1, 2]


def test_nothing_relevant_falls_back_to_the_norm_and_then_the_index():
    assert gated_pivot([np.zeros((3, 2)), np.zeros((2, 2))], N).tolist() == [0, 1, 2, 3, 4]


def test_planted_features_come_first():
    rng = np.random.default_rng(0)
    latent = linalg.qr(rng.normal(size=(400, 5)), mode="economic")[0].T
    precision = []
    for _ in range(5):
        views = []
        for d, informative in ((60, 15), (80, 20), (50, 10)):
            x = rng.normal(size=(d, 400))
            x[:informative] += 10 * rng.normal(size=(informative, 5)) @ latent
            x /= np.linalg.norm(x - x.mean(axis=1, keepdims=True), axis=1, keepdims=True)
            views.append(x @ latent.T)
        hit = set(range(15)) | set(range(60, 80)) | set(range(140, 150))
        chosen = gated_pivot(views, 400, m=45)
        precision.append(len(hit & set(chosen.tolist())) / 45)
    assert np.mean(precision) >= 0.95


def test_many_features_are_quick():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(d, 40)) for d in (4096, 3304, 6750)]
    start = time.process_time()
    assert len(gated_pivot(views, 400, m=5660)) == 5660
    assert time.process_time() - start < 5


# -- alignment ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_alignment_undoes_a_rotation(seed):
    views = weights(seed)
    turn = rotation(4, seed)
    aligned = procrustes_align([w @ turn for w in views], views)
    assert max(np.abs(a - w).max() for a, w in zip(aligned, views, strict=True)) < 1e-13


def test_alignment_is_one_rotation_for_all_views_and_no_other_is_closer():
    views, reference = weights(1), weights(2)
    aligned = procrustes_align(views, reference)
    found = np.linalg.lstsq(np.concatenate(views), np.concatenate(aligned), rcond=None)[0]
    assert np.abs(found.T @ found - np.eye(4)).max() < 1e-13

    def distance(turned):
        return sum(((a - b) ** 2).sum() for a, b in zip(turned, reference, strict=True))

    for seed in range(20):
        step = linalg.expm(0.1 * (lambda s: s - s.T)(np.triu(weights(seed)[0][-4:], 1)))
        assert distance(aligned) < distance([a @ step for a in aligned])


# -- baselines ------------------------------------------------------------------------------------


def test_variance_over_observed_entries():
    values = np.array([[1.0, 5.0, np.nan], [3.0, 5.0, np.nan], [np.nan, 5.0, np.nan]])
    assert variance_scores(values).tolist() == [1.0, 0.0, 0.0]


def test_laplacian_score_is_the_papers_formula():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 4)) + 3
    x[:, 2] = 3.1
    s = rng.random((12, 12)) * (rng.random((12, 12)) < 0.4)
    s = np.triu(s, 1) + np.triu(s, 1).T
    d = np.diag(s.sum(axis=1))
    one = np.ones(12)
    expected = []
    for f in x.T:
        f = f - (f @ d @ one) / (one @ d @ one)
        expected.append(2 - f @ (d - s) @ f / (f @ d @ f))
    scores = laplacian_scores(x, sparse.csr_array(s))
    assert np.abs(scores - expected)[[0, 1, 3]].max() < 1e-12
    assert scores[2] == 0


def test_laplacian_score_prefers_what_the_graph_joins():
    joined = sparse.csr_array(np.kron(np.eye(2), np.ones((3, 3)) - np.eye(3)))
    values = np.array([[0, 0], [0, 1], [0, 0], [1, 1], [1, 0], [1, 1]], dtype=float)
    assert laplacian_scores(values, joined)[0] == pytest.approx(2)
    assert laplacian_scores(values, joined)[1] < 1.5


def test_communality_is_the_explained_share():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(50, 2))
    x = np.concatenate([base @ rng.normal(size=(2, 5)), np.full((50, 1), 0.1)], axis=1)
    scores = communality_scores(x, 2)
    assert np.abs(scores[:5] - 1).max() < 1e-12
    assert scores[5] == 0
    noisy = x + np.pad(rng.normal(size=(50, 5)), ((0, 0), (0, 1)))
    assert communality_scores(noisy, 2)[:5].max() < 0.99
    assert communality_scores(noisy, 6)[:5].min() == pytest.approx(1)


def test_random_scores_follow_the_seed():
    assert random_scores(5, 1).tolist() == random_scores(5, 1).tolist()
    assert random_scores(5, 1).tolist() != random_scores(5, 2).tolist()
