"""Fed-MUFSHT's claims on few runs; mufsht.py, mufsht_ablations.py and mufsht_scale.py print all."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from benchmarks import mufsht, mufsht_ablations, mufsht_scale
from benchmarks.common import Dataset, accuracy
from benchmarks.mufsht_planted import planted_orders, precision
from benchmarks.mufsht_sets import (
    PRINTED,
    Columns,
    class_shares,
    fano_floor,
    fano_note,
    federated_orders,
    federated_run,
    iid_parts,
    load_columns,
    mean_score,
    plain_average,
)
from benchmarks.tensor_paper import Score
from fedmvc_server.planted import planted_views

ROOT = Path(__file__).parents[2]
SMALL = ((12, 5), (9, 4), (15, 6))
MODULES = {"mufsht": mufsht, "mufsht_ablations": mufsht_ablations, "mufsht_scale": mufsht_scale}


def columns_of(views, labels, *, text=False, name="made"):
    views = [np.asarray(view, dtype=np.float64) for view in views]
    return Columns(Dataset(name, views, labels, np.zeros_like(labels)), text)


@pytest.fixture(scope="module")
def small():
    drawn = planted_views(90, 0, sizes=SMALL, n_clusters=3)
    return columns_of(drawn.views, drawn.labels, name="small")


@pytest.fixture(scope="module")
def digits():
    columns = load_columns("digit4k", 0)
    if columns is None:
        pytest.skip("the digit4k set is not there: set FEDMVC_DATA to the folder that holds it")
    return columns


# -- Fano's bound ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acc", "shares", "floor"),
    [
        (0.7765, [0.1] * 10, 0.556),
        (0.7239, [0.1] * 10, 0.481),
        (0.7351, [0.1] * 10, 0.496),
        (0.7818, [0.2] * 5, 0.486),
        (0.7455, [62 / 544, 104 / 544, 193 / 544, 124 / 544, 61 / 544], 0.380),
        (0.8717, [230 / 1051, 821 / 1051], 0.234),
        (1.0, [0.25] * 4, 1.0),
        (0.25, [0.25] * 4, 0.0),
    ],
)
def test_least_nmi_of_an_accuracy(acc, shares, floor):
    assert fano_floor(acc, shares) == pytest.approx(floor, abs=5e-4)


def test_no_labelling_goes_below_the_least_nmi():
    rng = np.random.default_rng(0)
    for draw in range(300):
        c, n = int(rng.integers(2, 8)), 200
        labels = np.concatenate([np.arange(c), rng.choice(c, n, p=rng.dirichlet([3] * c))])
        wrong = rng.random(labels.size) < rng.random()
        found = np.where(wrong, rng.integers(c, size=labels.size), labels)
        floor = fano_floor(accuracy(labels, found), class_shares(labels))
        assert normalized_mutual_info_score(labels, found) >= floor - 1e-9, draw


def test_which_of_the_papers_pairs_cannot_hold():
    impossible = {name for name, pair in PRINTED.items() if "CANNOT" in fano_note(pair)}
    assert impossible == {"digit4k", "handwritten"}
    notes = [fano_note(PRINTED["digit4k"]._replace(nmi=nmi)) for nmi in (55.5, 55.7)]
    assert ["CANNOT" in note for note in notes] == [True, False]


# -- what k-means sees, and the orders ---------------------------------------------------------


def test_selected_columns_are_standardised_and_keep_their_place():
    columns = columns_of([[[1, 5], [3, 5]], [[0], [2]]], np.array([0, 1]))
    np.testing.assert_allclose(columns.table(np.array([2, 0, 1]), 0.67), [[-1, -1], [1, 1]])
    np.testing.assert_allclose(columns.table(np.array([1, 0, 2]), 0.1), [[0], [0]])  # constant


def test_selected_words_are_scaled_to_unit_rows_again():
    words = [[0.3, 0.4, 5.5], [0.5, 0.0, 0.1]]
    columns = columns_of([words], np.array([0, 1]), text=True)
    np.testing.assert_allclose(columns.table(np.array([0, 1, 2]), 0.67), [[0.6, 0.8], [1, 0]])


def test_every_baseline_but_chance_finds_planted_columns():
    drawn = planted_views(400, 0)
    for name, order in columns_of(drawn.views, drawn.labels).baselines.items():
        assert sorted(order.tolist()) == list(range(190))
        assert precision(order, drawn.informative) >= 0.8, name


def test_planted_columns_are_found_on_one_machine_and_over_five_sites():
    drawn = planted_views(seed=0)
    found = {
        key: precision(order, drawn.informative)
        for key, order in planted_orders(drawn, 0.0, 0).items()
    }
    assert len(found) == 4
    assert min(found.values()) >= 0.95


def test_a_ranking_is_scored_at_every_ratio(small):
    size = mufsht.Size((0.2, 0.5), runs=4, draws=3, partitions=1)
    table = mufsht.measured(small, size)
    assert set(table[mufsht.ALL]) == {1.0}
    counts = {row: {len(cell) for cell in cells.values()} for row, cells in table.items()}
    assert counts["gated pivot"] == {4}
    assert counts["random"] == {3}
    assert counts["gated pivot, 5 sites"] == {1}
    best = mean_score(table["gated pivot"][0.5]).acc
    assert 60 < mean_score(table["random"][0.5]).acc < best <= 100


def test_a_goal_that_is_missed_is_said():
    cells = {0.4: [Score(76.1, 74.0)], 0.1: [Score(75.4, 70.0)]}
    rows = mufsht.goal_rows({"gated pivot, 5 sites": cells})
    assert [row[-1] for row in rows] == ["met", "MISSED", "MISSED"]


# -- digits --------------------------------------------------------------------------------------


def test_federated_gated_pivot_beats_row_norms_at_a_tenth_of_the_digits(digits):
    parts = iid_parts(digits.dataset.labels, 0)
    run = federated_run(digits.dataset.views, parts, 10, max_rounds=2)
    assert run.metrics["kept"] >= mufsht.KEPT_GOAL
    acc = {
        name: 100 * mean_score(digits.scores(order, 0.1, 10)).acc
        for name, order in federated_orders(run).items()
    }
    assert acc["gated pivot"] >= mufsht.GOALS[0.1][0] - 1.5  # one partition, ten runs
    assert acc["row norm"] <= 65


def test_unaligned_weights_of_independent_starts_cancel(digits):
    parts = iid_parts(digits.dataset.labels, 0)
    kept = {
        good: plain_average(digits, parts, 0, common_start=good, aligned=good, rounds=1).kept[0]
        for good in (False, True)
    }
    assert kept[False] <= mufsht.NAIVE_GOAL
    assert kept[True] >= mufsht.KEPT_GOAL


# -- ablations and scale -------------------------------------------------------------------------


def test_every_ablation_runs_and_the_verdict_follows_from_the_figures(small, monkeypatch):
    monkeypatch.setattr(mufsht_ablations, "MAX_SWEEPS", 10)
    monkeypatch.setattr(mufsht_ablations, "RUNS", 3)
    table = mufsht_ablations.measured([small], 0)
    assert len(table) == len(mufsht_ablations.ALONE) + 2
    svd, full = (table[row][0] for row in (mufsht_ablations.SVD_START, mufsht_ablations.FULL))
    table |= {row: [svd] for row in mufsht_ablations.SITES}
    said = mufsht_ablations.verdict(table)
    assert f"{full.f - svd.f:+.4f}" in said[0]
    assert f"in {int(full.f < svd.f)} of 1 seeds" in said[0]
    # without sweeps the search ends far above what sweeps reach
    assert table[mufsht_ablations.SEARCH_ONLY][0].f > 2 * svd.f > 0


def test_one_sweep_gains_more_than_the_whole_search(small):
    found = mufsht_ablations.search_gain(small, 0)
    assert found["all weights 0"] == pytest.approx(1.0, abs=1e-9)
    searched = found["HC-THRO, 40 iterations"]
    assert found["best of 30 at random"] >= searched
    assert found["HC-THRO, then one sweep"] < searched
    assert found["random weights, ten sweeps"] < searched


def test_ablation_of_the_weights_runs_over_sites(small):
    found = mufsht_ablations.over_sites(small, {"weighting": "uniform", "local_sweeps": 2}, 0)
    assert found.sweeps == 5 * 2  # no NMI is sent, so no run ends early
    assert 80 <= found.acc <= 100


@pytest.mark.parametrize("what", ["sweeps", "swarm", "pivot", "federated", "fit"])
def test_each_measure_runs(what):
    shape = mufsht_scale.Shape(90, (12, 9, 15), 3)
    figures = mufsht_scale.MEASURES[what](shape, 1)
    assert all(value > 0 for value in figures.values())
    asked = {goal.figure for goal in mufsht_scale.GOALS if goal.measure == what}
    assert asked <= set(figures)


def test_goals_are_limits_or_ratios_to_reach():
    seconds, ratio = (mufsht_scale.Goal("a", "b", 1.5, "", reach=r) for r in (False, True))
    assert (seconds.met(1.4), seconds.met(1.5)) == (True, False)
    assert (ratio.met(1.4), ratio.met(1.5)) == (False, True)


# -- commands --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(MODULES))
def test_help_teaches_and_the_command_is_in_make_bench(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as leaving:
        MODULES[name].main()
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert "--quick" in text
    assert f"python -m benchmarks.{name}" in text
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert name in re.search(r"for name in (.*?);", makefile, re.DOTALL).group(1).split()


def test_commands_that_documents_name_can_be_run():
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in documents)
    for name in sorted(set(re.findall(r"python -m benchmarks\.([a-z_]+)", text))):
        assert callable(importlib.import_module(f"benchmarks.{name}").main), name


def test_sets_that_are_not_there_are_skipped_in_words(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FEDMVC_DATA", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["mufsht", "--parts", "sets", "rotation"])
    mufsht.main()
    monkeypatch.setattr("sys.argv", ["mufsht_ablations", "--data", "digit4k"])
    mufsht_ablations.main()
    said = capsys.readouterr().out
    assert "skipped, no data: 3sources, bbcsport, digit4k, orl" in said
    assert "skipped, no data: digit4k (set FEDMVC_DATA" in said
