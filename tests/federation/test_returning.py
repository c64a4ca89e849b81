"""A site that was missing for some rounds is asked again, where the plan goes on without it."""

import csv

import numpy as np
import pytest

from fedmvc_server.cardio import gaussian_views
from fedmvc_server.local_grid import LocalGrid
from fedmvc_server.runner import new_run_id
from strategies import messages as m
from strategies.messages import from_bytes, to_bytes
from tests.federation import mufsht_harness
from tests.federation.harness import (
    Between,
    accuracy,
    federate,
    plan_of,
    pooled_labels,
    split,
    workers_of,
)
from tests.federation.resume_harness import lose_and_resume, play

VIEWS, TRUTH = gaussian_views(120, 2, n_clusters=3, dims=(2, 2))
SITES, ROWS = split(VIEWS, TRUTH, "iid", 3)
NAMES = sorted(SITES)
QUORUM = {"min_sites": 2, "on_missing": "continue", "timeout_s": 5.0}
# no round is the last one before max_rounds
STEADY = {"heat_kernel": "one", "tol": 0.0, "max_rounds": 12, "acceleration": "none"}


def plan(**options):
    return plan_of(3, quorum=QUORUM, **STEADY | options)


def cut(*numbers, name="site-01"):
    """Cut a node off in the rounds of these numbers."""

    def observer(grid, state):
        coming = state.history[-1].round + 1
        (grid.disconnect if coming in numbers else grid.reconnect)(name)

    return observer


def missed(result, name="site-01"):
    return [row["round"] for row in result.history if name not in row["sites"]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoding": "int8"},
        {"aggregation": "weighted"},
        {"aggregation": "median", "gamma": 0.5, "rho": 0.5},
    ],
    ids=["exact", "int8", "weighted", "median"],
)
def test_a_site_that_missed_a_round_is_back_after_the_next(options):
    result = federate(plan(**options), workers_of(SITES), observer=cut(3))

    assert (result.status, result.sites, result.dropped) == ("completed", NAMES, {})
    assert missed(result) == [3, 4]
    (warning,) = [w for w in result.warnings if "missing" in w]
    assert warning == (
        "site 'site-01' was missing from rounds 3 to 4: it is unavailable: its node stopped "
        "answering"
    )
    assert accuracy(TRUTH, pooled_labels(result, ROWS)) > 0.95


