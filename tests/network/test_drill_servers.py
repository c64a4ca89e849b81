"""What the whole federation of our own commands survives: SuperNode, SuperLink, server killed.

``fedmvc-server start``, and a worker, an executor and a ``join`` at each of three sites. The tests
share it, so each also shows that the one before left it well.
"""

import contextlib
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from configs.errors import TransportError
from configs.process_tree import tree
from fedmvc_server.local_federation import LocalFederation
from tests.configs.test_processes import alive
from tests.network.runs import Run, children, fedhk_plan, make_sites, short, wait_for

pytestmark = [pytest.mark.network, pytest.mark.slow]

VICTIM = "riverside"
BACK_S = 90
OUTAGE_S = 120
NOISE = """
method = "fedhk-mvfc"
n_clusters = 4
max_rounds = 6
tol = 0.0
[fedhk]
heat_kernel = "one"
[quorum]
timeout_s = 240
[privacy]
secure_aggregation = true
participants = ["charite-nord", "riverside", "st-anna"]
max_rows = 1000
mechanism = "gaussian"
epsilon = 1.0
"""
ALL = fedhk_plan(max_rounds=6, min_sites=3, timeout_s=240)
MOST = fedhk_plan(max_rounds=6, min_sites=2, timeout_s=240, on_missing="continue")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    make_sites(folder, n=600)
    return folder


@pytest.fixture(scope="module")
def local(sites):
    patch = pytest.MonkeyPatch()
    # a busy machine has better things to do than to look every 0.05 s
    patch.setenv("FEDMVC_FAST_POLL", "0.5")
    patch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.3")
    with LocalFederation(sites / "federation", sites / "data", fast=True) as running:
        yield running
    patch.undo()


def all_online(local):
    with contextlib.suppress(TransportError):
        return local.online() == set(local.names)
    return False


def child_of_server(local, program):
    (found,) = (
        pid
        for pid in children(local.processes["server"].pid)
        if program in Path(f"/proc/{pid}/cmdline").read_text()
    )
    return found


def same_model(run):
    """Check the run's model against that of an undisturbed one; return its hash, shortened."""
    result = run.read("result.json")
    assert result["metrics"]["model_sha256"] == run.expected
    assert result["rounds"] == len(run.rounds()) == 6
    return short(run.expected)


@contextlib.contextmanager
def busy_site(local):
    """Hold up the victim's worker in the middle of a message; give the message's process."""
    worker, executor = (local.processes[f"{role}-{VICTIM}"].pid for role in ("worker", "executor"))
    idle = set(tree(executor))
    os.kill(worker, signal.SIGSTOP)
    try:
        yield waiting_process(executor, idle)
    finally:
        os.kill(worker, signal.SIGCONT)


def waiting_process(executor, idle):
    """Return the process of a message that has been there for a second."""
    found = {}

    def there():
        now = time.monotonic()
        new = {each: found.get(each, now) for each in tree(executor) if each not in idle}
        found.clear()
        found.update(new)
        return any(now - since > 1.0 for since in found.values())

    wait_for(there, "a message's process", 60)
    return min(found, key=found.__getitem__).pid


def went_on_without(run):
    """Check a run that missed the victim for a while; return the number of rounds that did."""
    rounds = run.rounds()
    assert len(rounds) == 6
    assert all({"charite-nord", "st-anna"} <= set(sites) for sites in rounds)
    assert VICTIM in rounds[0]
    without = sum(VICTIM not in sites for sites in rounds)
    assert without > 0
    return without


@pytest.mark.drill("supernode-killed")
def test_a_killed_supernode_is_brought_back_by_join_and_the_run_goes_on(
    local, sites, tmp_path, seen
):
    run = Run(tmp_path, MOST, sites)
    join, words = f"join-{VICTIM}", "is connected to"
    before = local.log(join).count(words)
    run.start(local)
    try:
        run.await_round(2)
        with busy_site(local):
            (supernode,) = children(local.processes[join].pid)
            os.kill(supernode, signal.SIGKILL)
        seconds = wait_for(lambda: local.log(join).count(words) > before, "the site", BACK_S)
        code = run.wait()
    finally:
        run.end()

    assert code == 0, run.log
    without = went_on_without(run)
    assert all_online(local)
    seen(f"back after {seconds:.0f} s; run of 6 rounds completed, {without} of them without it")


@pytest.mark.drill("client-killed")
def test_a_killed_client_process_is_missed_with_flowers_own_heartbeat(local, sites, tmp_path, seen):
    run = Run(tmp_path, MOST, sites)
    run.start(local)
    try:
        run.await_round(2)
        with busy_site(local) as process:
            before = len(run.rounds())
            os.kill(process, signal.SIGKILL)
        seconds = wait_for(lambda: len(run.rounds()) > before, "the round's end", BACK_S)
        code = run.wait()
    finally:
        run.end()

    assert code == 0, run.log
    assert VICTIM not in run.rounds()[before]
    assert run.read("result.json")["dropped"] == {
        VICTIM: "lost its ClientApp process before a reply"
    }
    went_on_without(run)
    seen(f"with Flower's own heartbeat at the server after {seconds:.0f} s")


