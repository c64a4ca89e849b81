"""Hospitals with different views of the same patients, as `synthesize vertical` writes them."""

import csv
import json
import stat

import numpy as np
import pytest
from sklearn.cluster import KMeans

from configs.errors import ConfigError
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.data import load_site
from fedmvc_server import synthesize_vertical as module
from fedmvc_server.cli import app as server
from fedmvc_server.evaluation import accuracy
from fedmvc_server.synthesize_vertical import synthesize_vertical, vertical_schema
from privacy.alignment import intersect, link_tokens, read_linkage_key
from tests.cli.commands import call, files_in

VIEWS = {
    "st-anna": "ecg",
    "charite-nord": "imaging",
    "riverside": "laboratory",
    "san-marco": "spirometry",
}


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Write 500 patients at each of four hospitals, 450 at all; nothing may change this folder."""
    out = tmp_path_factory.mktemp("vertical") / "set"
    made = synthesize_vertical(out, sites=4, n=500, overlap=0.9, seed=3)
    assert (made.views, made.n_shared) == (VIEWS, 450)
    return out


def site(folder):
    return load_site(folder, DataSchema.load(folder / "schema.toml"), SiteConfig.load(folder))


def file_ids(path):
    with path.open() as file:
        return [row[0] for row in list(csv.reader(file))[1:]]


def truth_of(out):
    with (out / "truth.csv").open() as file:
        return {row["id"]: int(row["label"]) for row in csv.DictReader(file)}


def test_folders_hold_one_view_each_and_one_schema(four):
    files = {"site.toml", "schema.toml", "state/linkage.key"}
    expected = {f"{s}/{f}" for s, view in VIEWS.items() for f in (*files, f"{view}.csv")}
    assert files_in(four) == expected | {"truth.csv"}
    assert len({(four / name / "schema.toml").read_bytes() for name in VIEWS}) == 1
    for name, view in VIEWS.items():
        config = SiteConfig.load(four / name)
        assert (config.name, config.data) == (name, {view: f"{view}.csv"})
        assert config.policy.approval == "auto"
        assert list(site(four / name).views) == [view]


def test_all_sites_have_one_linkage_key_that_only_its_owner_reads(four):
    keys = [four / name / SiteConfig.load(four / name).keys.linkage for name in VIEWS]
    assert len({read_linkage_key(key) for key in keys}) == 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_lists_share_what_was_asked_for(four):
    lists = {name: set(site(four / name).ids) for name in VIEWS}
    shared = set.intersection(*lists.values())
    assert {len(own) for own in lists.values()} == {500}
    assert len(shared) == 450
    # of 50 others a quarter each is also on the next list and on the one before
    counts = {len((one & other) - shared) for one in lists.values() for other in lists.values()}
    assert counts == {0, 12, 50}
    assert set.union(*lists.values()) == set(truth_of(four))


def test_alignment_finds_exactly_the_shared_patients(four):
    key = read_linkage_key(four / "st-anna" / "state" / "linkage.key")
    ids = {name: site(four / name).ids for name in VIEWS}
    linked = {
        name: link_tokens(own, rule="trim", key=key, plan_id="plan", cost=1, site=name)
        for name, own in ids.items()
    }
    n_shared, masks = intersect({name: tokens for name, (tokens, _) in linked.items()})
    rows = [[ids[name][i] for i in order[masks[name]]] for name, (_, order) in linked.items()]
    assert n_shared == 450
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert set(rows[0]) == set.intersection(*(set(own) for own in ids.values()))


def test_ids_have_leading_zeros_that_count(four):
    ids = [i for name in VIEWS for i in site(four / name).ids]
    assert all(i.startswith("0") for i in ids)
    assert len({len(i) for i in ids}) == 1


def test_files_are_in_different_orders(four):
    shared = set.intersection(*(set(site(four / name).ids) for name in VIEWS))
    orders = [
        tuple(i for i in file_ids(four / name / f"{view}.csv") if i in shared)
        for name, view in VIEWS.items()
    ]
    assert len({*orders, tuple(sorted(shared))}) == 5


def test_ids_and_orders_say_nothing_of_the_phenotype(four):
    truth = truth_of(four)
    for ids in (sorted(truth), file_ids(four / "st-anna" / "ecg.csv")):
        labels = np.array([truth[i] for i in ids])
        blocks = np.arange(labels.size) * 4 // labels.size
        assert accuracy(labels, blocks) < 0.36  # a quarter is chance


def test_one_record_in_fifty_has_no_measurement(four):
    for name in VIEWS:
        (view,) = site(four / name).views.values()
        missing = np.isnan(view)
        np.testing.assert_array_equal(missing.any(axis=1), missing.all(axis=1))
        assert missing.all(axis=1).sum() == 10


def test_cells_lie_in_their_bounds_and_columns_have_units(four):
    for name in VIEWS:
        report = site(four / name).report
        assert [c for counts in report.outside_bounds.values() for c in counts.values() if c] == []
    schema = DataSchema.load(four / "st-anna" / "schema.toml")
    features = [f for view in schema.view_names for f in schema.features(view)]
    assert all(f.unit and f.bounds for f in features)
    assert all(3 <= len(view.columns) <= 5 for view in schema.views)


def test_views_differ_in_difficulty_and_the_last_is_weak(four):
    truth, scores = truth_of(four), []
    for name in VIEWS:
        data = site(four / name)
        (view,) = data.views.values()
        held = ~np.isnan(view).any(axis=1)
        values = view[held] / view[held].std(axis=0)
        found = KMeans(4, n_init=10, random_state=0).fit_predict(values)
        scores.append(accuracy(np.array([truth[i] for i in data.ids])[held], found))
    assert scores[0] > 0.9
    assert 0.4 < scores[-1] < 0.85
    assert scores[-1] == min(scores)


def test_the_same_call_writes_the_same_bytes_the_key_aside(tmp_path):
    for name in ("one", "two"):
        synthesize_vertical(tmp_path / name, n=60, seed=7)
    files = files_in(tmp_path / "one")
    assert files == files_in(tmp_path / "two")
    different = {
        file
        for file in files
        if (tmp_path / "one" / file).read_bytes() != (tmp_path / "two" / file).read_bytes()
    }
    assert different == {f for f in files if f.endswith("linkage.key")}


@pytest.mark.parametrize(("sites", "overlap", "total"), [(2, 0.5, 90), (3, 0.5, 99), (3, 1.0, 60)])
def test_every_patient_is_counted_once(tmp_path, sites, overlap, total):
    # 3 sites: 30 on all lists, 7 on each pair of lists, 16 on each list alone
    synthesize_vertical(tmp_path / "set", sites=sites, n=60, overlap=overlap)
    assert len(truth_of(tmp_path / "set")) == total


def test_more_hospitals_than_named_views_hold_devices():
    schema = vertical_schema(7)
    assert schema.view_names[4:] == ("wearable", "device-6", "device-7")
    assert vertical_schema(2).view_names == ("ecg", "imaging")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"sites": 1}, "sites is 1: a vertical federation needs 2 or more"),
        ({"overlap": 0.0}, "overlap is 0: give a share above 0 and at most 1"),
        ({"overlap": 1.5}, "overlap is 1.5: give a share"),
        ({"overlap": float("nan")}, "overlap is nan: give a share"),
        ({"n": 10, "overlap": 0.2}, "10 patients a site with overlap 0.2 share 2, too few for 4"),
        ({"seed": -1}, "seed is -1"),
        ({"n_clusters": 0}, "n_clusters is 0"),
    ],
)
def test_a_wrong_argument_leaves_nothing_behind(tmp_path, arguments, sentence):
    with pytest.raises(ConfigError) as caught:
        synthesize_vertical(tmp_path / "new" / "set", **arguments)
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_taken_name_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="'set' already exists and is not an empty folder"):
        synthesize_vertical(tmp_path / "set")
    assert files_in(tmp_path) == {"set/notes.txt"}


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    written = []

    def write(path, columns):
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_csv", write)
    with pytest.raises(ConfigError, match="folder 'set' cannot be written: No space left"):
        synthesize_vertical(tmp_path / "set", n=60)
    assert len(written) == 3
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_wrote(tmp_path):
    out = tmp_path / "set"
    arguments = ("--out", out, "--sites", 2, "--n", 80, "--clusters", 3, "--overlap", 0.8)

    ended = call(server, "synthesize", "vertical", *arguments)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        f"wrote 80 patients at each of 2 sites, 64 of them at all, into {out}: st-anna (ecg), "
        "charite-nord (imaging)\n"
    )
    assert set(truth_of(out).values()) == {0, 1, 2}


def test_the_commands_json_is_one_object_and_nothing_else(tmp_path):
    out = tmp_path / "set"

    ended = call(server, "synthesize", "vertical", "--out", out, "--n", 80, "--json")

    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == {
        "out": str(out),
        "sites": dict(list(VIEWS.items())[:3]),
        "n": 80,
        "shared": 72,
        "clusters": 4,
        "overlap": 0.9,
        "seed": 0,
    }
