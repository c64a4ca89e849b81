"""The two local terms: compiled sequential sweep and parallel ``plus`` sweep."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedmvc_client.solvers.butterworth import ButterworthTerm
from fedmvc_client.solvers.spectral_term import SpectralTerm
from fedmvc_client.solvers.sweep import distance_trace, sequential_sweep
from tests.solvers import tensor_reference as reference


def a_distance(n, seed):
    """Any symmetric D in [0, 1] with a zero diagonal, a third of it exactly 1, and its S."""
    rng = np.random.default_rng(seed)
    d = np.where(rng.random((n, n)) < 0.3, 1.0, rng.random((n, n)))
    d = np.triu(d, 1)
    d += d.T
    return d, sparse.csr_array(1 - np.eye(n) - d)


def unit_rows(n, n_clusters, seed):
    f = np.random.default_rng(seed).normal(size=(n, n_clusters))
    f[:, 0] += 1
    return f / np.linalg.norm(f, axis=1, keepdims=True)


# Sequential sweep


@pytest.mark.parametrize("with_blend", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_compiled_sweep_equals_the_loop(seed, with_blend):
    rng = np.random.default_rng(seed)
    d, s = a_distance(30, seed)
    labels, order = rng.integers(4, size=30), rng.permutation(30)
    blend = rng.normal(size=(30, 4)) if with_blend else None
    before = labels.copy()

    found = sequential_sweep(s, labels, order, 4, 0.7, blend)

    expected = reference.sequential_sweep(d, labels, order, 4, 0.7, blend)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(labels, before)
    assert (found != before).any()
    assert distance_trace(s, found) == pytest.approx(reference.trace(d, found), rel=1e-12)


def test_ties_go_to_the_lowest_cluster():
    empty = sparse.csr_array((3, 3))

    labels = sequential_sweep(empty, np.array([2, 2, 2]), np.arange(3), 3, 1.0, None)

    assert labels.tolist() == [0, 1, 2]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_trace_never_rises_without_the_tensor_term(seed, n_clusters):
    rng = np.random.default_rng(seed)
    d, s = a_distance(25, seed)
    labels = rng.integers(n_clusters, size=25)
    traces = [reference.trace(d, labels)]

    for _ in range(4):
        labels = sequential_sweep(s, labels, rng.permutation(25), n_clusters, 1.0, None)
        traces.append(reference.trace(d, labels))

    assert (np.diff(traces) <= 1e-9).all()


def test_updating_all_rows_at_once_makes_the_trace_rise():
    """Why the paper's distance needs the sequential sweep: here all rows flee to one cluster."""
    d = 1 - np.eye(15)
    labels = np.repeat([0, 1, 2], [7, 5, 3])

    at_once = np.argmin(d @ np.eye(3)[labels], axis=1)

    assert at_once.tolist() == [2] * 15
    assert reference.trace(d, at_once) == 15 * 14
    in_turn = sequential_sweep(sparse.csr_array((15, 15)), labels, np.arange(15), 3, 1.0, None)
    assert reference.trace(d, in_turn) == 3 * 5 * 4


def test_a_cluster_may_be_empty():
    term = ButterworthTerm(a_distance(5, 0)[1], 4)
    term.labels = np.zeros(5, dtype=np.int64)

    trace = term.sweep(np.arange(5), 1.0, np.tile([1e9, 0, 0, 0], (5, 1)))

    assert term.labels.tolist() == [0] * 5
    assert trace == pytest.approx(a_distance(5, 0)[0].sum())


# Parallel sweep


def a_term(n=60, n_clusters=4, seed=0, balance=0.0):
    f = unit_rows(n, n_clusters, seed)
    term = SpectralTerm(torch.from_numpy(f), balance)
    term.start(np.random.default_rng(seed))
    return f, term


