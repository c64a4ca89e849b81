import csv
import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedmvc_server.cli import app as server
from tests.cli.commands import (
    LOG_LINE,
    PLAN,
    call,
    edit_lines,
    files_in,
    run_script,
    write_plan,
)

RESULT_KEYS = {
    "status",
    "exit_code",
    "stop_reason",
    "run_id",
    "plan",
    "plan_id",
    "versions",
    "sites",
    "rounds",
    "bytes_up",
    "bytes_down",
    "wall_s",
    "metrics",
    "certificate",
    "warnings",
}
SITE_RESULTS = {
    *("membership.parquet", "personal_model.npz", "model.npz", "model.json"),
    "certificate.json",
}
#: A site's key and books: no run's own.
STATE = (
    *("identity.pem", "identity.pub", "audit.jsonl"),
    *("register.db", "register.db-shm", "register.db-wal"),
)


def test_json_is_one_object_and_nothing_else(finished):
    assert json.loads(finished.ended.out) == finished.result


def test_progress_goes_to_standard_error_as_plain_lines(finished):
    lines = finished.ended.err.splitlines()

    assert all(LOG_LINE.match(line) for line in lines)  # nothing of Flower's own log either
    rounds = [line for line in lines if re.search(r" round \d+: J ", line)]
    assert len(rounds) == finished.result["rounds"]
    assert all("view weights" in line and "2 sites" in line for line in rounds)


def test_result_says_what_ran_and_how_it_ended(finished):
    result = finished.result

    assert RESULT_KEYS - result.keys() == set()
    assert (result["status"], result["exit_code"]) == ("completed", 0)
    assert result["sites"] == ["charite-nord", "st-anna"]
    assert result["plan"]["n_clusters"] == 4
    assert result["plan"]["max_rounds"] == 50  # defaults are written out
    assert result["metrics"]["rows"] == 600
    assert result["rounds"] >= 1
    assert result["bytes_up"] > 0
    assert result["bytes_down"] > 0
    assert {"python", "fedmvc", "flwr", "numpy", "torch"} <= result["versions"].keys()


