"""Anchors, anchor graph, affinity, Butterworth distance and spectral embedding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from configs.errors import ConfigError
from fedmvc_client.solvers import butterworth, spectral
from fedmvc_client.solvers.anchor_graph import anchor_graph
from fedmvc_client.solvers.anchors import alternating_sampling, choose_anchors, das_scores
from fedmvc_client.solvers.butterworth import butterworth_similarity
from fedmvc_client.solvers.spectral import anchor_gram, spectral_embedding
from tests.solvers import tensor_reference as reference
from tests.solvers.cases import blobs

CPU = torch.device("cpu")
HAS_CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device on this machine")


def words(n=120, d=60, seed=0):
    x = np.random.default_rng(seed).poisson(0.3, size=(n, d)).astype(np.float64)
    x[:, 0] += 1
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def a_graph(n=200, theta=30, k=5, seed=0, device=CPU, **options):
    (x,) = blobs(n=n, dims=(4,), seed=seed, separation=1.0)
    anchors = choose_anchors(x, theta, "random", np.random.default_rng(seed))
    return x, anchors, anchor_graph(x, anchors, k, device, **options)


# Anchors


def test_das_equals_the_loop():
    """Few picks: each doubles the rounding of the scores, by which the loop's sums differ."""
    (x,) = blobs(n=100, dims=(4,))

    picks = alternating_sampling(das_scores(x), 15)

    assert picks.tolist() == reference.das_picks(x, 15)


def test_das_scores_of_both_forms_are_equal_bit_for_bit():
    x = words()
    np.testing.assert_array_equal(das_scores(x), das_scores(sparse.csr_array(x)))


def test_das_does_not_depend_on_the_order_of_rows_with_different_scores():
    (x,) = blobs(n=100, dims=(4,))
    permuted = np.random.default_rng(0).permutation(100)

    picks = alternating_sampling(das_scores(x), 50)

    np.testing.assert_array_equal(
        permuted[alternating_sampling(das_scores(x[permuted]), 50)], picks
    )


def test_das_takes_tied_rows_once_and_in_turn():
    assert alternating_sampling(np.ones(5), 4).tolist() == [0, 1, 2, 3]
    assert alternating_sampling(np.zeros(5), 2).tolist() == [0, 1]
    # After 1.0 (twice) 0.5 stays alone, then all are 0.
    assert alternating_sampling(np.array([0.0, 1.0, 0.5, 1.0]), 4).tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize("kind", ["das", "random", "pc1"])
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("theta", [2, 60, 120])
def test_anchors_are_different_rows_in_ascending_order(theta, layout, kind):
    anchors = choose_anchors(layout(words()), theta, kind, np.random.default_rng(0))

    assert len(anchors) == theta
    assert (np.diff(anchors) > 0).all()
    assert anchors[0] >= 0
    assert anchors[-1] < 120


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_pc1_anchors_lie_evenly_on_the_first_component(layout):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 5)) * [1, 9, 1, 1, 1] + 3
    _, _, directions = np.linalg.svd(x - x.mean(axis=0))
    rank = np.argsort(np.argsort(x @ directions[0]))

    anchors = choose_anchors(layout(x), 10, "pc1", rng)

    found = np.sort(rank[anchors])
    assert found.tolist() in (list(range(5, 100, 10)), list(range(4, 100, 10)))


# Anchor graph


@pytest.mark.parametrize("k", [1, 5, 29, 1000])
def test_graph_equals_the_loop(k):
    x, anchors, graph = a_graph(k=k)

    expected = reference.graph(x, x[anchors], k)

    np.testing.assert_allclose(graph.to_csr().toarray(), expected, rtol=0, atol=1e-12)


def test_sparse_graph_equals_the_dense_one():
    x = words()
    anchors = np.arange(0, 120, 4)

    dense = anchor_graph(x, anchors, 5, CPU).to_csr().toarray()

    found = anchor_graph(sparse.csr_array(x), anchors, 5, CPU).to_csr().toarray()
    np.testing.assert_allclose(found, dense, rtol=0, atol=1e-12)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 15))
def test_rows_of_the_graph_sum_to_1(seed, theta, k):
    rng = np.random.default_rng(seed)
    x = rng.integers(3, size=(20, 2)).astype(np.float64)  # many equal distances

    graph = anchor_graph(x, rng.choice(20, theta, replace=False), k, CPU)

    assert (graph.value >= 0).all()
    np.testing.assert_allclose(graph.value.sum(dim=1), 1.0, rtol=1e-13)


def test_equal_distances_share_evenly():
    corners = np.array([[0.0, 1], [1, 0], [0, -1], [-1, 0], [0, 0]])

    graph = anchor_graph(corners, np.arange(4), 3, CPU)

    np.testing.assert_array_equal(graph.value[4], np.full(3, 1 / 3))


def test_a_far_origin_costs_no_digits():
    x, anchors, graph = a_graph()

    moved = anchor_graph(x + 1e6, anchors, 5, CPU)

    np.testing.assert_allclose(
        moved.to_csr().toarray(), graph.to_csr().toarray(), rtol=0, atol=1e-8
    )


def test_scale_of_the_view_does_not_matter():
    x, anchors, graph = a_graph()

    np.testing.assert_array_equal(anchor_graph(x * 1024, anchors, 5, CPU).value, graph.value)


