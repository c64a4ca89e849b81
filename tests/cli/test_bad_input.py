"""Bad input: one sentence, the documented exit code, and nothing half done."""

import csv
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fedmvc_client.cli import app as client
from fedmvc_server import deployment, progress
from fedmvc_server.cli import app as server
from tests.cli.commands import (
    PLAN,
    call,
    edit_lines,
    edit_text,
    files_in,
    run_script,
    write_plan,
)

SECRET = "7777.25x"


def simulate(sites, tmp_path, plan=PLAN):
    return call(
        server,
        *("simulate", write_plan(tmp_path, plan), "--data", sites, "--out", tmp_path / "run"),
    )


def ecg(change):
    """Spoil the lines of st-anna's ECG file."""
    return lambda sites: edit_lines(sites / "st-anna" / "ecg.csv", change)


def site_toml(old, new):
    return lambda sites: edit_text(sites / "st-anna" / "site.toml", old, new)


def each(change):
    """Change every row, not the header."""
    return ecg(lambda lines: [lines[0], *(",".join(change(r.split(","))) for r in lines[1:])])


def empty(sites):
    (sites / "st-anna" / "ecg.csv").write_text("")


def no_file(sites):
    (sites / "st-anna" / "ecg.csv").unlink()


def not_text(sites):
    (sites / "st-anna" / "ecg.csv").write_bytes(b"\xff\xfe\x00\x01")


def not_parquet(sites):
    (sites / "st-anna" / "ecg.parquet").write_bytes(b"PAR")
    site_toml('"ecg.csv"', '"ecg.parquet"')(sites)


def missing_column(lines):
    return [line.rpartition(",")[0] for line in lines]


def extra_column(lines):
    return [f'{lines[0]},"zip"', *(f"{line},1" for line in lines[1:])]


def doubled_column(lines):
    return [f"{line},{line.split(',')[1]}" for line in lines]


def doubled_id(lines):
    return [*lines, lines[1]]


def bad_cell(lines):
    record, _, last = lines[3].split(",")
    return [*lines[:3], f"{record},{SECRET},{last}", *lines[4:]]


def ragged(lines):
    return [*lines[:3], f"{lines[3]},{SECRET}", *lines[4:]]


def no_id(lines):
    return [*lines[:3], ",".join(["", *lines[3].split(",")[1:]]), *lines[4:]]


# What a site's own files and policy can get wrong: how, exit code, words of the sentence.
AT_THE_SITE = {
    "empty file": (empty, 3, ["view 'ecg'", "its file is empty"]),
    "no rows": (ecg(lambda lines: lines[:1]), 3, ["view 'ecg'", "no row"]),
    "no file": (no_file, 3, ["view 'ecg'", "does not exist", "site.toml"]),
    "not text": (not_text, 3, ["view 'ecg'", "not utf-8 text", "dialect.encoding"]),
    "not parquet": (not_parquet, 3, ["view 'ecg'", "not a readable Parquet file"]),
    "missing column": (ecg(missing_column), 3, ["view 'ecg'", "'ecg_y' is missing"]),
    "extra column": (ecg(extra_column), 3, ["view 'ecg'", "'zip' is not in the schema"]),
    "doubled column": (ecg(doubled_column), 3, ["view 'ecg'", "'ecg_x' stands 2 times"]),
    "doubled id": (ecg(doubled_id), 3, ["view 'ecg'", "line 514 repeats the id of line 2"]),
    "empty id": (ecg(no_id), 3, ["view 'ecg'", "line 4 has no id"]),
    "no number": (ecg(bad_cell), 3, ["column 'ecg_x'", "no number at line 4", "dialect.missing"]),
    "ragged line": (ecg(ragged), 3, ["line 4 has 4 cells but the header has 3"]),
    "unknown view": (
        site_toml('ecg = "ecg.csv"', 'ekg = "ecg.csv"'),
        3,
        ["names view 'ekg'", "ecg, imaging"],
    ),
    "small cohort": (
        site_toml("min_cohort = 50", "min_cohort = 513"),
        4,
        ["has 512 rows", "policy.min_cohort is 513", "lower it or leave the run"],
    ),
    "no CUDA": (
        site_toml('device = "auto"', 'device = "cuda"'),
        2,
        ['device "cuda" was asked for but no CUDA device', '"cpu" or "auto"'],
    ),
}


