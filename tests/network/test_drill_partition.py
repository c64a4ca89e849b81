"""One site is cut off for a round: the others go on, and the site comes back into the run."""

import pytest

from fedmvc_server.local_federation import LocalFederation, free_port
from tests.network.forwarder import Forwarder
from tests.network.runs import Run, fedhk_plan, make_sites, wait_for

pytestmark = [
    pytest.mark.drill("partition"),
    pytest.mark.network,
    pytest.mark.slow,
]

CUT_OFF = "riverside"
PLAN = fedhk_plan(max_rounds=12, min_sites=2, timeout_s=40, tol=0.0, on_missing="continue")


@pytest.fixture
def parted(tmp_path, monkeypatch):
    """Give a federation of three sites, one behind a line that can be cut, and the line."""
    # a busy machine has better things to do than to look every 0.05 s
    monkeypatch.setenv("FEDMVC_FAST_POLL", "0.5")
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.3")
    make_sites(tmp_path)
    port = free_port()
    with Forwarder(f"127.0.0.1:{port}") as line:
        federation = LocalFederation(
            tmp_path / "federation",
            tmp_path / "data",
            port=port,
            fast=True,
            server_for={CUT_OFF: line.address},
        )
        with federation:
            yield federation, line


def test_a_site_that_is_cut_off_for_a_round_is_in_the_run_again(parted, tmp_path, seen):
    federation, line = parted
    run = Run(tmp_path, PLAN, tmp_path)
    run.start(federation)
    try:
        run.await_round(3)
        line.cut()
        wait_for(lambda: any(CUT_OFF not in sites for sites in run.rounds()), "a round", 180)
        line.mend()
        code = run.wait()
    finally:
        run.end()

    assert code == 0, run.log
    rounds, result = run.rounds(), run.read("result.json")
    there = [CUT_OFF in sites for sites in rounds]
    first = there.index(False)
    assert all({"charite-nord", "st-anna"} <= set(sites) for sites in rounds)
    assert any(there[first:]), "the site was not asked again"
    again = there.index(True, first)
    assert CUT_OFF in result["sites"]
    assert any(CUT_OFF in warning for warning in result["warnings"])
    missed, back = again - first, again + 1
    seen(f"in rounds 1 to {first}, missing from {missed} rounds, in again from round {back}")
