"""The sparse Laplacian of features against a dense one written in loops."""

import numpy as np
import pytest
import torch

from fedmvc_client.solvers.feature_laplacian import feature_laplacian
from tests.solvers.mufsht_reference import laplacian


def features(seed=0, d=40, n=25):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(d, 4)) @ rng.normal(size=(4, n)) + rng.normal(size=(d, n))
    rows -= rows.mean(axis=1, keepdims=True)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def sparse_laplacian(rows, **options):
    return feature_laplacian(torch.from_numpy(np.ascontiguousarray(rows)), **options)


@pytest.mark.parametrize("neighbours", [1, 5, 100])
@pytest.mark.parametrize("d", [1, 2, 40])
def test_it_equals_the_dense_one(d, neighbours):
    rows = features(d=d)
    found = sparse_laplacian(rows, neighbours=neighbours)
    np.testing.assert_allclose(found.to_dense(), laplacian(rows, neighbours), atol=1e-12)


def test_eigenvalues_lie_between_0_and_2():
    for seed in range(5):
        dense = sparse_laplacian(features(seed)).to_dense()
        torch.testing.assert_close(dense, dense.T, rtol=0, atol=1e-15)
        values = torch.linalg.eigvalsh(dense)
        assert values[0] > -1e-12
        assert values[-1] < 2 + 1e-12


def test_opposite_features_are_neighbours_of_opposite_sign():
    rows = features(d=3)
    rows[1] = -rows[0]
    q = sparse_laplacian(rows, neighbours=1).to_dense().numpy()
    assert q[0, 1] > 0
    weights = np.array([1.0, -1.0, 0.0])
    assert weights @ q @ weights < abs(weights) @ q @ abs(weights)


def test_a_feature_of_zeros_has_no_partner():
    rows = features()
    rows[7] = 0.0
    dense = sparse_laplacian(rows).to_dense()
    assert not dense[7].any()
    assert not dense[:, 7].any()


def test_blocks_and_threads_do_not_matter():
    rows = features(d=300)
    whole = sparse_laplacian(rows, block_cells=1300).to_dense()
    for n_threads in (1, 2, 5):
        found = sparse_laplacian(rows, block_cells=1300, n_threads=n_threads).to_dense()
        assert torch.equal(found, whole)
    other = sparse_laplacian(rows).to_dense()
    torch.testing.assert_close(other, whole, rtol=0, atol=1e-13)


def test_it_is_sparse():
    found = sparse_laplacian(features(d=400))
    assert found.is_sparse
    assert found.values().numel() <= 400 * 11
