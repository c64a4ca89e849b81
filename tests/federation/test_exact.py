"""Exact aggregation is the centralised iteration on the pooled rows, whoever holds them."""

import itertools

import numpy as np
import pytest

from fedmvc_server.cardio import gaussian_views
from tests.federation.harness import (
    centralised,
    federate,
    plan_of,
    pooled_labels,
    split,
    workers_of,
)
from tests.solvers.cases import KERNELS, SCALINGS

VIEWS, TRUTH = gaussian_views(160, 1, n_clusters=4, dims=(2, 3, 1), separation=4.0)
PLAIN = {"init": "box", "acceleration": "none", "n_init": 1}

# Every kernel with every scaling, every partition with a few and with more sites.
FEDERATIONS = [
    ("missing", 8),
    ("missing", 2),
    ("dirichlet", 2),
    ("iid", 2),
    ("missing", 5),
    ("dirichlet", 5),
    ("iid", 5),
    ("dirichlet", 8),
    ("iid", 1),
]
COMBINATIONS = itertools.product(KERNELS, SCALINGS)
CASES = [(*pair, *held) for pair, held in zip(COMBINATIONS, FEDERATIONS, strict=True)]


def assert_equal_to_centralised(result, expected, tolerance=1e-10):
    assert result.status == "completed", result.stop_reason
    assert result.rounds == expected.rounds
    for a, b in zip(result.model.centers, expected.centers, strict=True):
        assert np.abs(a - b).max() <= tolerance
    assert np.abs(result.model.view_weights - expected.view_weights).max() <= tolerance
    np.testing.assert_allclose(
        [record["objective"] for record in result.history], expected.objectives, rtol=tolerance
    )


def pooled_membership(result, rows):
    size = sum(r.size for r in rows.values())
    out = np.empty((size, result.model.n_clusters))
    for name, index in rows.items():
        out[index] = result.site_results[name].membership
    return out


@pytest.mark.parametrize(("kernel", "scaling", "kind", "n_sites"), CASES)
def test_exact_is_centralised(kernel, scaling, kind, n_sites):
    plan = plan_of(4, heat_kernel=kernel, scaling=scaling, bandwidth="auto", max_rounds=40, **PLAIN)
    sites, rows = split(VIEWS, TRUTH, kind, n_sites)
    result = federate(plan, workers_of(sites))
    expected = centralised(VIEWS, plan)
    assert_equal_to_centralised(result, expected)
    assert np.abs(pooled_membership(result, rows) - expected.membership).max() <= 1e-10


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_view_missing_at_one_site(kernel):
    plan = plan_of(4, heat_kernel=kernel, scaling="standard", max_rounds=40, **PLAIN)
    sites, rows = split(VIEWS, TRUTH, "iid", 3)
    pooled = [v.copy() for v in VIEWS]
    pooled[1][rows["site-01"]] = np.nan
    sites["site-01"]["views"][1] = None
    assert_equal_to_centralised(federate(plan, workers_of(sites)), centralised(pooled, plan))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ["iid", "missing"])
def test_missing_cells_and_missing_views_of_single_records(kernel, kind):
    """A hole at one site alone makes every site send its mass column by column."""
    plan = plan_of(4, heat_kernel=kernel, scaling="minmax", max_rounds=40, **PLAIN)
    rng = np.random.default_rng(0)
    pooled = [v.copy() for v in VIEWS]
    pooled[0][rng.random(pooled[0].shape) < 0.1] = np.nan
    pooled[1][rng.random(len(TRUTH)) < 0.2] = np.nan
    sites, _ = split(pooled, TRUTH, kind, 4)
    assert_equal_to_centralised(federate(plan, workers_of(sites)), centralised(pooled, plan))


def test_far_from_zero_and_in_other_units():
    """Pooled moments lose no digits where values are a million away from 0."""
    plan = plan_of(4, heat_kernel="one", scaling="none", bandwidth="auto", max_rounds=40, **PLAIN)
    sites, _ = split(VIEWS, TRUTH, "dirichlet", 3)
    near = federate(plan, workers_of(sites)).model
    moved = {
        name: {"views": [site["views"][0] + 1e6, *site["views"][1:]]}
        for name, site in sites.items()
    }
    far = federate(plan, workers_of(moved)).model
    # 1e6 + x keeps ten digits of x
    assert np.abs(far.centers[0] - 1e6 - near.centers[0]).max() < 1e-8
    assert np.abs(far.view_weights - near.view_weights).max() < 1e-8


