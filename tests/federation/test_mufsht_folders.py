"""A selection over site folders: what the server and each site keep, scores, restart."""

import csv
import json
import shutil

import numpy as np
import pytest

from fedmvc_client.results import read_results
from fedmvc_client.worker import folder_worker
from fedmvc_server.simulation import score_folders, simulate_folders
from fedmvc_server.synthesize_features import FEATURES_SCHEMA, synthesize_features
from strategies.feature_selection import FeatureSelection
from strategies.messages import FitRequest, ShareRequest, from_bytes
from tests.federation.harness import federate
from tests.federation.mufsht_harness import selection_plan

PLAN = selection_plan(5, max_rounds=3, local_sweeps=5)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write the folders; no test writes here."""
    out = tmp_path_factory.mktemp("features") / "sites"
    synthesize_features(out, n=300)
    return out


@pytest.fixture(scope="module")
def finished(pristine, tmp_path_factory):
    """Run PLAN once, for every test that only looks; returns data, out folder and result."""
    folder = tmp_path_factory.mktemp("finished")
    data = shutil.copytree(pristine, folder / "sites")
    result = simulate_folders(PLAN, data, out=folder / "run")
    assert result.status == "completed", result.stop_reason
    return data, folder / "run", result


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_server_keeps_the_selection_by_name(finished):
    _, out, result = finished
    assert {path.name for path in out.iterdir()} == {
        "result.json",
        "rounds.csv",
        "features.csv",
        "selection.json",
        "selection.npz",
    }
    rows = rows_of(out / "features.csv")
    assert [int(row["rank"]) for row in rows] == list(range(1, 191))
    every = [(v.name, c.name) for v in FEATURES_SCHEMA.views for c in v.columns]
    assert sorted((row["view"], row["column"]) for row in rows) == sorted(every)
    assert [row["selected"] for row in rows].count("True") == 76
    best = every[result.selection.ranking[0]]
    assert (rows[0]["view"], rows[0]["column"]) == best
    description = json.loads((out / "selection.json").read_text())
    assert best[1] in description["selected"][best[0]]
    with np.load(out / "selection.npz", allow_pickle=False) as arrays:
        kept = FeatureSelection.from_parts(arrays, description)
    np.testing.assert_array_equal(kept.weights, result.selection.weights)
    assert kept.selected() == result.selection.selected()


def test_most_of_what_comes_first_was_planted(finished, pristine):
    _, out, _ = finished
    planted = {(row["view"], row["column"]) for row in rows_of(pristine / "informative.csv")}
    first = [(row["view"], row["column"]) for row in rows_of(out / "features.csv")[:45]]
    assert sum(feature in planted for feature in first) / 45 >= 0.9


def test_result_json_says_what_was_found(finished):
    _, out, result = finished
    written = json.loads((out / "result.json").read_text())
    metrics = written["metrics"]
    assert (metrics["rows"], metrics["features"]) == (
        300,
        {"laboratory": 60, "imaging": 80, "proteins": 50},
    )
    assert sum(metrics["selected"].values()) == 76
    assert set(metrics["quality"]) == set(metrics["weights"]) == set(result.sites)
    assert all(0 <= q <= 1 for q in metrics["quality"].values())
    assert sum(metrics["weights"].values()) == pytest.approx(1.0)
    assert 0 < metrics["kept"] <= 1.0001
    assert sum(metrics["view_weights"].values()) == pytest.approx(1.0)
    assert metrics["model_sha256"] is None
    objectives = [round_["objective"] for round_ in result.history]
    assert len(objectives) == 3
    assert objectives[-1] < objectives[0]


def test_each_site_keeps_the_selection_and_its_own_clusters(finished):
    data, _, result = finished
    for name in result.sites:
        folder = data / name / "results" / result.run_id
        assert {path.name for path in folder.iterdir()} == {
            "membership.parquet",
            "features.csv",
            "selection.json",
            "selection.npz",
            "certificate.json",
        }
        kept = read_results(folder)
        assert len(kept.ids) == 100
        assert set(kept.labels.tolist()) <= set(range(-1, 5))
        assert len(set(kept.labels.tolist()) - {-1}) == 5
        np.testing.assert_array_equal(kept.selection.ranking, result.selection.ranking)
        np.testing.assert_array_equal(kept.labels, result.site_results[name].labels)
        assert not (data / name / "state" / "runs" / result.run_id).exists()


def test_selected_columns_score_beside_all_and_random_ones(finished):
    data, _, result = finished
    scores = score_folders(PLAN, data, result, data / "truth.csv")
    (own,) = (s for name, s in scores.items() if "selected columns" in name)
    (all_columns,) = (s for name, s in scores.items() if "all columns" in name)
    (random,) = (s for name, s in scores.items() if "random" in name)
    assert own["nmi"] > random["nmi"]
    assert own["nmi"] > all_columns["nmi"] - 0.05


@pytest.mark.parametrize("kind", [FitRequest, ShareRequest])
def test_a_worker_that_restarts_before_any_request_goes_on_bit_for_bit(
    finished, pristine, tmp_path, kind
):
    data = shutil.copytree(pristine, tmp_path / "sites")
    folders = sorted(path.parent for path in data.glob("*/site.toml"))
    running = []

    def restarting(worker, body):
        if isinstance(from_bytes(body), kind) or not running:
            running.append(folder_worker(worker.source.folder))
        return running[-1].handle(body)

    workers = {folder.name: folder_worker(folder) for folder in folders}
    result = federate(PLAN, workers, change={"charite-nord": restarting})
    assert result.status == "completed", result.stop_reason
    assert len(running) == 4  # the first, and one a round
    _, _, unbroken = finished
    np.testing.assert_array_equal(result.selection.weights, unbroken.selection.weights)
