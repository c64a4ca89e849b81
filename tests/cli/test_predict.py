import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from fedmvc_client.cli import app as client
from tests.cli.commands import call, edit_lines, edit_text, files_in

COLUMNS = ["id", "label", "u_1", "u_2", "u_3", "u_4", "distance", "outside_bounds"]
N_NEW = 20


@pytest.fixture
def new_patients(finished, tmp_path):
    """Files of some patients of st-anna, as they would arrive after the run."""
    folder = tmp_path / "new"
    folder.mkdir()
    site = finished.data / "st-anna"
    ids = pq.read_table(finished.site_results("st-anna") / "membership.parquet")["id"].to_pylist()
    wanted = {f'"{record}"' for record in ids[:N_NEW]}
    for name in ("ecg.csv", "imaging.csv"):
        header, *rows = (site / name).read_text().splitlines()
        kept = [row for row in rows if row.split(",")[0] in wanted]
        (folder / name).write_text("\n".join([header, *kept]) + "\n")
    return folder


def predict(finished, folder, out, *more, model=None):
    model = model or finished.out / "model.json"
    site = finished.data / "st-anna"
    return call(
        client, "predict", "--model", model, "--data", folder, "--out", out, "--site", site, *more
    )


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)
    options = csv.ConvertOptions(column_types={"id": pa.string()})
    return csv.read_csv(path, convert_options=options)


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
def test_labels_equal_those_of_the_run(finished, new_patients, tmp_path, name):
    ended = predict(finished, new_patients, tmp_path / name)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("labelled 20 rows (0 with a cell outside its bounds): ")
    found = read(tmp_path / name)
    known = pq.read_table(finished.site_results("st-anna") / "membership.parquet").slice(0, N_NEW)
    assert found.column_names == COLUMNS
    assert found["id"].to_pylist() == known["id"].to_pylist()
    assert found["label"].to_pylist() == known["label"].to_pylist()
    for k in range(1, 5):
        difference = found[f"u_{k}"].to_numpy() - known[f"u_{k}"].to_numpy()
        assert np.abs(difference).max() < 1e-12
    distance = found["distance"].to_numpy()
    assert ((distance >= 0) & (distance <= 1)).all()


def test_ids_keep_their_leading_zeros(finished, new_patients, tmp_path):
    predict(finished, new_patients, tmp_path / "labels.csv")
    predict(finished, new_patients, tmp_path / "labels.parquet")

    ids = read(tmp_path / "labels.parquet")["id"].to_pylist()
    assert ids[0].startswith("00")
    assert [len(record) for record in ids] == [3] * N_NEW
    assert f'"{ids[0]}",' in (tmp_path / "labels.csv").read_text()


def test_json_is_one_object_and_nothing_else(finished, new_patients, tmp_path, monkeypatch):
    out = tmp_path / "labels.csv"
    monkeypatch.chdir(finished.data / "st-anna")  # a site's folder is the current one by default

    ended = call(
        client,
        *("predict", "--model", finished.out / "model.json", "--data", new_patients),
        *("--out", out, "--json"),
    )

    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == {"out": str(out), "rows": N_NEW, "rows_outside_bounds": 0}


def test_cell_outside_the_bounds_is_counted(finished, new_patients, tmp_path):
    def spoil(lines):
        record, _, last = lines[1].split(",")
        return [lines[0], f"{record},99.5,{last}", *lines[2:]]

    edit_lines(new_patients / "ecg.csv", spoil)
    spoilt = (new_patients / "ecg.csv").read_text().splitlines()[1].split(",")[0].strip('"')

    ended = predict(finished, new_patients, tmp_path / "labels.csv", "--json")

    assert ended.code == 0
    assert json.loads(ended.out)["rows_outside_bounds"] == 1
    found = read(tmp_path / "labels.csv")
    counted = dict(zip(found["id"].to_pylist(), found["outside_bounds"].to_pylist(), strict=True))
    assert {record: n for record, n in counted.items() if n} == {spoilt: 1}


def test_shuffled_columns_and_rows_give_the_same_bytes(finished, new_patients, tmp_path):
    def shuffle(lines):
        swapped = [",".join((b, c, a)) for a, b, c in (line.split(",") for line in lines)]
        return [swapped[0], *reversed(swapped[1:])]

    predict(finished, new_patients, tmp_path / "before.csv")
    for name in ("ecg.csv", "imaging.csv"):
        edit_lines(new_patients / name, shuffle)
    predict(finished, new_patients, tmp_path / "after.csv")

    assert (tmp_path / "after.csv").read_bytes() == (tmp_path / "before.csv").read_bytes()


