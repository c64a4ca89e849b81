"""Sites that are killed in a run of masked sums: one comes back in time, one does not, one never.

The nodes, the SuperLink and TLS are real; the sites' noise is on but in the last case. The three
runs share one federation of four sites, of which two of the runs use three.
"""

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from fedmvc_server.deployment import run_deployed
from fedmvc_server.synthesize import synthesize_cardio
from tests.network.federation import Federation
from tests.network.runs import sites_of_rounds

pytestmark = [
    pytest.mark.drill("supernode-killed"),
    pytest.mark.short,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.usefixtures("rarely_asked"),
]

NAMES = ("charite-nord", "riverside", "san-marco", "st-anna")
THREE = NAMES[:3]
VICTIM = "riverside"
PLAN = """
method = "fedhk-mvfc"
n_clusters = 4
max_rounds = {rounds}
tol = 0.0
[fedhk]
heat_kernel = "one"
[quorum]
timeout_s = {timeout_s}
[privacy]
secure_aggregation = true
participants = {names}
max_rows = 1000
"""
NOISE = """
mechanism = "gaussian"
epsilon = 1.0
"""


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    synthesize_cardio(folder / "data", sites=4, n=800, partition="iid")
    (folder / "federation").mkdir()
    running = Federation(folder / "federation", NAMES)
    running.data = folder / "data"
    try:
        running.start()
        yield running
    finally:
        running.stop()


def run_with_kill(four, out, plan, kind, exchange, *, back):
    """Run a plan; kill the victim's node and worker at a request, and maybe start both again."""
    reached = out.parent / f"{out.name}-reached"

    def command(name, socket):
        where = (kind, str(exchange)) if name == VICTIM else ("", "0")
        program = [sys.executable, "-m", "tests.network.stumbling_worker"]
        return [*program, str(four.data / name), str(socket), *where, str(reached)]

    four.serve(command)
    plan_file = out.parent / f"{out.name}.toml"
    plan_file.write_text(plan)
    killer = Killer(four, reached, back)
    killer.start()
    code = run_deployed(plan_file, four.address, four.ca, out)
    killer.join(120)
    return code, json.loads((out / "result.json").read_text())


class Killer(threading.Thread):
    """Waits for the victim to stumble, kills it, and starts it again where it is to come back."""

    def __init__(self, four, reached, back):
        super().__init__(daemon=True)
        self.four, self.reached, self.back = four, reached, back

    def run(self):
        wait_until(self.reached.exists, 120)
        self.four.kill(f"node-{VICTIM}")
        self.four.kill(f"worker-{VICTIM}")
        if self.back:
            self.four.start_worker(VICTIM)
            wait_until(self._back_again, 120)

    def _back_again(self):
        """Start the node; Flower refuses its key until it has missed the dead one."""
        self.four.start_node(VICTIM)
        process = self.four.processes[f"node-{VICTIM}"]
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            return True
        return False


def wait_until(condition, timeout):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def releases_paid(four, name, run_id):
    """Count the releases that a site's ledger has booked for a run."""
    database = sqlite3.connect(four.data / name / "state" / "ledger.db")
    with contextlib.closing(database):
        query = "SELECT count(*) FROM entries WHERE run_id = ? AND event = 'spend'"
        return database.execute(query, (run_id,)).fetchone()[0]


def plan_of(names, *, rounds=6, noise=NOISE, timeout_s=150):
    listed = json.dumps(list(names))
    return PLAN.format(names=listed, rounds=rounds, timeout_s=timeout_s) + noise


def test_a_site_lost_before_its_upload_is_missing_from_that_sum_alone(four, tmp_path, seen):
    out = tmp_path / "b"
    code, result = run_with_kill(four, out, plan_of(NAMES, rounds=9), "SumRequest", 3, back=True)

    assert code == 0, result["stop_reason"]
    assert result["certificate"]["tolerated_dropouts"] == 1
    rounds = sites_of_rounds(out)
    assert len(rounds) == 9
    assert [set(NAMES) - set(sites) for sites in rounds[:3]] == [set(), set(), {VICTIM}]
    assert set(rounds[-1]) == set(NAMES)
    others = {releases_paid(four, name, result["run_id"]) for name in NAMES if name != VICTIM}
    assert others == {9}
    seen("masked sums: missing from one of 9 rounds, in again after it")


def test_a_site_killed_after_its_upload_comes_back_and_is_in_the_sum(four, tmp_path, seen):
    out = tmp_path / "a"
    code, result = run_with_kill(four, out, plan_of(THREE), "UnmaskRequest", 3, back=True)

    assert code == 0, result["stop_reason"]
    assert result["certificate"]["tolerated_dropouts"] == 0
    assert [set(sites) for sites in sites_of_rounds(out)] == [set(THREE)] * 6
    assert [releases_paid(four, name, result["run_id"]) for name in THREE] == [6, 6, 6]
    seen("killed after its upload: in every sum")


def test_without_noise_a_site_lost_for_good_ends_the_run(four, tmp_path):
    out = tmp_path / "c"
    plan = plan_of(THREE, noise="", timeout_s=60)
    # the counts are the first exchange, so round 3 is the fourth
    code, result = run_with_kill(four, out, plan, "SumRequest", 4, back=False)

    assert code == result["exit_code"] == 6
    assert f"'{VICTIM}'" in result["stop_reason"]
    assert result["rounds"] == 2
    assert not (out / "model.npz").exists()
