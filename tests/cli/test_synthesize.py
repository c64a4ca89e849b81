import csv
import json

import pytest

from fedmvc_server.cli import app as server
from tests.cli.commands import call, files_in

SITE_FILES = {
    *("site.toml", "schema.toml", "ecg.csv", "imaging.csv"),
    *("roster.json", "state/identity.pem", "state/identity.pub"),
}


def test_says_what_it_wrote(tmp_path):
    out = tmp_path / "new" / "sites"

    ended = call(server, "synthesize", "cardio", "--out", out, "--n", 40, "--sites", 3)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("wrote 40 patients at 3 sites into ")
    names = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert len(names) == 3
    assert files_in(out) == {"truth.csv"} | {f"{n}/{f}" for n in names for f in SITE_FILES}
    assert all(name in ended.out for name in names)


def test_json_is_one_object_and_nothing_else(tmp_path):
    out = tmp_path / "sites"

    ended = call(server, "synthesize", "cardio", "--out", out, "--n", 40, "--seed", 3, "--json")

    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert told == {
        "out": str(out),
        "sites": ["st-anna", "charite-nord"],
        "n": 40,
        "partition": "paper",
        "seed": 3,
    }


def test_default_sites_share_85_to_15(pristine):
    rows = {}
    for path in pristine.glob("*/ecg.csv"):
        with path.open(newline="") as file:
            rows[path.parent.name] = len(list(csv.DictReader(file)))

    assert rows == {"st-anna": pytest.approx(510, abs=3), "charite-nord": pytest.approx(90, abs=3)}
    assert sum(rows.values()) == 600


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "missing", "stratified"])
def test_every_partition_can_be_asked_for(tmp_path, partition):
    arguments = ("--out", tmp_path / "sites", "--n", 200, "--sites", 4, "--partition", partition)

    assert call(server, "synthesize", "cardio", *arguments).code == 0

    assert len(list((tmp_path / "sites").glob("*/site.toml"))) == 4


def test_existing_folder_is_refused_and_left_alone(tmp_path):
    out = tmp_path / "sites"
    out.mkdir()
    (out / "notes.txt").write_text("mine")

    ended = call(server, "synthesize", "cardio", "--out", out, "--n", 40)

    assert ended.code == 2
    assert ended.out == ""
    assert "'sites' already exists" in ended.sentence
    assert files_in(tmp_path) == {"sites/notes.txt"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--n", 40, "--sites", 41), "41"),
        (("--n", 40, "--partition", "dirichlet", "--alpha", 0), "alpha"),
        (("--n", 40, "--partition", "dirichlet", "--alpha", "nan"), "alpha"),
        (("--n", 40, "--partition", "missing", "--sites", 1), "1"),
    ],
)
def test_impossible_partition_leaves_nothing(tmp_path, arguments, words):
    ended = call(server, "synthesize", "cardio", "--out", tmp_path / "sites", *arguments)

    assert ended.code == 2
    assert words in ended.sentence
    assert list(tmp_path.iterdir()) == []
