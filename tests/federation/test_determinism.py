"""The model's bits depend on plan, seed and data alone."""

import numpy as np
import pytest
import torch

from configs.site import Device
from fedmvc_server.cardio import gaussian_views
from fedmvc_server.local_grid import LocalGrid
from tests.federation.harness import federate, plan_of, split, workers_of

# Sites of more than one chunk (4096 records), so that threads have something to share.
VIEWS, TRUTH = gaussian_views(12_000, 4, n_clusters=3, dims=(2, 3))
SITES, _ = split(VIEWS, TRUTH, "paper", 3)
SMALL = {name: {"views": [v[:300] for v in site["views"]]} for name, site in SITES.items()}


class Shuffled(LocalGrid):
    """Gives replies in another order each time."""

    rng = np.random.default_rng(0)
    orders = 0

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        order = self.rng.permutation(len(replies))
        Shuffled.orders += bool((np.diff(order) < 0).any())
        return [replies[i] for i in order]


def run(sites, plan, dtype="float64", grid_class=LocalGrid):
    device = Device(device="cpu", dtype=dtype)
    workers = workers_of(sites, devices=dict.fromkeys(sites, device))
    result = federate(plan, workers, grid_class=grid_class)
    assert result.status == "completed", result.stop_reason
    return result


@pytest.fixture
def threads():
    """Set torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


PLANS = {
    "exact": plan_of(3, max_rounds=26),  # the default: robust, long enough to anneal
    "exact paper": plan_of(3, profile="paper", max_rounds=8),
    "exact int8": plan_of(3, encoding="int8", max_rounds=8),
    "weighted": plan_of(3, aggregation="weighted", max_rounds=4),
    "median": plan_of(3, aggregation="median", gamma=0.5, max_rounds=4),
    "nmi": plan_of(3, aggregation="nmi_softmax", max_rounds=3),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float64") for name in PLANS), ("exact paper", "float32"), ("median", "float32")],
)
def test_the_order_of_replies_does_not_change_a_bit(name, dtype):
    plain = run(SMALL, PLANS[name], dtype)
    Shuffled.orders = 0
    shuffled = run(SMALL, PLANS[name], dtype, Shuffled)
    assert Shuffled.orders > 2
    assert shuffled.model.sha256() == plain.model.sha256()
    objectives = [[r["objective"] for r in one.history] for one in (shuffled, plain)]
    assert np.array_equal(*objectives, equal_nan=True)


def test_the_default_plan_anneals_here():
    history = run(SMALL, PLANS["exact"]).history
    assert np.isnan(history[0]["objective"])
    assert np.isfinite(history[-1]["objective"])


@pytest.mark.parametrize("name", ["exact", "exact paper", "weighted"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_number_of_threads_does_not_change_a_bit(threads, name, dtype):
    hashes = set()
    for number in (1, 2):
        threads(number)
        hashes.add(run(SITES, PLANS[name], dtype).model.sha256())
    assert len(hashes) == 1


def test_a_second_run_gives_the_same_bits_and_another_seed_does_not():
    plan = PLANS["exact paper"]
    first, second = run(SMALL, plan), run(SMALL, plan)
    assert first.model.sha256() == second.model.sha256()
    assert first.run_id != second.run_id
    for name in SMALL:
        assert np.array_equal(first.site_results[name].labels, second.site_results[name].labels)
    box = [plan_of(3, profile="paper", max_rounds=8, init="box", seed=s) for s in (0, 1)]
    assert run(SMALL, box[0]).model.sha256() != run(SMALL, box[1]).model.sha256()


def test_float32_is_another_model_and_close_to_float64():
    double, single = (run(SMALL, PLANS["exact paper"], dtype) for dtype in ("float64", "float32"))
    assert double.model.sha256() != single.model.sha256()
    for a, b in zip(double.model.centers, single.model.centers, strict=True):
        assert 0 < np.abs(a - b).max() < 1e-3
