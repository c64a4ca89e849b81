"""What one site does to a run: its message's process is killed, or its replies are no replies."""

import json
import os
import re
import signal
import sys
import threading
import time

import pytest

from fedmvc_server.deployment import run_deployed
from fedmvc_server.synthesize import synthesize_cardio
from tests.network.federation import NAMES, site_worker_command
from tests.network.lying_worker import LIES, ROUND
from tests.network.runs import children, fedhk_plan, sites_of_rounds, wait_for

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.usefixtures("rarely_asked"),
]

LIAR, VICTIM = "riverside", NAMES[0]  # at the latter Python starts for each message
LOG_S = 90
PLAN = fedhk_plan(max_rounds=3, min_sites=2, timeout_s=200, n_init=1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def lying(federation, tmp_path_factory):
    """Let a site answer in round 2 what a file says; return the file."""
    folder = tmp_path_factory.mktemp("lying")
    synthesize_cardio(folder / "data", sites=3, n=300, partition="iid")
    honest, lie = site_worker_command(folder / "data"), folder / "lie"

    def command(name, socket):
        if name != LIAR:
            return honest(name, socket)
        program = [sys.executable, "-m", "tests.network.lying_worker"]
        return [*program, str(folder / "data" / name), str(socket), str(lie)]

    federation.serve(command)
    return lie


@pytest.mark.drill("hostile-message")
@pytest.mark.parametrize("kind", LIES)
def test_a_site_that_sends_something_else_is_dropped_and_the_run_goes_on(
    federation, lying, plan, tmp_path, seen, kind
):
    lying.write_text(kind)

    code = run_deployed(plan, federation.address, federation.ca, tmp_path / "out")

    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert code == result["exit_code"] == 0, result["stop_reason"]
    assert list(result["dropped"]) == [LIAR]
    reason = result["dropped"][LIAR]
    assert LIES[kind][1] in reason
    # its words carry no value: shapes and numbers of records only
    assert not re.search(r"\d[.]\d|\d[eE][+-]?\d|nan|\\x", reason)
    others = sorted(set(NAMES) - {LIAR})
    assert result["sites"] == others
    rounds = [sorted(sites) for sites in sites_of_rounds(tmp_path / "out")]
    assert rounds == [sorted(NAMES)] * (ROUND - 1) + [others] * (4 - ROUND)
    assert f"site '{LIAR}' is out of the run: it {reason}" in log_of(federation, tmp_path / "out")
    seen(kind)


@pytest.mark.drill("client-killed")
def test_a_client_process_that_the_kernel_kills_is_named_and_the_run_goes_on(
    federation, plan, tmp_path, seen
):
    data, out, reached = tmp_path / "data", tmp_path / "out", tmp_path / "reached"
    synthesize_cardio(data, sites=3, n=300, partition="iid")

    def command(name, socket):
        where = ("RoundRequest", "0") if name == VICTIM else ("", "0")
        program = [sys.executable, "-m", "tests.network.stumbling_worker"]
        return [*program, str(data / name), str(socket), *where, str(reached)]

    federation.serve(command)
    killer = _Killer(federation, reached, out)
    killer.start()
    try:
        code = run_deployed(plan, federation.address, federation.ca, out)
    finally:
        killer.join(120)
        federation.kill(f"worker-{VICTIM}")  # it stumbles for ten minutes

    result = json.loads((out / "result.json").read_text())
    assert code == result["exit_code"] == 0, result["stop_reason"]
    assert result["dropped"] == {VICTIM: "lost its ClientApp process before a reply"}
    others = sorted(set(NAMES) - {VICTIM})
    assert [sorted(sites) for sites in sites_of_rounds(out)] == [others] * 3
    words = f"site '{VICTIM}' is out of the run: it lost its ClientApp process before a reply"
    assert words in log_of(federation, out)
    at_site, at_server = killer.named
    assert max(at_site, at_server) < LOG_S
    seen(
        f"named at the site after {at_site:.0f} s, at the server {at_server:.0f} s; others went on"
    )


def log_of(federation, out):
    """Return the run's log, without its line breaks."""
    run_id = json.loads((out / "run.json").read_text())["flower_run_id"]
    return " ".join(federation.run_log(run_id).split())


class _Killer(threading.Thread):
    """Kills the process of the message that waits for the worker; measures what is heard of it."""

    def __init__(self, federation, reached, out):
        super().__init__(daemon=True)
        self._federation, self._reached, self._out = federation, reached, out
        self.named = (0.0, 0.0)

    def run(self):
        federation, executor = self._federation, f"executor-{VICTIM}"
        wait_for(self._reached.exists, "the worker's request", 180)
        (process,) = children(federation.processes[executor].pid)
        os.kill(process, signal.SIGKILL)
        began = time.monotonic()
        words = "the process of a message was ended by SIGKILL"
        wait_for(lambda: words in federation.log(executor), words)
        at_site = time.monotonic() - began
        wait_for(lambda: sites_of_rounds(self._out), "the first round", 120)
        self.named = (at_site, time.monotonic() - began)