CUDA_THERE = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
SITE_CASES = [
    pytest.param(*case, id=name, marks=[CUDA_THERE] if name == "no CUDA" else [])
    for name, case in AT_THE_SITE.items()
]


@pytest.mark.parametrize(("spoil", "code", "words"), SITE_CASES)
def test_run_is_refused_for_a_site(sites, tmp_path, spoil, code, words):
    spoil(sites)
    before = files_in(sites)

    ended = simulate(sites, tmp_path)

    assert ended.code == code
    assert ended.out == ""
    assert "site 'st-anna'" in ended.sentence
    assert [each for each in words if each not in ended.sentence] == []
    assert SECRET not in ended.err
    # the path is for this machine's own console; the sentence may travel
    assert str(tmp_path) not in ended.sentence
    assert (str(sites / "st-anna" / "ecg.") in ended.err) == (code == 3 and "ekg" not in words[0])
    assert files_in(sites) == before
    assert files_in(tmp_path / "run") == {"result.json"}
    result = (tmp_path / "run" / "result.json").read_text()
    assert json.loads(result)["stop_reason"] == ended.sentence
    assert (json.loads(result)["status"], json.loads(result)["exit_code"]) == ("failed", code)
    assert str(tmp_path) not in result
    assert SECRET not in result


@pytest.mark.parametrize(("spoil", "code", "words"), SITE_CASES)
def test_check_finds_it_before_any_run(sites, spoil, code, words):
    spoil(sites)

    ended = call(client, "check", "--site", sites / "st-anna")

    assert ended.code == code
    assert ended.out == ""
    assert [each for each in words if each not in ended.sentence] == []
    assert SECRET not in ended.err
    assert (str(sites / "st-anna" / "ecg.") in ended.err) == (code == 3 and "ekg" not in words[0])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('approval = "auto"', 'approval = "required"', ["wants every plan approved", "site.toml"]),
        ("require = []", 'require = ["dp"]', ["requires dp (policy.require)"]),
        (
            "require = []",
            'require = ["secure_aggregation", "dp"]',
            ["requires secure_aggregation, dp (policy.require)", "leave the run"],
        ),
    ],
)
def test_policy_refuses_a_plan(sites, tmp_path, old, new, words):
    site_toml(old, new)(sites)
    before = files_in(sites)

    ended = simulate(sites, tmp_path)
    checked = call(client, "check", tmp_path / "plan.toml", "--site", sites / "st-anna")

    assert (ended.code, checked.code) == (4, 4)
    assert ended.sentence == checked.sentence
    assert [each for each in ["site 'st-anna'", *words] if each not in ended.sentence] == []
    assert files_in(sites) == before
    assert files_in(tmp_path / "run") == {"result.json"}


def rename_column(sites):
    for name in ("schema.toml", "ecg.csv"):
        edit_text(sites / "st-anna" / name, "ecg_y", "ecg_z")


def change_bounds(sites):
    edit_text(sites / "st-anna" / "schema.toml", "11.0", "12.5")


def change_unit(sites):
    schema = sites / "st-anna" / "schema.toml"
    edit_text(schema, 'name = "ecg_x"', 'name = "ecg_x"\nunit = "mV"')


