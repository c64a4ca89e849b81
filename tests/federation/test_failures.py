"""From round 1 on: a site that fails is dropped by name, and the run goes on or ends with 6."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from fedmvc_server.cardio import gaussian_views
from fedmvc_server.local_grid import LocalGrid
from strategies import messages as m
from strategies.messages import from_bytes, to_bytes
from tests.federation.harness import accuracy, federate, plan_of, pooled_labels, split, workers_of

VIEWS, TRUTH = gaussian_views(120, 2, n_clusters=3, dims=(2, 2))
SITES, ROWS = split(VIEWS, TRUTH, "iid", 3)
STARTS = 2
SECRET = "patient 4711 weighs 82.25 kg"


def plan(min_sites=1, on_missing="stop", **options):
    quorum = {"min_sites": min_sites, "on_missing": on_missing, "timeout_s": 5.0}
    quick = {"heat_kernel": "one", "tol": 1e-8, "n_init": STARTS}
    return plan_of(3, quorum=quorum, **quick | options)


def in_round(number, tamper):
    """Change one site's reply to the request of a round; `tamper(reply)` gives bytes."""

    def change(worker, body):
        request = from_bytes(body)
        reply = worker.handle(body)
        if isinstance(request, m.RoundRequest) and request.round == number:
            return tamper(from_bytes(reply))
        return reply

    return change


def sums(**changes):
    def tamper(reply):
        return to_bytes(
            dataclasses.replace(reply, statistics=dataclasses.replace(reply.statistics, **changes))
        )

    return tamper


def raising(reply):
    raise RuntimeError(SECRET)


def replaced(**changes):
    return lambda reply: to_bytes(dataclasses.replace(reply, **changes))


def first_entry(value):
    def tamper(reply):
        numerator = reply.statistics.numerator[0].copy()
        numerator[0, 0, 0] = value
        return sums(numerator=(numerator, *reply.statistics.numerator[1:]))(reply)

    return tamper