def test_the_rounds_after_it_are_those_of_all_sites():
    """From the same centres the sums of all sites lead to where they lead undisturbed."""
    options = {"scaling": "none", "bandwidth": 0.05, "max_rounds": 60}
    disturbed = federate(plan(**options), workers_of(SITES), observer=cut(3))
    steady = federate(plan(**options), workers_of(SITES))

    assert missed(disturbed) == [3, 4]
    for a, b in zip(disturbed.model.centers, steady.model.centers, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    assert disturbed.metrics["objective"] == pytest.approx(steady.metrics["objective"], rel=1e-12)


def test_a_site_that_is_missing_again_and_again_is_asked_less_and_less_often():
    """Online and silent it would cost its patience each time."""
    asked = []

    class Silent(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            kinds = {each.metadata.message_type for each in messages}
            if kinds == {"train.round"}:
                asked.append({each.metadata.dst_node_id for each in messages})
            ids = super().push_messages(messages)
            for number, each in zip(ids, messages, strict=True):
                if kinds == {"train.round"} and self._names[each.metadata.dst_node_id] == "site-01":
                    del self._replies[number]
            return ids

    quick = plan_of(3, quorum=QUORUM | {"timeout_s": 0.2}, **STEADY)
    result = federate(quick, workers_of(SITES), grid_class=Silent)

    assert (result.status, list(result.dropped)) == ("completed", ["site-01"])
    assert "did not reply in 0.2 s" in result.dropped["site-01"]
    assert missed(result) == list(range(1, result.rounds + 1))
    assert [i for i, nodes in enumerate(asked, 1) if len(nodes) == 3] == [1, 3, 6]
    assert result.rounds > 7


def test_a_site_that_stays_away_is_named_as_dropped():
    result = federate(plan(), workers_of(SITES), observer=cut(*range(3, 99)))

    assert (result.status, result.sites) == ("completed", ["site-00", "site-02"])
    assert missed(result) == list(range(3, result.rounds + 1))
    assert list(result.dropped) == ["site-01"]
    assert not any("missing" in w for w in result.warnings)


def test_a_site_that_refused_or_lied_is_not_asked_again():
    def lying(worker, body):
        request, reply = from_bytes(body), worker.handle(body)
        if isinstance(request, m.RoundRequest) and request.round == 3:
            return to_bytes(m.Refusal(3, "no more data"))
        return reply

    result = federate(plan(), workers_of(SITES), change={"site-01": lying})

    assert missed(result) == list(range(3, result.rounds + 1))
    assert "refused: no more data" in result.dropped["site-01"]


def test_a_site_whose_worker_was_away_is_asked_again():
    away = []

    def restarting(worker, body):
        request = from_bytes(body)
        if isinstance(request, m.RoundRequest) and request.round == 3:
            away.append(request.round)
            return to_bytes(m.Refusal(7, "its worker does not answer"))
        return worker.handle(body)

    result = federate(plan(), workers_of(SITES), change={"site-01": restarting})

    assert (away, missed(result), result.dropped) == ([3], [3, 4], {})


@pytest.mark.parametrize("aggregation", ["exact", "weighted"])
def test_a_view_comes_back_with_its_only_holder(aggregation):
    sites = {name: {"views": [site["views"][0], None]} for name, site in SITES.items()}
    sites["site-01"] = SITES["site-01"]

    result = federate(plan(aggregation=aggregation), workers_of(sites), observer=cut(3))

    assert missed(result) == [3, 4]
    assert result.history[3]["view_weights"][1] == 0.0
    assert result.model.view_weights[1] > 0.1
    assert result.model.view_weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("weighting", ["uniform", "softmax"])
def test_a_site_comes_back_into_a_selection(weighting):
    sites, informative = mufsht_harness.hospitals()
    selecting = mufsht_harness.selection_plan(quorum=QUORUM, max_rounds=6, weighting=weighting)
    result = federate(selecting, workers_of(sites), observer=cut(3))

    assert (result.status, result.rounds, result.dropped) == ("completed", 6, {})
    assert missed(result) == [3, 4]
    assert sum("missing from round" in w for w in result.warnings) == 1
    assert sorted(result.site_results) == NAMES
    assert informative[result.selection.ranking[:8]].mean() > 0.7


def test_a_site_that_missed_the_scaling_of_round_1_stays_out():
    def away(worker, body):
        request = from_bytes(body)
        if isinstance(request, m.FitRequest) and request.round == 1:
            return to_bytes(m.Refusal(7, "its worker does not answer"))
        return worker.handle(body)

    sites, _ = mufsht_harness.hospitals()
    selecting = mufsht_harness.selection_plan(quorum=QUORUM, max_rounds=4)
    result = federate(selecting, workers_of(sites), change={"site-01": away})

    assert (result.status, list(result.dropped)) == ("completed", ["site-01"])
    assert missed(result) == [1, 2, 3, 4]


def test_with_on_missing_stop_the_run_still_ends():
    stopping = plan_of(3, quorum=QUORUM | {"on_missing": "stop"}, **STEADY)
    result = federate(stopping, workers_of(SITES), observer=cut(3))
    assert (result.status, result.exit_code, result.rounds) == ("stopped", 6, 2)


def test_a_server_lost_meanwhile_goes_on_to_the_same_result(tmp_path):
    """The return is in the journal; the node is found again by its name."""
    short = plan(max_rounds=7)

    def away_in_round_3(worker, body):
        request = from_bytes(body)
        if isinstance(request, m.RoundRequest) and request.round == 3:
            return to_bytes(m.Refusal(7, "its worker does not answer"))
        return worker.handle(body)

    def workers():
        found = workers_of(SITES)
        return found | {"site-01": Between(found["site-01"], away_in_round_3)}

    whole = play(short, workers(), tmp_path / "whole", new_run_id())
    assert missed(whole) == [3, 4]
    for at in range(1, 11):  # hello, prepare, seed, seven rounds, finish
        out = tmp_path / str(at)
        result = lose_and_resume(short, workers(), out, (at, False))
        assert result.status == "completed", result.stop_reason
        assert (missed(result), result.dropped) == (missed(whole), {})
        assert result.model.sha256() == whole.model.sha256(), at
        with (out / "rounds.csv").open(newline="") as file:
            assert [row["sites"] for row in csv.DictReader(file)] == [
                " ".join(row["sites"]) for row in whole.history
            ]
