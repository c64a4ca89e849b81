"""Bad input and sites that leave: one sentence, the documented code, nothing partial left."""

import re

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.site import Policy
from fedmvc_server.simulation import simulate
from strategies.messages import FitRequest, Refusal, ShareRequest, from_bytes, to_bytes
from tests.federation.harness import federate, workers_of
from tests.federation.mufsht_harness import hospitals, selection_plan

SITES, _ = hospitals()


def with_views(name, change):
    """Return SITES with one site's views changed."""
    return dict(SITES) | {name: {"views": change([v.copy() for v in SITES[name]["views"]])}}


def column(value, view=1, at=3):
    def change(views):
        views[view][:, at] = value
        return views

    return change


def everywhere(value):
    """Return SITES with the same column set to a value at all of them."""
    return {name: with_views(name, column(value))[name] for name in SITES}


@pytest.mark.parametrize(
    ("plan", "sites", "code", "sentence"),
    [
        (
            selection_plan(),
            with_views("site-01", lambda views: [v[:1] for v in views]),
            3,
            "site 'site-01' has 1 rows but n_clusters is 3",
        ),
        (selection_plan(60), SITES, 3, "site 'site-00' has 40 rows but n_clusters is 60"),
        (
            selection_plan(text=True),
            SITES,
            3,
            "view 'view_0' of site 'site-00' has .* negative cells and text may have 0",
        ),
        (
            selection_plan(),
            with_views("site-02", column(1e200)),
            3,
            "site 'site-02'.*values beyond 1e\\+150",
        ),
        (
            selection_plan(),
            {name: {"views": [np.ones_like(v) for v in s["views"]]} for name, s in SITES.items()},
            3,
            "0 of .* vary",
        ),
    ],
    ids=["one row", "more clusters than rows", "negative text", "too large", "nothing varies"],
)
def test_data_that_cannot_be_learned_from_are_refused_by_name(plan, sites, code, sentence):
    result = simulate(plan, sites)
    assert (result.status, result.exit_code) == ("failed", code), result.stop_reason
    assert re.search(sentence, result.stop_reason), result.stop_reason
    assert result.selection is None
    assert result.site_results == {}


@pytest.mark.parametrize("value", [7.0, np.nan], ids=["constant", "missing everywhere"])
def test_a_feature_without_information_scores_0_last_and_is_named(value):
    result = simulate(selection_plan(), everywhere(value))
    assert result.status == "completed", result.stop_reason
    dead = 15 + 3
    assert result.selection.scores[dead] == 0
    assert result.selection.ranking[-1] == dead
    assert any("'x3'" in w and "'view_1'" in w for w in result.warnings), result.warnings
    assert result.metrics["dead"] == [["view_1", "x3"]]


def test_a_feature_that_one_site_never_observes_is_ranked_by_the_others():
    result = simulate(selection_plan(), with_views("site-01", column(np.nan, view=0, at=2)))
    assert result.status == "completed", result.stop_reason
    assert result.selection.scores[2] > 0
    assert result.selection.observed_share[2] == 1.0
    assert not result.warnings


def refusing(kind, code=3):
    """Answer every request as the worker does, one kind with a refusal."""

    def change(worker, body):
        if isinstance(from_bytes(body), kind):
            return to_bytes(Refusal(code, "site 'site-02' had enough"))
        return worker.handle(body)

    return change


@pytest.mark.parametrize("kind", [FitRequest, ShareRequest])
def test_a_site_that_leaves_in_a_round_is_named_and_the_others_go_on(kind):
    two = {name: SITES[name] for name in ("site-00", "site-01")}
    result = federate(
        selection_plan(max_rounds=1), workers_of(SITES), change={"site-02": refusing(kind)}
    )
    assert result.status == "completed", result.stop_reason
    assert result.sites == ["site-00", "site-01"]
    assert "had enough" in result.dropped["site-02"]
    assert sum(result.history[0]["site_weights"].values()) == pytest.approx(1.0)
    lone = simulate(selection_plan(max_rounds=1), two)
    ratio = np.linalg.norm(result.selection.weights) / np.linalg.norm(lone.selection.weights)
    assert 0.9 < ratio < 1.1


def test_below_the_quorum_the_run_stops_with_6():
    result = federate(
        selection_plan(quorum={"min_sites": 3}),
        workers_of(SITES),
        change={"site-02": refusing(ShareRequest)},
    )
    assert (result.status, result.exit_code) == ("failed", 6)
    assert "site-02" in result.stop_reason
    assert result.selection is None


def test_a_column_of_few_records_takes_no_part_there():
    """Its pooled centre would be those patients' own value, and every site would receive it."""
    views = [view.copy() for view in SITES["site-01"]["views"]]
    views[0][4:, 2] = np.nan
    views[0][:4, 2] = 123.456
    sites = dict(SITES) | {"site-01": {"views": views}}
    for name in ("site-00", "site-02"):
        own = [view.copy() for view in SITES[name]["views"]]
        own[0][:, 2] = np.nan
        sites[name] = {"views": own}
    workers = workers_of(sites)
    workers["site-01"].source.policy = Policy(approval="auto", min_cohort=1, min_cell=5)
    result = federate(selection_plan(), workers)
    assert result.status == "completed", result.stop_reason
    assert result.selection.scores[2] == 0
    assert result.selection.scaling[0].center[2] == 0.0
    assert result.metrics["dead"] == [["view_0", "x2"]]


def test_a_site_where_nothing_varies_ends_the_run_before_round_1():
    sites = with_views("site-01", lambda views: [np.full_like(v, 3.0) for v in views])
    result = simulate(selection_plan(quorum={"min_sites": 1}), sites)
    assert (result.status, result.exit_code, result.rounds) == ("failed", 3, 0)
    assert "site 'site-01' has 40 columns and 0 of them vary" in result.stop_reason


def test_penalties_that_leave_no_weight_are_named():
    result = simulate(selection_plan(beta=1e9), SITES)
    assert (result.status, result.exit_code) == ("failed", 2)
    assert "0 of 40 columns have weights" in result.stop_reason
    assert "lower mufsht.beta (1e+09)" in result.stop_reason


def test_counts_at_some_sites_and_weights_at_others_are_warned_of():
    rng = np.random.default_rng(0)
    counts = {n: [rng.poisson(1.0, size=(40, 12)).astype(float)] for n in ("a", "b")}
    counts["b"][0] = counts["b"][0] / 2
    sites = {name: {"views": views} for name, views in counts.items()}
    result = simulate(selection_plan(text=True), sites)
    assert result.status == "completed", result.stop_reason
    assert any("weights of words at 1 of 2 sites" in w for w in result.warnings)


def test_a_selection_alone_is_no_earlier_result():
    found = simulate(selection_plan(), SITES)
    plan = {"method": "fedhk-mvfc", "n_clusters": 3, "features": f"{found.run_id}@0.4"}
    with pytest.raises(ConfigError, match="selection is a FeatureSelection: give the whole result"):
        simulate(plan, SITES, selection=found.selection)
