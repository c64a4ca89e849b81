"""What a run leaves at the server."""

import csv
import errno
import json
import os

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.site import Policy
from fedmvc_server.artefacts import prepare_folder, versions, write_model, write_rounds
from fedmvc_server.cardio import cardio_views
from fedmvc_server.cli import app as server
from fedmvc_server.simulation import simulate
from fedmvc_server.synthesize import synthesize_cardio
from strategies.model import ClusterModel
from strategies.run_state import RoundRecord
from tests.cli.commands import call
from tests.federation.harness import federate, plan_of, split, workers_of
from tests.strategies.samples import model as sample_model

VIEWS, TRUTH = cardio_views(200, 0)
SITES, ROWS = split(VIEWS, TRUTH, "paper", 2)
PLAN = plan_of(4, profile="paper", max_rounds=20)

RESULT_KEYS = {  # architecture, section 5
    *("status", "exit_code", "stop_reason", "run_id", "plan", "plan_id", "versions", "sites"),
    *("rounds", "bytes_up", "bytes_down", "wall_s", "metrics", "certificate", "warnings"),
}
CERTIFICATE_KEYS = {  # section 4
    *("relation", "unit", "mechanism", "sigma", "sensitivity", "exchanges", "epsilon"),
    *("epsilon_if_others_collude", "delta", "accountant", "noise", "participants"),
    *("tolerated_dropouts", "colluders", "threshold", "bounds", "assumptions", "not_covered"),
}
ROUND_KEYS = {
    *("round", "objective", "view_weights", "site_weights", "bytes_up", "bytes_down"),
    *("seconds", "sites"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return simulate(PLAN, SITES, out=out), out


def test_the_folder_holds_what_the_page_says_and_nothing_half_written(finished):
    _, out = finished
    names = {path.name for path in out.iterdir()}
    assert names == {"result.json", "model.npz", "model.json", "rounds.csv"}


def test_result_json(finished):
    result, out = finished
    stored = json.loads((out / "result.json").read_text())
    assert set(stored) >= RESULT_KEYS
    assert set(stored["certificate"]) >= CERTIFICATE_KEYS
    assert (stored["status"], stored["exit_code"]) == ("completed", 0)
    assert stored["run_id"] == result.run_id
    assert stored["plan_id"] == PLAN.plan_id
    assert stored["plan"] == PLAN.fields()
    assert stored["sites"] == ["site-00", "site-01"]
    assert stored["rounds"] == result.rounds
    assert (stored["bytes_up"], stored["bytes_down"]) == (result.bytes_up, result.bytes_down)
    assert stored["metrics"]["rows_by_site"] == {"site-00": 168, "site-01": 32}
    assert stored["metrics"]["model_sha256"] == result.model.sha256()
    assert stored["metrics"]["objective"] == pytest.approx(result.history[-1]["objective"])
    assert sum(stored["metrics"]["expected_cluster_sizes"]) == pytest.approx(200)
    assert stored["versions"]["flwr"].startswith("1.42")
    assert stored["certificate"]["participants"] == ["site-00", "site-01"]
    assert stored["certificate"]["epsilon"] is None
    assert stored["resumed"] == []


def test_pooled_statistics_are_those_of_the_pooled_rows(finished):
    _, out = finished
    stored = json.loads((out / "result.json").read_text())["metrics"]["statistics"]
    for h, view in enumerate(VIEWS):
        assert stored[f"view_{h}"]["mean"] == pytest.approx(view.mean(axis=0), rel=1e-12)
        assert stored[f"view_{h}"]["variance"] == pytest.approx(view.var(axis=0), rel=1e-12)


def test_model_npz_needs_no_pickle_and_rebuilds_the_model(finished):
    result, out = finished
    with np.load(out / "model.npz", allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for h in range(2):
        for name in ("centers", "offset", "scale", "delta_a", "delta_b"):
            assert f"{name}_{h}" in arrays
    assert {"view_weights", "bandwidth"} <= set(arrays)
    description = json.loads((out / "model.json").read_text())
    for key in ("heat_kernel", "scaling", "fuzzifier", "view_exponent", "views", "plan_id"):
        assert key in description
    assert description["views"][0]["columns"] == ["x0", "x1"]
    assert len(description["views"][0]["schema_hash"]) == 64
    rebuilt = ClusterModel.from_parts(arrays, description)
    assert rebuilt.sha256() == result.model.sha256()
    assert rebuilt.description() == result.model.description()


def test_centres_are_in_data_units(finished):
    result, _ = finished
    labels = np.empty(200, dtype=int)
    for name, rows in ROWS.items():
        labels[rows] = result.site_results[name].labels
    for view, centers in zip(VIEWS, result.model.centers, strict=True):
        means = np.stack([view[labels == k].mean(axis=0) for k in range(4)])
        distance = np.linalg.norm(centers[:, None] - means[None], axis=2)
        assert distance.argmin(axis=1).tolist() == [0, 1, 2, 3]


def test_rounds_csv_and_history(finished):
    result, out = finished
    with (out / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == result.rounds == len(result.history)
    assert set(rows[0]) == ROUND_KEYS
    for row, record in zip(rows, result.history, strict=True):
        assert set(record) == ROUND_KEYS
        assert int(row["round"]) == record["round"]
        assert float(row["objective"]) == record["objective"]
        weights = [float(w) for w in row["view_weights"].split()]
        assert weights == pytest.approx(record["view_weights"], abs=1e-6)
        assert row["sites"] == "site-00 site-01"
        assert int(row["bytes_up"]) == record["bytes_up"] > 0
    assert sum(r["bytes_up"] for r in result.history) < result.bytes_up
    assert [r["round"] for r in result.history] == list(range(1, result.rounds + 1))


def test_site_results_carry_what_the_page_names(finished):
    result, _ = finished
    for name, rows in ROWS.items():
        kept = result.site_results[name]
        assert kept.membership.shape == (rows.size, 4)
        assert kept.labels.shape == (rows.size,)
        np.testing.assert_allclose(kept.membership.sum(axis=1), 1.0, atol=1e-12)
        assert kept.personal_model.sha256() == result.model.sha256()


def test_a_folder_with_a_result_is_refused_before_anything_runs(finished, tmp_path):
    _, out = finished
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(ConfigError, match="already holds the result of a run"):
        simulate(PLAN, SITES, out=out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("here")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        prepare_folder(blocked / "out")
    assert str(tmp_path) not in str(caught.value)
    assert str(tmp_path) in caught.value.local_detail


def test_a_folder_whose_run_was_refused_may_be_used_again(tmp_path):
    out = tmp_path / "out"
    refused = simulate(plan_of(201, profile="paper"), SITES, out=out)
    assert (refused.status, refused.exit_code, refused.rounds) == ("failed", 3, 0)
    assert simulate(PLAN, SITES, out=out).status == "completed"
    assert json.loads((out / "result.json").read_text())["status"] == "completed"


def test_a_refused_run_leaves_its_reason_and_no_model(tmp_path):
    workers = workers_of(SITES)
    workers["site-00"].source.policy = Policy(approval="required")
    result = federate(PLAN, workers, out=tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(stored) >= RESULT_KEYS
    assert (stored["status"], stored["exit_code"]) == ("failed", 4)
    assert stored["stop_reason"] == result.stop_reason
    assert stored["metrics"]["model_sha256"] is None
    assert stored["rounds"] == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert not names & {"model.npz", "model.json"}
    assert not [name for name in names if name.endswith(".part")]


def test_rounds_grow_while_the_run_goes_on(tmp_path):
    seen = []

    def observer(grid, state):
        lines = (tmp_path / "rounds.csv").read_text().splitlines()
        seen.append((len(state.history), len(lines) - 1))

    result = federate(PLAN, workers_of(SITES), out=tmp_path, observer=observer)
    assert seen == [(i, i) for i in range(1, result.rounds + 1)]


def test_a_defect_ends_with_70_and_keeps_its_text_to_the_log(tmp_path, caplog):
    def observer(grid, state):
        raise ZeroDivisionError("patient 4711")

    result = federate(PLAN, workers_of(SITES), out=tmp_path, observer=observer)
    assert (result.status, result.exit_code) == ("failed", 70)
    assert "4711" not in result.stop_reason
    assert "4711" in caplog.text
    assert json.loads((tmp_path / "result.json").read_text())["exit_code"] == 70


def test_an_interrupted_run_says_so(tmp_path):
    def observer(grid, state):
        raise KeyboardInterrupt

    result = federate(PLAN, workers_of(SITES), out=tmp_path, observer=observer)
    assert (result.status, result.exit_code) == ("stopped", 130)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "stopped"


def test_annealing_rounds_have_no_objective_in_the_table(tmp_path):
    record = RoundRecord(1, float("nan"), [0.5, 0.5], {"a": 1.0}, 10, 20, 0.1, ["a"])
    write_rounds(tmp_path, [record])
    (row,) = csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines())
    assert row["objective"] == ""
    assert row["site_weights"] == "a=1.000000"


def test_an_interrupted_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    write_model(tmp_path, sample_model())
    before = (tmp_path / "model.npz").read_bytes()

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(ConfigError, match="cannot be written \\(No space left on device\\)"):
        write_model(tmp_path, sample_model())
    assert {path.name for path in tmp_path.iterdir()} == {"model.npz", "model.json"}
    assert (tmp_path / "model.npz").read_bytes() == before


def test_versions_name_what_a_result_depends_on():
    assert {"python", "flwr", "numpy", "torch", "scikit-learn"} <= set(versions())


# -- what a run leaves at the sites ----------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["exact", "weighted"])
def test_on_disk_the_personal_model_of_an_uneven_site_is_its_own(aggregation, tmp_path):
    sites = tmp_path / "sites"
    names = synthesize_cardio(sites, sites=3, n=900, partition="dirichlet", alpha=0.3, seed=1)
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'method = "fedhk-mvfc"\nprofile = "paper"\nn_clusters = 4\nmax_rounds = 10\n'
        f'[fedhk]\naggregation = "{aggregation}"\ngamma = 0.5\nrho = 0.5\n'
    )
    ended = call(server, "simulate", plan, "--data", sites, "--out", tmp_path / "run")
    assert ended.code == 0, ended.err

    published = np.load(tmp_path / "run" / "model.npz")
    for name in names:
        (folder,) = (sites / name / "results").iterdir()
        own, common = np.load(folder / "personal_model.npz"), np.load(folder / "model.npz")
        assert own.files == common.files == published.files
        assert all(np.array_equal(common[key], published[key]) for key in common.files)
        moved = [key for key in own.files if not np.array_equal(own[key], common[key])]
        assert any("center" in key for key in moved), moved
        assert "view_weights" in moved
