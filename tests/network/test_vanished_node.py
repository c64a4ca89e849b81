"""A node that dies in a run. Last by its name: until its heartbeat is missed its key is refused."""

import json
import time

import pytest
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE

from fedmvc_server.deployment import run_deployed
from fedmvc_server.synthesize import synthesize_cardio
from tests.network.runs import fedhk_plan
from tests.network.supernode import HEARTBEAT_S

MARGIN_S = 60

pytestmark = [
    pytest.mark.drill("supernode-killed"),
    pytest.mark.short,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.usefixtures("rarely_asked"),
]

PLAN = fedhk_plan(max_rounds=9, min_sites=3, timeout_s=90)


def test_a_run_that_loses_a_node_ends_with_6_and_its_name(federation, tmp_path, seen):
    data, plan = tmp_path / "data", tmp_path / "plan.toml"
    synthesize_cardio(data, sites=3, n=600, partition="iid")
    federation.serve_folders(data)
    plan.write_text(PLAN)
    out, killed = tmp_path / "out", []

    def kill_after_round_one(row):
        if not killed:
            federation.kill("node-riverside")
            killed.append(time.monotonic())

    code = run_deployed(
        plan, federation.address, federation.ca, out, on_progress=kill_after_round_one
    )
    seconds = time.monotonic() - killed[0]

    result = json.loads((out / "result.json").read_text())
    assert code == result["exit_code"] == 6
    assert "riverside" in result["stop_reason"]
    assert not (out / "model.npz").exists()
    assert seconds < HEARTBEAT_PATIENCE * HEARTBEAT_S + MARGIN_S
    seen(
        f"quorum of 3 of 3: exit 6 that names it, after {seconds:.0f} s (heartbeat {HEARTBEAT_S} s)"
    )


def test_flowers_own_heartbeat_makes_it_two_minutes():
    assert HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL + MARGIN_S <= 120
