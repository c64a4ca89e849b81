"""Six sites on Ray's two actors leave what they leave in one process."""

import numpy as np
import pytest

from fedmvc_server.cardio import cardio_views
from fedmvc_server.partitions import partition
from fedmvc_server.simulation import simulate

pytestmark = pytest.mark.slow


def test_six_sites_on_two_actors_equal_the_in_process_run():
    views, labels = cardio_views(900, 0)
    rows = partition("dirichlet", labels, 6, alpha=0.3, seed=0)
    sites = {f"site-{i}": {"views": [v[r] for v in views]} for i, r in enumerate(rows)}
    plan = {
        "method": "fedhk-mvfc",
        "profile": "paper",
        "n_clusters": 4,
        "fedhk": {"gamma": 0.5, "rho": 0.5},
    }

    by_ray = simulate(plan, sites, backend="ray")

    expected = simulate(plan, sites)
    assert by_ray.status == expected.status == "completed", by_ray.stop_reason
    assert by_ray.model.sha256() == expected.model.sha256()
    assert by_ray.rounds == expected.rounds
    assert sorted(by_ray.site_results) == sorted(sites)
    for name, kept in expected.site_results.items():
        found = by_ray.site_results[name]
        np.testing.assert_array_equal(found.labels, kept.labels)
        np.testing.assert_array_equal(found.membership, kept.membership)
        for one, other in zip(
            found.personal_model.centers, kept.personal_model.centers, strict=True
        ):
            np.testing.assert_array_equal(one, other)
