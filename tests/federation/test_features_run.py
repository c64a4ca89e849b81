"""A selection run, and a clustering run on the columns that it selected."""

import csv
import shutil

import numpy as np
import pytest

from configs.plan import RunPlan
from fedmvc_client.data import load_site
from fedmvc_client.predict import predict
from fedmvc_client.sources import FolderSource
from fedmvc_server.evaluation import pooled_kmeans
from fedmvc_server.simulation import score_folders, simulate, simulate_folders
from fedmvc_server.synthesize_features import synthesize_features
from tests.federation.harness import federate, workers_of
from tests.federation.mufsht_harness import hospitals, selection_plan

SITES, INFORMATIVE = hospitals(n=120, n_sites=2)
RATIO = 0.4


def clustering(selection, ratio=RATIO, **fields):
    return RunPlan.parse(
        {
            "method": "fedhk-mvfc",
            "n_clusters": 3,
            "features": f"{selection.run_id}@{ratio}",
            **fields,
        }
    )


def restricted(sites, chosen):
    """Cut arrays of the sites to columns chosen by name, as somebody would by hand."""
    places = [[int(c.removeprefix("x")) for c in columns] for columns in chosen.values()]
    return {
        name: {"views": [v[:, p] for v, p in zip(site["views"], places, strict=True)]}
        for name, site in sites.items()
    }


@pytest.fixture(scope="module")
def selected():
    result = simulate(selection_plan(), SITES)
    assert result.status == "completed", result.stop_reason
    return result


@pytest.fixture(scope="module")
def clustered(selected):
    result = simulate(clustering(selected), SITES, selection=selected)
    assert result.status == "completed", result.stop_reason
    return result


def test_the_model_has_the_selected_columns_and_no_other(selected, clustered):
    chosen = selected.selection.selected(RATIO)

    assert dict(zip(clustered.model.views, clustered.model.columns, strict=True)) == chosen
    assert sum(map(len, clustered.model.columns)) == 16
    assert [center.shape[1] for center in clustered.model.centers] == [
        len(columns) for columns in chosen.values()
    ]


def test_it_is_the_run_on_arrays_cut_by_hand(selected, clustered):
    chosen = selected.selection.selected(RATIO)
    by_hand = simulate({"method": "fedhk-mvfc", "n_clusters": 3}, restricted(SITES, chosen))

    assert clustered.model.sha256() == by_hand.model.sha256()
    for name in SITES:
        assert np.array_equal(
            clustered.site_results[name].labels, by_hand.site_results[name].labels
        )


def test_another_share_than_the_selection_runs_needs_no_new_one(selected):
    result = simulate(clustering(selected, 0.1), SITES, selection=selected)
    used = dict(zip(result.model.views, result.model.columns, strict=True))
    chosen = {v: c for v, c in selected.selection.selected(0.1).items() if c}
    assert used == chosen
    assert sum(map(len, used.values())) == 4


def test_workers_that_stay_find_what_they_kept():
    workers = workers_of(SITES)
    selection = federate(selection_plan(), workers)
    result = federate(clustering(selection), workers)
    assert result.status == "completed", result.stop_reason
    assert sum(map(len, result.model.columns)) == 16


def test_a_site_that_was_not_there_is_refused_by_name(selected):
    joined = {**SITES, "site-99": SITES["site-00"]}
    result = simulate(clustering(selected), joined, selection=selected)
    assert (result.status, result.exit_code, result.rounds) == ("failed", 3, 0)
    assert "site 'site-99' has no selection of run " in result.stop_reason
    assert "take part in that run first" in result.stop_reason


def test_the_run_goes_on_without_it_where_the_plan_says_so(selected):
    joined = {**SITES, "site-99": SITES["site-00"]}
    plan = clustering(selected, quorum={"min_sites": 2, "on_missing": "continue"})
    result = simulate(plan, joined, selection=selected)
    assert result.status == "completed"
    assert list(result.dropped) == ["site-99"]


def test_the_run_id_of_a_clustering_run_is_no_selection(clustered):
    result = simulate(clustering(clustered), SITES, selection=clustered)
    assert result.exit_code == 3
    assert "has no selection of run" in result.stop_reason


# -- folders ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write two hospitals and let them select; returns the folder and the result."""
    data = tmp_path_factory.mktemp("features") / "sites"
    synthesize_features(data, sites=2, n=160, n_clusters=3)
    result = simulate_folders(selection_plan(), data)
    assert result.status == "completed", result.stop_reason
    return data, result


@pytest.fixture(scope="module")
def on_folders(folders):
    data, selection = folders
    result = simulate_folders(clustering(selection, 0.25), data)
    assert result.status == "completed", result.stop_reason
    return result


def test_sites_find_the_columns_in_their_results(folders, on_folders):
    data, selection = folders
    with (data / "st-anna" / "results" / selection.run_id / "features.csv").open() as file:
        first = [(row["view"], row["column"]) for row in csv.DictReader(file)][:48]
    model = on_folders.model
    used = {(v, c) for v, columns in zip(model.views, model.columns, strict=True) for c in columns}
    assert used == set(first)  # round(0.25 * 190)


def test_predict_picks_the_models_columns_by_name(folders, on_folders):
    data, _ = folders
    source = FolderSource(data / "st-anna")
    whole = load_site(source.folder, source.schema, source.config)

    found = predict(on_folders.model, whole, source.device)

    known = on_folders.site_results["st-anna"]
    assert found.ids == known.ids
    assert np.array_equal(found.labels, known.labels)
    assert np.abs(found.membership - known.membership).max() < 1e-12


def test_scores_show_k_means_on_the_selected_and_on_all_columns(folders, on_folders, monkeypatch):
    data, selection = folders
    widths = []

    def counted(views, n_clusters, seed):
        widths.append([view.shape[1] for view in views])
        return pooled_kmeans(views, n_clusters, seed)

    monkeypatch.setattr("fedmvc_server.scores.pooled_kmeans", counted)
    scores = score_folders(clustering(selection, 0.25), data, on_folders, data / "truth.csv")

    assert list(scores) == [
        "fedhk-mvfc (exact)",
        "k-means on pooled rows, selected columns",
        "k-means on pooled rows, all columns",
    ]
    assert widths == [[len(columns) for columns in on_folders.model.columns], [60, 80, 50]]


def test_a_folder_without_the_selection_is_refused_by_name(folders, tmp_path):
    data, selection = folders
    copy = shutil.copytree(data, tmp_path / "sites")
    shutil.rmtree(copy / "st-anna" / "results" / selection.run_id)

    result = simulate_folders(clustering(selection), copy)

    assert (result.status, result.exit_code) == ("failed", 3)
    assert result.stop_reason.startswith(
        f"site 'st-anna' has no selection of run {selection.run_id[:8]} in its results"
    )
    assert str(tmp_path) not in result.stop_reason
