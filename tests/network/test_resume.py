"""A ServerApp killed in round 3, and with it the command that started it: `resume` goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from configs.plan import RunPlan
from fedmvc_server import cli
from fedmvc_server.simulation import simulate_folders
from fedmvc_server.synthesize import synthesize_cardio
from tests.cli.commands import call
from tests.network.federation import NAMES, ROOT

pytestmark = [
    pytest.mark.drill,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.usefixtures("rarely_asked"),
]

PLAN = """
method = "fedhk-mvfc"
profile = "paper"
n_clusters = 4
max_rounds = 4
tol = 1e-12
[fedhk]
n_init = 2
[quorum]
min_sites = 3
timeout_s = 90
"""


def wait_for(condition, what, timeout=90):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def rounds_in(out):
    try:
        return len((out / "rounds.csv").read_text().splitlines()) - 1
    except FileNotFoundError:
        return 0


def asked_in(out):
    try:
        return json.loads((out / "progress.json").read_text())["round"]
    except FileNotFoundError:
        return 0


def test_a_killed_server_app_is_resumed_to_the_model_of_an_undisturbed_run(federation, tmp_path):
    data, plan, out = tmp_path / "data", tmp_path / "plan.toml", tmp_path / "run"
    synthesize_cardio(data, sites=3, n=300, partition="iid")
    shutil.copytree(data, tmp_path / "undisturbed")
    plan.write_text(PLAN)
    federation.serve_folders(data)
    program = "import sys; from fedmvc_server.cli import main; sys.exit(main())"
    options = ["--server", federation.address, "--ca", str(federation.ca), "--out", str(out)]
    command = subprocess.Popen(
        [sys.executable, "-c", program, "run", str(plan), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: rounds_in(out) >= 2 and asked_in(out) == 3, "round 3")
        os.kill(int((out / ".lock").read_text()), signal.SIGKILL)
    finally:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()
    known = json.loads((out / "run.json").read_text())
    progress = json.loads((out / "progress.json").read_text())
    assert known["server"] == federation.address
    assert (progress["phase"], progress["run_id"]) == ("round", known["run_id"])
    assert set(progress["waiting_for"]) <= set(progress["asked"]) == set(NAMES)

    ended = call(cli.app, "resume", out, "--json")

    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    expected = simulate_folders(RunPlan.load(plan), tmp_path / "undisturbed")
    assert result["metrics"]["model_sha256"] == expected.model.sha256()
    assert (result["run_id"], result["rounds"]) == (known["run_id"], 4)
    assert [event["after_round"] for event in result["resumed"]] in ([2], [3])
    assert not (out / "checkpoint").exists()
    again = call(cli.app, "resume", out)
    assert (again.code, "is complete" in again.sentence) == (2, True)