FAILURES = {
    "raises": (raising, "the ClientApp failed"),
    "refuses": (lambda reply: to_bytes(m.Refusal(3, "no more data")), "refused: no more data"),
    "NaN": (first_entry(np.nan), "field numerator holds a number that is not finite"),
    "infinity": (first_entry(np.inf), "field numerator holds a number that is not finite"),
    "another shape": (sums(dispersion=np.ones((1, 7))), "have shapes"),
    "fewer views": (sums(numerator=(), mass=()), "have shapes"),
    "sums that no records can give": (
        lambda reply: sums(
            numerator=tuple(a * 0 + 1e308 for a in reply.statistics.numerator),
            mass=tuple(a * 0 + 1e-290 for a in reply.statistics.mass),
            dispersion=reply.statistics.dispersion * 0 + 1e308,
        )(reply),
        "above what 40 records can give",
    ),
    "negative mass": (
        lambda reply: sums(mass=tuple(-w for w in reply.statistics.mass))(reply),
        "negative",
    ),
    "another run": (replaced(run_id="0" * 36), "another run"),
    "an earlier round": (replaced(round=2), "another round"),
    "another kind": (
        lambda reply: to_bytes(m.FinishReply(reply.run_id, 3, np.ones(2), np.full(3, 1 / 3), 1.0)),
        "another kind",
    ),
    "its request back": (
        lambda reply: to_bytes(m.HelloRequest(reply.run_id, "0" * 64, "{}")),
        "another kind",
    ),
    "no message": (lambda reply: b"\x93NUMPY" + bytes(80), "not a message"),
    "half a message": (lambda reply: to_bytes(reply)[:-8], "ends before"),
    "no bytes": (lambda reply: b"", "0 bytes"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_site_is_dropped_by_name_and_the_run_goes_on(failure):
    tamper, words = FAILURES[failure]
    result = federate(plan(), workers_of(SITES), change={"site-01": in_round(3, tamper)})
    assert (result.status, result.exit_code) == ("completed", 0), result.stop_reason
    assert result.sites == ["site-00", "site-02"]
    assert list(result.dropped) == ["site-01"]
    assert words in result.dropped["site-01"]
    assert "4711" not in result.dropped["site-01"]
    assert [len(r["sites"]) for r in result.history[:4]] == [3, 3, 2, 2]
    assert result.rounds > 4
    # the others' labels are what they should be
    rows = {name: ROWS[name] for name in result.sites}
    index = np.concatenate(list(rows.values()))
    inverse = {name: np.searchsorted(np.sort(index), r) for name, r in rows.items()}
    assert accuracy(TRUTH[np.sort(index)], pooled_labels(result, inverse)) > 0.95
    # from round 3 on it is the run of the two remaining sites
    assert np.diff([r["objective"] for r in result.history[3:]]).max() < 1e-9


@pytest.mark.parametrize("failure", ["raises", "NaN", "another shape", "no message"])
def test_below_min_sites_the_run_ends_with_6(failure):
    tamper, words = FAILURES[failure]
    result = federate(plan(min_sites=3), workers_of(SITES), change={"site-01": in_round(3, tamper)})
    assert (result.status, result.exit_code) == ("stopped", 6)
    assert "'site-01'" in result.stop_reason
    assert words in result.stop_reason
    assert "2 sites are left, quorum.min_sites is 3" in result.stop_reason
    assert result.rounds == 2
    assert result.model is None
    assert result.site_results == {}


def test_the_last_site_gone_is_6_whatever_the_quorum():
    changes = {name: in_round(2, raising) for name in SITES}
    result = federate(plan(), workers_of(SITES), change=changes)
    assert (result.status, result.exit_code) == ("stopped", 6)
    for name in SITES:
        assert f"'{name}'" in result.stop_reason


class Recording(LocalGrid):
    """Keeps type and time to live of every message pushed."""

    seen: ClassVar[list] = []

    def push_messages(self, messages):
        messages = list(messages)
        self.seen += [(each.metadata.message_type, each.metadata.ttl) for each in messages]
        return super().push_messages(messages)


@pytest.mark.parametrize("aggregation", ["exact", "weighted"])
def test_every_message_lives_as_long_as_the_exchange_waits(aggregation):
    Recording.seen.clear()
    result = federate(
        plan(aggregation=aggregation, max_rounds=3), workers_of(SITES), grid_class=Recording
    )
    assert result.status == "completed"
    kinds = [kind for kind, _ in Recording.seen]
    for name, times in (("hello", 1), ("prepare", 1), ("seed", 1), ("round", 3), ("finish", 1)):
        assert kinds.count(f"train.{name}") == times * len(SITES)
    assert {ttl for _, ttl in Recording.seen} == {5.0}


def leaves_after(number, name):
    def observer(grid, state):
        if state.history[-1].round == number:
            grid.disconnect(name)

    return observer


def test_a_missing_node_ends_the_run_with_6_and_its_name():
    result = federate(plan(), workers_of(SITES), observer=leaves_after(2, "site-01"))
    assert (result.status, result.exit_code) == ("stopped", 6)
    assert "'site-01'" in result.stop_reason
    assert "quorum.on_missing is 'stop'" in result.stop_reason
    assert result.rounds == 2


def test_a_missing_node_is_left_behind_where_the_plan_says_continue():
    result = federate(
        plan(on_missing="continue"), workers_of(SITES), observer=leaves_after(2, "site-01")
    )
    assert (result.status, result.exit_code) == ("completed", 0)
    assert result.sites == ["site-00", "site-02"]
    assert "unavailable" in result.dropped["site-01"]


def test_a_missing_node_below_min_sites_is_6_even_where_the_plan_says_continue():
    result = federate(
        plan(min_sites=3, on_missing="continue"),
        workers_of(SITES),
        observer=leaves_after(2, "site-01"),
    )
    assert (result.status, result.exit_code) == ("stopped", 6)
    assert "'site-01'" in result.stop_reason


@pytest.mark.parametrize("encoding", ["float64", "int8"])
def test_after_a_drop_the_run_equals_one_of_the_remaining_sites(encoding):
    """Same scaling would be needed for equality to the last digit; labels and centres agree."""
    change = {"site-01": in_round(2, raising)}
    rest = {name: site for name, site in SITES.items() if name != "site-01"}
    options = {"scaling": "none", "bandwidth": 0.05, "encoding": encoding, "tol": 1e-9}
    dropped = federate(plan(**options), workers_of(SITES), change=change)
    never = federate(plan(**options), workers_of(rest))
    order = [
        int(np.argmin(((dropped.model.centers[0] - center) ** 2).sum(axis=1)))
        for center in never.model.centers[0]
    ]
    assert sorted(order) == [0, 1, 2]
    for a, b in zip(dropped.model.centers, never.model.centers, strict=True):
        assert np.abs(a[order] - b).max() < 1e-3


@pytest.mark.parametrize("aggregation", ["exact", "weighted", "median"])
def test_a_view_that_left_with_its_only_holder_has_no_weight(aggregation):
    """Its dispersion is 0 from then on, which must not make it the best view."""
    sites = {name: {"views": [site["views"][0], None]} for name, site in SITES.items()}
    sites["site-01"] = SITES["site-01"]
    result = federate(
        plan(on_missing="continue", aggregation=aggregation),
        workers_of(sites),
        change={"site-01": in_round(3, raising)},
    )
    assert result.status == "completed", result.stop_reason
    assert result.model.view_weights.tolist() == [1.0, 0.0]
    assert any("'view_1'" in w and "no site" in w for w in result.warnings)
    assert np.isfinite(result.metrics["objective"])
    assert result.metrics["objective"] > 0


def in_seed(**changes):
    """Change a site's seeds; each change is a function of the field."""

    def change(worker, body):
        reply = worker.handle(body)
        if not isinstance(from_bytes(body), m.SeedRequest):
            return reply
        seeds = from_bytes(reply)
        new = {name: function(getattr(seeds, name)) for name, function in changes.items()}
        return to_bytes(dataclasses.replace(seeds, **new))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (in_seed(counts=lambda n: n * 0 + 1e308), "more than its 40 records"),
        (in_seed(centers=lambda c: tuple(a + 1e200 for a in c)), "outside the range"),
        (in_seed(spread_sums=lambda q: tuple(a * 0 + 1e308 for a in q)), "above what 40 records"),
        (
            in_seed(
                centers=lambda c: tuple(np.concatenate([a, a], axis=1) for a in c),
                counts=lambda n: np.concatenate([n, n], axis=1) / 2,
            ),
            "proposes 6 centres, asked were 3",
        ),
    ],
    ids=["counts", "centres", "spread", "more centres"],
)
def test_a_site_whose_seeds_no_records_can_give_is_dropped(change, words):
    result = federate(plan(on_missing="continue"), workers_of(SITES), change={"site-01": change})
    assert (result.status, result.exit_code) == ("completed", 0), result.stop_reason
    assert list(result.dropped) == ["site-01"]
    assert words in result.dropped["site-01"]


