"""``fedmvc-client impute``: gaps of a site's files filled, observed cells as they are."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from configs.errors import ConfigError, DataRefused
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.cli import app as client
from fedmvc_client.completion import _views_of, impute
from fedmvc_client.data import SiteData, load_site
from fedmvc_server.planted import planted_views, without_cells
from fedmvc_server.simulation import simulate, simulate_folders
from fedmvc_server.synthesize_features import synthesize_features
from tests.cli.commands import call, edit_lines, edit_text, files_in
from tests.federation.mufsht_harness import hospitals, selection_plan

FILES = {"laboratory.csv", "imaging.csv", "proteins.csv"}


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """Run a selection over three folders; returns the folders and the server's selection.json."""
    folder = tmp_path_factory.mktemp("selected")
    synthesize_features(folder / "sites", n=180)
    plan = selection_plan(5, max_rounds=1)
    result = simulate_folders(plan, folder / "sites", out=folder / "run")
    assert result.status == "completed", result.stop_reason
    return folder / "sites", folder / "run" / "selection.json"


@pytest.fixture
def site(selected, tmp_path):
    return shutil.copytree(selected[0] / "st-anna", tmp_path / "st-anna")


def ask(selection, site, out, *more, data=None):
    arguments = ("--selection", selection, "--data", data or site, "--out", out, "--site", site)
    return call(client, "impute", *arguments, *more)


def cells(folder, like):
    """Read a folder's views by the site.toml and schema.toml of another."""
    schema = DataSchema.load(like / "schema.toml")
    return load_site(folder, schema, SiteConfig.load(like))


def test_gaps_are_filled_and_the_rest_is_left_as_it_was(selected, site, tmp_path):
    ended = ask(selected[1], site, tmp_path / "whole")

    assert (ended.code, ended.err) == (0, "")
    assert {path.name for path in (tmp_path / "whole").iterdir()} == FILES
    before, after = cells(site, site), cells(tmp_path / "whole", site)
    assert after.ids == before.ids
    n_gaps = 0
    for name, view in before.views.items():
        observed = np.isfinite(view)
        n_gaps += int((~observed).sum())
        np.testing.assert_array_equal(after.views[name][observed], view[observed])
        assert np.isfinite(after.views[name]).all()
        assert f"{name}: {(~observed).sum()} cells imputed, 0 left missing" in ended.out
    assert n_gaps > 500


def test_json_is_one_object(selected, site, tmp_path):
    ended = ask(selected[1], site, tmp_path / "whole", "--json")

    assert (ended.code, ended.err) == (0, "")
    said = json.loads(ended.out)
    assert set(said) == {"out", "rows", "imputed", "left_missing"}
    assert (said["rows"], set(said["imputed"])) == (60, {"laboratory", "imaging", "proteins"})
    assert set(said["left_missing"].values()) == {0}


def test_the_selection_that_a_site_keeps_does_the_same(selected, site, tmp_path):
    (kept,) = (site / "results").iterdir()
    ask(selected[1], site, tmp_path / "one")
    ask(kept / "selection.json", site, tmp_path / "other")
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_files_keep_their_dialect_and_format(selected, site, tmp_path):
    text_ids = csv.ConvertOptions(column_types={"patient_id": pa.string()})
    view = csv.read_csv(site / "imaging.csv", convert_options=text_ids)
    pq.write_table(view, site / "imaging.parquet")
    edit_text(site / "site.toml", '"imaging.csv"', '"imaging.parquet"')
    expected = cells(site, site)

    def german(lines):
        return [line.replace(",", ";").replace(".", ",") for line in lines]

    for name in ("laboratory.csv", "proteins.csv"):
        edit_lines(site / name, german)
    edit_text(site / "site.toml", 'delimiter = ","', 'delimiter = ";"')
    edit_text(site / "site.toml", 'decimal = "."', 'decimal = ","')
    ask(selected[1], site, tmp_path / "whole")

    after = cells(tmp_path / "whole", site)
    for name, before in expected.views.items():
        observed = np.isfinite(before)
        np.testing.assert_array_equal(after.views[name][observed], before[observed])


def test_a_record_that_one_file_lacks_gets_a_row_there(selected, site, tmp_path):
    gone = (site / "imaging.csv").read_text().splitlines()[-1].split(",")[0]
    edit_lines(site / "imaging.csv", lambda lines: lines[:-1])
    assert ask(selected[1], site, tmp_path / "whole").code == 0
    after = cells(tmp_path / "whole", site)
    row = after.ids.index(gone.strip('"'))
    assert np.isfinite(after.views["imaging"][row]).all()


def test_what_nothing_is_known_of_stays_missing(selected, site, tmp_path):
    def blank(lines):
        head, *rows = lines
        first = head.split(",")[1:]
        rows = [",".join([r.split(",")[0], "", *r.split(",")[2:]]) for r in rows]
        record = rows[0].split(",")[0]
        return [head, record + "," * len(first), *rows[1:]]

    def gone(lines):
        record = (site / "laboratory.csv").read_text().splitlines()[1].split(",")[0]
        return [line for line in lines if line.split(",")[0] != record]

    edit_lines(site / "laboratory.csv", blank)
    for name in ("imaging.csv", "proteins.csv"):
        edit_lines(site / name, gone)
    ended = ask(selected[1], site, tmp_path / "whole", "--json")
    left = json.loads(ended.out)["left_missing"]
    # a column of 60 rows and a row of 60 columns cross in one cell
    assert left == {"laboratory": 119, "imaging": 80, "proteins": 50}