def change_order(sites):
    schema = sites / "st-anna" / "schema.toml"
    edit_text(schema, "ecg_x", "ecg_w")
    edit_text(schema, "ecg_y", "ecg_x")
    edit_text(schema, "ecg_w", "ecg_y")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename_column, "only 'st-anna' has column 'ecg_z'"),
        (change_bounds, "column 'ecg_x' has bounds [-1.0, 12.5] here and bounds [-1.0, 11.0]"),
        (change_unit, "column 'ecg_x' has unit 'mV' here and '' there"),
        (change_order, "column 1 is 'ecg_y' here and 'ecg_x' there"),
    ],
)
def test_another_schema_names_site_view_and_column(sites, tmp_path, change, words):
    change(sites)

    ended = simulate(sites, tmp_path)

    assert ended.code == 3
    start = "site 'st-anna' describes view 'ecg' differently from site 'charite-nord'"
    assert ended.sentence.startswith(start)
    assert words in ended.sentence
    assert files_in(tmp_path / "run") == {"result.json"}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (PLAN + "[fedhk]\nfuzzifier = 1.0\n", "fedhk.fuzzifier is 1.0; allowed: a number above 1"),
        (PLAN + "[fedhk]\nfuzzifier = 0\n", "fedhk.fuzzifier is 0; allowed: a number above 1"),
        (PLAN + "[fedhk]\nview_exponent = 0.5\n", "fedhk.view_exponent is 0.5; allowed: a number"),
        (PLAN + "[fedhk]\nfuzifier = 2.0\n", "'fedhk.fuzifier': did you mean 'fuzzifier'"),
        (PLAN.replace("n_clusters", "n_cluster"), "'n_cluster': did you mean 'n_clusters'"),
        (PLAN + "fuzzifier = 2.0\n", "'fuzzifier' belongs to table [fedhk]"),
        (PLAN.replace("4", "0"), "n_clusters is 0; allowed: a whole number, 1 or more"),
        (PLAN.replace("4", '"4"'), "n_clusters is '4'; allowed: a whole number"),
        (PLAN.replace("fedhk-mvfc", "k-means"), "method is 'k-means'; allowed: 'fedhk-mvfc'"),
        (PLAN + "[privacy]\nsecure_aggregation = true\n", "privacy.participants is empty"),
        ("n_clusters = \n", "plan 'plan.toml' is not valid TOML"),
        ("", "'method' is missing"),
    ],
)
def test_plan_that_does_not_fit_reads_no_data(tmp_path, plan, words):
    ended = simulate(tmp_path / "no-such-folder", tmp_path, plan)

    assert ended.code == 2
    assert ended.out == ""
    assert words in ended.sentence
    assert files_in(tmp_path) == {"plan.toml"}


def test_script_says_it_and_exits_with_the_code(tmp_path):
    plan = write_plan(tmp_path, PLAN + "[fedhk]\nfuzifier = 2.0\n")

    ended = run_script("fedmvc-server", "simulate", plan, "--data", tmp_path / "sites")

    assert ended.code == 2
    assert ended.out == ""
    assert (
        ended.err == "error: plan.toml: unknown key 'fedhk.fuzifier': did you mean 'fuzzifier'?\n"
    )


def test_missing_plan_is_named_and_its_path_shown_here(tmp_path):
    plan = tmp_path / "plan.toml"

    ended = call(server, "simulate", plan, "--data", tmp_path, "--out", tmp_path / "run")

    assert ended.code == 2
    assert ended.sentence == "plan 'plan.toml' does not exist: check its name."
    assert f"  {plan}\n" in ended.err
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("name", ["sites/st-anna", "sites/st-anna/ecg.csv", "no-such-folder"])
def test_folder_without_sites_is_refused(sites, tmp_path, name):
    ended = simulate(tmp_path / name, tmp_path)

    assert ended.code == 2
    assert f"'{name.rpartition('/')[2]}' holds 0 site folders" in ended.sentence
    assert "fedmvc-server synthesize" in ended.sentence
    assert not (tmp_path / "run").exists()


def test_two_sites_of_one_name_are_refused(sites, tmp_path):
    site_toml('name = "st-anna"', 'name = "charite-nord"')(sites)

    ended = simulate(sites, tmp_path)

    assert ended.code == 2
    assert ended.sentence == "2 site folders are named 'charite-nord': rename one"
    assert not (tmp_path / "run").exists()


def test_missing_site_file_is_explained(tmp_path):
    ended = call(client, "check", "--site", tmp_path)

    assert ended.code == 2
    assert f"'site.toml' does not exist in folder '{tmp_path.name}'" in ended.sentence


