"""A server that asks for more than the approved plan gets a refusal, one sentence each."""

import dataclasses

import numpy as np
import pytest

from configs.site import Policy
from fedmvc_server.cardio import cardio_views
from strategies import messages as m
from strategies.messages import Refusal, from_bytes, to_bytes
from tests.federation.harness import federate, plan_of, split, workers_of

ROUNDS = 6


def plan(n_clusters=4, **options):
    return plan_of(n_clusters, profile="paper", max_rounds=ROUNDS, tol=0.0, **options)


class Site:
    """One site that answered an honest run; its requests, and a way to ask them anew."""

    def __init__(self, agreed, n=120):
        views, labels = cardio_views(n, 0)
        self.sites, _ = split(views, labels, "iid", 2)
        self.requests = []

        def tap(worker, body):
            self.requests.append(from_bytes(body))
            return worker.handle(body)

        result = federate(agreed, workers_of(self.sites), change={"site-00": tap})
        assert result.status == "completed", result.stop_reason
        self.worker = workers_of(self.sites)["site-00"]

    def of(self, kind, number=0):
        return [r for r in self.requests if isinstance(r, kind)][number]

    def ask(self, request):
        return from_bytes(self.worker.handle(to_bytes(request)))

    def set_up(self, *kinds):
        for kind in kinds:
            assert not isinstance(self.ask(self.of(kind)), Refusal)

    def refused(self, request):
        reply = self.ask(request)
        assert isinstance(reply, Refusal), type(reply).__name__
        assert reply.code == 8, reply.message
        return reply.message


@pytest.fixture(scope="module")
def honest():
    return Site(plan())


@pytest.fixture
def site(honest):
    """Give a worker that knows no run yet."""
    honest.worker = workers_of(honest.sites)["site-00"]
    return honest


def no_array(n):
    return tuple(np.zeros(3) for _ in range(n))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_clusters": 10**9}, "asks for 1000000000 clusters, the plan gives site 'site-00' 4"),
        ({"n_clusters": 3}, "asks for 3 clusters"),
        ({"n_starts": 2000}, "asks for 2000 starts, under the plan a site proposes 5"),
        ({"n_starts": 0}, "asks for 0 starts"),
        ({"seed": 1}, "asks for seed 1, the plan has 0"),
        ({"scaling": ()}, "another number of views"),
        ({"mean": no_array(2)}, "the arrays of seed do not fit 2 views"),
        ({"view_spread": np.ones(3)}, "the arrays of seed do not fit 2 views"),
        ({"holding_share": np.ones((2, 1))}, "the arrays of seed do not fit 2 views"),
        ({"cell_mass": (True,)}, "the arrays of seed do not fit 2 views"),
        ({"holding_share": np.array([1.0, 0.0])}, "above 0 and at most 1"),
    ],
)
def test_a_seed_request_outside_the_plan_is_refused(site, changes, words):
    site.set_up(m.HelloRequest, m.PrepareRequest)
    request = site.of(m.SeedRequest)
    assert words in site.refused(dataclasses.replace(request, **changes))
    assert isinstance(site.ask(request), m.SeedReply)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("scale", np.zeros(2), "not above 0"),
        ("scale", np.ones(3), "does not fit its 2 columns"),
        ("delta_b", np.array([1.0, -1.0]), "not above 0"),
    ],
)
def test_a_scaling_that_is_none_is_refused(site, part, value, words):
    site.set_up(m.HelloRequest, m.PrepareRequest)
    request = site.of(m.SeedRequest)
    first, second = request.scaling
    scaling = (first, dataclasses.replace(second, **{part: value}))
    assert words in site.refused(dataclasses.replace(request, scaling=scaling))


@pytest.mark.parametrize("init", ["box", "spread"])
def test_a_plan_without_seeds_from_records_gives_none(init):
    site = Site(plan(init=init))
    site.set_up(m.HelloRequest, m.PrepareRequest)
    request = site.of(m.SeedRequest)
    sentence = site.refused(dataclasses.replace(request, n_starts=1))
    assert "asks for 1 starts, under the plan a site proposes 0" in sentence
    assert site.ask(request).centers[0].size == 0


def test_a_site_of_fewer_clusters_proposes_that_many():
    site = Site(plan(init="box", aggregation="weighted", local_clusters={"site-00": 3}))
    site.set_up(m.HelloRequest, m.PrepareRequest)
    request = site.of(m.SeedRequest)
    sentence = site.refused(dataclasses.replace(request, n_clusters=4))
    assert "asks for 4 clusters, the plan gives site 'site-00' 3" in sentence
    assert site.ask(request).centers[0].shape == (5, 3, 2)
    round_ = site.of(m.RoundRequest)
    rows = np.zeros((5, 2), dtype=np.int64)
    assert "3 clusters" in site.refused(dataclasses.replace(round_, rows=rows))
    assert isinstance(site.ask(round_), m.LocalModelReply)