def no_selection(selection, site):
    return {"selection": site / "selection.json"}


def damaged(selection, site):
    for name, length in (("selection.json", None), ("selection.npz", 900)):
        (site / name).write_bytes(selection.with_name(name).read_bytes()[:length])
    return {"selection": site / "selection.json"}


def taken(selection, site):
    return {"out": site}


def no_folder(selection, site):
    return {"out": site / "nowhere" / "whole"}


def another_column(selection, site):
    header = (site / "imaging.csv").read_text().splitlines()[0].split(",")[1].strip('"')
    edit_text(site / "schema.toml", f'"{header}"', '"density"')
    edit_text(site / "imaging.csv", header, "density")
    return {}


def too_few(selection, site):
    for name in FILES:
        edit_lines(site / name, lambda lines: lines[:4])
    return {}


def missing_file(selection, site):
    (site / "imaging.csv").unlink()
    return {}


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (no_selection, 2, "selection.json and selection.npz are not a readable selection"),
        (damaged, 2, "selection.json and selection.npz are not a readable selection"),
        (taken, 2, "--out 'st-anna' exists already"),
        (no_folder, 2, "'whole' cannot be written"),
        (another_column, 3, "view 'imaging' and the selection differ in 2 column names"),
        (too_few, 3, "site 'st-anna' has 3 rows but k is 5"),
        (missing_file, 3, "view 'imaging': its file does not exist"),
    ],
)
def test_refusal_is_one_sentence_and_leaves_nothing(selected, site, tmp_path, spoil, code, words):
    changed = spoil(selected[1], site)
    before = files_in(tmp_path)
    selection = changed.get("selection", selected[1])

    ended = ask(selection, site, changed.get("out", tmp_path / "whole"))

    assert ended.code == code
    assert words in ended.sentence
    assert str(tmp_path) not in ended.sentence
    assert ended.out == ""
    assert files_in(tmp_path) == before


# -- from Python -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    """Return planted views with holes, the truth, and a selection of them."""
    sites, informative = hospitals(180)
    plan = selection_plan(max_rounds=2)
    selection = simulate(plan, sites).selection
    truth = sites["site-00"]["views"]
    names = selection.views
    holes = dict(zip(names, without_cells(truth, 0.2, 1), strict=True))
    return selection, holes, dict(zip(names, truth, strict=True)), informative


def test_guesses_are_nearer_than_the_mean_where_there_is_structure(found):
    selection, holes, truth, informative = found
    parts = dict(zip(selection.views, selection.by_view(informative), strict=True))
    filled = impute(selection, holes)
    guess = mean = 0.0
    for view, scaling in zip(selection.views, selection.scaling, strict=True):
        gaps = np.isnan(holes[view]) & parts[view]
        guess += ((filled[view] - truth[view])[gaps] ** 2).sum()
        mean += ((scaling.center - truth[view])[gaps] ** 2).sum()
    assert guess < 0.6 * mean


def test_views_may_be_absent_and_are_not_invented(found):
    selection, holes, _, _ = found
    two = {view: holes[view] for view in selection.views[:2]}
    filled = impute(selection, two)
    assert set(filled) == set(two)
    assert all(np.isfinite(view).all() for view in filled.values())


def test_arrays_that_do_not_fit_are_refused(found):
    selection, holes, _, _ = found
    first = selection.views[0]
    with pytest.raises(DataRefused, match="the data has 0 of the selection's 3 views"):
        impute(selection, {"ecg": holes[first]})
    with pytest.raises(DataRefused, match=r"has shape \(60, 14\), the selection needs \(60, 15\)"):
        impute(selection, {**holes, first: holes[first][:, 1:]})
    with pytest.raises(DataRefused, match=f"view '{first}' of the data has 1 values beyond 1e"):
        large = holes[first].copy()
        large[0, 0] = 1e200
        impute(selection, {**holes, first: large})


def test_text_is_refused():
    rng = np.random.default_rng(0)
    words = planted_views(60, 0).labels[:, None] + rng.poisson(1.0, size=(60, 12))
    sites = {"a": {"views": [words[:30].astype(float)]}, "b": {"views": [words[30:].astype(float)]}}
    plan = selection_plan(max_rounds=1, text=True)
    selection = simulate(plan, sites).selection
    with pytest.raises(ConfigError, match="the selection is of text"):
        impute(selection, {"view_0": words.astype(float)})


def test_columns_that_are_no_plain_numbers_are_refused():
    views = {"name": "v", "columns": [{"name": "a", "dtype": "bool"}]}
    schema = DataSchema.parse({"id": "i", "views": [views]})
    data = SiteData((), {"v": np.zeros((3, 1))}, schema, None)
    selection = SimpleNamespace(views=("v",), columns=(("a",),))
    with pytest.raises(DataRefused, match="1 columns that are not of dtype 'float'"):
        _views_of(selection, data)