def test_data_folder_may_bring_its_own_site_file(finished, new_patients, tmp_path):
    site = finished.data / "st-anna"
    for name in ("ecg", "imaging"):
        pq.write_table(
            csv.read_csv(
                new_patients / f"{name}.csv",
                convert_options=csv.ConvertOptions(column_types={"patient_id": pa.string()}),
            ),
            new_patients / f"{name}.parquet",
        )
        (new_patients / f"{name}.csv").unlink()
    (new_patients / "site.toml").write_text(
        'name = "elsewhere"\n[data]\necg = "ecg.parquet"\nimaging = "imaging.parquet"\n'
    )
    (new_patients / "schema.toml").write_text((site / "schema.toml").read_text())

    ended = call(
        client,
        *("predict", "--model", finished.out / "model.json", "--data", new_patients),
        *("--out", tmp_path / "labels.csv"),
    )

    assert ended.code == 0
    assert read(tmp_path / "labels.csv").num_rows == N_NEW


def test_patient_without_one_view_is_labelled_by_the_other(finished, new_patients, tmp_path):
    edit_lines(new_patients / "imaging.csv", lambda lines: lines[:-1])

    assert predict(finished, new_patients, tmp_path / "labels.csv").code == 0

    found = read(tmp_path / "labels.csv")
    assert found.num_rows == N_NEW
    assert np.isfinite(found["u_1"].to_numpy()).all()


def other_schema(finished, folder):
    schema = (finished.data / "st-anna" / "schema.toml").read_text()
    (folder / "schema.toml").write_text(schema.replace("11.0", "12.0"))
    return {}


def no_model(finished, folder):
    return {"model": folder / "model.json"}


def only_half_a_model(finished, folder):
    (folder / "model.json").write_bytes((finished.out / "model.json").read_bytes())
    return {"model": folder / "model.json"}


def damaged_model(finished, folder):
    for name, length in (("model.json", None), ("model.npz", 500)):
        (folder / name).write_bytes((finished.out / name).read_bytes()[:length])
    return {"model": folder / "model.json"}


def result_for_a_model(finished, folder):
    return {"model": finished.out / "result.json"}


def excel(finished, folder):
    return {"out": "labels.xlsx"}


def no_folder(finished, folder):
    return {"out": "nowhere/labels.csv"}


def missing_file(finished, folder):
    (folder / "ecg.csv").unlink()
    return {}


def bad_cell(finished, folder):
    edit_lines(folder / "ecg.csv", lambda lines: [*lines[:-1], '"599",secret,1.0'])
    return {}


def missing_column(finished, folder):
    edit_text(folder / "imaging.csv", '"imaging_y"', '"imaging_z"')
    return {}


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (other_schema, 3, "view 'ecg' follows schema"),
        (no_model, 2, "give the model.json of a finished run"),
        (only_half_a_model, 2, "with its model.npz beside it"),
        (damaged_model, 2, "model.json and model.npz are not a readable model"),
        (result_for_a_model, 2, "result.json and model.npz are not a readable model"),
        (excel, 2, "ends in '.xlsx': use .csv or .parquet"),
        (no_folder, 2, "'labels.csv' cannot be written"),
        (missing_file, 3, "view 'ecg': its file does not exist"),
        (bad_cell, 3, "column 'ecg_x' of dtype 'float' holds no number at line 21"),
        (missing_column, 3, "view 'imaging': column 'imaging_y' is missing"),
    ],
)
def test_refusal_is_one_sentence_and_leaves_nothing(
    finished, new_patients, tmp_path, spoil, code, words
):
    changed = spoil(finished, new_patients)
    before = files_in(tmp_path)

    ended = predict(
        finished,
        new_patients,
        tmp_path / changed.get("out", "labels.csv"),
        model=changed.get("model"),
    )

    assert ended.code == code
    assert words in ended.sentence
    assert "secret" not in ended.err
    assert str(tmp_path) not in ended.sentence
    assert ended.out == ""
    assert files_in(tmp_path) == before
