"""What the server of a selection does with bad replies, sites that leave, and what it found."""

import dataclasses

import numpy as np
import pytest

from fedmvc_server.simulation import simulate
from strategies.feature_ranking import row_norm_scores
from strategies.messages import (
    FitReply,
    FitRequest,
    RefineReply,
    RefineRequest,
    Refusal,
    ScalingReply,
    ScalingRequest,
    SelectionReply,
    ShareReply,
    ShareRequest,
    SurveyReply,
    from_bytes,
    to_bytes,
)
from tests.federation.harness import federate, workers_of
from tests.federation.mufsht_harness import hospitals, selection_plan

SITES, _ = hospitals(90)
TWO = {name: SITES[name] for name in ("site-00", "site-01")}
LAST = 27  # where the third view begins


def answering(kind, change):
    """Change the replies of one kind."""

    def between(worker, body):
        reply = from_bytes(worker.handle(body))
        return to_bytes(change(reply) if isinstance(reply, kind) else reply)

    return between


def refusing(kind):
    def between(worker, body):
        if isinstance(from_bytes(body), kind):
            return to_bytes(Refusal(3, "had enough"))
        return worker.handle(body)

    return between


def with_sum(at, change):
    """Change one of a reply's sums."""

    def changed(reply):
        sums = list(reply.sums)
        sums[at] = change(sums[at])
        return dataclasses.replace(reply, sums=tuple(sums))

    return changed


def rated(quality):
    return answering(FitReply, lambda reply: dataclasses.replace(reply, quality=quality))


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        (SurveyReply, with_sum(0, lambda rows: rows - 1), "counts of its records"),
        (ScalingReply, with_sum(1, lambda squares: -squares), "sum of squares"),
        (FitReply, lambda reply: dataclasses.replace(reply, quality=1.5), "NMI"),
        (ShareReply, with_sum(1, lambda mass: 2 * mass), "site's weight"),
        (ShareReply, with_sum(0, lambda weights: weights[:-1]), "shapes"),
        (RefineReply, with_sum(0, np.ones_like), "not one of 16 features"),
        (SelectionReply, lambda reply: FitReply(reply.run_id, 1, 0.5), "another kind"),
    ],
)
def test_a_reply_that_does_not_fit_takes_its_site_out_by_name(kind, change, why):
    plan = selection_plan(max_rounds=1, search="keys", local_sweeps=1)
    result = federate(plan, workers_of(SITES), change={"site-02": answering(kind, change)})
    assert result.status == "completed", result.stop_reason
    assert result.sites == ["site-00", "site-01"]
    assert "sent a reply that does not fit" in result.dropped["site-02"]
    assert why in result.dropped["site-02"]


@pytest.mark.parametrize(
    "change",
    [refusing(ScalingRequest), answering(ScalingReply, with_sum(1, lambda s: -s))],
    ids=["refuses", "does not fit"],
)
def test_a_site_that_leaves_before_round_one_has_no_part_in_the_scaling(change):
    plan = selection_plan(quorum={"on_missing": "continue"})
    result = federate(plan, workers_of(SITES), change={"site-02": change})
    alone = simulate(plan, TWO)
    assert result.status == alone.status == "completed", result.stop_reason
    assert result.metrics == alone.metrics
    np.testing.assert_array_equal(result.selection.weights, alone.selection.weights)


def test_what_is_said_of_the_sites_is_of_those_that_sent_their_weights():
    change = {"site-02": refusing(ShareRequest)}
    result = federate(selection_plan(max_rounds=1), workers_of(SITES), change=change)
    metrics = result.metrics
    assert list(metrics["quality"]) == list(metrics["weights"]) == result.sites == list(TWO)
    assert sum(metrics["weights"].values()) == pytest.approx(1.0)


def test_a_view_whose_last_holder_left_scores_0_and_is_named():
    sites = {name: {"views": [*site["views"][:2], None]} for name, site in TWO.items()}
    sites["site-02"] = SITES["site-02"]
    plan = selection_plan(max_rounds=1)
    result = federate(plan, workers_of(sites), change={"site-02": refusing(ShareRequest)})
    assert result.status == "completed", result.stop_reason
    (warning,) = result.warnings
    assert warning.startswith("13 of 13 columns of view 'view_2' are observed by no site")
    assert not result.selection.scores[LAST:].any()
    assert result.selection.scores[:LAST].all()
    assert set(result.selection.ranking[LAST:].tolist()) == set(range(LAST, 40))
    assert result.metrics["dead"] == []


