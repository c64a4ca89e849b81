"""A vertical run on Ray's actors leaves what it leaves in one process."""

import numpy as np
import pytest

from fedmvc_server.simulation import simulate
from tests.federation.tensor_harness import lone, tables, vertical_plan

pytestmark = pytest.mark.slow


def test_three_sites_with_a_sparse_view_equal_the_in_process_run():
    views, _ = tables(sparse=True)
    plan = vertical_plan(3, max_rounds=4, quorum={"timeout_s": 120.0})

    by_ray = simulate(plan, lone(views), backend="ray")

    expected = simulate(plan, lone(views))
    assert by_ray.status == expected.status == "completed", by_ray.stop_reason
    assert [r["objective"] for r in by_ray.history] == [r["objective"] for r in expected.history]
    assert by_ray.metrics == expected.metrics
    assert by_ray.model is None
    assert sorted(by_ray.site_results) == sorted(views)
    for name, kept in expected.site_results.items():
        found = by_ray.site_results[name]
        np.testing.assert_array_equal(found.labels, kept.labels)
        np.testing.assert_array_equal(found.vote_labels, kept.vote_labels)
        np.testing.assert_array_equal(found.view_labels, kept.view_labels)
