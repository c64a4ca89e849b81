"""A plan over real Flower processes leaves what the in-process run leaves."""

import json

import numpy as np
import pytest

from configs.plan import RunPlan
from fedmvc_server.deployment import run_deployed
from fedmvc_server.simulation import simulate_folders
from fedmvc_server.synthesize import synthesize_cardio
from tests.network.federation import NAMES
from tests.network.runs import fedhk_plan

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.usefixtures("rarely_asked"),
]


PLAN = fedhk_plan(max_rounds=2, min_sites=3, timeout_s=90)


def test_the_deployed_model_equals_the_in_process_one(federation, tmp_path):
    cardio, plan = tmp_path / "data", tmp_path / "plan.toml"
    assert synthesize_cardio(cardio, sites=3, n=600, partition="iid") == list(NAMES)
    federation.serve_folders(cardio)
    plan.write_text(PLAN)
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
