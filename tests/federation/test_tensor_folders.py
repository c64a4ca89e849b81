"""Four hospitals' folders: ids in different orders, leading zeros, a tenth not shared by all."""

import json
import shutil

import numpy as np
import pytest

from configs.schema import DataSchema
from fedmvc_server.noise_control import noise_control
from fedmvc_server.simulation import score_folders, simulate, simulate_folders
from privacy.alignment import intersect, link_tokens
from tests.federation.harness import accuracy
from tests.federation.tensor_harness import (
    KEY,
    by_id,
    edit_rows,
    folder_workers,
    hospitals,
    lone,
    vertical_plan,
    view_file,
)

PLAN = vertical_plan(3, max_rounds=10)
PAPER = vertical_plan(3, max_rounds=6, profile="paper")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write the four folders; no test writes here."""
    return hospitals(tmp_path_factory.mktemp("vertical") / "sites", prefix="00MRN")


@pytest.fixture
def data(pristine, tmp_path):
    """Copy the folders for one test."""
    return shutil.copytree(pristine, tmp_path / "sites")


@pytest.fixture(scope="module")
def finished(pristine, tmp_path_factory):
    """Run PLAN once, for every test that only looks; returns data, out folder and result."""
    folder = tmp_path_factory.mktemp("finished")
    data = shutil.copytree(pristine, folder / "sites")
    result = simulate_folders(PLAN, data, out=folder / "run")
    assert result.status == "completed", result.stop_reason
    return data, folder / "run", result


def tokens_of(data, plan):
    """Return each site's tokens and its ids in token order."""
    out = {}
    for name, worker in folder_workers(data).items():
        ids = worker.source.load().ids
        tokens, order = link_tokens(
            ids, rule="trim", key=KEY, plan_id=plan.plan_id, cost=1, site=name
        )
        out[name] = (tokens, [ids[i] for i in order])
    return out


def test_the_same_record_has_the_same_label_at_every_site(finished):
    data, _, result = finished
    kept = {name: by_id(site) for name, site in result.site_results.items()}
    shared = set.intersection(*(set(labels) for labels in kept.values()))

    assert len(kept) == 4
    assert len(shared) == 135
    assert all(record.startswith("0") for record in shared)
    for name, labels in kept.items():
        assert {record for record, label in labels.items() if label >= 0} == shared, name
        assert {labels[record] for record in set(labels) - shared} == {-1}
        assert len(labels) == 150
    for record in shared:
        assert len({labels[record] for labels in kept.values()}) == 1
    votes = {
        name: dict(zip(site.ids, site.vote_labels.tolist(), strict=True))
        for name, site in result.site_results.items()
    }
    assert len({tuple(vote[record] for record in sorted(shared)) for vote in votes.values()}) == 1
    lines = (data / "truth.csv").read_text().splitlines()[1:]
    truth = {line.split(",")[0].strip('"'): int(line.split(",")[1].strip('"')) for line in lines}
    records = sorted(shared)
    first = next(iter(kept.values()))
    found = np.array([first[record] for record in records])
    assert accuracy(np.array([truth[record] for record in records]), found) > 0.9


def test_metrics_count_lists_and_shared_rows(finished):
    _, _, result = finished
    assert result.metrics["rows"] == 135
    assert set(result.metrics["rows_by_site"].values()) == {150}
    assert result.metrics["views"] == {
        "st-anna": "ecg",
        "charite-nord": "imaging",
        "riverside": "laboratory",
        "san-marco": "spirometry",
    }
    assert sum(result.metrics["cluster_sizes"]) == 135


@pytest.mark.parametrize("plan", [PLAN, PAPER], ids=["plus", "paper"])
def test_the_run_is_that_of_arrays_in_token_order(data, plan):
    result = simulate_folders(plan, data)
    sent = tokens_of(data, plan)
    _, masks = intersect({name: tokens for name, (tokens, _) in sent.items()})
    ids = [record for record, on in zip(sent["st-anna"][1], masks["st-anna"], strict=True) if on]
    views = {}
    for name, worker in folder_workers(data).items():
        records = worker.source.load()
        (view,) = records.views.values()
        place = {record: i for i, record in enumerate(records.ids)}
        views[name] = view[[place[record] for record in ids]]

    expected = simulate(plan, lone(views))

    assert result.status == expected.status == "completed", result.stop_reason
    assert ids != sorted(ids)
    assert [row["objective"] for row in result.history] == [
        row["objective"] for row in expected.history
    ]
    assert result.metrics["view_weights"] == expected.metrics["view_weights"]
    for name, kept in result.site_results.items():
        labels = by_id(kept)
        found = np.array([labels[record] for record in ids])
        np.testing.assert_array_equal(found, expected.site_results[name].labels)


def test_the_order_of_the_files_rows_is_irrelevant(finished, data):
    _, _, result = finished
    for seed, name in enumerate(folder_workers(data)):
        rng = np.random.default_rng(seed)
        edit_rows(
            view_file(data / name), lambda rows, rng=rng: [rows[i] for i in rng.permutation(150)]
        )

    shuffled = simulate_folders(PLAN, data)

    assert [r["objective"] for r in shuffled.history] == [r["objective"] for r in result.history]
    for name, kept in result.site_results.items():
        assert by_id(shuffled.site_results[name]) == by_id(kept)
        np.testing.assert_array_equal(shuffled.site_results[name].view_labels, kept.view_labels)


