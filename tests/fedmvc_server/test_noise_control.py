"""The honesty check of a vertical plan passes where order does not matter, and fails where it does.

The figures of the failures are those of the paper's algorithm: the DFT along the samples, and the
sweep of the rows in the order of the file.
"""

import shutil

import numpy as np
import pytest

from configs.errors import ConfigError, DataRefused, QuorumLost
from configs.tensor_profiles import SAMPLE_ORDER_WARNING
from fedmvc_server import noise_control as module
from fedmvc_server.evaluation import accuracy, match_truth, read_truth
from fedmvc_server.noise_control import noise_control
from fedmvc_server.simulation import shared_rows
from tests.federation.harness import plan_of
from tests.federation.tensor_harness import edit_rows, hospitals, vertical_plan, view_file


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write three folders with 135 shared records; no test writes here."""
    return hospitals(tmp_path_factory.mktemp("noise") / "sites", sites=3, n=150, prefix="00MRN")


@pytest.fixture
def small(monkeypatch):
    """Draw less noise, with fewer rows: ``small(rows, draws)``."""

    def shrink(rows=600, draws=1):
        monkeypatch.setattr(module, "DRAWS", draws)
        monkeypatch.setattr(module, "DEFAULT_ROWS", rows)
        monkeypatch.setattr(module, "DEFAULT_COLUMNS", 8)

    return shrink


# -- noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "n_clusters"), [(208, 2), (160, 20)])
def test_profile_plus_finds_nothing_in_noise(small, rows, n_clusters):
    small(rows, draws=3)
    found = noise_control(vertical_plan(n_clusters, max_rounds=40))
    assert found.passed
    assert found.noise["passed"]
    assert found.permutation is None
    assert found.noise["rows"] == rows
    assert found.noise["columns"] == {"site-0": 8, "site-1": 8, "site-2": 8}
    assert found.noise["excess"] == found.noise["accuracy"] - found.noise["random_accuracy"]
    assert abs(found.noise["excess"]) < 0.03


def test_the_transform_along_the_samples_finds_the_files_order_in_noise(small):
    small(160)
    options = {"profile": "paper", "lambda": 20.0, "max_rounds": 150}
    found = noise_control(vertical_plan(20, orientation="sample", sweep="natural", **options))
    assert not found.passed
    assert not found.noise["passed"]
    assert found.noise["excess"] > 0.15  # 46% where labels at random have 16%
    honest = noise_control(vertical_plan(20, orientation="unfold", sweep="random", **options))
    assert honest.passed
    assert honest.noise["excess"] < 0.03


def test_the_sweep_in_the_files_order_fills_clusters_in_that_order(small):
    small(208)
    options = {"profile": "paper", "orientation": "view", "lambda": 5.0, "max_rounds": 150}
    found = noise_control(vertical_plan(2, sweep="natural", **options))
    assert not found.passed
    assert found.noise["excess"] > 0.06
    assert noise_control(vertical_plan(2, sweep="random", **options)).passed


def test_labels_at_random_are_counted_with_the_clusters_own_sizes(small, monkeypatch):
    """One cluster of nearly all rows scores 1/2 against halves; that is no structure."""
    small(100)
    lopsided = (np.arange(100) % 10 == 0).astype(int)
    monkeypatch.setattr(module._Runs, "labels", lambda runs, views: lopsided)
    found = noise_control(vertical_plan(2))
    assert found.noise["accuracy"] == 0.5
    assert found.noise["random_accuracy"] == pytest.approx(0.52, abs=0.01)
    monkeypatch.setattr(module._Runs, "labels", lambda runs, views: np.arange(100) // 50)
    found = noise_control(vertical_plan(2))
    assert (found.noise["accuracy"], found.noise["passed"]) == (1.0, False)


def test_the_same_plan_finds_the_same(small):
    small(120)
    plan = vertical_plan(3, max_rounds=10)
    assert noise_control(plan) == noise_control(plan)


@pytest.mark.parametrize(
    "floors", [{"min_overlap": 5000}, {"quorum": {"min_sites": 4}}], ids=["overlap", "sites"]
)
def test_what_a_plan_demands_of_real_sites_is_not_asked_of_noise(small, floors):
    small(120)
    assert noise_control(vertical_plan(3, max_rounds=5, **floors)).passed


def test_noise_in_two_orders_must_give_the_same_labels(small):
    """A transform along the rows need not score against blocks of their index to depend on them."""
    small(150)
    found = noise_control(vertical_plan(3, profile="paper", max_rounds=150))
    assert not found.passed
    assert found.noise["order_agreement"] < 0.9
    assert SAMPLE_ORDER_WARNING in found.warnings
    assert noise_control(vertical_plan(3, max_rounds=20)).noise["order_agreement"] == 1.0


# -- real data -------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [False, True])
def test_profile_plus_does_not_see_a_permutation(data, small, truth):
    small()
    said = []
    found = noise_control(
        vertical_plan(3, max_rounds=20),
        data,
        truth=data / "truth.csv" if truth else None,
        progress=said.append,
    )
    assert found.passed
    assert found.permutation["agreement"] > 0.98
    assert found.permutation["rows"] == found.noise["rows"] == 135
    assert found.noise["columns"] == {"st-anna": 4, "charite-nord": 4, "riverside": 5}
    assert len(said) == 4
    assert ("permuted" in found.permutation) == truth
    if truth:
        assert found.permutation["given_order"]["accuracy"] > 0.9


@pytest.mark.parametrize("truth", [False, True])
def test_the_paper_profile_in_the_files_order_fails_on_a_permutation(data, small, truth):
    small()
    plan = vertical_plan(3, profile="paper", sweep="natural", max_rounds=40)
    found = noise_control(plan, data, truth=data / "truth.csv" if truth else None)
    assert not found.passed
    assert not found.permutation["passed"]
    assert found.permutation["agreement"] < 0.9
    if truth:
        one, two = (found.permutation[order]["accuracy"] for order in ("given_order", "permuted"))
        assert abs(one - two) <= 1.0 - found.permutation["agreement"] + 1e-12


def test_two_orders_that_score_alike_but_differ_fail_with_truth_as_without(
    data, small, monkeypatch
):
    """Each is wrong on a tenth of the rows, and not on the same ones."""
    small()
    ids, _ = shared_rows(data)
    known = match_truth(read_truth(data / "truth.csv"), ids, "truth")
    order = np.random.default_rng(0).permutation(135)
    runs = []

    def labels(_, views):
        # the noise, the noise permuted, the rows, the rows permuted
        rows = next(iter(views.values())).shape[0]
        runs.append(rows)
        wrong = slice(0, 13) if len(runs) == 3 else slice(13, 26)
        out = known.copy()
        out[wrong] = (out[wrong] + 1) % 3
        return out[order] if len(runs) == 4 else out

    monkeypatch.setattr(module._Runs, "labels", labels)
    for truth in (None, data / "truth.csv"):
        runs.clear()
        found = noise_control(vertical_plan(3), data, truth=truth)
        assert found.permutation["agreement"] == pytest.approx(1 - 26 / 135)
        assert not found.permutation["passed"]
    scores = [found.permutation[order]["accuracy"] for order in ("given_order", "permuted")]
    assert scores == [pytest.approx(1 - 13 / 135)] * 2


def test_rows_are_those_that_all_sites_hold_by_normalised_id(data, small, tmp_path):
    small()
    copied = shutil.copytree(data, tmp_path / "sites")
    edit_rows(
        view_file(copied / "riverside"),
        lambda rows: [[row[0].replace("M", "\uff2d"), *row[1:]] for row in rows],
    )
    plan = vertical_plan(3, max_rounds=10)
    ours, theirs = (noise_control(plan, folder) for folder in (copied, data))
    assert ours == theirs


# -- refusals --------------------------------------------------------------------------------


def test_a_plan_of_the_other_method_is_2():
    with pytest.raises(ConfigError, match="method is 'fedhk-mvfc'"):
        noise_control(plan_of(3))


def test_sites_that_share_nobody_are_3(data, tmp_path):
    copied = shutil.copytree(data, tmp_path / "sites")
    edit_rows(
        view_file(copied / "riverside"), lambda rows: [["X" + row[0], *row[1:]] for row in rows]
    )
    with pytest.raises(DataRefused, match="3 site folders share 0 ids"):
        noise_control(vertical_plan(3, max_rounds=5), copied)


@pytest.mark.parametrize(
    ("floors", "error", "words"),
    [
        ({"min_overlap": 136}, DataRefused, "tensor.min_overlap = 136"),
        ({"quorum": {"min_sites": 4}}, QuorumLost, "quorum.min_sites is 4"),
    ],
)
def test_what_would_refuse_the_run_refuses_its_permutation(data, small, floors, error, words):
    small()
    with pytest.raises(error, match=words):
        noise_control(vertical_plan(3, max_rounds=5, **floors), data)


def test_blocks_are_what_accuracy_is_measured_against():
    blocks = np.arange(7) * 3 // 7
    assert blocks.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert accuracy(blocks, blocks[::-1].copy()) == pytest.approx(5 / 7)
