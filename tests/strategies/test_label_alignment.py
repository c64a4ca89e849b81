"""Hungarian matching of clusters."""

import numpy as np
import pytest

from strategies.label_alignment import match_clusters

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