@pytest.mark.parametrize("names", [["site-00"], ["site-00", "site-01", "site-02"]])
def test_where_no_site_gives_a_seed_the_starts_are_drawn(names):
    """Sites may withhold centres that stand for too few records: all counts are 0 then."""
    silent = {name: in_seed(counts=np.zeros_like) for name in names}
    sites = {name: SITES[name] for name in names}
    result = federate(plan(n_init=4), workers_of(sites), change=silent)
    assert (result.status, result.exit_code) == ("completed", 0), result.stop_reason
    assert any("for 4 of 4 starts" in warning for warning in result.warnings)
    assert not any("coincide" in warning for warning in result.warnings)
    rows = {name: ROWS[name] for name in names}
    labels = np.concatenate([result.site_results[name].labels for name in names])
    assert accuracy(TRUTH[np.concatenate(list(rows.values()))], labels) > 0.9


def test_a_start_without_seeds_does_not_take_the_others_along():
    def first_start_silent(counts):
        return np.where(np.arange(len(counts))[:, None] == 0, 0.0, counts)

    changes = dict.fromkeys(SITES, in_seed(counts=first_start_silent))
    result = federate(plan(n_init=3), workers_of(SITES), change=changes)
    assert result.status == "completed", result.stop_reason
    assert any("for 1 of 3 starts" in warning for warning in result.warnings)
    assert accuracy(TRUTH, pooled_labels(result, ROWS)) > 0.95


@pytest.mark.parametrize("number", [11, 15])
def test_after_a_view_left_the_published_model_is_the_one_that_was_measured_last(number):
    """Starts dropped before had their J over both views, below every J over one of them."""
    views, labels = gaussian_views(
        240, 2, n_clusters=4, dims=(2, 2), proportions=[0.7, 0.1, 0.1, 0.1]
    )
    sites, _ = split(views, labels, "iid", 3)
    holder = sites["site-01"]
    sites = {name: {"views": [site["views"][0], None]} for name, site in sites.items()}
    sites["site-01"] = holder
    chosen = plan_of(
        4,
        quorum={"on_missing": "continue", "timeout_s": 5.0},
        heat_kernel="one",
        init="box",
        n_init=10,
        tol=1e-9,
        max_rounds=60,
        acceleration="none",
    )
    result = federate(chosen, workers_of(sites), change={"site-01": in_round(number, raising)})
    assert result.status == "completed", result.stop_reason
    assert list(result.dropped) == ["site-01"]
    sizes = [r["bytes_down"] for r in result.history[: number - 1]]
    assert sizes[-1] < sizes[0]  # a start had been dropped by then; else the test shows nothing
    assert result.metrics["objective"] == pytest.approx(result.history[-1]["objective"], rel=1e-6)


