"""What `simulate` makes of arrays before a vertical run."""

import numpy as np
import pytest
from scipy import sparse

from configs.errors import ConfigError, DataRefused
from fedmvc_server.array_sites import schema_of, vertical_views, views_of

VIEW = np.arange(20.0).reshape(10, 2)


def test_each_lone_view_gets_a_place_of_its_own_in_name_order():
    placed = vertical_views({"b": [VIEW], "a": [VIEW[:, :1]]})
    assert [view is None for view in placed["a"]] == [False, True]
    assert [view is None for view in placed["b"]] == [True, False]
    assert placed["b"][1] is VIEW
    assert [len(view.columns) for view in schema_of(placed).views] == [1, 2]


def test_lists_of_all_views_stay_as_they_are():
    given = {"a": [VIEW, None], "b": [None, VIEW]}
    assert vertical_views(given) == given


@pytest.mark.parametrize("given", [{"a": [VIEW]}, {"a": [VIEW, VIEW], "b": [VIEW, None]}])
def test_what_is_no_vertical_federation_is_left_for_the_run_to_refuse(given):
    assert {name: len(views) for name, views in vertical_views(given).items()} == {
        name: len(views) for name, views in given.items()
    }


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csr_array])
def test_other_numbers_of_rows_are_refused_with_both(make):
    with pytest.raises(DataRefused, match="'b' has 9 rows, site 'a' has 10"):
        vertical_views({"b": [make(VIEW[:9])], "a": [make(VIEW)]})


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_cells_are_refused_and_counted(make, value):
    spoilt = VIEW.copy()
    spoilt[2:5, 1] = value
    with pytest.raises(DataRefused, match="'b' has 3 infinite cells"):
        vertical_views({"a": [make(VIEW)], "b": [make(spoilt)]})


def test_missing_cells_pass():
    spoilt = VIEW.copy()
    spoilt[2:5] = np.nan
    assert vertical_views({"a": [VIEW], "b": [spoilt]})["b"][1] is spoilt


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil"])
@pytest.mark.parametrize("container", ["matrix", "array"])
def test_sparse_views_become_csr_for_a_vertical_run(kind, container):
    given = getattr(sparse, f"{kind}_{container}")(np.eye(4, dtype=np.int32))
    (view,) = views_of("a", {"views": [given]}, sparse_too=True)
    assert view.format == "csr"
    assert view.dtype == np.float64
    np.testing.assert_array_equal(view.toarray(), np.eye(4))
    with pytest.raises(ConfigError, match="not a table of real numbers"):
        views_of("a", {"views": [given]})


def test_masked_cells_are_missing():
    masked = np.ma.masked_equal(VIEW, 3.0)
    (view,) = views_of("a", {"views": [masked]}, sparse_too=True)
    assert np.isnan(view).sum() == 1
    assert np.isnan(view[1, 1])


@pytest.mark.parametrize(
    "view", [VIEW + 1j, sparse.csr_matrix(VIEW + 1j), [[1.0], [2.0, 3.0]], "text", np.arange(3.0)]
)
def test_what_is_no_table_is_refused_in_words(view):
    with pytest.raises(ConfigError, match=r"real numbers|1 dimensions|0 dimensions"):
        views_of("a", {"views": [view]}, sparse_too=True)