@pytest.mark.drill("superlink-5s")
def test_a_killed_superlink_is_back_at_once_and_the_run_has_the_same_model(
    local, sites, tmp_path, seen
):
    run = Run(tmp_path, ALL, sites)
    words = "Uvicorn running on"
    before = local.log("server").count(words)
    run.start(local)
    try:
        run.await_round(3)
        os.kill(child_of_server(local, "flower-superlink"), signal.SIGKILL)
        seconds = wait_for(lambda: local.log("server").count(words) > before, "the SuperLink", 60)
        code = run.wait()
    finally:
        run.end()
    how = "the run went on"
    if code != 0:
        wait_for(lambda: all_online(local), "all sites", 120)
        code, how = run.resume(), f"the run ended with {code} and was resumed"

    assert code == 0, run.log
    seen(f"back after {seconds:.0f} s, {how}: hash {same_model(run)} twice")


@pytest.mark.drill("server-executor")
def test_a_run_that_went_with_the_servers_executor_is_told_and_resumes(
    local, sites, tmp_path, seen
):
    """Flower's executor ends with what the SuperLink answers with an error, and the run with it."""
    run = Run(tmp_path, ALL, sites)
    run.start(local)
    try:
        run.await_round(3)
        began = time.monotonic()
        os.kill(child_of_server(local, "flower-superexec"), signal.SIGKILL)
        code = run.wait()
        seconds = time.monotonic() - began
    finally:
        run.end()

    assert code == 7
    assert "'fedmvc-server resume' goes on after its last exchange" in run.log
    assert run.resume() == 0, run.log
    seen(f"told after {seconds:.0f} s (7) and resumed: hash {same_model(run)} twice")


def lose_server(local, run, outage_s):
    """Lose the host of the server in round 3, with the command and ServerApp; bring it back."""
    run.start(local)
    try:
        run.await_round(3)
        server_app = int((run.out / ".lock").read_text())
        local.kill("server")
    finally:
        run.kill()
    wait_for(lambda: not alive(server_app), "the ServerApp's end", 20)
    time.sleep(outage_s)
    local.spawn("server")
    return wait_for(lambda: all_online(local), "all sites", 180)


@pytest.mark.drill("server-120s")
def test_a_server_that_was_away_for_two_minutes_resumes_to_the_same_model(
    local, sites, tmp_path, seen
):
    run = Run(tmp_path, ALL, sites)
    seconds = lose_server(local, run, OUTAGE_S)
    before = run.rounds()

    code = run.resume()

    assert code == 0, run.log
    digest = same_model(run)
    (event,) = run.read("result.json")["resumed"]
    assert event["after_round"] in (2, 3)
    assert run.rounds()[: len(before)] == before
    seen(
        f"sites back {seconds:.0f} s after it, resumed after round {event['after_round']}: "
        f"hash {digest} twice"
    )


@pytest.mark.drill("noise-resumed")
def test_nothing_is_paid_twice_after_a_resume(local, sites, tmp_path, seen):
    run = Run(tmp_path, NOISE, sites)
    lose_server(local, run, 1.0)

    code = run.resume()

    assert code == 0, run.log
    run_id, rounds = run.read("run.json")["run_id"], run.rounds()
    (event,) = run.read("result.json")["resumed"]
    assert [set(names) for names in rounds] == [set(local.names)] * 6
    paid = {name: payments(sites, name, run_id) for name in local.names}
    for name, releases in paid.items():
        assert len(releases) == len(set(releases)) == 6, name
    starts = {tuple(key_sets(sites, name, run_id)) for name in local.names}
    ((first, again),) = starts
    assert first == 1 < again <= 6
    seen(
        f"resumed after round {event['after_round']}: 6 rounds, 6 payments and 2 sets of keys at "
        f"each of 3 sites, the second from sum {again} on"
    )


def key_sets(sites, name, run_id):
    """Return from which sum on a site sent keys in a run, one for each set-up."""
    log = (sites / "data" / name / "state" / "audit.jsonl").read_text()
    entries = [json.loads(line) for line in log.splitlines()]
    sent = [entry["facts"] for entry in entries if entry["event"] == "keys sent"]
    return [facts["exchange"] for facts in sent if facts["run_id"] == run_id]


def payments(sites, name, run_id):
    """Return the hashes of the requests that a site's ledger has booked as paid in a run."""
    with contextlib.closing(sqlite3.connect(sites / "data" / name / "state" / "ledger.db")) as book:
        query = "SELECT request_hash FROM entries WHERE run_id = ? AND event = 'spend'"
        return [digest for (digest,) in book.execute(query, (run_id,))]
