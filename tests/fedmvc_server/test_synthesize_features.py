"""Hospitals with many columns of which few matter, as `synthesize features` writes them."""

import csv
import json

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.data import load_site
from fedmvc_server.cli import app as server
from fedmvc_server.planted import planted_views, without_cells
from fedmvc_server.synthesize_features import FEATURES_SCHEMA, synthesize_features
from tests.cli.commands import call, files_in

NAMES = ["st-anna", "charite-nord", "riverside"]
KEYS = ("roster.json", "state/identity.pem", "state/identity.pub")  # fresh each time


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Write 200 patients at three hospitals; nothing may change this folder."""
    out = tmp_path_factory.mktemp("features") / "set"
    assert synthesize_features(out, n=200, missing=0.2, seed=3) == NAMES
    return out


def site(folder):
    return load_site(folder, DataSchema.load(folder / "schema.toml"), SiteConfig.load(folder))


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_informative_features_tell_the_classes_apart_and_the_others_do_not():
    found = planted_views(2000, seed=1)
    x = np.concatenate(found.views, axis=1)
    between = np.array([x[found.labels == c].mean(axis=0) for c in range(5)]).var(axis=0)
    assert found.informative.sum() == 45
    assert between[found.informative].mean() > 20 * between[~found.informative].mean()


def test_that_share_of_the_cells_is_left_out():
    (view,) = without_cells([np.zeros((400, 50))], 0.3, 0)
    assert np.isnan(view).mean() == pytest.approx(0.3, abs=0.02)


def test_the_last_hospital_lacks_a_view_and_the_schema_is_one(three):
    common = {"site.toml", "schema.toml", "laboratory.csv", "imaging.csv", *KEYS}
    expected = {f"{name}/{file}" for name in NAMES for file in common}
    expected |= {f"{name}/proteins.csv" for name in NAMES[:2]}
    assert files_in(three) == expected | {"truth.csv", "informative.csv"}
    assert len({(three / name / "schema.toml").read_bytes() for name in NAMES}) == 1


def test_sites_hold_the_planted_set_with_its_gaps(three):
    planted = planted_views(200, 3)
    seen = []
    for name in NAMES:
        data = site(three / name)
        rows = np.array([int(record) - 1 for record in data.ids])
        seen += rows.tolist()
        for v, view in enumerate(FEATURES_SCHEMA.view_names[: len(data.views)]):
            held = np.isfinite(data.views[view])
            np.testing.assert_allclose(data.views[view][held], planted.views[v][rows][held])
            assert (~held).mean() == pytest.approx(0.2, abs=0.03)
    assert sorted(seen) == list(range(200))
    assert [int(row["label"]) for row in rows_of(three / "truth.csv")] == planted.labels.tolist()
    named = {(row["view"], row["column"]) for row in rows_of(three / "informative.csv")}
    every = [(v.name, c.name) for v in FEATURES_SCHEMA.views for c in v.columns]
    assert named == {e for e, chosen in zip(every, planted.informative, strict=True) if chosen}


def test_the_same_call_writes_the_same_bytes_but_for_keys(three, tmp_path):
    synthesize_features(tmp_path / "again", n=200, missing=0.2, seed=3)
    for file in files_in(three):
        same = (tmp_path / "again" / file).read_bytes() == (three / file).read_bytes()
        assert same == (not file.endswith(KEYS)), file


@pytest.mark.parametrize("missing", [-0.1, 1.0])
def test_an_impossible_share_is_refused_and_nothing_is_left(tmp_path, missing):
    with pytest.raises(ConfigError, match=f"missing is {missing:g}: give a share"):
        synthesize_features(tmp_path / "set", missing=missing)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_wrote(tmp_path):
    done = call(
        server,
        "synthesize",
        "features",
        "--out",
        tmp_path / "set",
        "--sites",
        2,
        "--n",
        50,
        "--json",
    )
    assert done.code == 0
    assert json.loads(done.out)["sites"] == NAMES[:2]
    assert (tmp_path / "set" / "charite-nord" / "proteins.csv").is_file()