# Affinity and distance


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 8))
def test_affinity_is_symmetric_doubly_stochastic_and_psd(seed, theta, k):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 2))
    graph = anchor_graph(x, rng.choice(20, theta, replace=False), k, CPU)

    w = reference.affinity(graph.to_csr().toarray())

    np.testing.assert_allclose(w, w.T, rtol=0, atol=1e-14)
    np.testing.assert_allclose(w.sum(axis=1), 1.0, rtol=1e-12)
    assert np.linalg.eigvalsh(w).min() > -1e-13


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([1e-300, 1e-3, 0.01, 1.0, 1e6]))
def test_distance_is_symmetric_from_0_to_1_and_equals_the_dense_one(seed, omega):
    _, _, graph = a_graph(n=40, theta=8, k=3, seed=seed)

    s = butterworth_similarity(graph, omega, "view 0").toarray()

    d = 1 - np.eye(40) - s
    assert (s == s.T).all()
    assert (d.diagonal() == 0).all()
    assert d.min() >= 0
    assert d.max() <= 1
    if omega > 1e-300:  # where the plain formula overflows
        w = reference.affinity(graph.to_csr().toarray())
        np.testing.assert_allclose(d, reference.butterworth(w, omega), rtol=0, atol=1e-13)


def test_similarity_keeps_its_digits_where_the_affinity_is_small():
    _, _, graph = a_graph(n=40, theta=8, k=3)
    w = reference.affinity(graph.to_csr().toarray())
    np.fill_diagonal(w, 0.0)

    s = butterworth_similarity(graph, 1e6, "view 0").toarray()

    np.testing.assert_allclose(s, 0.5 * (w / 1e6) ** 4, rtol=1e-10)


def test_similarity_does_not_depend_on_how_it_is_cut(monkeypatch):
    _, _, graph = a_graph()
    whole = butterworth_similarity(graph, 0.01, "view 0")

    monkeypatch.setattr(butterworth, "_CHUNK_PAIRS", 500)

    cut = butterworth_similarity(graph, 0.01, "view 0")
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name))


def test_a_distance_beyond_memory_is_refused_in_one_sentence(monkeypatch):
    _, _, graph = a_graph()
    monkeypatch.setattr(butterworth, "MAX_PAIRS", 500)

    with pytest.raises(ConfigError, match=r"view 0 would link up to \d+ pairs .* beyond 500: take"):
        butterworth_similarity(graph, 0.01, "view 0")


# Spectral embedding


@pytest.mark.parametrize("n", [200, 30_000])
def test_gram_equals_the_sparse_product(n):
    _, _, graph = a_graph(n=n)
    b = graph.to_csr()

    gram = anchor_gram(graph)

    np.testing.assert_allclose(gram, (b.T @ b).toarray(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(gram.sum(dim=1), b.sum(axis=0), rtol=1e-12)


def test_both_ways_to_the_gram_agree():
    _, _, graph = a_graph()

    pairs, product = (
        count(graph.index, graph.value, 30)
        for count in (spectral._gram_of_pairs, spectral._gram_of_product)
    )

    torch.testing.assert_close(pairs, product, rtol=1e-12, atol=1e-15)
    assert torch.equal(pairs, pairs.T)


def test_embedding_equals_that_of_the_dense_affinity():
    _, _, graph = a_graph()
    expected = reference.embedding(reference.affinity(graph.to_csr().toarray()), 3)

    f = spectral_embedding(graph, 3).numpy()

    # The sign of an eigenvector means nothing: compare what k-means sees.
    np.testing.assert_allclose(f @ f.T, expected @ expected.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(f, axis=1), 1.0, rtol=1e-14)


def test_columns_beyond_the_rank_are_0():
    """Two groups of equal rows: W has rank 2, and two of the four anchors stay without a row."""
    graph = anchor_graph(np.repeat([[0.0], [9.0]], 10, axis=0), np.array([0, 1, 10, 11]), 1, CPU)

    f = spectral_embedding(graph, 4)

    assert torch.isfinite(f).all()
    assert (f[:, 2:] == 0).all()
    np.testing.assert_allclose(f @ f.T, np.kron(np.eye(2), np.ones((10, 10))), atol=1e-12)


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_graph_and_embedding_do_not_depend_on_the_number_of_threads(layout):
    x = layout(words(n=9000))
    anchors = np.arange(0, 9000, 90)
    found = []
    for n_threads in (1, 2, 5):
        graph = anchor_graph(x, anchors, 10, CPU, n_threads=n_threads)
        found.append((graph, spectral_embedding(graph, 4, n_threads=n_threads)))

    for graph, f in found[1:]:
        assert torch.equal(graph.index, found[0][0].index)
        assert torch.equal(graph.value, found[0][0].value)
        assert torch.equal(f, found[0][1])


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_graph_and_embedding_on_cuda_equal_those_of_the_cpu(layout):
    x = layout(blobs(n=300_000, dims=(20,), separation=1.0)[0])
    anchors = choose_anchors(x, 100, "random", np.random.default_rng(0))
    expected = anchor_graph(x, anchors, 10, CPU)

    found = anchor_graph(x, anchors, 10, torch.device("cuda"))

    assert found.value.is_cuda
    difference = found.to_csr() - expected.to_csr()
    assert abs(difference).max() < 1e-9
    f = spectral_embedding(found, 3)
    assert f.is_cuda
    np.testing.assert_allclose(f.cpu(), spectral_embedding(expected, 3), rtol=0, atol=1e-9)