def test_a_column_that_nobody_observes_is_named_once():
    sites = {name: {"views": [view.copy() for view in TWO[name]["views"]]} for name in TWO}
    for site in sites.values():
        site["views"][0][:, 4] = np.nan
    result = simulate(selection_plan(max_rounds=1, local_sweeps=1), sites)
    assert result.warnings == [
        "1 of 15 columns of view 'view_0' are never observed and score 0 ('x4')"
    ]


@pytest.mark.parametrize("key", ["weighting", "agg_temp"])
def test_sites_of_weight_0_alone_end_the_run_in_a_sentence(key):
    settings = {"weighting": "linear"} if key == "weighting" else {"agg_temp": 1e-4}
    change = {"site-00": rated(0.0), "site-01": rated(0.0), "site-02": refusing(ShareRequest)}
    result = federate(selection_plan(**settings), workers_of(SITES), change=change)
    assert (result.status, result.exit_code) == ("failed", 6)
    assert result.stop_reason == (
        "all 2 sites left in round 1 have weight 0: set mufsht.weighting to 'uniform', or raise "
        "mufsht.agg_temp"
    )
    assert result.selection is None


def test_the_run_stops_when_the_mean_quality_stands_still():
    def rounds(tol, **change):
        plan = selection_plan(max_rounds=4, tol=tol, local_sweeps=1)
        return federate(plan, workers_of(TWO), change=change).rounds

    still = {name: rated(0.5) for name in TWO}
    assert rounds(1e-3, **still) == 2
    assert rounds(0.0, **still) == 4
    state = iter([0.9, 0.2, 0.21, 0.8])  # the mean falls first, and stands still in round 3
    moving = {"site-00": answering(FitReply, lambda r: dataclasses.replace(r, quality=next(state)))}
    assert rounds(0.011, **moving, **{"site-01": rated(0.5)}) == 3


def test_gamma_is_the_softmax_of_the_qualities_and_reaches_the_sites():
    change = {"site-00": rated(0.3), "site-01": rated(0.5)}
    plan = selection_plan(max_rounds=1, agg_temp=0.2, local_sweeps=1)
    result = federate(plan, workers_of(TWO), change=change)
    gamma = 1 / (1 + np.exp(-1.0))
    assert result.metrics["quality"] == {"site-00": 0.3, "site-01": 0.5}
    assert result.history[0]["site_weights"] == pytest.approx(
        {"site-00": 1 - gamma, "site-01": gamma}
    )


def test_sites_whose_weights_cancel_are_warned_of():
    turned = answering(ShareReply, with_sum(0, lambda weights: -weights))
    twins = {"a": SITES["site-00"], "b": SITES["site-00"]}
    plan = selection_plan(max_rounds=1, weighting="uniform")
    result = federate(plan, workers_of(twins), change={"b": turned})
    assert result.metrics["kept"] == pytest.approx(0.0, abs=1e-12)
    (warning,) = result.warnings
    assert warning.startswith("the mean keeps 0.00 of the norm of the sites' weights")
    agreeing = simulate(plan, twins)
    assert agreeing.metrics["kept"] == pytest.approx(1.0)
    assert agreeing.warnings == []


def test_votes_decide_what_a_key_search_selects():
    plan = selection_plan(max_rounds=1, search="keys", local_sweeps=1)
    asked = []

    def vote(worker, body):
        request = from_bytes(body)
        if isinstance(request, RefineRequest):
            asked.append(request)
            chosen = np.zeros(40)
            chosen[request.ranking[-request.wanted :]] = 1.0
            return to_bytes(RefineReply(request.run_id, (chosen,)))
        return worker.handle(body)

    result = federate(plan, workers_of(TWO), change=dict.fromkeys(TWO, vote))
    ranking = asked[0].ranking.tolist()
    assert asked[0].wanted == 16
    assert result.selection.ranking.tolist() == ranking[-16:] + ranking[:-16]
    assert sum(result.metrics["selected"].values()) == 16


def test_the_start_is_the_servers_and_the_same_for_all():
    starts = []

    def watching(worker, body):
        request = from_bytes(body)
        if isinstance(request, FitRequest):
            starts.append(request.weights)
        return worker.handle(body)

    plan = selection_plan(max_rounds=1, seed=7, local_sweeps=1)
    result = federate(plan, workers_of(TWO), change=dict.fromkeys(TWO, watching))
    assert len(starts) == 2
    np.testing.assert_array_equal(*starts)
    np.testing.assert_allclose(
        result.selection.scores, row_norm_scores(result.selection.weights), rtol=1e-14
    )
    again = simulate(plan, TWO)
    np.testing.assert_array_equal(again.selection.weights, result.selection.weights)
    other = simulate(selection_plan(max_rounds=1, seed=8, local_sweeps=1), TWO)
    assert not np.allclose(other.selection.weights, result.selection.weights)
