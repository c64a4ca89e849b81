"""Sites on Ray's two actors leave what they leave in one process, whatever the method."""

from unittest import mock

import numpy as np
import pytest

from fedmvc_client.app import app
from fedmvc_server import simulation
from fedmvc_server.cardio import cardio_views
from fedmvc_server.partitions import partition
from fedmvc_server.ray_backend import run_in_ray
from fedmvc_server.simulation import simulate
from tests.federation.mufsht_harness import hospitals, selection_plan
from tests.federation.tensor_harness import lone, tables, vertical_plan

pytestmark = pytest.mark.slow


def clustering():
    views, labels = cardio_views(450, 0)
    rows = partition("dirichlet", labels, 3, alpha=0.3, seed=0)
    sites = {f"site-{i}": {"views": [v[r] for v in views]} for i, r in enumerate(rows)}
    options = {"gamma": 0.5, "rho": 0.5}
    plan = {"method": "fedhk-mvfc", "profile": "paper", "n_clusters": 4, "fedhk": options}
    return plan, sites


def vertical():
    """Return three sites, one of them with a sparse view."""
    views, _ = tables(sparse=True)
    return vertical_plan(3, max_rounds=4, quorum={"timeout_s": 120.0}), lone(views)


def selection():
    sites, _ = hospitals()
    return selection_plan(quorum={"timeout_s": 120.0}), sites


RUNS = {make.__name__: make() for make in (clustering, vertical, selection)}


@pytest.fixture(scope="module")
def pairs():
    """Return each run by Ray and in this process; the runs by Ray share its start, in turn."""
    by_ray = {}

    def server_main(grid, context):
        def already_in_ray(main, client_app, n_sites):
            assert client_app is app
            main(grid, context)

        with mock.patch.object(simulation, "run_in_ray", already_in_ray):
            for name, (plan, sites) in RUNS.items():
                by_ray[name] = simulate(plan, sites, backend="ray")

    run_in_ray(server_main, app, 3)
    return {name: (by_ray[name], simulate(*run)) for name, run in RUNS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_the_run_is_the_same(pairs, name):
    by_ray, expected = pairs[name]
    assert by_ray.status == expected.status == "completed", by_ray.stop_reason
    assert [r["objective"] for r in by_ray.history] == [r["objective"] for r in expected.history]
    assert by_ray.metrics == expected.metrics
    assert sorted(by_ray.site_results) == sorted(expected.site_results) == sorted(RUNS[name][1])
    for site, kept in expected.site_results.items():
        np.testing.assert_array_equal(by_ray.site_results[site].labels, kept.labels)


def test_models_and_memberships_are_the_same(pairs):
    by_ray, expected = pairs["clustering"]
    assert by_ray.model.sha256() == expected.model.sha256()
    for name, kept in expected.site_results.items():
        found = by_ray.site_results[name]
        np.testing.assert_array_equal(found.membership, kept.membership)
        for one, other in zip(
            found.personal_model.centers, kept.personal_model.centers, strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_votes_and_labels_of_the_own_view_are_the_same(pairs):
    by_ray, expected = pairs["vertical"]
    assert by_ray.model is None
    for name, kept in expected.site_results.items():
        found = by_ray.site_results[name]
        np.testing.assert_array_equal(found.vote_labels, kept.vote_labels)
        np.testing.assert_array_equal(found.view_labels, kept.view_labels)


def test_selections_are_the_same(pairs):
    by_ray, expected = pairs["selection"]
    np.testing.assert_array_equal(by_ray.selection.ranking, expected.selection.ranking)
    for name, kept in expected.site_results.items():
        assert by_ray.site_results[name].selection.selected() == kept.selection.selected()