def test_unknown_key_of_a_site_is_refused(sites, tmp_path):
    site_toml("min_cohort = 50", "min_kohort = 50")(sites)

    ended = simulate(sites, tmp_path)

    assert ended.code == 2
    assert "'policy.min_kohort': did you mean 'min_cohort'" in ended.sentence
    assert not (tmp_path / "run").exists()


def test_more_clusters_than_rows_give_both_numbers(sites, tmp_path):
    before = files_in(sites)

    ended = simulate(sites, tmp_path, PLAN.replace("4", "601"))

    assert ended.code == 3
    assert (
        ended.sentence
        == "n_clusters is 601 but the sites hold 600 rows together: ask for fewer clusters"
    )
    assert files_in(sites) == before
    assert files_in(tmp_path / "run") == {"result.json"}


def test_constant_column_is_kept_with_weight_0_and_warned(sites, tmp_path):
    for site in ("st-anna", "charite-nord"):
        edit_lines(
            sites / site / "ecg.csv",
            lambda lines: [lines[0], *(f"{row.rpartition(',')[0]},2.5" for row in lines[1:])],
        )

    ended = simulate(sites, tmp_path)

    assert ended.code == 0
    warning = "column 'ecg_y' of view 'ecg' is constant: it is kept with weight 0"
    assert f"warning: {warning}" in ended.out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert warning in result["warnings"]
    with np.load(tmp_path / "run" / "model.npz") as model:
        assert model["centers_0"].shape == (4, 2)
        assert (model["centers_0"][:, 1] == 2.5).all()
        assert np.isinf(model["delta_b_0"][1])  # no effect on any distance


@pytest.mark.parametrize("profile", ["", 'profile = "paper"\n'])
def test_identical_rows_end_without_structure(sites, tmp_path, profile):
    for path in sites.glob("*/ecg.csv"), sites.glob("*/imaging.csv"):
        for file in path:
            edit_lines(
                file,
                lambda lines: [lines[0], *(f"{row.split(',')[0]},1.5,2.5" for row in lines[1:])],
            )

    ended = simulate(sites, tmp_path, PLAN + profile)

    assert ended.code == 0
    assert "warning: no structure: every row is the same" in ended.out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    table = pq.read_table(sites / "st-anna" / "results" / result["run_id"] / "membership.parquet")
    for k in range(1, 5):
        assert np.abs(table[f"u_{k}"].to_numpy() - 0.25).max() < 1e-12


def test_missing_cells_are_counted_with_site_view_and_column(sites, tmp_path):
    def spoil(lines):
        first, second = (lines[row].split(",") for row in (1, 2))
        changed = [f"{first[0]},NA,{first[2]}", f"{second[0]},inf,99"]
        return [lines[0], *changed, *lines[4:]]

    ecg(spoil)(sites)

    ended = call(
        server,
        *("simulate", write_plan(tmp_path, PLAN + "max_rounds = 2\n"), "--data", sites),
        *("--out", tmp_path / "run", "--truth", sites / "truth.csv"),
    )
    checked = call(client, "check", "--site", sites / "st-anna", "--json")

    assert ended.code == 0
    assert ended.err.count("site 'st-anna', view 'ecg', column 'ecg_x': 2 cells missing") == 1
    assert "site 'st-anna', view 'ecg', column 'ecg_y': 1 cells outside their" in ended.err
    assert "site 'st-anna', view 'ecg': 1 of 512 records lack it" in ended.err
    view = json.loads(checked.out)["views"]["ecg"]
    assert view["missing_cells"] == {"ecg_x": 2, "ecg_y": 0}
    assert view["cells_outside_bounds"]["ecg_y"] == 1
    assert view["rows_lacking_it"] == 1


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("127.0.0.1:1", 7, "no SuperLink answers at 127.0.0.1:1"),
        ("localhost", 2, "'localhost' is not HOST:PORT"),
        ("flower.example.org:9093", 2, "flower.example.org:9093 is on another machine"),
    ],
)
def test_unreachable_superlink_is_named(tmp_path, monkeypatch, address, code, words):
    monkeypatch.setattr(deployment, "CONNECT_TIMEOUT", 0.2)
    plan, out = write_plan(tmp_path), tmp_path / "run"

    ended = call(server, "run", plan, "--server", address, "--out", out)

    assert ended.code == code
    assert ended.out == ""
    assert words in ended.sentence
    assert files_in(tmp_path) == {"plan.toml"}
    assert not out.exists()


