"""Site folders as `fedmvc-server synthesize` writes them."""

import csv

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.data import load_site
from fedmvc_server import synthesize
from fedmvc_server.cardio import cardio_views
from fedmvc_server.synthesize import site_names, synthesize_cardio


def site(folder):
    return load_site(folder, DataSchema.load(folder / "schema.toml"), SiteConfig.load(folder))


def file_rows(path):
    with path.open() as file:
        return list(csv.reader(file))[1:]


def test_folders_hold_what_the_architecture_says(tmp_path):
    names = synthesize_cardio(tmp_path / "set", n=400)
    assert names == ["st-anna", "charite-nord"]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == [
        *sorted(names),
        "truth.csv",
    ]
    for name in names:
        folder = tmp_path / "set" / name
        assert sorted(path.name for path in folder.iterdir()) == [
            "ecg.csv",
            "imaging.csv",
            "roster.json",
            "schema.toml",
            "site.toml",
            "state",
        ]
        state = {path.name for path in (folder / "state").iterdir()}
        assert state == {"identity.pem", "identity.pub"}
        config = SiteConfig.load(folder)
        assert config.name == name
        assert config.policy.approval == "auto"


def test_the_files_hold_the_generators_numbers_exactly(tmp_path):
    names = synthesize_cardio(tmp_path / "set", n=400, seed=5)
    views, labels = cardio_views(400, 5)
    truth = dict(file_rows(tmp_path / "set" / "truth.csv"))
    assert len(truth) == 400
    seen = []
    for name in names:
        data = site(tmp_path / "set" / name)
        rows = np.array([int(record) - 1 for record in data.ids])
        np.testing.assert_array_equal(data.views["ecg"], views[0][rows])
        np.testing.assert_array_equal(data.views["imaging"], views[1][rows])
        assert [truth[record] for record in data.ids] == labels[rows].astype(str).tolist()
        assert not any(data.report.outside_bounds["ecg"].values())
        assert not any(data.report.outside_bounds["imaging"].values())
        seen += data.ids
    assert sorted(seen) == sorted(truth)


def test_the_two_files_are_in_different_orders(tmp_path):
    synthesize_cardio(tmp_path / "set", n=400)
    folder = tmp_path / "set" / "st-anna"
    ecg, imaging = ([row[0] for row in file_rows(folder / f"{v}.csv")] for v in ("ecg", "imaging"))
    assert ecg != imaging != sorted(imaging)
    assert sorted(ecg) == sorted(imaging)


def test_no_label_stands_in_a_site_folder(tmp_path):
    synthesize_cardio(tmp_path / "set", n=40)
    files = [path for path in (tmp_path / "set" / "st-anna").rglob("*.*") if path.is_file()]
    assert len(files) == 7
    for file in files:
        assert "label" not in file.read_text().replace("share_labels", "")


def test_the_same_call_writes_the_same_bytes_but_for_keys(tmp_path):
    for name in ("one", "two"):
        synthesize_cardio(tmp_path / name, n=100, sites=3, partition="iid", seed=7)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 3 * 7 + 1
    for file in files:
        same = (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
        assert same == (file.name not in ("identity.pem", "identity.pub", "roster.json")), file


def test_a_million_bounds_are_wide_enough():
    views, _ = cardio_views(1_000_000, 11)
    for view, schema in zip(views, synthesize.CARDIO_SCHEMA.views, strict=True):
        for j, feature in enumerate(schema.features()):
            assert feature.bounds[0] < view[:, j].min() < view[:, j].max() < feature.bounds[1]


def test_site_names_are_distinct_and_legal():
    names = site_names(30)
    assert len(set(names)) == 30
    for name in names:
        SiteConfig.parse({"name": name, "data": {"ecg": "ecg.csv"}})
    assert site_names(3) == names[:3]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "set").mkdir()
    synthesize_cardio(tmp_path / "set", n=40)
    assert (tmp_path / "set" / "truth.csv").exists()


def test_missing_parents_are_made(tmp_path):
    synthesize_cardio(tmp_path / "a" / "b", n=40)
    assert (tmp_path / "a" / "b" / "truth.csv").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_taken_name_is_refused_and_left_as_it_was(tmp_path, kind):
    target = tmp_path / "set"
    if kind == "folder":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    else:
        target.write_text("mine")
    with pytest.raises(ConfigError, match="'set' already exists and is not an empty folder"):
        synthesize_cardio(target, n=40)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert (target / "notes.txt" if kind == "folder" else target).read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [{"n": 3}, {"sites": 0}, {"partition": "none"}, {"partition": "missing", "sites": 1}],
)
def test_a_wrong_argument_leaves_nothing_behind(tmp_path, arguments):
    with pytest.raises(ConfigError):
        synthesize_cardio(tmp_path / "set", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    written = []

    def write(path, columns):
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(synthesize, "write_csv", write)
    with pytest.raises(
        ConfigError, match="folder 'set' cannot be written: No space left on device"
    ):
        synthesize_cardio(tmp_path / "set", n=40)
    assert len(written) == 3
    assert list(tmp_path.iterdir()) == []
