"""A vertical run on the command line: what it writes, what it says, and how it refuses."""

import csv
import json
import shutil

import pyarrow.parquet as pq
import pytest

from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_server.cli import app as server
from tests.cli.commands import LOG_LINE, call, files_in, write_plan
from tests.federation.tensor_harness import edit_rows, hospitals, view_file

PLAN = 'method = "tensor-fmvc"\nn_clusters = 3\nmax_rounds = 8\n[tensor]\nlink_cost = 1\n'
SITES = ("charite-nord", "riverside", "st-anna")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write three folders of 120 records, 108 of them shared; nothing may change this folder."""
    return hospitals(tmp_path_factory.mktemp("data") / "sites", sites=3, n=120, prefix="00MRN")


@pytest.fixture
def sites(pristine, tmp_path):
    """Copy the three folders for one test to spoil."""
    return shutil.copytree(pristine, tmp_path / "sites")


@pytest.fixture(scope="module")
def finished(pristine, tmp_path_factory):
    """Run the command once, for every test that only looks at what it left."""
    folder = tmp_path_factory.mktemp("finished")
    data = shutil.copytree(pristine, folder / "sites")
    ended = call(
        server,
        *("simulate", write_plan(folder, PLAN), "--data", data, "--out", folder / "run"),
        *("--truth", data / "truth.csv"),
    )
    assert ended.code == 0, ended.err
    return ended, data, folder / "run", json.loads((folder / "run" / "result.json").read_text())


def simulate(sites, tmp_path, plan=PLAN, *options):
    out = tmp_path / "run"
    return call(
        server, "simulate", write_plan(tmp_path, plan), "--data", sites, "--out", out, *options
    )


# -- a run that ends well --------------------------------------------------------------------


def test_the_server_keeps_figures_and_no_model(finished):
    _, _, out, result = finished
    assert files_in(out) == {"result.json", "rounds.csv"}
    assert (result["status"], result["exit_code"]) == ("completed", 0)
    assert result["sites"] == list(SITES)
    assert result["metrics"]["rows"] == 108
    assert result["metrics"]["model_sha256"] is None
    assert set(result["metrics"]["view_weights"]) == set(SITES)
    assert {"aligned_vote", "agreement", "pairwise_agreement"} <= result["metrics"].keys()
    assert "tokens" in result["certificate"]["not_covered"]
    with (out / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == list(range(1, result["rounds"] + 1))
    assert all(row["sites"] == " ".join(SITES) for row in rows)
    written = "".join(path.read_text() for path in out.iterdir())
    assert "MRN" not in written


def test_each_site_has_the_labels_of_its_records(finished):
    _, data, _, result = finished
    labels = {}
    for site in SITES:
        folder = data / site / "results" / result["run_id"]
        assert files_in(folder) == {"membership.parquet", "certificate.json"}
        table = pq.read_table(folder / "membership.parquet")
        columns = ["id", "u_1", "u_2", "u_3", "label", "aligned_vote", "view_label"]
        assert table.column_names == columns
        assert table.num_rows == 120
        labels[site] = dict(zip(table["id"].to_pylist(), table["label"].to_pylist(), strict=True))
        assert sum(label >= 0 for label in labels[site].values()) == 108
    shared = set.intersection(*(set(known) for known in labels.values()))
    assert len(shared) == 108
    for record in shared:
        assert len({known[record] for known in labels.values()}) == 1
    assert not [name for name in files_in(data) if "/state/" in name and "linkage" not in name]


def test_the_summary_teaches(finished):
    ended, _, out, result = finished
    for words in (
        f"completed after {result['rounds']} rounds",
        "patients     108 that all sites hold",
        "site 'st-anna': view ecg, weight 0.",
        "its own clustering agrees on ",
        "aligned vote without the tensor term: agrees on ",
        "tokens and labels, no measurement left a site",
        "tensor-fmvc (plus): accuracy 0.9",
        "aligned vote, no tensor term: accuracy 0.",
        "site 'riverside' alone: accuracy 0.",
        "k-means on the views side by side: accuracy ",
        f"results: {out}",
    ):
        assert words in ended.out
    assert all(LOG_LINE.match(line) for line in ended.err.splitlines())
    assert "round 1: J" in ended.err
    assert "after a restart" not in ended.err


def test_the_paper_profile_says_what_its_result_depends_on(sites, tmp_path):
    ended = simulate(sites, tmp_path, PLAN.replace("[tensor]", 'profile = "paper"\n[tensor]'))
    assert ended.code == 0
    assert ended.out.count('warning: orientation "sample" transforms along the rows') == 1
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert sum("depends on their order" in warning for warning in result["warnings"]) == 1


def test_json_takes_the_scores_in(sites, tmp_path):
    ended = simulate(sites, tmp_path, PLAN, "--truth", sites / "truth.csv", "--json")
    assert ended.code == 0
    assert set(json.loads(ended.out)["scores"]) == {
        "tensor-fmvc (plus)",
        "aligned vote, no tensor term",
        *(f"site '{site}' alone" for site in SITES),
        "k-means on the views side by side",
    }


def test_a_site_that_is_left_out_is_named(sites, tmp_path):
    (sites / "riverside" / "state" / "linkage.key").unlink()
    plan = PLAN + '[quorum]\non_missing = "continue"\n'
    ended = simulate(sites, tmp_path, plan)
    assert ended.code == 0
    assert "site 'riverside' is not in the result: it was refused" in ended.out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["sites"] == ["charite-nord", "st-anna"]


# -- refusals --------------------------------------------------------------------------------


def change_config(folder, **changes):
    fields = SiteConfig.load(folder).model_dump(mode="json")
    SiteConfig.parse({**fields, **changes}).dump(folder)


def second_view(sites):
    shutil.copy(sites / "st-anna" / "ecg.csv", sites / "riverside")
    change_config(sites / "riverside", data={"laboratory": "laboratory.csv", "ecg": "ecg.csv"})


def no_key(sites):
    (sites / "riverside" / "state" / "linkage.key").unlink()


def open_key(sites):
    (sites / "riverside" / "state" / "linkage.key").chmod(0o640)


def damaged_key(sites):
    (sites / "riverside" / "state" / "linkage.key").write_text("00ff\n")


def other_key(sites):
    (sites / "riverside" / "state" / "linkage.key").write_text("ab" * 32)


def other_rule(sites):
    path = sites / "riverside" / "schema.toml"
    DataSchema.load(path).model_copy(update={"id_rule": "alphanumeric"}).dump(path)


def doubled(sites):
    def change(rows):
        return [*rows, [rows[0][0].replace("M", "\uff2d"), *rows[0][1:]]]

    edit_rows(view_file(sites / "riverside"), change)


def one_site(sites):
    for name in ("st-anna", "charite-nord"):
        shutil.rmtree(sites / name)


def few_rows(sites):
    change_config(
        sites / "riverside", policy={"approval": "auto", "share_labels": True, "min_cohort": 110}
    )


def flat(value):
    def change(rows):
        return [[row[0], *[value] * (len(row) - 1)] for row in rows]

    return lambda sites: edit_rows(view_file(sites / "riverside"), change)


def two_kinds(sites):
    def change(rows):
        return [[row[0], *[str(i % 2)] * (len(row) - 1)] for i, row in enumerate(rows)]

    edit_rows(view_file(sites / "riverside"), change)


REFUSALS = {
    "two views": (second_view, 3, ["'riverside'", "2 views", "1 from each site"]),
    "no key": (no_key, 2, ["'riverside'", "does not exist", "keygen --linkage"]),
    "open key": (open_key, 2, ["'riverside'", "mode 0640", "chmod 600"]),
    "damaged key": (damaged_key, 2, ["'riverside'", "damaged"]),
    "another key": (other_key, 3, ["tensor.min_overlap = 50", "same linkage key"]),
    "another id rule": (other_rule, 3, ["'riverside'", "'alphanumeric'", "'trim'"]),
    "ids twice": (doubled, 3, ["'riverside'", "1 of 121 ids repeat"]),
    "one site": (one_site, 2, ["at least 2 sites and has 1"]),
    "small cohort": (few_rows, 4, ["'riverside'", "policy.min_cohort = 110"]),
    "identical rows": (flat("2.5"), 3, ["view 'laboratory' of site 'riverside'", "identical"]),
    "infinite cells": (flat("inf"), 3, ["view 'laboratory' of site 'riverside'", "0 rows with"]),
    "two different rows": (two_kinds, 3, ["2 different rows", "n_clusters is 3"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_run_is_refused_in_one_sentence(sites, tmp_path, case):
    spoil, code, words = REFUSALS[case]
    spoil(sites)
    before = files_in(sites)

    ended = simulate(sites, tmp_path)

    assert ended.code == code
    assert ended.out == ""
    assert [word for word in words if word not in ended.sentence] == []
    assert "MRN" not in ended.sentence
    assert str(tmp_path) not in ended.sentence
    assert files_in(sites) == before
    assert files_in(tmp_path / "run") == {"result.json"}
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("failed", code)
    assert result["stop_reason"] == ended.sentence


@pytest.mark.parametrize(
    ("plan", "code", "words"),
    [
        (PLAN.replace("= 3", "= 109"), 3, ["n_clusters is 109", "share 108 patients"]),
        (PLAN + "min_overlap = 109\n", 3, ["tensor.min_overlap = 109"]),
    ],
    ids=["clusters", "overlap"],
)
def test_plan_that_these_data_do_not_carry_is_refused(sites, tmp_path, plan, code, words):
    before = files_in(sites)

    ended = simulate(sites, tmp_path, plan)

    assert ended.code == code
    assert [word for word in words if word not in ended.sentence] == []
    assert files_in(sites) == before
    assert files_in(tmp_path / "run") == {"result.json"}
    assert ("108" in ended.sentence) == ("109" in plan and "min_overlap" not in plan)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (PLAN.replace("= 3", "= 1"), "n_clusters is 1"),
        (PLAN + "kappa = 1.5\n", "tensor.kappa is 1.5"),
        (PLAN + 'sweep = "natural"\n', "sweep"),
        (PLAN + "anchors = 2\n", "tensor.anchors is 2 but n_clusters is 3"),
        (PLAN + "min_overlapp = 10\n", "'tensor.min_overlapp': did you mean 'min_overlap'"),
        (PLAN + "[fedhk]\nfuzzifier = 2.0\n", "table [fedhk] belongs to method 'fedhk-mvfc'"),
    ],
)
def test_plan_that_does_not_fit_reads_no_data(tmp_path, plan, words):
    ended = simulate(tmp_path / "no-such-folder", tmp_path, plan)
    assert ended.code == 2
    assert words in ended.sentence
    assert files_in(tmp_path) == {"plan.toml"}


def test_a_refusal_with_json_is_one_object(sites, tmp_path):
    no_key(sites)
    ended = simulate(sites, tmp_path, PLAN, "--json")
    assert ended.code == 2
    assert "'riverside'" in ended.sentence
    told = json.loads(ended.out)
    assert (told["status"], told["exit_code"], told["rounds"]) == ("failed", 2, 0)


# -- noise control ---------------------------------------------------------------------------


def noise_control(tmp_path, plan, *options):
    return call(
        server,
        *("noise-control", write_plan(tmp_path, plan), "--out", tmp_path / "noise", *options),
    )


def test_noise_control_passes_for_profile_plus(pristine, tmp_path):
    ended = noise_control(tmp_path, PLAN, "--data", pristine)
    assert ended.code == 0, ended.err
    assert "noise        108 rows, 5 draws" in ended.out
    assert "permutation  108 rows in two orders: labels agree on 100.0% (at least 98%): passed" in (
        ended.out
    )
    result = json.loads((tmp_path / "noise" / "result.json").read_text())
    assert result["noise_control"]["passed"] is True
    assert (result["status"], result["exit_code"]) == ("completed", 0)


def test_noise_control_fails_with_2_and_its_figures_written(pristine, tmp_path):
    plan = PLAN.replace("max_rounds = 8", 'max_rounds = 40\nprofile = "paper"')
    plan += 'sweep = "natural"\norientation = "sample"\n'
    ended = noise_control(tmp_path, plan, "--data", pristine, "--json")
    assert ended.code == 2
    (sentence,) = (line for line in ended.err.splitlines() if line.startswith("error: "))
    assert "depends on the order of the rows: use profile 'plus'" in sentence
    assert "Traceback" not in ended.err
    written = json.loads((tmp_path / "noise" / "result.json").read_text())
    assert json.loads(ended.out) == written
    assert written["exit_code"] == 2
    assert written["noise_control"]["passed"] is False
    assert written["noise_control"]["permutation"]["agreement"] < 0.95


def test_noise_control_of_the_other_method_leaves_nothing(tmp_path):
    ended = noise_control(tmp_path, 'method = "fedhk-mvfc"\nn_clusters = 3\n')
    assert ended.code == 2
    assert "checks vertical plans" in ended.sentence
    assert files_in(tmp_path) == {"plan.toml"}
    assert not (tmp_path / "noise").exists()


def test_noise_control_leaves_an_earlier_result_alone(tmp_path):
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "result.json").write_text("{}")
    ended = noise_control(tmp_path, PLAN)
    assert ended.code == 2
    assert "already holds the result" in ended.sentence
    assert (tmp_path / "noise" / "result.json").read_text() == "{}"
