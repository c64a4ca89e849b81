"""A plan over real Flower processes leaves what the in-process run leaves."""

import json
import time

import numpy as np
import pytest

from configs.plan import RunPlan
from fedmvc_server.deployment import run_deployed
from fedmvc_server.simulation import simulate_folders
from fedmvc_server.synthesize import synthesize_cardio
from tests.network.federation import NAMES, site_worker_command

pytestmark = [pytest.mark.network, pytest.mark.slow]


def _plan(folder, *, max_rounds, quorum):
    path = folder / "plan.toml"
    path.write_text(
        f'method = "fedhk-mvfc"\nn_clusters = 4\nmax_rounds = {max_rounds}\ntol = 1e-12\n'
        f'profile = "paper"\n[fedhk]\nn_init = 2\n[quorum]\n{quorum}\n'
    )
    return path


@pytest.fixture
def cardio(federation, tmp_path):
    """Serve the cardio set in three sites."""
    data = tmp_path / "data"
    assert synthesize_cardio(data, sites=3, n=600, partition="iid") == list(NAMES)
    federation.serve(site_worker_command(data))
    return data


def test_the_deployed_model_equals_the_in_process_one(federation, cardio, tmp_path):
    plan = _plan(tmp_path, max_rounds=2, quorum="min_sites = 3\ntimeout_s = 90")
    rows = []

    code = run_deployed(
        plan, federation.address, federation.ca, tmp_path / "deployed", on_progress=rows.append
    )

    simulate_folders(RunPlan.load(plan), cardio, out=tmp_path / "inprocess")
    assert code == 0
    assert [row["round"] for row in rows] == ["1", "2"]
    with (
        np.load(tmp_path / "deployed" / "model.npz") as deployed,
        np.load(tmp_path / "inprocess" / "model.npz") as expected,
    ):
        assert set(deployed) == set(expected)
        for name in expected:
            np.testing.assert_allclose(deployed[name], expected[name], rtol=0, atol=1e-12)
    result = json.loads((tmp_path / "deployed" / "result.json").read_text())
    assert result["sites"] == sorted(NAMES)
    print(f"\nseconds a round: {', '.join(row['seconds'] for row in rows)}")


def test_a_run_that_loses_a_node_ends_with_6_and_its_name(federation, cardio, tmp_path):
    plan = _plan(tmp_path, max_rounds=9, quorum="min_sites = 3\ntimeout_s = 90")
    out, killed = tmp_path / "out", []

    def kill_after_round_one(row):
        if not killed:
            federation.kill("node-riverside")
            killed.append(time.monotonic())

    try:
        code = run_deployed(
            plan, federation.address, federation.ca, out, on_progress=kill_after_round_one
        )
        seconds = time.monotonic() - killed[0]
    finally:
        federation.revive_node("riverside")

    result = json.loads((out / "result.json").read_text())
    assert code == result["exit_code"] == 6
    assert "riverside" in result["stop_reason"]
    assert not (out / "model.npz").exists()
    assert seconds < 120
    print(f"\nseconds from the kill to the end: {seconds:.0f}")
