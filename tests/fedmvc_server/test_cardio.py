"""The synthetic sets against the paper's figures, as measured for Table 1."""

import numpy as np
import pytest

from configs.errors import ConfigError
from fedmvc_server import cardio as cardio_module
from fedmvc_server.cardio import cardio_views, gaussian_views


@pytest.fixture(scope="module")
def cardio():
    return cardio_views(10_000, 0)


def centers(view, labels):
    return np.array([view[labels == k].mean(axis=0) for k in range(4)])


def test_phenotypes_hold_2500_patients_each_in_random_order(cardio):
    views, labels = cardio
    assert np.bincount(labels).tolist() == [2500] * 4
    assert [view.shape for view in views] == [(10_000, 2), (10_000, 2)]
    assert np.flatnonzero(np.diff(labels)).size > 7000


@pytest.mark.parametrize(
    ("view", "distance", "variance"), [(0, 6.57, 0.146), (1, 7.68, 2.26)], ids=["ecg", "imaging"]
)
def test_table_1_as_measured(cardio, view, distance, variance):
    """The two figures agree with an independent generator to 2%."""
    views, labels = cardio
    means = centers(views[view], labels)
    gaps = np.linalg.norm(means[:, None] - means[None], axis=2)[np.triu_indices(4, 1)]
    within = [views[view][labels == k].var(axis=0).mean() for k in range(4)]
    assert gaps.mean() == pytest.approx(distance, rel=0.02)
    assert np.mean(within) == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize(("n", "half"), [(2500, 1250), (7, 4), (1, 1)])
def test_two_part_phenotypes_are_exact_halves_in_random_order(n, half):
    first = cardio_module._first_half(np.random.default_rng(0), n)
    assert first.sum() == half
    assert n == 1 or not first[:half].all()


def test_halves_of_cross_and_crescent_are_unrelated(cardio):
    views, labels = cardio
    cross = np.abs(views[1][labels == 2] - [6.0, -3.0])
    horizontal = cross[:, 0] > cross[:, 1]
    outer = np.linalg.norm(views[0][labels == 2] - [2.0, 8.0], axis=1) > 1.0
    assert abs(np.corrcoef(horizontal, outer)[0, 1]) < 0.08


def test_circle_and_ring_stay_within_their_radii(cardio):
    views, labels = cardio
    circle = np.linalg.norm(views[0][labels == 0] - [2.0, 2.0], axis=1)
    ring = np.linalg.norm(views[1][labels == 1] - [6.0, 6.0], axis=1)
    assert circle.max() <= 0.5
    assert 0.8 <= ring.min() < ring.max() <= 1.3


def test_given_the_phenotype_the_views_are_independent(cardio):
    views, labels = cardio
    for k in range(4):
        both = np.corrcoef(np.hstack([view[labels == k] for view in views]).T)[:2, 2:]
        assert np.abs(both).max() < 0.06


def test_a_seed_fixes_every_bit():
    once, again, other = (cardio_views(101, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(once[0], again[0], strict=True))
    assert np.array_equal(once[1], again[1])
    assert not np.array_equal(once[0][0], other[0][0])


@pytest.mark.parametrize("n", [4, 5, 6, 7, 103])
def test_any_size_is_dealt_evenly(n):
    sizes = np.bincount(cardio_views(n, 0)[1], minlength=4)
    assert sizes.sum() == n
    assert np.ptp(sizes) <= 1


def test_too_small_a_set_is_refused():
    with pytest.raises(ConfigError, match="n is 3: the cardio set has 4 phenotypes"):
        cardio_views(3, 0)


def test_gaussian_views_shapes_and_proportions():
    views, labels = gaussian_views(
        100, 0, n_clusters=3, dims=(2, 5), noise_views=1, proportions=(8, 1, 1)
    )
    assert [view.shape for view in views] == [(100, 2), (100, 5), (100, 2)]
    assert np.bincount(labels).tolist() == [80, 10, 10]


def test_no_cluster_stays_empty_however_small_its_proportion():
    _, labels = gaussian_views(10, 0, proportions=(1000, 1, 1, 1))
    assert np.bincount(labels).tolist() == [7, 1, 1, 1]


def test_gaussian_centres_are_separated_and_confused_as_asked():
    views, labels = gaussian_views(
        40_000, 1, dims=(3, 3), separation=9.0, confusions=[[(0, 1)], [(2, 3)]]
    )
    for view, merged in zip(views, [(0, 1), (2, 3)], strict=True):
        means = centers(view, labels)
        gaps = np.linalg.norm(means[:, None] - means[None], axis=2)
        assert gaps[merged] == pytest.approx(0.0, abs=0.1)
        apart = [gaps[i, j] for i in range(4) for j in range(i) if (j, i) != merged]
        assert min(apart) > 8.8


def test_noise_views_know_nothing_of_the_clusters():
    views, labels = gaussian_views(40_000, 2, noise_views=1)
    assert np.abs(centers(views[-1], labels)).max() < 0.05


def test_outliers_hit_their_share_of_each_view_by_itself():
    clean, _ = gaussian_views(1000, 3)
    dirty, _ = gaussian_views(1000, 3, outliers=0.1)
    hit = np.array([(a != b).any(axis=1) for a, b in zip(clean, dirty, strict=True)])
    assert hit.sum(axis=1).tolist() == [100, 100]
    assert not np.array_equal(hit[0], hit[1])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"n_clusters": 11}, "n_clusters is 11: give a number from 1 to n = 10"),
        ({"proportions": (1, 2)}, "one positive number for each of 4 clusters"),
        ({"confusions": [[]]}, "confusions name 1 views but dims name 2"),
        ({"outliers": 1.0}, "outliers is 1.0: give a share from 0 to below 1"),
    ],
)
def test_gaussian_views_refuse(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        gaussian_views(10, 0, **arguments)
