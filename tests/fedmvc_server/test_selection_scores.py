"""What a finished selection is compared with, and how it is told in a few lines."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from configs.errors import DataRefused
from configs.plan import RunPlan
from fedmvc_server.report_text import summary
from fedmvc_server.runner import RunResult
from fedmvc_server.selection_scores import selection_scores
from tests.strategies.samples import selection

PLAN = RunPlan.parse({"method": "fed-mufsht", "n_clusters": 2})
LABELS = np.repeat([0, 1], 30)


def wide(d, ranking, **changes):
    """Return a selection of d columns of one view."""
    zeros = np.zeros(d)
    scaling = dataclasses.replace(
        selection().scaling[0], center=zeros, spread=zeros + 1, dead=zeros > 0
    )
    return dataclasses.replace(
        selection(),
        views=("ecg",),
        columns=(tuple(f"c{j}" for j in range(d)),),
        ranking=np.array(ranking),
        scores=zeros + 1,
        observed_share=zeros + 1,
        weights=np.ones((d, 2)),
        scaling=(scaling,),
        frequencies=zeros,
        documents=np.zeros(1),
        **changes,
    )


def finished(found, **changes):
    fields = {
        "status": "completed",
        "exit_code": 0,
        "stop_reason": "the plan ran to its end",
        "run_id": "1234",
        "plan_id": PLAN.plan_id,
        "rounds": 5,
        "model": None,
        "certificate": {},
        "history": [],
        "bytes_up": 1000,
        "bytes_down": 2000,
        "wall_s": 1.0,
        "sites": ["st-anna", "riverside"],
        "dropped": {},
        "warnings": [],
        "metrics": {},
        "selection": found,
    }
    return RunResult(**{**fields, **changes})


def two_sites(view):
    """Deal 60 rows to two sites, the classes to both."""
    return {
        site: SimpleNamespace(ids=[f"p{i}" for i in rows], views={"ecg": view[rows]})
        for site, rows in (("riverside", range(1, 60, 2)), ("st-anna", range(0, 60, 2)))
    }


def truth_file(folder):
    path = folder / "truth.csv"
    lines = [f"p{i},{label}" for i, label in enumerate(LABELS)]
    path.write_text("\n".join(["id,label", *lines]) + "\n")
    return path


def test_the_selected_columns_are_set_beside_all_the_most_spread_and_random_ones(tmp_path):
    """Columns 0 and 1 tell the classes apart, the last ones have the largest variance."""
    rng = np.random.default_rng(0)
    view = rng.normal(size=(60, 40)) * np.linspace(1.0, 100.0, 40)
    view[:, :2] += 8.0 * LABELS[:, None]
    view[3, 0] = np.nan
    found = wide(40, range(40), ratio=0.05)
    scores = selection_scores(PLAN, two_sites(view), finished(found), truth_file(tmp_path))
    own, every, spread, random = scores.values()
    assert list(scores) == [
        "k-means on the 2 selected columns (fed-mufsht, gated_pivot)",
        "k-means on all columns (40)",
        "k-means on the 2 columns of largest variance",
        "k-means on 2 random columns, mean of 5",
    ]
    assert own == {"accuracy": 1.0, "nmi": pytest.approx(1.0), "ari": 1.0}
    assert spread["nmi"] < 0.3
    assert random["nmi"] < 0.5
    assert every["nmi"] < own["nmi"]
    again = selection_scores(PLAN, two_sites(view), finished(found), truth_file(tmp_path))
    assert again == scores


def test_documents_are_compared_by_the_direction_of_their_chosen_words(tmp_path):
    """Lengths, a frequent word and 40 that come together, once each, say nothing."""
    rng = np.random.default_rng(1)
    often = np.where(np.arange(10) // 5 == LABELS[:, None], 4.0, 0.5)
    length = 10.0 ** rng.uniform(1, 2, size=(60, 1))
    rare = np.repeat((rng.random((60, 1)) < 0.4) * 1.0, 40, axis=1)
    filler = np.round(length * 10.0 ** rng.uniform(0, 2, size=(60, 1)))
    view = np.concatenate([rng.poisson(often * length), rare, filler], axis=1)
    view[7] = np.nan  # a document that is missing
    found = dataclasses.replace(
        wide(51, range(51), ratio=50 / 51, text=True), documents=np.array([59.0])
    )

    def own(selected):
        found = finished(selected)
        scores = selection_scores(PLAN, two_sites(view), found, truth_file(tmp_path))
        return scores[f"k-means on the 50 selected columns (fed-mufsht, {selected.rank})"]

    assert own(found)["accuracy"] >= 59 / 60 - 1e-12
    assert own(dataclasses.replace(found, text=False))["accuracy"] < 0.9


def test_a_run_without_a_selection_has_no_scores_and_an_unknown_record_is_refused(tmp_path):
    view = np.random.default_rng(2).normal(size=(60, 4))
    path = truth_file(tmp_path)
    assert selection_scores(PLAN, two_sites(view), finished(None), path) == {}
    path.write_text("id,label\np0,1\n")
    with pytest.raises(DataRefused, match=r"truth\.csv"):
        selection_scores(PLAN, two_sites(view), finished(wide(4, range(4))), path)


METRICS = {
    "rows": 60,
    "features": {"ecg": 2, "blood": 1},
    "selected": {"ecg": 1, "blood": 0},
    "dead": [["ecg", "rr"]],
    "quality": {"riverside": 0.5, "st-anna": 0.75},
    "weights": {"riverside": 0.25, "st-anna": 0.75},
    "kept": 0.875,
    "view_weights": {"ecg": 0.6, "blood": 0.4},
}


def test_a_selection_in_a_few_lines():
    found = finished(selection(), metrics=METRICS, warnings=["1 of 2 columns are constant"])
    text = summary(found, Path("run"), {}).splitlines()
    assert text == [
        "completed after 5 rounds, 1.0 s: the plan ran to its end",
        "patients     60 at 2 sites",
        "selected     1 of 3 columns (ratio 0.4)",
        "view ecg: 1 of 2 columns, weight 0.600",
        "view blood: 0 of 1 columns, weight 0.400",
        "first        ecg.qt 2.000",
        "site 'riverside': its own clusterings agree to NMI 0.500, weight 0.250",
        "site 'st-anna': its own clusterings agree to NMI 0.750, weight 0.750",
        "agreement    the mean keeps 0.875 of the norm of the sites' weights (1 = they agree)",
        "bytes        1,000 up, 2,000 down; no row left a site",
        "warning: 1 of 2 columns are constant",
        "results: run",
    ]


def test_without_a_quality_none_is_told_and_patients_of_a_site_that_left_are_not_the_others():
    metrics = {**METRICS, "quality": {}}
    left = {"ulm": "refused: enough"}
    text = summary(finished(selection(), metrics=metrics, dropped=left), Path("run"), {})
    assert "site 'riverside': weight 0.250" in text
    assert "patients     60 before round 1; at the end 2 sites" in text
    assert "site 'ulm' is not in the result: it refused: enough" in text
