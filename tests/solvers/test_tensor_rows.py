"""Content order and preprocessing of a view."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from configs.errors import DataRefused
from fedmvc_client.solvers.preprocessing import prepare_rows
from fedmvc_client.solvers.row_order import content_order, row_hashes

VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 2.0**52])
MATRICES = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2), elements=VALUES)


def counts(n=120, d=60, seed=0):
    """Word counts: integers, mostly zero."""
    return np.random.default_rng(seed).poisson(0.3, size=(n, d)).astype(np.float64)


@given(MATRICES)
def test_dense_and_sparse_rows_have_the_same_hash(x):
    np.testing.assert_array_equal(row_hashes(x), row_hashes(sparse.csr_array(x)))


@given(MATRICES, st.randoms(use_true_random=False))
def test_rows_in_content_order_do_not_depend_on_where_they_stood(x, random):
    permuted = random.sample(range(len(x)), len(x))

    order, n_distinct = content_order(x)
    other, other_distinct = content_order(x[permuted])

    np.testing.assert_array_equal(x[order], x[permuted][other])
    assert n_distinct == other_distinct == len(np.unique(x + 0.0, axis=0))


def test_a_value_in_another_column_is_another_row():
    assert len(set(row_hashes(np.eye(50)).tolist())) == 50


def test_order_is_not_the_order_of_the_file():
    order, _ = content_order(np.arange(1000.0)[:, None])

    assert abs(np.corrcoef(order, np.arange(1000))[0, 1]) < 0.15


def test_dense_view_becomes_columns_from_0_to_1_without_constant_ones():
    x = np.array([[1.0, 7.0, -2.0], [3.0, 7.0, 2.0], [2.0, 7.0, 0.0]])

    prepared = prepare_rows(x, 2, "auto", "view 0")

    expected = np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]])
    np.testing.assert_array_equal(prepared.values, expected[prepared.rows])
    assert prepared.warnings == ()


def test_scaling_none_keeps_the_values():
    x = np.array([[1.0, 7.0], [3.0, 7.0], [2.0, 7.0]])

    prepared = prepare_rows(x, 2, "none", "view 0")

    np.testing.assert_array_equal(prepared.values, x[prepared.rows][:, :1])


@pytest.mark.parametrize("layout", [np.ascontiguousarray, sparse.csr_array, sparse.csc_matrix])
def test_counts_become_unit_rows_of_tf_idf(layout):
    x = counts()
    n = len(x)
    idf = np.array([np.log((1 + n) / (1 + (column > 0).sum())) + 1 for column in x.T])
    expected = x * idf / np.linalg.norm(x * idf, axis=1, keepdims=True)

    prepared = prepare_rows(layout(x), 2, "auto", "view 0")

    assert isinstance(prepared.values, sparse.csr_array)
    np.testing.assert_allclose(prepared.values.toarray(), expected[prepared.rows], rtol=1e-14)


def test_weights_of_words_that_are_no_counts_only_become_unit_rows():
    x = counts() * 0.25

    prepared = prepare_rows(sparse.csr_array(x), 2, "auto", "view 0")

    expected = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(prepared.values.toarray(), expected[prepared.rows], rtol=1e-14)


@pytest.mark.parametrize(
    "x",
    [counts(d=49), np.where(np.arange(60) < 31, 1.0, counts()), counts() - 0.5],
    ids=["49 columns", "mostly filled", "negative"],
)
def test_what_is_no_text_is_dense(x):
    x = x + np.random.default_rng(0).random(x.shape) * (x != 0)

    prepared = prepare_rows(x, 2, "auto", "view 0")

    assert isinstance(prepared.values, np.ndarray)
    assert prepared.values.max() == 1.0


def test_sparse_view_with_negative_values_is_scaled_as_a_dense_one():
    x = counts() - (counts(seed=1) > 1)

    prepared = prepare_rows(sparse.csr_array(x), 2, "auto", "view 0")

    dense = prepare_rows(x, 2, "auto", "view 0")
    np.testing.assert_array_equal(prepared.values, dense.values)


def test_constant_word_counts_for_nothing():
    x = np.hstack([counts(), np.full((120, 1), 3.0)])

    prepared = prepare_rows(sparse.csr_array(x), 2, "auto", "view 0")

    assert prepared.values.shape == (120, 60)


def test_missing_cells_get_the_median_and_are_told():
    nan = np.nan
    x = np.array([[0.0, 4.0], [nan, 8.0], [nan, nan], [1.0, nan], [8.0, 0.0]])

    prepared = prepare_rows(x, 2, "none", "view 'ecg'")

    np.testing.assert_array_equal(prepared.held, [True, True, False, True, True])
    filled = np.array([[0.0, 4.0], [1.0, 8.0], [nan, nan], [1.0, 4.0], [8.0, 0.0]])
    np.testing.assert_array_equal(prepared.values, filled[prepared.rows])
    assert prepared.warnings == (
        "view 'ecg': 2 of 4 rows lack a cell; the median of the column stands in its place",
    )
    assert np.isnan(x).sum() == 4


def test_a_column_that_nobody_observed_is_dropped():
    x = np.column_stack([np.arange(5.0), np.full(5, np.nan)])

    assert prepare_rows(x, 2, "auto", "view 0").values.shape == (5, 1)


def test_sparse_row_of_nothing_but_nan_is_missing():
    x = counts()
    x[3] = np.where(x[3] > 0, np.nan, 0.0)

    prepared = prepare_rows(sparse.csr_array(x), 2, "auto", "view 0")

    assert np.flatnonzero(~prepared.held).tolist() == [3]
    assert 3 not in prepared.rows


def test_the_view_itself_is_never_changed():
    dense, words = np.random.default_rng(0).random((30, 3)), sparse.csr_array(counts())
    before = dense.copy(), words.copy()

    prepare_rows(dense, 2, "auto", "view 0")
    prepare_rows(words, 2, "auto", "view 0")

    np.testing.assert_array_equal(dense, before[0])
    assert (words != before[1]).nnz == 0


def partly_missing_words():
    x = counts()
    x[0, np.flatnonzero(x[0])[0]] = np.nan
    return sparse.csr_array(x)


def with_cell(value):
    x = np.random.default_rng(0).random((8, 2))
    x[0, 0] = value
    return x


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        (np.arange(8.0), "view 0 has 1 axes but a view has 2"),
        (with_cell(np.inf), "view 0 has 1 infinite cells and may have 0"),
        (with_cell(-np.inf), "view 0 has 1 infinite cells and may have 0"),
        (with_cell(1e200), r"view 0 has 1 values beyond 1e\+150 and may have 0"),
        (sparse.csr_array(with_cell(np.inf)), "view 0 has 1 infinite cells"),
        (partly_missing_words(), "view 0 is sparse and has 1 missing cells"),
        (np.full((8, 2), np.nan), "view 0 has 0 rows with data of 8"),
        (np.empty((0, 2)), "view 0 has 0 rows with data of 0"),
        (np.empty((8, 0)), "view 0 has 0 rows with data of 8"),
        (sparse.csr_array((0, 2)), "view 0 has 0 rows with data of 0"),
        (np.ones((8, 2)), "all 8 rows of view 0 are identical, 1 where clustering needs 3"),
        (sparse.csr_array((8, 2)), "all 8 rows of view 0 are identical"),
        (np.eye(2), "view 0 has 2 rows with data but n_clusters is 3"),
        (np.eye(2).repeat(4, axis=0), "view 0 has 2 different rows but n_clusters is 3"),
    ],
)
def test_bad_views_are_refused_in_one_sentence(view, sentence):
    with pytest.raises(DataRefused, match=sentence) as error:
        prepare_rows(view, 3, "auto", "view 0")
    assert error.value.code == 3
