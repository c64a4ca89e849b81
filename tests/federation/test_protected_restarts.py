"""Sites whose worker is killed and started anew in a protected run, and folders put back."""

import dataclasses
import os
import shutil
import threading
import time

import numpy as np
import pytest

from configs.errors import TransportError
from fedmvc_client.abandoned import IDLE_DAYS
from fedmvc_client.participants.protected import ProtectedParticipant
from fedmvc_client.socket_server import WorkerServer
from fedmvc_client.sources import FolderSource
from fedmvc_client.worker import SiteWorker, folder_worker
from privacy.ledger import Ledger
from privacy.vault import Vault
from strategies import messages as m
from strategies.messages import Refusal, from_bytes
from tests.federation.harness import federate
from tests.federation.protected_harness import (
    Recording,
    Restarting,
    ask,
    copied,
    events,
    folder_workers,
    is_round,
    noisy_plan,
    once,
    passing_time,
    protected_plan,
    site_folders,
    watched_sums,
)

NAMES = ["charite-nord", "riverside", "st-anna"]
SITE = "riverside"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write three site folders; no test writes here."""
    return site_folders(tmp_path_factory.mktemp("protected") / "sites")


@pytest.fixture
def data(pristine, tmp_path):
    return copied(pristine, tmp_path / "sites")


#: Keys for as many sums as the runs ask for.
FEW = {"spare_exchanges": 0}
PLANS = {
    "masked": protected_plan(NAMES, bandwidth="auto", max_rounds=2, privacy=FEW),
    "masked noise": noisy_plan(NAMES, max_rounds=3, privacy=FEW),
    "noise": noisy_plan(max_rounds=3),
}


def centers(result):
    assert result.status == "completed", result.stop_reason
    return np.concatenate([c.ravel() for c in result.model.centers])


def spends(folder):
    """Return the ledger's account of the site's one run: releases paid and left."""
    ledger = folder_worker(folder).source.safe.ledger
    ledger.verify()
    with ledger._reading():
        (account,) = ledger._book.accounts.values()
    return account.paid, account.ended


# -- a worker that is started anew -----------------------------------------------------------


def at_every_step(request):
    """Say whether a request is one of those before which a worker is started anew."""
    steps = (m.KeysRequest, m.SharesRequest, m.CloseRequest)
    unmasks = isinstance(request, m.UnmaskRequest) and request.exchange == 2
    return isinstance(request, steps) or unmasks or is_round(request, 2)


@pytest.mark.parametrize("kind", PLANS)
def test_a_worker_restarted_at_every_step_gives_the_same_result(
    pristine, data, tmp_path, monkeypatch, kind
):
    plan = PLANS[kind]
    with watched_sums(monkeypatch):
        expected = federate(plan, folder_workers(copied(pristine, tmp_path / "other")))
    restarting = Restarting(data / SITE, at_every_step)
    with watched_sums(monkeypatch):
        result = federate(plan, folder_workers(data), change={SITE: restarting})
    np.testing.assert_array_equal(centers(result), centers(expected))
    assert restarting.restarts == (5 if plan.secure_terms() else 2)
    np.testing.assert_array_equal(
        folder_worker(data / SITE).result(result.run_id).labels,
        expected.site_results[SITE].labels,
    )
    assert not any((data / SITE / "state" / "runs").iterdir())
    if plan.privacy.mechanism == "gaussian":
        assert spends(data / SITE) == (3, "return")


#: What is killed right after it was done: between two things that a reply needs.
KILLED = {
    "the payment": (Ledger, "spend"),
    "the vector": (Vault, "forget"),
    "the kept reply": (Ledger, "answered"),
    "the audit line": (ProtectedParticipant, "_sent"),
}


class Killed(Exception):
    pass


def killed_after(data, monkeypatch, after, plan):
    """Run a plan; in round 2 a site dies after a step, is started anew and asked once more."""
    owner, name = KILLED[after]
    whole, armed, kills = getattr(owner, name), [], []

    def dying(*arguments, **options):
        done = whole(*arguments, **options)
        if armed:
            armed.clear()
            kills.append(name)
            raise Killed
        return done

    first = once(lambda request: is_round(request, 2))
    worker = []

    def change(original, body):
        current = worker[-1] if worker else original
        if first(from_bytes(body)):
            armed.append(True)
            with pytest.raises(Killed):
                current._answer(from_bytes(body), body)
            worker.append(folder_worker(data / SITE))
            if plan.secure_terms() is not None:  # asked again by the server itself
                raise TransportError("the worker of this site is not running")
            return worker[-1].handle(body)
        return current.handle(body)

    monkeypatch.setattr(owner, name, dying)
    with passing_time(monkeypatch), watched_sums(monkeypatch) as watched:
        result = federate(plan, folder_workers(data), change={SITE: change})
    assert kills == [name]
    assert result.status == "completed", result.stop_reason
    return result, watched


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        ("the payment", "masked noise"),
        ("the vector", "masked noise"),
        ("the kept reply", "masked noise"),
        ("the audit line", "masked noise"),
        ("the kept reply", "noise"),
        ("the audit line", "noise"),
    ],
)
def test_a_site_killed_on_its_way_to_a_reply_is_in_the_sum_and_pays_once(
    data, monkeypatch, after, kind
):
    result, _ = killed_after(data, monkeypatch, after, PLANS[kind])
    assert [len(row["sites"]) for row in result.history] == [3, 3, 3]
    assert spends(data / SITE) == (3, "return")
    sent = events(folder_worker(data / SITE), "release sent")
    assert {fact["exchange"] for fact in sent} == {1, 2, 3}
    assert len({(fact["exchange"], fact["reply"]) for fact in sent}) == 3


def test_without_masks_nobody_knows_what_left_and_the_payment_is_made_twice(data, monkeypatch):
    result, _ = killed_after(data, monkeypatch, "the payment", PLANS["noise"])
    assert [len(row["sites"]) for row in result.history] == [3, 3, 2]
    assert "reserved 3 releases" in result.dropped[SITE]
    assert spends(data / SITE)[0] == 3


# -- folders that were put back --------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "removed"),
    [
        (m.SharesRequest, True),
        (m.SumRequest, False),
        (m.UnmaskRequest, False),
    ],
)
def test_a_vault_put_back_from_a_copy_answers_nothing(data, tmp_path, kind, removed):
    """A copy from just before a request would let a server ask that site twice."""
    folder, copy = data / SITE, tmp_path / "copy"
    replies = []

    def change(worker, body):
        request = from_bytes(body)
        if not isinstance(request, kind) or replies:
            return worker.handle(body)
        (secure,) = folder.glob("state/runs/*/secure")
        copied(secure, copy)
        reply = worker.handle(body)
        shutil.rmtree(secure)
        if not removed:
            copied(copy, secure)
        replies.append(ask(folder_worker(folder), request))
        return reply

    federate(PLANS["masked"], folder_workers(data), change={SITE: change})
    (reply,) = replies
    assert (reply.code, "is older than its audit log" in reply.message) == (4, True)
    (noted,) = events(folder_worker(folder), "request refused")[:1]
    assert (noted["request"], noted["code"]) == (kind.__name__, 4)


def test_a_run_folder_put_back_after_the_end_is_of_no_use(data, tmp_path):
    folder, copy = data / SITE, tmp_path / "copy"
    recording = Recording()

    def change(worker, body):
        if isinstance(from_bytes(body), m.CloseRequest):
            copied(folder / "state" / "runs", copy)
        return recording(worker, body)

    federate(PLANS["masked"], folder_workers(data), change={SITE: change})
    (folder / "state" / "runs").rmdir()
    copied(copy, folder / "state" / "runs")
    worker = folder_worker(folder)
    for request in recording.of(m.SumRequest)[-1:] + recording.of(m.UnmaskRequest)[-1:]:
        reply = ask(worker, request)
        assert isinstance(reply, Refusal)
        assert "over here" in reply.message or "already has results" in reply.message


@pytest.mark.parametrize(
    ("book", "words"),
    [
        ("ledger.db", "privacy ledger of site 'riverside' was altered"),
        ("audit.jsonl", "breaks at"),
        ("register.db", "register of site 'riverside' was altered"),
    ],
)
def test_a_book_put_back_from_a_copy_renews_no_budget(data, tmp_path, book, words):
    plan, state = PLANS["noise"], data / SITE / "state"
    federate(plan, folder_workers(data))
    for path in state.glob(f"{book}*"):
        shutil.copy(path, tmp_path / path.name)
    federate(plan, folder_workers(data))
    for path in state.glob(f"{book}*"):
        path.unlink()
    for path in tmp_path.glob(f"{book}*"):
        shutil.copy(path, state / path.name)
    result = federate(plan, folder_workers(data))
    assert (result.exit_code, f"'{SITE}'" in result.stop_reason) == (4, True)
    assert words in result.stop_reason


def test_a_register_that_is_gone_lets_no_exact_sums_of_others_through(data):
    """No budget counts exact sums: the audit log alone knows of the run before."""
    federate(PLANS["masked"], folder_workers(data))
    for path in (data / SITE / "state").glob("register.db*"):
        path.unlink()
    plan = protected_plan([*NAMES, "another"], max_rounds=1)
    reply = ask(
        folder_worker(data / SITE), m.HelloRequest("0" * 32, plan.plan_id, plan.canonical())
    )
    assert (reply.code, "register of site 'riverside' was altered" in reply.message) == (4, True)


# -- one request a round ---------------------------------------------------------------------


def test_a_restarted_site_holds_to_the_one_request_of_an_exact_round(data, monkeypatch):
    """The same request may come again in a later exchange; other centres may not."""
    folder, replies, asked = data / SITE, [], []

    def change(worker, body):
        request = from_bytes(body)
        if not isinstance(request, m.SumRequest):
            return worker.handle(body)
        if not is_round(request, 2) or replies:
            asked.append(request)
            return worker.handle(body)
        again = dataclasses.replace(
            asked[-1], exchange=request.exchange, previous=request.previous,
            senders=(), envelopes=(),
        )  # fmt: skip
        moved = from_bytes(again.bodies[-1].tobytes())
        moved = dataclasses.replace(moved, centers=tuple(view * 0.99 for view in moved.centers))
        other = dataclasses.replace(
            again, bodies=(*again.bodies[:-1], m.as_array(m.to_bytes(moved)))
        )
        for lie_or_not in (other, again):
            replies.append(ask(folder_worker(folder), lie_or_not))
        return m.to_bytes(replies[-1])

    with passing_time(monkeypatch):
        federate(PLANS["masked"], folder_workers(data), change={SITE: change})
    refusal, reply = replies
    assert (refusal.code, "another RoundRequest of round 1" in refusal.message) == (8, True)
    assert isinstance(reply, m.SumReply)
    noted = [fact["sentence"] for fact in events(folder_worker(folder), "request refused")]
    assert refusal.message in noted


# -- runs without an end ---------------------------------------------------------------------


def serve_idly(worker, path):
    """Serve a worker that nobody asks anything until nothing is left of its runs."""
    server = WorkerServer(worker, path, tidy_every=0.05)
    thread = threading.Thread(target=server.serve)
    thread.start()
    deadline = time.monotonic() + 20
    while events(worker)[-1] != "run given up" and time.monotonic() < deadline:
        time.sleep(0.02)
    server.stop()
    thread.join(20)


def left_alone(data, plan, days):
    """Stop a run for good before round 2, and let days pass; return its id and later requests."""
    folder, recording = data / SITE, Recording()

    def change(worker, body):
        request = from_bytes(body)
        if is_round(request, 2) or isinstance(request, m.CloseRequest):
            recording.requests.append(request)
            raise TransportError("the worker of this site is not running")
        return recording(worker, body)

    result = federate(plan, folder_workers(data), change={SITE: change})
    then = time.time() - days * 86_400
    for path in [folder / "state" / "runs", *(folder / "state" / "runs").rglob("*")]:
        os.utime(path, (then, then))
    return result.run_id, recording


@pytest.mark.parametrize(
    ("kind", "first"),
    [("masked", "start"), ("masked noise", "hello"), ("noise", "round"), ("masked noise", "timer")],
)
def test_a_run_left_alone_is_given_up_with_its_secrets_and_budget(data, monkeypatch, kind, first):
    folder, plan = data / SITE, PLANS[kind]
    with passing_time(monkeypatch):
        run_id, recording = left_alone(data, plan, IDLE_DAYS + 0.1)
    keys = "state/runs/*/secure/exchange-*.key"
    assert any(folder.glob(keys)) == (kind != "noise")
    worker = SiteWorker(FolderSource(folder))
    if first == "start":
        worker = folder_worker(folder)
    elif first == "timer":
        serve_idly(worker, folder.parent / "s" / "w.sock")
    else:
        (request,) = recording.of(m.HelloRequest) if first == "hello" else recording.requests[-2:-1]
        assert "run" in ask(worker, request).message
    assert not any(folder.glob("state/runs/*/*"))
    assert events(worker, "run given up") == [{"run_id": run_id}]
    (again,) = recording.of(m.HelloRequest)
    assert f"run {run_id[:8]} is over here" in ask(worker, again).message
    if plan.privacy.mechanism == "gaussian":
        assert spends(folder) == (1, "forfeit")


def test_a_run_left_alone_for_a_shorter_time_goes_on(data, monkeypatch):
    folder = data / SITE
    with passing_time(monkeypatch):
        _, recording = left_alone(data, PLANS["masked noise"], IDLE_DAYS - 0.1)
    worker = folder_worker(folder)
    assert isinstance(ask(worker, recording.of(m.HelloRequest)[0]), m.HelloReply)
    assert isinstance(ask(worker, recording.of(m.SumRequest)[-1]), m.SumReply)
    assert spends(folder) == (2, "")


def test_a_reservation_whose_folder_is_gone_is_forfeited(data, monkeypatch):
    with passing_time(monkeypatch):
        run_id, _ = left_alone(data, PLANS["noise"], 0)
    shutil.rmtree(data / SITE / "state" / "runs" / run_id)
    assert spends(data / SITE) == (1, "forfeit")
