"""A selection over real Flower processes leaves what the in-process run leaves."""

import json
import shutil

import numpy as np
import pytest

from configs.plan import RunPlan
from fedmvc_client.results import read_results
from fedmvc_server.deployment import run_deployed
from fedmvc_server.simulation import simulate_folders
from fedmvc_server.synthesize_features import synthesize_features
from tests.network.federation import NAMES

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.usefixtures("rarely_asked"),
]

PLAN = """
method = "fed-mufsht"
n_clusters = 5
max_rounds = 2
tol = 0.0
[quorum]
min_sites = 3
timeout_s = 90
"""
#: What a deployed run leaves besides, for `status` and `resume`.
KEPT = {"run.json", "progress.json", ".lock"}
FILES = {"result.json", "rounds.csv", "features.csv", "selection.json", "selection.npz"}


def test_the_deployed_selection_equals_the_in_process_one(federation, tmp_path):
    data, copied = tmp_path / "data", tmp_path / "copied"
    assert synthesize_features(data, n=240) == list(NAMES)
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
    assert {path.name for path in (tmp_path / "deployed").iterdir()} == FILES | KEPT
    result = json.loads((tmp_path / "deployed" / "result.json").read_text())
    there = json.loads((tmp_path / "inprocess" / "result.json").read_text())
    for key in ("plan_id", "sites", "rounds", "metrics", "warnings", "dropped", "certificate"):
        assert result[key] == there[key], key
    assert (result["bytes_up"], result["bytes_down"]) == (there["bytes_up"], there["bytes_down"])
    for file in ("features.csv", "selection.json"):
        assert (tmp_path / "deployed" / file).read_bytes() == (
            tmp_path / "inprocess" / file
        ).read_bytes()
    for name in NAMES:
        (folder,) = (data / name / "results").iterdir()
        assert folder.name == result["run_id"]
        found, kept = read_results(folder), expected.site_results[name]
        assert found.ids == kept.ids
        np.testing.assert_array_equal(found.labels, kept.labels)
        np.testing.assert_array_equal(found.selection.ranking, kept.selection.ranking)
