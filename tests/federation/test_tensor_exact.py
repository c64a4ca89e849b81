"""A vertical run by messages is the same rounds in one process, bit for bit."""

import functools

import numpy as np
import pytest

from fedmvc_client.estimators import TensorFMVC
from fedmvc_server.simulation import simulate
from tests.federation.harness import accuracy
from tests.federation.tensor_harness import lone, loop, tables, vertical_plan

CASES = {
    "plus int8": {},
    "plus float16": {"z_encoding": "float16"},
    "plus float64, 2 sweeps": {"z_encoding": "float64", "local_sweeps": 2, "seed": 4},
    "plus view, few anchors": {"orientation": "view", "anchors": 20, "anchor_kind": "random"},
    "paper float64": {"profile": "paper"},
    "paper int8, 2 sweeps": {"profile": "paper", "z_encoding": "int8", "local_sweeps": 2},
    "paper unfold float16": {"profile": "paper", "orientation": "unfold", "z_encoding": "float16"},
    "paper natural": {"profile": "paper", "sweep": "natural", "orientation": "cluster"},
}


@functools.cache
def federated(case, sparse):
    """Run a case; returns plan, views and result."""
    plan = vertical_plan(3, max_rounds=12, **CASES[case])
    views, _ = tables(sparse=sparse)
    return plan, views, simulate(plan, lone(views))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("case", CASES)
def test_the_federated_run_is_the_loop(case, sparse):
    plan, views, found = federated(case, sparse)

    expected = loop(plan, views)
    assert found.status == "completed", found.stop_reason
    assert found.sites == ["anna", "mercy", "north"]
    assert found.rounds == expected.rounds > 2
    assert [row["objective"] for row in found.history] == expected.objectives
    assert found.history[-1]["view_weights"] == expected.view_weights
    assert list(found.metrics["view_weights"].values()) == expected.view_weights
    for name in views:
        kept = found.site_results[name]
        np.testing.assert_array_equal(kept.labels, expected.labels)
        np.testing.assert_array_equal(kept.vote_labels, expected.vote)
        np.testing.assert_array_equal(kept.view_labels, expected.alone[name])
    # the rows that a site lacks, and the one that all lack
    assert np.flatnonzero(expected.labels < 0).tolist() == [3]
    assert np.flatnonzero(expected.alone["anna"] < 0).tolist() == [3, 20, 21]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("case", CASES)
def test_the_federated_run_is_the_estimator(case, sparse):
    plan, views, found = federated(case, sparse)
    options = {key: value for key, value in CASES[case].items() if key != "seed"}

    model = TensorFMVC(3, max_iter=12, random_state=plan.seed, **options)
    model.fit([views[name] for name in sorted(views)])
    for kept in found.site_results.values():
        np.testing.assert_array_equal(kept.labels, model.labels_)
        np.testing.assert_array_equal(kept.vote_labels, model.vote_labels_)
    assert list(found.metrics["view_weights"].values()) == model.view_weights_.tolist()
    assert list(found.metrics["agreement"].values()) == model.agreement_.tolist()
    assert [row["objective"] for row in found.history] == model.objective_history_
    assert found.rounds == model.n_iter_


def test_the_order_in_which_the_sites_are_given_is_irrelevant():
    plan = vertical_plan(3, max_rounds=6)
    views, _ = tables()

    found = simulate(plan, lone(views))
    turned = simulate(plan, lone(dict(reversed(views.items()))))

    assert found.history[-1]["objective"] == turned.history[-1]["objective"]
    for name in views:
        np.testing.assert_array_equal(
            found.site_results[name].labels, turned.site_results[name].labels
        )


def test_a_permutation_of_the_rows_permutes_the_labels():
    plan = vertical_plan(3, max_rounds=12, z_encoding="float64")
    views, truth = tables()
    order = np.random.default_rng(1).permutation(truth.size)

    found = simulate(plan, lone(views)).site_results["anna"].labels
    permuted = simulate(plan, lone({n: v[order] for n, v in views.items()})).site_results["anna"]

    np.testing.assert_array_equal(permuted.labels, found[order])


@pytest.mark.parametrize("profile", ["plus", "paper"])
def test_seed_and_plan_reach_the_sites(profile):
    """Equality with the loop would hold, too, where both ignored the seed."""
    views, _ = tables()
    ends = [
        simulate(vertical_plan(3, max_rounds=4, seed=seed, profile=profile), lone(views))
        for seed in (0, 1)
    ]
    assert ends[0].plan_id != ends[1].plan_id
    if profile == "paper":
        first, second = (end.site_results["anna"].labels for end in ends)
        assert not np.array_equal(first, second)


def test_clear_clusters_are_found():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 40)
    views = {
        name: rng.normal(size=(160, 3)) + 9.0 * rng.permutation(4 * 3).reshape(4, 3)[truth]
        for name in "abc"
    }
    found = simulate(vertical_plan(4, max_rounds=150), lone(views))
    assert accuracy(truth, found.site_results["b"].labels) == 1.0
    assert found.warnings == []
    assert found.metrics["cluster_sizes"] == [40] * 4
    assert found.metrics["aligned_vote"]["agreement"] == 1.0
    assert found.metrics["rows_without_label"] == 0