def test_run_refuses_a_plan_and_a_folder_before_it_connects(finished, tmp_path):
    good, bad = write_plan(tmp_path), write_plan(tmp_path, "", name="bad.toml")
    address = ("--server", "127.0.0.1:1")

    plan_refused = call(server, "run", bad, *address, "--out", tmp_path / "run")
    taken = call(server, "run", good, *address, "--out", finished.out)

    assert (plan_refused.code, taken.code) == (2, 2)
    assert "'method' is missing" in plan_refused.sentence
    assert "already holds the result of a run" in taken.sentence


def test_folder_that_cannot_be_made_is_refused(sites, tmp_path):
    (tmp_path / "run").write_text("a file")

    ended = simulate(sites, tmp_path)

    assert ended.code == 2
    assert "folder 'run' cannot be written" in ended.sentence
    assert (tmp_path / "run").read_text() == "a file"


@pytest.mark.parametrize("backend", ["inprocess", "ray"])
def test_quorum_that_cannot_be_met_is_not_waited_for(sites, tmp_path, backend):
    plan = write_plan(tmp_path, PLAN + "[quorum]\nmin_sites = 3\n")

    ended = call(
        server,
        *("simulate", plan, "--data", sites, "--out", tmp_path / "run", "--backend", backend),
    )

    assert ended.code == 6
    assert "the simulation has 2 sites but quorum.min_sites is 3" in ended.sentence
    assert not (tmp_path / "run").exists()


def test_site_that_cannot_write_says_so_without_its_path(sites, tmp_path):
    shutil.rmtree(sites / "st-anna" / "state")
    (sites / "st-anna" / "state").write_text("a file where a folder should be")

    ended = simulate(sites, tmp_path)

    assert ended.code == 2
    assert ended.sentence == (
        "register of site 'st-anna' cannot be used (File exists): check that the site's state "
        "folder can be written and has space"
    )
    assert str(sites / "st-anna" / "state") in ended.err


def test_interrupted_run_keeps_its_rounds_and_ends_with_130(sites, tmp_path, monkeypatch):
    def press_ctrl_c(state):
        if len(state.history) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress, "log_round", press_ctrl_c)

    ended = simulate(sites, tmp_path)

    assert ended.code == 130
    assert ended.sentence == "stopped at the keyboard"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["exit_code"], result["rounds"]) == ("stopped", 130, 2)
    assert files_in(tmp_path / "run") == {"result.json", "rounds.csv"}
    assert not [name for name in files_in(sites) if "results" in name or "/runs/" in name]


def test_plan_that_names_an_unknown_site_is_refused(sites, tmp_path):
    averaging = '[fedhk]\naggregation = "weighted"\nlocal_clusters = { st-ana = 2 }\n'

    ended = simulate(sites, tmp_path, PLAN + averaging)

    assert ended.code == 2
    assert ended.sentence == (
        "fedhk.local_clusters names site 'st-ana', which is not in the run: its sites are "
        "charite-nord, st-anna"
    )


def test_truth_of_other_patients_is_refused(sites, tmp_path):
    truth = tmp_path / "truth.csv"
    with truth.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), ("001", 0), ("002", 1)])
    plan = write_plan(tmp_path, PLAN + "max_rounds = 1\n")

    ended = call(
        server,
        *("simulate", plan, "--data", sites, "--out", tmp_path / "run", "--truth", truth),
    )

    assert ended.code == 3
    assert "'truth.csv' lacks 598 of the run's 600 records" in ended.sentence
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "completed"  # the run itself is not lost


def test_a_failure_with_json_is_one_object_too(tmp_path):
    done = run_script("fedmvc-client", "check", "--site", tmp_path / "nope", "--json")
    assert done.code == 2
    assert json.loads(done.out)["exit_code"] == 2