def test_rounds_are_one_row_each(finished):
    with (finished.out / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert [int(row["round"]) for row in rows] == list(range(1, finished.result["rounds"] + 1))
    assert list(rows[0]) == [
        "round",
        "objective",
        "view_weights",
        "site_weights",
        "bytes_up",
        "bytes_down",
        "seconds",
        "sites",
    ]
    assert all(row["sites"] == "charite-nord st-anna" for row in rows)
    assert float(rows[-1]["objective"]) == pytest.approx(
        finished.result["metrics"]["objective"], rel=1e-3
    )


def test_model_loads_without_pickle(finished):
    with np.load(finished.out / "model.npz", allow_pickle=False) as model:
        shapes = {name: model[name].shape for name in model.files}
    described = json.loads((finished.out / "model.json").read_text())

    for h in (0, 1):
        assert shapes[f"centers_{h}"] == (4, 2)
        for name in ("offset", "scale", "delta_a", "delta_b"):
            assert shapes[f"{name}_{h}"] == (2,)
    assert shapes["view_weights"] == (2,)
    assert shapes["bandwidth"] == (2,)
    assert described["plan_id"] == finished.result["plan_id"]
    assert {"heat_kernel", "scaling", "fuzzifier", "view_exponent"} <= described.keys()
    assert [view["name"] for view in described["views"]] == ["ecg", "imaging"]
    assert described["views"][0]["columns"] == ["ecg_x", "ecg_y"]
    assert described["views"][0]["bounds"] == [[-1.0, 11.0], [-1.0, 11.0]]
    assert len(described["views"][0]["schema_hash"]) == 64


@pytest.mark.parametrize("site", ["st-anna", "charite-nord"])
def test_memberships_stay_with_their_site(finished, site):
    folder = finished.site_results(site)
    table = pq.read_table(folder / "membership.parquet")

    assert files_in(folder) == SITE_RESULTS
    assert table.column_names == ["id", "u_1", "u_2", "u_3", "u_4", "label"]
    membership = np.stack([table[f"u_{k}"].to_numpy() for k in range(1, 5)], axis=1)
    assert np.abs(membership.sum(axis=1) - 1).max() < 1e-12
    assert (membership.argmax(axis=1) == table["label"].to_numpy()).all()
    with (finished.data / site / "ecg.csv").open(newline="") as file:
        own = {row["patient_id"] for row in csv.DictReader(file)}
    assert set(table["id"].to_pylist()) == own
    assert files_in(finished.out) == {"result.json", "model.npz", "model.json", "rounds.csv"}


def test_nothing_that_would_set_the_run_up_again_is_left(finished):
    left = [name for name in files_in(finished.data) if not name.endswith(STATE)]

    assert [name for name in left if "/state/" in name or ".part" in name] == []


def test_human_output_teaches(sites, tmp_path):
    plan, out = write_plan(tmp_path), tmp_path / "run"

    ended = call(
        server,
        *("simulate", plan, "--data", sites, "--out", out, "--truth", sites / "truth.csv"),
    )

    assert ended.code == 0
    result = json.loads((out / "result.json").read_text())
    assert ended.out.startswith(f"completed after {result['rounds']} rounds")
    for words in (
        "patients     600 (charite-nord 88, st-anna 512)",
        "view weights ecg 0.",
        "objective J  ",
        "cluster 3    expected size ",
        "fedhk-mvfc (exact): accuracy 1.0000, NMI 1.0000, ARI 1.0000",
        "k-means on pooled rows: accuracy ",
        f"results: {out}",
        f"each site's memberships: {sites}/SITE/results/{result['run_id']}",
    ):
        assert words in ended.out
    assert "round 1: J" in ended.err
    assert "round 1: J" not in ended.out


def test_many_clusters_do_not_flood_the_terminal(sites, tmp_path):
    plan = write_plan(tmp_path, PLAN.replace("4", "100") + "max_rounds = 1\n")  # above 88 rows

    ended = call(server, "simulate", plan, "--data", sites, "--out", tmp_path / "run")

    assert ended.code == 0
    assert "cluster 19 " in ended.out
    assert "cluster 20 " not in ended.out
    assert "and 80 clusters more: see model.npz" in ended.out


def test_json_takes_the_scores_in(sites, tmp_path):
    plan, truth = write_plan(tmp_path), sites / "truth.csv"

    ended = call(
        server,
        *("simulate", plan, "--data", sites, "--out", tmp_path / "run", "--truth", truth, "--json"),
    )

    scores = json.loads(ended.out)["scores"]
    assert set(scores) == {"fedhk-mvfc (exact)", "k-means on pooled rows"}
    assert scores["fedhk-mvfc (exact)"] == {"accuracy": 1.0, "nmi": 1.0, "ari": 1.0}


@pytest.mark.parametrize("text", [None, "", "patient,label\n001,0\n", 'id,label\n"001'])
def test_unreadable_truth_is_said_before_the_run(sites, tmp_path, text):
    plan, out, truth = write_plan(tmp_path), tmp_path / "run", tmp_path / "nope.csv"
    if text is not None:
        truth.write_text(text)

    ended = call(server, "simulate", plan, "--data", sites, "--out", out, "--truth", truth)

    assert ended.code == 3
    assert "'nope.csv' is not a readable truth file" in ended.sentence
    assert not out.exists()


def test_every_run_has_a_folder_of_its_own_by_default(sites, tmp_path, monkeypatch):
    plan = write_plan(tmp_path, PLAN + "max_rounds = 1\n", name="quick.toml")
    monkeypatch.chdir(tmp_path)

    codes = [call(server, "simulate", plan, "--data", sites).code for _ in range(2)]

    assert codes == [0, 0]
    made = {path.name for path in (tmp_path / "runs").iterdir()}
    results = [json.loads(p.read_text()) for p in (tmp_path / "runs").glob("*/result.json")]
    assert made == {f"quick-{result['run_id'][:8]}" for result in results}
    assert len(made) == 2


def test_existing_result_is_refused_and_left_alone(finished, tmp_path):
    before = (finished.out / "result.json").read_bytes()

    ended = call(
        server, "simulate", write_plan(tmp_path), "--data", finished.data, "--out", finished.out
    )

    assert ended.code == 2
    assert ended.out == ""
    assert "folder 'run' already holds the result of a run" in ended.sentence
    assert "--out" in ended.sentence
    assert (finished.out / "result.json").read_bytes() == before


def test_refused_run_may_be_tried_again_in_its_folder(sites, tmp_path):
    plan, out = write_plan(tmp_path, PLAN.replace("4", "601")), tmp_path / "run"
    assert call(server, "simulate", plan, "--data", sites, "--out", out).code == 3
    write_plan(tmp_path)

    assert call(server, "simulate", plan, "--data", sites, "--out", out).code == 0

    assert json.loads((out / "result.json").read_text())["status"] == "completed"


def test_failed_run_with_json_still_prints_one_object(sites, tmp_path):
    plan, out = write_plan(tmp_path, PLAN.replace("4", "601")), tmp_path / "run"

    ended = call(server, "simulate", plan, "--data", sites, "--out", out, "--json")

    assert ended.code == 3
    told = json.loads(ended.out)
    assert (told["status"], told["exit_code"]) == ("failed", 3)
    assert told["stop_reason"] == ended.sentence


def test_shuffled_columns_give_the_bit_identical_model(finished, sites, tmp_path):
    def swap(lines):
        return [",".join((c, a, b)) for a, b, c in (line.split(",") for line in lines)]

    for path in sites.glob("*/*.csv"):
        edit_lines(path, swap)
    plan, out = write_plan(tmp_path), tmp_path / "run"

    assert call(server, "simulate", plan, "--data", sites, "--out", out).code == 0

    assert (out / "model.npz").read_bytes() == (finished.out / "model.npz").read_bytes()


def test_site_that_is_left_out_is_named_with_its_reason(sites, tmp_path):
    plan = write_plan(tmp_path, PLAN + 'max_rounds = 2\n[quorum]\non_missing = "continue"\n')
    (sites / "st-anna" / "ecg.csv").write_text("")

    ended = call(server, "simulate", plan, "--data", sites, "--out", tmp_path / "run")

    assert ended.code == 0
    assert "patients     88 (charite-nord 88)" in ended.out
    assert (
        "site 'st-anna' is not in the result: it was refused: site 'st-anna', view 'ecg'"
        in ended.out
    )
    assert str(sites / "st-anna" / "ecg.csv") in ended.err  # the hospital's own console


@pytest.mark.slow
def test_ray_equals_the_inprocess_run(finished, pristine, tmp_path):
    data, out = shutil.copytree(pristine, tmp_path / "sites"), tmp_path / "run"
    plan = write_plan(tmp_path)

    ended = run_script(
        "fedmvc-server",
        *("simulate", plan, "--data", data, "--out", out, "--backend", "ray", "--json"),
    )

    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["status"] == "completed"
    assert all(LOG_LINE.match(line) for line in ended.err.splitlines())
    with np.load(finished.out / "model.npz") as one, np.load(out / "model.npz") as other:
        assert one.files == other.files
        assert max(np.abs(one[name] - other[name]).max() for name in one.files) <= 1e-12
    run_id = json.loads((out / "result.json").read_text())["run_id"]
    for site in ("st-anna", "charite-nord"):
        table = pq.read_table(data / site / "results" / run_id / "membership.parquet")
        reference = pq.read_table(finished.site_results(site) / "membership.parquet")
        assert table["label"].equals(reference["label"])