def test_another_order_of_the_tokens_gives_the_same_groups(finished, data):
    """Another key is another order of the shared rows, and nothing else."""
    _, _, result = finished
    for path in data.glob("*/state/linkage.key"):
        path.write_text(bytes(range(1, 33)).hex())

    other = simulate_folders(PLAN, data)

    before, after = (by_id(r.site_results["st-anna"]) for r in (result, other))
    records = [record for record, label in before.items() if label >= 0]
    assert {record for record, label in after.items() if label >= 0} == set(records)
    one, two = (np.array([labels[r] for r in records]) for labels in (before, after))
    assert accuracy(one, two) > 0.98


def test_ids_that_are_written_differently_meet_by_the_schemas_rule(finished, data):
    _, _, result = finished
    for path in data.glob("*/schema.toml"):
        schema = DataSchema.load(path)
        schema.model_copy(update={"id_rule": "alphanumeric"}).dump(path)
    edit_rows(
        view_file(data / "riverside"),
        lambda rows: [[f"{row[0][:2]}-{row[0][2:]} ", *row[1:]] for row in rows],
    )

    found = simulate_folders(PLAN, data)

    assert found.status == "completed", found.stop_reason
    assert found.metrics["rows"] == 135
    ours = by_id(found.site_results["riverside"])
    there = by_id(found.site_results["st-anna"])
    assert sum(label >= 0 for label in ours.values()) == 135
    for record, label in ours.items():
        assert label in (-1, there.get(record.strip().replace("-", "")))
    assert found.metrics["rows_by_site"] == result.metrics["rows_by_site"]


def test_ids_without_their_leading_zeros_are_other_ids(data):
    edit_rows(
        view_file(data / "riverside"), lambda rows: [[r[0].lstrip("0"), *r[1:]] for r in rows]
    )
    found = simulate_folders(PLAN, data)
    assert (found.status, found.exit_code) == ("failed", 3)
    assert "share fewer patients than tensor.min_overlap = 50" in found.stop_reason


# -- what is left ----------------------------------------------------------------------------


def lists_in(value):
    """Yield every list in a JSON document."""
    if isinstance(value, list):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (dict, list)):
            yield from lists_in(item)


def test_the_server_keeps_no_token_id_label_or_model(finished):
    data, out, result = finished
    assert {path.name for path in out.iterdir()} == {"result.json", "rounds.csv"}
    assert result.model is None
    written = b"".join(path.read_bytes() for path in out.iterdir())
    sent = tokens_of(data, PLAN)
    for tokens, ids in sent.values():
        for token in tokens:
            assert token.tobytes() not in written
            assert token.tobytes().hex().encode() not in written
        for record in ids:
            assert record.encode() not in written
    document = json.loads((out / "result.json").read_text())
    assert document["metrics"]["model_sha256"] is None
    assert max(len(found) for found in lists_in(document)) < 20
    assert len((out / "rounds.csv").read_text().splitlines()) == result.rounds + 1


def test_the_site_keeps_labels_of_its_own_records_and_nothing_of_the_set_up(finished):
    data, _, result = finished
    for name, worker in folder_workers(data).items():
        folder = data / name
        (kept,) = (folder / "results").iterdir()
        assert kept.name == result.run_id
        assert {path.name for path in kept.iterdir()} == {"membership.parquet", "certificate.json"}
        state = {p.name for p in (folder / "state").rglob("*") if p.is_file()}
        assert state - {"register.db-shm", "register.db-wal"} == {
            *("linkage.key", "audit.jsonl", "register.db"),
        }
        again = worker.result(result.run_id)
        assert by_id(again) == by_id(result.site_results[name])
        assert again.membership.shape == (150, 3)
        np.testing.assert_array_equal(again.membership.sum(axis=1), again.labels >= 0)
        assert again.model is again.personal_model is None


def test_truth_is_matched_by_the_schemas_rule_and_every_baseline_is_there(data):
    """The sites write their ids in two ways; the truth file in a third."""
    for path in data.glob("*/schema.toml"):
        DataSchema.load(path).model_copy(update={"id_rule": "upper"}).dump(path)
    first, *others = sorted(path.parent for path in data.glob("*/site.toml"))
    edit_rows(view_file(first), lambda rows: [["x" + row[0], *row[1:]] for row in rows])
    for folder in others:
        edit_rows(view_file(folder), lambda rows: [["X" + row[0], *row[1:]] for row in rows])
    truth = data / "truth.csv"
    _, *rows = truth.read_text().splitlines()
    cells = [row.replace('"', "").split(",") for row in rows]
    truth.write_text("\n".join(["id,label", *(f" x{i} ,{label}" for i, label in cells)]) + "\n")

    result = simulate_folders(PLAN, data)
    scores = score_folders(PLAN, data, result, truth)

    assert scores["tensor-fmvc (plus)"]["accuracy"] > 0.8
    assert "k-means on the views side by side" in scores
    found = noise_control(PLAN, data, truth=truth)
    assert found.permutation["given_order"] == scores["tensor-fmvc (plus)"]