def test_in_averaging_a_lost_site_sets_every_start_to_work_again():
    asked = []

    def watch(worker, body):
        request = from_bytes(body)
        if isinstance(request, m.RoundRequest):
            asked.append(request.starts.tolist())
        return worker.handle(body)

    options = {"aggregation": "weighted", "tol": 1e-4, "max_rounds": 40, "init": "box", "n_init": 5}
    federate(plan(**options), workers_of(SITES), change={"site-00": watch})
    first = next(i + 1 for i, starts in enumerate(asked) if len(starts) < 5)  # one has settled
    before, asked[:] = list(asked), []
    changes = {"site-00": watch, "site-01": in_round(first, raising)}
    result = federate(plan(**options), workers_of(SITES), change=changes)
    assert list(result.dropped) == ["site-01"]
    assert asked[first - 1] == before[first - 1]
    assert asked[first] == [0, 1, 2, 3, 4]


# -- replies of averaging --------------------------------------------------------------------

LOCAL_FAILURES = {
    "agreement above 1": replaced(agreement=np.full(STARTS, 1.5)),
    "agreement below 0": replaced(agreement=np.full(STARTS, -0.5)),
    "partition coefficient above 1": replaced(partition_coefficient=np.full(STARTS, 40.0)),
    "objective above its records": replaced(objective=np.full(STARTS, 1e308)),
    "centres beyond all range": lambda reply: to_bytes(
        dataclasses.replace(reply, centers=tuple(a * 0 + 1e300 for a in reply.centers))
    ),
    "negative objective": replaced(objective=np.full(STARTS, -1.0)),
    "another number of rows": replaced(n_rows=4_000_000),
    "view weights that sum to 2": replaced(view_weights=np.ones((STARTS, 2))),
    "view weights of zero": replaced(view_weights=np.zeros((STARTS, 2))),
    "negative view weights": replaced(view_weights=np.full((STARTS, 2), [1.5, -0.5])),
    "fewer starts": lambda reply: to_bytes(
        dataclasses.replace(reply, centers=tuple(a[:1] for a in reply.centers))
    ),
    "more clusters": lambda reply: to_bytes(
        dataclasses.replace(
            reply, centers=tuple(np.concatenate([a, a], axis=1) for a in reply.centers)
        )
    ),
    "NaN": lambda reply: to_bytes(
        dataclasses.replace(reply, centers=tuple(a * np.nan for a in reply.centers))
    ),
    "sums instead of a model": lambda reply: to_bytes(
        m.StatisticsReply(
            reply.run_id,
            reply.round,
            m.SufficientStatistics(reply.centers, reply.centers, reply.view_weights),
        )
    ),
}


@pytest.mark.parametrize("failure", LOCAL_FAILURES)
def test_a_site_cannot_buy_weight_with_a_reply_out_of_range(failure):
    result = federate(
        plan(aggregation="nmi_softmax", max_rounds=4),
        workers_of(SITES),
        change={"site-01": in_round(1, LOCAL_FAILURES[failure])},
    )
    assert result.status == "completed", result.stop_reason
    assert list(result.dropped) == ["site-01"]
    assert "does not fit" in result.dropped["site-01"]


def test_coded_replies_against_a_round_the_server_never_saw_are_dropped():
    result = federate(
        plan(encoding="int8"), workers_of(SITES), change={"site-01": in_round(3, replaced(base=1))}
    )
    assert result.status == "completed"
    assert "against round 1, not round 2" in result.dropped["site-01"]


def test_a_coded_site_that_restarts_in_mid_run_goes_on():
    """A fresh coder answers against zero; both ends start over from there."""
    workers = workers_of(SITES)

    def forget(worker, body):
        request = from_bytes(body)
        if isinstance(request, m.RoundRequest) and request.round == 3:
            next(iter(worker._participants.values()))._coder.restart()
        return worker.handle(body)

    options = {"encoding": "int16", "tol": 1e-9, "acceleration": "none"}
    restarted = federate(plan(**options), workers, change={"site-01": forget})
    steady = federate(plan(**options), workers_of(SITES))
    assert restarted.status == "completed"
    assert restarted.dropped == {}
    for a, b in zip(restarted.model.centers, steady.model.centers, strict=True):
        assert np.abs(a - b).max() < 1e-4
