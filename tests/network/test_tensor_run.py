"""A vertical plan over real Flower processes leaves what the in-process run leaves."""

import json
import shutil

import numpy as np
import pytest

from configs.plan import RunPlan
from fedmvc_client.results import read_results
from fedmvc_server.deployment import run_deployed
from fedmvc_server.simulation import simulate_folders
from fedmvc_server.synthesize_vertical import synthesize_vertical
from tests.network.federation import NAMES

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.usefixtures("rarely_asked"),
]

PLAN = """
method = "tensor-fmvc"
n_clusters = 3
max_rounds = 2
tol = 0.0
[tensor]
link_cost = 1
[quorum]
min_sites = 3
timeout_s = 90
"""


def test_the_deployed_run_equals_the_in_process_one(federation, tmp_path):
    data, copied = tmp_path / "data", tmp_path / "copied"
    made = synthesize_vertical(data, sites=3, n=120, n_clusters=3)
    assert set(made.views) == set(NAMES)
    shutil.copytree(data, copied)
    federation.serve_folders(data)
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    rows = []

    code = run_deployed(
        plan, federation.address, federation.ca, tmp_path / "deployed", on_progress=rows.append
    )

    expected = simulate_folders(RunPlan.load(plan), copied, out=tmp_path / "inprocess")
    assert code == 0
    assert expected.status == "completed", expected.stop_reason
    assert [row["round"] for row in rows] == ["1", "2"]
    assert {path.name for path in (tmp_path / "deployed").iterdir()} == {
        *("result.json", "rounds.csv", "run.json", "progress.json", ".lock"),
    }
    result = json.loads((tmp_path / "deployed" / "result.json").read_text())
    there = json.loads((tmp_path / "inprocess" / "result.json").read_text())
    for key in ("plan_id", "sites", "rounds", "metrics", "warnings", "dropped", "certificate"):
        assert result[key] == there[key], key
    assert (result["bytes_up"], result["bytes_down"]) == (there["bytes_up"], there["bytes_down"])
    for name in NAMES:
        (folder,) = (data / name / "results").iterdir()
        assert folder.name == result["run_id"]
        found, kept = read_results(folder), expected.site_results[name]
        assert found.ids == kept.ids
        assert (found.labels >= 0).sum() == made.n_shared
        np.testing.assert_array_equal(found.labels, kept.labels)
        np.testing.assert_array_equal(found.vote_labels, kept.vote_labels)
        np.testing.assert_array_equal(found.view_labels, kept.view_labels)
