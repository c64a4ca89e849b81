"""Four hospitals, four views, lists of 100 patients of which 90 are on all: CSV files as they are.

Ids begin with zeros, every file has its own order, and some patients have no measurement at one
site.
"""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedmvc_server.evaluation import accuracy, match_truth, read_truth
from fedmvc_server.simulation import score_folders, simulate_folders
from tests.federation.tensor_harness import KEY, vertical_plan

EXAMPLE = Path(__file__).parents[1] / "data" / "four_views"
SITES = {
    "charite-nord": "imaging",
    "riverside": "laboratory",
    "san-marco": "spirometry",
    "st-anna": "ecg",
}


def listed(site):
    with (EXAMPLE / site / f"{SITES[site]}.csv").open(newline="") as file:
        return [row["patient_id"] for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = tmp_path_factory.mktemp("example") / "sites"
    shutil.copytree(EXAMPLE, data)
    for site in SITES:
        key = data / site / "state" / "linkage.key"
        key.parent.mkdir()
        key.write_text(KEY.hex() + "\n")
        key.chmod(0o600)
    plan = vertical_plan(3, max_rounds=150, tol=1e-3)
    return plan, data, simulate_folders(plan, data)


def test_the_files_are_what_they_claim():
    lists = {site: listed(site) for site in SITES}
    shared = set.intersection(*map(set, lists.values()))
    assert {len(ids) for ids in lists.values()} == {100}
    assert len(shared) == 90
    assert all(ids != sorted(ids) for ids in lists.values())
    assert len({tuple(i for i in ids if i in shared) for ids in lists.values()}) == 4
    assert all(record.startswith("0") or len(record) == 4 for record in shared)
    assert sum(record.startswith("00") for record in shared) > 50


def test_it_is_clustered_by_the_patients_that_all_hold(run):
    _, data, result = run
    known = read_truth(data / "truth.csv")
    assert result.status == "completed", result.stop_reason
    assert result.metrics["rows"] == 90
    by_site = {}
    for site in SITES:
        own = result.site_results[site]
        assert sorted(own.ids) == sorted(listed(site))
        labelled = own.labels >= 0
        assert int(labelled.sum()) == 90
        ids = [record for record, has in zip(own.ids, labelled, strict=True) if has]
        by_site[site] = dict(zip(ids, own.labels[labelled].tolist(), strict=True))
        assert accuracy(match_truth(known, ids, "truth"), own.labels[labelled]) > 0.9
    assert all(labels == by_site["st-anna"] for labels in by_site.values())


def test_it_is_scored_beside_its_baselines(run):
    plan, data, result = run
    scores = score_folders(plan, data, result, data / "truth.csv")
    assert list(scores) == [
        "tensor-fmvc (plus)",
        "aligned vote, no tensor term",
        *(f"site '{site}' alone" for site in sorted(SITES)),
        "k-means on the views side by side",
    ]
    assert np.isfinite([list(score.values()) for score in scores.values()]).all()