def points(n_starts, n_clusters):
    """Return fields of a round about other points than the plan's."""
    return {
        "starts": np.arange(n_starts),
        "centers": tuple(np.zeros((n_starts, n_clusters, 2)) for _ in range(2)),
        "view_weights": np.full((n_starts, 2), 0.5),
        "bandwidth": np.ones((n_starts, 2)),
        "rows": np.zeros((n_starts, 0), dtype=np.int64),
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (points(1, 1), "shape (1, 1, 2)"),
        (points(1, 10_000), "shape (1, 10000, 2)"),
        (points(11, 4), "asks about 11 starts, the plan has 5"),
        (points(0, 4), "asks about 0 starts"),
        ({"starts": np.array([0, 1, 2, 3, 3])}, "not distinct numbers from 0 to 4"),
        ({"starts": np.array([0, 1, 2, 3, 5])}, "not distinct numbers from 0 to 4"),
        ({"starts": np.array([-1, 1, 2, 3, 4])}, "not distinct numbers from 0 to 4"),
        ({"starts": np.zeros((5, 1), dtype=np.int64)}, "starts"),
        ({"round": 0}, "round 0 is not one of the plan's rounds 1 to 6"),
        ({"round": ROUNDS + 1}, "round 7 is not one of"),
        ({"round": 10**6}, "round 1000000 is not one of"),
        ({"centers": ()}, "centres of 0 views, the run has 2"),
        ({"view_weights": np.ones((5, 3))}, "view weights are not (5, 2)"),
        ({"view_weights": np.full((5, 2), -0.5)}, "view weights are not (5, 2)"),
        ({"bandwidth": np.zeros((5, 2))}, "finite numbers above 0"),
        ({"bandwidth": np.ones(2)}, "finite numbers above 0"),
        ({"rows": np.zeros((2, 4), dtype=np.int64)}, "rows do not fit 5 starts"),
        ({"rows": np.zeros((5, 3), dtype=np.int64)}, "rows do not fit 5 starts"),
    ],
)
def test_a_round_outside_the_plan_is_refused(site, changes, words):
    site.set_up(m.HelloRequest, m.PrepareRequest, m.SeedRequest)
    request = site.of(m.RoundRequest)
    assert words in site.refused(dataclasses.replace(request, **changes))
    assert isinstance(site.ask(request), m.StatisticsReply)


def test_rounds_never_go_back(site):
    site.set_up(m.HelloRequest, m.PrepareRequest, m.SeedRequest)
    first, third = site.of(m.RoundRequest), site.of(m.RoundRequest, 2)
    assert isinstance(site.ask(third), m.StatisticsReply)
    assert "round 1 came after round 3" in site.refused(first)
    assert isinstance(site.ask(third), m.StatisticsReply)  # a lost reply may be asked for again


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan_id": "0" * 64}, "belongs to plan 000000000000"),
        ({"views": ("view_1", "view_0")}, "views that are not the run's 2"),
        ({"views": ("view_0",)}, "1 views that are not the run's 2"),
        ({"heat_kernel": "one"}, "not the plan's 'minmax'"),
        ({"scaling_kind": "standard"}, "not the plan's 'minmax' and 'minmax'"),
        ({"fuzzifier": 1.0001}, "not the plan's 2 and 5"),
        ({"view_exponent": 1.5}, "not the plan's 2 and 5"),
        ({"centers": tuple(np.zeros((1, 2)) for _ in range(2))}, "do not fit 4 clusters"),
        ({"centers": (np.zeros((4, 2)),)}, "do not fit 4 clusters"),
        ({"columns": (("x",), ("y",))}, "columns do not fit"),
        ({"scaling": ()}, "columns do not fit"),
        ({"bounds": ()}, "bounds do not fit"),
        ({"view_weights": np.ones(1)}, "view weights are not 2 numbers"),
        ({"bandwidth": np.array([1.0, 0.0])}, "finite numbers above 0"),
        ({"holding_share": np.ones(1)}, "share of records"),
        ({"holding_share": np.array([1.0, 2.0])}, "above 0 and at most 1"),
    ],
)
def test_a_final_model_of_another_plan_is_refused(site, changes, words):
    site.set_up(m.HelloRequest, m.PrepareRequest, m.SeedRequest)
    request = site.of(m.FinishRequest)
    model = dataclasses.replace(request.model, **changes)
    assert words in site.refused(dataclasses.replace(request, model=model))
    assert site.worker.result(request.run_id) is None
    assert isinstance(site.ask(request), m.FinishReply)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"views": (), "n_columns": np.zeros(0, dtype=np.int64)}, "0 views"),
        ({"views": ("view_0", "view_0")}, "each once"),
        ({"n_columns": np.array([2])}, "2 views with 1 column counts"),
        ({"views": ("view_0", "other"), "n_columns": np.array([2, 10**12])}, "1000000"),
        ({"views": ("view_0", "other"), "n_columns": np.array([2, 0])}, "between 1 and"),
    ],
)
def test_a_prepare_that_fits_no_views_is_refused(site, changes, words):
    site.set_up(m.HelloRequest)
    request = site.of(m.PrepareRequest)
    assert words in site.refused(dataclasses.replace(request, **changes))


