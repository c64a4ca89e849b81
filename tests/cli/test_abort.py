import uuid

import pytest

from configs.plan import RunPlan
from configs.site import SiteConfig
from fedmvc_client.cli import app as client
from fedmvc_client.safe import FolderSafe
from fedmvc_client.worker import folder_worker
from strategies import messages as m
from strategies.messages import from_bytes, to_bytes
from tests.cli.commands import call

PLAN = RunPlan.parse(
    {
        "method": "fedhk-mvfc",
        "n_clusters": 2,
        "max_rounds": 4,
        "fedhk": {"heat_kernel": "one"},
        "privacy": {
            "secure_aggregation": True,
            "participants": ["st-anna", "charite-nord", "riverside"],
            "mechanism": "gaussian",
            "epsilon": 1.0,
        },
    }
)


@pytest.fixture
def site(sites):
    return sites / "st-anna"


def ask(worker, request):
    return from_bytes(worker.handle(to_bytes(request)))


def begun(site):
    """Let a run begin at a site: keys are made and the budget is reserved."""
    run_id, worker = str(uuid.uuid4()), folder_worker(site)
    ids = (run_id, PLAN.plan_id)
    assert isinstance(ask(worker, m.HelloRequest(*ids, PLAN.canonical())), m.HelloReply)
    assert isinstance(ask(worker, m.KeysRequest(*ids, 1)), m.KeysReply)
    return run_id, worker


def test_a_run_that_is_ended_here_answers_nothing_more_and_is_paid_in_full(site):
    run_id, worker = begun(site)
    safe = FolderSafe(site, SiteConfig.load(site))
    reserved = safe.ledger.status().reserved

    ended = call(client, "abort", run_id[:8], "--site", site)

    assert (ended.code, run_id in ended.out) == (0, True)
    assert not (site / "state" / "runs" / run_id).exists()
    status = FolderSafe(site, SiteConfig.load(site)).ledger.status()
    assert status.spent == pytest.approx(reserved)
    assert status.reserved == 0
    ids = (run_id, PLAN.plan_id)
    for again in (worker, folder_worker(site)):
        for request in (m.KeysRequest(*ids, 1), m.HelloRequest(*ids, PLAN.canonical())):
            assert isinstance(ask(again, request), m.Refusal)
    assert call(client, "budget", "verify", "--site", site).code == 0
    assert call(client, "log", "verify", "--site", site).code == 0


def test_an_unknown_run_is_refused_in_one_sentence(site):
    ended = call(client, "abort", "12345678", "--site", site)
    assert ended.code == 2
    assert "0 of the 0 running runs of site 'st-anna' begin with '12345678'" in ended.sentence


def test_two_runs_that_begin_alike_are_told_apart(site):
    begun(site)
    begun(site)
    ended = call(client, "abort", "", "--site", site)
    assert ended.code == 2
    assert "2 of the 2 running runs" in ended.sentence