@pytest.mark.parametrize("profile", ["paper", "robust"])
def test_accelerated_federation_labels_as_the_pooled_run(profile):
    """With Anderson steps: the same labels, and centres within 1e-7."""
    plan = plan_of(4, profile=profile, init="box", max_rounds=200)
    sites, rows = split(VIEWS, TRUTH, "missing", 4)
    federated = federate(plan, workers_of(sites))
    pooled = federate(plan, workers_of({"all": {"views": VIEWS}}))
    assert np.array_equal(pooled_labels(federated, rows), pooled.site_results["all"].labels)
    for a, b in zip(federated.model.centers, pooled.model.centers, strict=True):
        assert np.abs(a - b).max() <= 1e-7


def test_splitting_one_site_in_two_changes_nothing():
    plan = plan_of(4, heat_kernel="minmax", init="box", acceleration="none", n_init=3)
    sites, _ = split(VIEWS, TRUTH, "dirichlet", 3)
    whole = federate(plan, workers_of(sites))
    views = sites.pop("site-01")["views"]
    sites["site-01a"] = {"views": [v[:7] for v in views]}
    sites["site-01b"] = {"views": [v[7:] for v in views]}
    halves = federate(plan, workers_of(sites))
    assert halves.rounds == whole.rounds
    for a, b in zip(halves.model.centers, whole.model.centers, strict=True):
        assert np.abs(a - b).max() <= 1e-10


def test_renaming_sites_changes_nothing():
    """Another name order sums in another order: equal to rounding."""
    plan = plan_of(4, init="box", acceleration="none", n_init=1)
    sites, _ = split(VIEWS, TRUTH, "missing", 3)
    first = federate(plan, workers_of(sites)).model
    renamed = dict(zip(["c", "a", "b"], sites.values(), strict=True))
    second = federate(plan, workers_of(renamed)).model
    for a, b in zip(first.centers, second.centers, strict=True):
        assert np.abs(a - b).max() <= 1e-10


def test_one_averaging_iteration_is_not_centralised_where_sites_miss_clusters():
    """Negative: a site without a cluster still owns its centre and drags it along."""
    plan = plan_of(4, heat_kernel="one", max_rounds=40, **PLAIN)
    averaging = plan_of(
        4, heat_kernel="one", max_rounds=40, aggregation="weighted", local_iterations=1, **PLAIN
    )
    sites, _ = split(VIEWS, TRUTH, "missing", 4)
    exact = federate(plan, workers_of(sites)).model
    averaged = federate(averaging, workers_of(sites)).model
    gaps = [np.abs(a - b).max() for a, b in zip(exact.centers, averaged.centers, strict=True)]
    assert max(gaps) > 1.0


def test_one_averaging_iteration_of_one_site_is_centralised():
    """The same rule with one site alone: averaging is not at fault, missing clusters are."""
    options = {"heat_kernel": "one", "max_rounds": 40, **PLAIN}
    averaging = plan_of(4, aggregation="weighted", local_iterations=1, **options)
    one_site = workers_of({"all": {"views": VIEWS}})
    averaged = federate(averaging, one_site).model
    expected = centralised(VIEWS, plan_of(4, **options))
    for a, b in zip(averaged.centers, expected.centers, strict=True):
        assert np.abs(a - b).max() < 1e-3


# -- codings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "tolerance"), [("float32", 1e-5), ("int16", 1e-6), ("int8", 1e-4)]
)
def test_coded_uploads_end_close_to_the_exact_model(encoding, tolerance):
    options = {"heat_kernel": "one", "scaling": "minmax", "tol": 1e-9, "max_rounds": 100, **PLAIN}
    sites, _ = split(VIEWS, TRUTH, "missing", 3)
    exact = federate(plan_of(4, **options), workers_of(sites))
    coded = federate(plan_of(4, encoding=encoding, **options), workers_of(sites))
    assert coded.status == "completed", coded.stop_reason
    for a, b, sc in zip(coded.model.centers, exact.model.centers, exact.model.scaling, strict=True):
        assert (np.abs(a - b) / sc.scale).max() < tolerance
    per_round = [r.history[-1]["bytes_up"] for r in (coded, exact)]
    assert per_round[0] < per_round[1]