# -- small cells -----------------------------------------------------------------------------


def careful(sites, min_cell, **changes):
    """Return workers whose policy withholds small cells."""
    workers = workers_of(sites, **changes)
    for worker in workers.values():
        worker.source.policy = Policy(approval="auto", min_cohort=1, min_cell=min_cell)
    return workers


def seeds_of(agreed, workers):
    """Run a plan; return what `site-00` was asked and sent for its seeds, and the result."""
    seen = []

    def tap(worker, body):
        reply = worker.handle(body)
        if isinstance(from_bytes(body), m.SeedRequest):
            seen.append((from_bytes(body), from_bytes(reply)))
        return reply

    result = federate(agreed, workers, change={"site-00": tap})
    return *seen[0], result


def test_no_centre_of_fewer_records_than_min_cell_is_proposed():
    views, labels = cardio_views(400, 0)
    sites, _ = split(views, labels, "iid", 2)
    _, free, _ = seeds_of(plan(30), careful(sites, 1))
    request, kept, result = seeds_of(plan(30), careful(sites, 10))

    small = free.counts < 10
    assert (free.counts == 1).any()  # single patients, were they sent
    assert 0 < small.sum() < small.size
    assert np.array_equal(kept.counts, np.where(small, 0.0, free.counts))
    for before, after, mean in zip(free.centers, kept.centers, request.mean, strict=True):
        assert np.array_equal(after[~small], before[~small])
        assert np.array_equal(after[small], np.broadcast_to(mean, after[small].shape))
    assert result.status == "completed", result.stop_reason


def test_a_sample_is_counted_by_the_records_drawn(monkeypatch):
    """Of 400 records 100 are clustered: a centre of 3 of them would count as 12."""
    views, labels = cardio_views(800, 0)
    sites, _ = split(views, labels, "iid", 2)
    monkeypatch.setattr("fedmvc_client.participants.fedhk_mvfc._SEED_ROWS", 100)
    _, free, _ = seeds_of(plan(12), careful(sites, 1))
    _, kept, _ = seeds_of(plan(12), careful(sites, 10))
    assert ((free.counts >= 10) & (free.counts < 40)).any()
    assert np.array_equal(kept.counts, np.where(free.counts < 40, 0.0, free.counts))


def test_few_records_with_a_view_do_not_shine_through_a_large_cluster():
    """Ten records hold view 1, spread over four clusters: no centre is moved by fewer than ten."""
    views, labels = cardio_views(240, 0)
    sites, _ = split(views, labels, "iid", 2)
    sites["site-00"]["views"][1][10:] = np.nan
    request, free, _ = seeds_of(plan(), careful(sites, 1))
    _, kept, _ = seeds_of(plan(), careful(sites, 10))
    mean = request.mean[1]
    large = free.counts >= 10
    moved = ~np.isclose(free.centers[1], mean, rtol=0, atol=1e-12).all(axis=2)
    assert large[0].all()
    assert moved[0].sum() >= 2  # so none of these large clusters has all ten
    np.testing.assert_allclose(
        kept.centers[1], np.broadcast_to(mean, kept.centers[1].shape), rtol=0, atol=1e-12
    )
    assert np.array_equal(kept.centers[0][large], free.centers[0][large])


@pytest.mark.parametrize("n_holding", [0, 1, 9, 10])
def test_a_view_of_fewer_records_than_min_cell_is_refused(n_holding):
    views, labels = cardio_views(120, 0)
    sites, _ = split(views, labels, "iid", 2)
    sites["site-00"]["views"][1][n_holding:] = np.nan
    worker = careful(sites, 10)["site-00"]
    run_id, agreed = "0123abcd-0000", plan()
    worker.handle(to_bytes(m.HelloRequest(run_id, agreed.plan_id, agreed.canonical())))
    request = m.PrepareRequest(run_id, agreed.plan_id, ("view_0", "view_1"), np.array([2, 2]))
    reply = from_bytes(worker.handle(to_bytes(request)))
    if n_holding in (0, 10):
        assert reply.holding.tolist() == [60, n_holding]
    else:
        assert reply.code == 4
        assert (
            f"{n_holding} records that hold view 'view_1'; policy.min_cell is 10" in reply.message
        )
