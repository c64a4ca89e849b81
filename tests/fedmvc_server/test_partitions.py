"""Partitions cover every row once and deal the clusters as their names say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from fedmvc_server.partitions import partition

LABELS = np.repeat(np.arange(4), 2500)


def counts(parts, labels=LABELS):
    return [np.bincount(labels[rows], minlength=4).tolist() for rows in parts]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["paper", "iid", "dirichlet", "missing", "stratified"]),
    sites=st.integers(2, 7),
    sizes=st.lists(st.integers(40, 80), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_every_row_lies_at_exactly_one_site(kind, sites, sizes, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    parts = partition(kind, labels, sites, alpha=1.0, seed=seed)
    assert len(parts) == sites
    assert sorted(np.concatenate(parts).tolist()) == list(range(labels.size))
    assert all(rows.size and np.all(np.diff(rows) > 0) for rows in parts)


@pytest.mark.parametrize("kind", ["paper", "iid", "dirichlet", "missing", "stratified"])
def test_a_seed_fixes_the_partition(kind):
    once, again, other = (partition(kind, LABELS, 3, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(once, other, strict=True))


def test_paper_partition_is_8500_and_1500_stratified():
    assert counts(partition("paper", LABELS, 2)) == [[2125] * 4, [375] * 4]


def test_paper_partition_of_more_sites_shares_the_rest_equally():
    parts = counts(partition("paper", LABELS, 4))
    assert parts == [[2125] * 4, [125] * 4, [125] * 4, [125] * 4]


def test_paper_partition_of_one_site_is_everything():
    assert counts(partition("paper", LABELS, 1)) == [[2500] * 4]


def test_stratified_partition_deals_every_cluster_equally():
    assert counts(partition("stratified", LABELS, 5)) == [[500] * 4] * 5


def test_iid_partition_ignores_the_clusters():
    parts = partition("iid", LABELS, 4)
    assert [rows.size for rows in parts] == [2500] * 4
    shares = np.array(counts(parts))
    assert shares.std() > 5  # stratified dealing would leave none
    assert np.abs(shares - 625).max() < 120


@pytest.mark.parametrize("sites", [2, 5, 20])
def test_missing_partition_gives_two_clusters_a_site_and_forgets_none(sites):
    held = np.array(counts(partition("missing", LABELS, sites))) > 0
    assert held.sum(axis=1).tolist() == [2] * sites
    assert held.any(axis=0).all()


def test_dirichlet_is_more_even_for_a_larger_alpha():
    def spread(alpha):
        return np.array(counts(partition("dirichlet", LABELS, 5, alpha=alpha))).std()

    assert spread(0.3) > 3 * spread(100.0)


def test_dirichlet_leaves_no_site_almost_empty():
    sizes = [rows.size for s in range(20) for rows in partition("dirichlet", LABELS, 5, seed=s)]
    assert min(sizes) >= 50


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": "random"}, "partition is 'random'; allowed: 'paper', 'iid'"),
        ({"sites": 0}, "sites is 0: give 1 or more"),
        ({"sites": 10_001}, "10000 rows cannot fill 10001 sites"),
        ({"kind": "missing", "sites": 1}, "1 site with 2 clusters each cannot hold 4 clusters"),
        ({"kind": "dirichlet", "alpha": 0.0}, "alpha is 0.0: give a number above 0"),
        ({"kind": "dirichlet", "alpha": 1e-3, "sites": 50}, "give a larger alpha or fewer sites"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_dealt_is_refused(arguments, sentence):
    call = {"kind": "paper", "sites": 2, **arguments}
    with pytest.raises(ConfigError, match=sentence):
        partition(call.pop("kind"), LABELS, call.pop("sites"), **call)


def test_a_site_without_rows_is_refused():
    with pytest.raises(ConfigError, match=r"leaves site \d of 4 without a row"):
        partition("paper", np.repeat(np.arange(4), 3), 4)
