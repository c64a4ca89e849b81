"""A ServerApp killed in round 3, and with it the command that started it: `resume` goes on."""

import os
import signal

import pytest

from fedmvc_server import cli
from tests.cli.commands import call
from tests.network.federation import NAMES
from tests.network.runs import Run, fedhk_plan, make_sites, short

pytestmark = [
    pytest.mark.drill("superlink-5s"),
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.usefixtures("rarely_asked"),
]

PLAN = fedhk_plan(max_rounds=4, min_sites=3, timeout_s=90)


def test_a_killed_server_app_is_resumed_to_the_model_of_an_undisturbed_run(
    federation, tmp_path, seen
):
    make_sites(tmp_path)
    run = Run(tmp_path, PLAN, tmp_path)
    federation.serve_folders(tmp_path / "data")
    run.start(federation)
    try:
        run.await_round(3)
        os.kill(int((run.out / ".lock").read_text()), signal.SIGKILL)
    finally:
        run.kill()
    known, progress = run.read("run.json"), run.read("progress.json")
    assert known["server"] == federation.address
    assert (progress["phase"], progress["run_id"]) == ("round", known["run_id"])
    assert set(progress["waiting_for"]) <= set(progress["asked"]) == set(NAMES)

    code = run.resume()

    assert code == 0, run.log
    result = run.read("result.json")
    assert result["metrics"]["model_sha256"] == run.expected
    assert (result["run_id"], result["rounds"]) == (known["run_id"], 4)
    (event,) = result["resumed"]
    assert event["after_round"] in (2, 3)
    assert not (run.out / "checkpoint").exists()
    again = call(cli.app, "resume", run.out)
    assert (again.code, "is complete" in again.sentence) == (2, True)
    seen(
        f"ServerApp alone killed: resumed after round {event['after_round']}, "
        f"hash {short(run.expected)} twice"
    )