@pytest.mark.parametrize("balance", [0.0, 0.1, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_parallel_sweep_equals_the_loop(seed, balance):
    f, term = a_term(seed=seed, balance=balance)
    mu_z = np.random.default_rng(seed).normal(size=(60, 4))
    labels, centers = term.labels.numpy(), term.centers.numpy()

    for _ in range(3):
        labels, centers, trace = reference.parallel_sweep(f, labels, centers, 0.7, balance, mu_z)
        assert term.sweep(0.7, mu_z.__getitem__) == pytest.approx(trace, rel=1e-12)
        np.testing.assert_array_equal(term.labels, labels)
        np.testing.assert_allclose(term.centers, centers, rtol=0, atol=1e-14)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.floats(0.01, 10), st.floats(0, 10))
def test_local_objective_never_rises_for_a_fixed_blend(seed, weight, mu):
    f, term = a_term(n=40, seed=seed % 7)
    z = np.random.default_rng(seed).normal(size=(40, 4))

    def objective():
        """``weight sum_i ||f_i - c_{y_i}||^2 + mu/2 ||H - Z||^2``."""
        labels = term.labels.numpy()
        cost = ((f - term.centers.numpy()[labels]) ** 2).sum()
        return weight * cost + mu / 2 * ((np.eye(4)[labels] - z) ** 2).sum()

    values = [objective()]
    for _ in range(5):
        term.sweep(weight, lambda rows: mu * z[rows])
        values.append(objective())

    assert (np.diff(values) <= 1e-9).all()


def test_an_empty_cluster_keeps_its_last_center():
    _, term = a_term()
    before = term.centers.clone()
    away_from_2 = np.zeros((60, 4))
    away_from_2[:, 2] = -1e9

    term.sweep(1.0, away_from_2.__getitem__)

    assert not (term.labels == 2).any()
    assert torch.equal(term.centers[2], before[2])
    assert not torch.equal(term.centers[0], before[0])


def test_balance_pushes_to_equal_clusters():
    f = np.repeat(np.eye(2), [50, 10], axis=0)
    sizes = []
    for balance in (0.0, 10.0):
        term = SpectralTerm(torch.from_numpy(f), balance)
        term.start(np.random.default_rng(0))
        term.sweep(1.0, None)
        sizes.append(sorted(np.bincount(term.labels, minlength=2).tolist()))

    assert sizes == [[10, 50], [0, 60]]  # all rows at once: a large balance overshoots


@pytest.mark.parametrize("n_distinct", [1, 2, 3])
def test_fewer_different_rows_than_clusters(n_distinct):
    """No warning of k-means (pytest makes one an error), no NaN, equal rows together."""
    noise = 1e-16 * np.random.default_rng(0).random((40, 3))
    kind = np.arange(40) % n_distinct
    term = SpectralTerm(torch.from_numpy(np.eye(3)[kind] + noise), 0.1)

    trace = term.start(np.random.default_rng(0))

    assert trace == pytest.approx(0.0, abs=1e-20)
    assert len({(k, y) for k, y in zip(kind, term.labels.tolist(), strict=True)}) == n_distinct
    assert np.isfinite(term.sweep(1.0, None))
    assert torch.isfinite(term.centers).all()


def test_clusters_are_numbered_by_their_first_row():
    _, term = a_term()
    first = [term.labels.tolist().index(k) for k in range(4)]

    assert first == sorted(first)
    means = [term.embedding[term.labels == k].mean(dim=0) for k in range(4)]
    assert torch.allclose(torch.stack(means), term.centers, rtol=0, atol=1e-14)


def test_start_on_a_sample_labels_every_row():
    f = np.eye(3)[np.arange(30_000) % 3]
    f[:, 0] += 0.01 * np.random.default_rng(0).random(30_000)
    term = SpectralTerm(torch.from_numpy(f), 0.1)

    term.start(np.random.default_rng(0))

    assert len(set(zip(np.arange(30_000) % 3, term.labels.tolist(), strict=True))) == 3


@pytest.mark.parametrize("term", [a_term()[1], ButterworthTerm(a_distance(30, 0)[1], 4)])
def test_renaming_moves_labels_and_what_belongs_to_them(term):
    term.start(np.random.default_rng(0))
    labels = torch.as_tensor(term.labels).numpy().copy()
    names = np.array([2, 0, 3, 1])
    centers = getattr(term, "centers", None)

    term.rename(names)

    np.testing.assert_array_equal(term.labels, names[labels])
    if centers is not None:
        assert torch.equal(term.centers[names], centers)
