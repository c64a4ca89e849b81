"""The paper's synthetic set: everything right where sites are alike, averaging wrong where not."""

import numpy as np
import pytest

from fedmvc_client.estimators import HKMVFC
from fedmvc_server.cardio import cardio_views
from tests.federation.harness import accuracy, federate, plan_of, pooled_labels, split, workers_of

PAPER = {"profile": "paper"}  # min-max heat kernel, alpha 5


@pytest.mark.parametrize(("n", "seed"), [(800, 0), (800, 1), (800, 2), (10_000, 0), (10_000, 1)])
def test_accuracy_is_1_federated_and_centralised(n, seed):
    views, truth = cardio_views(n, seed)
    sites, rows = split(views, truth, "paper", 2)
    assert [index.size for index in rows.values()] == [0.85 * n, 0.15 * n]
    federated = federate(plan_of(4, **PAPER), workers_of(sites))
    centralised = HKMVFC(4, profile="paper", device="cpu").fit(views)
    assert accuracy(truth, pooled_labels(federated, rows)) == 1.0
    assert accuracy(truth, centralised.labels_) == 1.0
    assert federated.model.view_weights == pytest.approx([0.539, 0.461], abs=0.01)
    assert federated.warnings == centralised.warnings_ == []


@pytest.mark.parametrize("seed", [0, 1])
def test_sites_that_miss_clusters_keep_everything_under_exact_and_not_under_averaging(seed):
    """Five sites with two of four clusters each, five local iterations."""
    views, truth = cardio_views(1000, seed)
    sites, rows = split(views, truth, "missing", 5)
    assert all(np.unique(truth[index]).size == 2 for index in rows.values())
    found = {}
    for aggregation in ("exact", "weighted"):
        plan = plan_of(4, aggregation=aggregation, local_iterations=5, **PAPER)
        found[aggregation] = accuracy(truth, pooled_labels(federate(plan, workers_of(sites)), rows))
    print(f"accuracy kept with missing clusters: {found}")
    assert found["exact"] == 1.0
    assert found["weighted"] < 0.9


@pytest.mark.parametrize("aggregation", ["weighted", "fedavg", "median", "quality", "nmi_softmax"])
def test_sites_that_are_alike_keep_everything_under_every_aggregation(aggregation):
    views, truth = cardio_views(800, 0)
    sites, rows = split(views, truth, "paper", 2)
    result = federate(plan_of(4, aggregation=aggregation, **PAPER), workers_of(sites))
    assert accuracy(truth, pooled_labels(result, rows)) == 1.0
    assert sum(result.history[-1]["site_weights"].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("init", ["kmeans", "box", "spread"])
def test_every_initialisation_finds_the_phenotypes(init):
    views, truth = cardio_views(800, 0)
    sites, rows = split(views, truth, "missing", 4)
    plan = plan_of(4, init=init, n_init=10, **PAPER)
    assert accuracy(truth, pooled_labels(federate(plan, workers_of(sites)), rows)) == 1.0


def test_exact_mode_finds_clusters_that_only_a_site_with_fewer_views_holds():
    """The sites that hold every view see three phenotypes; the fourth is at the other site."""
    views, truth = cardio_views(800, 0)
    fourth = truth == 3
    sites = {
        "a": {"views": [v[~fourth] for v in views]},
        "b": {"views": [views[0][fourth], None]},
    }
    result = federate(plan_of(4, n_init=10, **PAPER), workers_of(sites))
    labels = np.concatenate([result.site_results[n].labels for n in ("a", "b")])
    order = np.concatenate([truth[~fourth], truth[fourth]])
    assert accuracy(order, labels) > 0.97
