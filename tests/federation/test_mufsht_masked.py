"""A selection over masked sums: the plain run's result, and nothing of one site but its NMI."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from fedmvc_client.participants.fed_mufsht import FedMUFSHTParticipant
from fedmvc_server.simulation import simulate
from privacy.fixed_point import FixedPoint, to_ring
from privacy.protection import grid
from strategies import messages as m
from strategies.feature_rounds import by_votes
from strategies.messages import as_array, from_bytes, to_bytes
from tests.federation.harness import federate, workers_of
from tests.federation.mufsht_harness import (
    asked_of_method,
    hospitals,
    killed_while_it_answers,
    noted,
    protected_plan,
    protected_workers,
    recorded,
    restart,
    selection_plan,
)
from tests.federation.protected_harness import passing_time

SITES, _ = hospitals(n=90)
NAMES = sorted(SITES)
MASKED = {"secure_aggregation": True, "participants": NAMES}
#: What the server gets of a site where no figure is told in the clear.
SUMS = {"HelloReply", "KeysReply", "SharesReply", "SumReply", "UnmaskReply", "CloseReply"}
#: The masks' grid has steps of 6e-14 records, so a sum over three sites is off by 1e-13 at most;
#: scaling, weights and scores follow continuously. 1e-14 was measured.
TOLERANCE = 1e-8


def assert_alike(found, plain, *, by_weights=True):
    """Compare what two runs publish, measure and leave at the sites."""
    assert found.status == plain.status == "completed", found.stop_reason
    mine, other = found.selection, plain.selection
    np.testing.assert_allclose(mine.scores, other.scores, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(mine.weights, other.weights, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(mine.observed_share, other.observed_share)
    if by_weights:
        np.testing.assert_array_equal(mine.ranking, other.ranking)
    for key in ("rows", "features", "dead", "quality"):
        assert found.metrics[key] == plain.metrics[key], key
    for key in ("weights", "kept", "objective", "view_weights"):
        assert found.metrics[key] == pytest.approx(plain.metrics[key], abs=1e-9), key
    for site, result in plain.site_results.items():
        np.testing.assert_array_equal(found.site_results[site].labels, result.labels)


def both(sites, **options):
    """Run a plan with masks and without."""
    options = {"local_sweeps": 1, **options}
    masked = simulate(protected_plan(MASKED, **options), sites)
    return masked, simulate(selection_plan(**options), sites)


#: The sites' NMI decide, and none can have more than half of the weight.
BY_NMI = {"local_sweeps": 1, "weighting": "softmax", "agg_temp": 1.5}
WEIGHED = {**BY_NMI, "search": "keys"}


@pytest.fixture(scope="module")
def choices():
    """Collect which columns each site votes for in `weighed`."""
    return []


@pytest.fixture(scope="module")
def weighed(choices):
    """Return tape, workers and result of a masked run in which NMI and votes are asked for."""
    voted = FedMUFSHTParticipant.refine

    def noting(self, request):
        reply = voted(self, request)
        choices.append((request.ranking, reply.sums[0]))
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedMUFSHTParticipant, "refine", noting)
        return recorded(protected_plan(MASKED, **WEIGHED), SITES)


# -- the same result -------------------------------------------------------------------------------


def test_a_masked_run_is_the_plain_run(weighed):
    # the swarm of a key search follows the last digit: its votes are compared below
    assert_alike(weighed[2], simulate(selection_plan(**WEIGHED), SITES), by_weights=False)


def test_votes_are_added_up_behind_the_masks(weighed, choices):
    rankings, votes = zip(*choices, strict=True)
    expected = by_votes(rankings[0], np.sum(votes, axis=0))
    np.testing.assert_array_equal(weighed[2].selection.ranking, expected)
    assert len(votes) == 3
    assert set(np.sum(votes, axis=0)) > {0.0, 3.0}


def test_gaps_lacking_views_and_dead_columns_are_masked_alike():
    sites = {name: {"views": [v.copy() for v in site["views"]]} for name, site in SITES.items()}
    rng = np.random.default_rng(0)
    for site in sites.values():
        for view in site["views"]:
            view[rng.random(view.shape) < 0.2] = np.nan
        site["views"][0][:, 2] = 0.1
        site["views"][0][:, 3] = np.nan
    sites["site-01"]["views"][2] = None
    sites["site-00"]["views"][1][:, 5] = np.nan
    masked, plain = both(sites, max_rounds=1, weighting="uniform")
    assert_alike(masked, plain)
    assert masked.warnings == plain.warnings
    assert masked.metrics["dead"] == [["view_0", "x2"], ["view_0", "x3"]]


def test_text_needs_no_bounds_and_is_masked_alike():
    rng = np.random.default_rng(3)
    topics = rng.gamma(0.4, 4.0, size=(3, 30))
    sites = {}
    for name in NAMES:
        counts = rng.poisson(topics[rng.integers(3, size=30)]).astype(float)
        counts[4] = np.nan
        halves = rng.random((30, 8)) * (rng.random((30, 8)) < 0.6)
        sites[name] = {"views": [counts, halves]}
    masked, plain = both(sites, max_rounds=1, text=True, weighting="uniform")
    assert_alike(masked, plain)
    np.testing.assert_array_equal(masked.selection.frequencies, plain.selection.frequencies)
    assert masked.selection.documents.tolist() == plain.selection.documents.tolist() == [87, 0]
    assert masked.certificate["bounds"] == "none needed: each document is scaled to unit length"


def rated(quality):
    """Change the NMI that a site tells, behind masks or not."""

    def between(worker, body):
        reply = from_bytes(worker.handle(body))
        if isinstance(reply, m.FitReply):
            reply = dataclasses.replace(reply, quality=quality)
        return to_bytes(reply)

    return between


def test_each_site_finds_its_own_gamma_in_the_table():
    change = {name: rated(q) for name, q in zip(NAMES, (0.0, 1.0, 0.3), strict=True)}
    options = {**BY_NMI, "max_rounds": 1}
    tape, _, found = recorded(protected_plan(MASKED, **options), SITES, change)
    assert_alike(found, federate(selection_plan(**options), workers_of(SITES), change=change))
    gamma = found.metrics["weights"]
    assert 0.5 > gamma["site-01"] > 0.4 > 0.3 > gamma["site-02"] > 1.2 * gamma["site-00"]
    requests = [asked_of_method(message) for message in map(from_bytes, tape.bodies("down"))]
    tables = [r for r in requests if isinstance(r, m.ShareTableRequest)]
    assert [dict(zip(t.sites, t.weights.tolist(), strict=True)) for t in tables] == [gamma] * 3
    assert found.warnings == []


def test_a_clustering_run_follows_a_masked_selection(weighed):
    selected = weighed[2]
    fields = {"method": "fedhk-mvfc", "n_clusters": 3, "features": f"{selected.run_id}@0.4"}
    fields |= {"max_rounds": 3, "fedhk": {"init": "spread", "acceleration": "none", "n_init": 1}}
    plain = simulate(fields, SITES, selection=selected)
    found = simulate({**fields, "privacy": MASKED}, SITES, selection=selected)
    assert found.status == plain.status == "completed", found.stop_reason
    chosen = selected.selection.selected()
    assert dict(zip(found.model.views, found.model.columns, strict=True)) == chosen
    for mine, other in zip(found.model.centers, plain.model.centers, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=TOLERANCE)


# -- what crosses the wire -------------------------------------------------------------------------


def test_all_sites_get_the_same_requests(weighed):
    tape, _, result = weighed
    asked = Counter()
    for message in map(from_bytes, tape.bodies("down")):
        if asked_of_method(message) is not None:
            bodies = b"|".join(body.tobytes() for body in message.bodies)
            asked[getattr(message, "exchange", "clear"), bodies] += 1
    # survey and scaling, a question and a sum each round, votes
    assert len(asked) == 2 + 2 * result.rounds + 1
    assert set(asked.values()) == {3}


def test_only_masked_sums_and_the_quality_leave(weighed):
    tape, _, result = weighed
    replies = [from_bytes(body) for body in tape.bodies("up")]
    assert {type(reply).__name__ for reply in replies} == SUMS | {"FitReply"}
    figures = [reply for reply in replies if isinstance(reply, m.FitReply)]
    assert len(figures) == 3 * result.rounds
    assert [field.name for field in dataclasses.fields(m.FitReply)] == [
        "run_id",
        "round",
        "quality",
    ]


def nibbles(vectors):
    octets = np.concatenate([vector.view(np.uint8) for vector in vectors])
    return np.bincount(np.concatenate([octets & 15, octets >> 4]), minlength=16)


def test_one_sites_uploads_alone_are_uniform(weighed):
    tape, _, _ = weighed
    uploads = [r.vector for r in map(from_bytes, tape.bodies("up")) if isinstance(r, m.SumReply)]
    for place in range(3):
        assert chisquare(nibbles(uploads[place::3])).pvalue > 1e-6
    # sums that nothing hides are far from it
    bare = grid(protected_plan(MASKED), None).encode(np.linspace(0.0, 1.0, 1000))
    assert chisquare(nibbles([to_ring(bare)])).pvalue < 1e-12


def test_the_audit_log_has_what_is_told_in_the_clear(weighed):
    _, workers, result = weighed
    entries = workers["site-00"].source.safe.audit.entries()
    events = Counter(entry.event for entry in entries)
    assert events["answered in the clear"] == result.rounds
    assert events["release sent"] == 2 + result.rounds + 1
    for entry in entries:
        if entry.event == "answered in the clear":
            assert {"bytes", "request", "reply"} < set(entry.facts)
        assert not any(isinstance(fact, float) for fact in entry.facts.values())


def test_a_server_that_asks_for_more_gets_nothing_and_moves_no_site():
    refused = []

    def greedy(worker, body):
        message = from_bytes(body)
        if isinstance(message, m.AskRequest):
            for other in (
                asked_of_method(message),
                dataclasses.replace(message, bodies=()),
                dataclasses.replace(message, bodies=message.bodies[:1]),
            ):
                refused.append(from_bytes(worker.handle(to_bytes(other))).message)
        return worker.handle(body)

    plan = protected_plan(MASKED, **BY_NMI, max_rounds=1)
    _, _, found = recorded(plan, SITES, {"site-01": greedy})
    for words, sentence in zip(
        ("has no part in a run", "asked for an answer to nothing", "no answer in the clear"),
        refused,
        strict=True,
    ):
        assert words in sentence
    assert found.sites == NAMES


# -- a server that does not send all sites the same ------------------------------------------------


def answering(**changes):
    """Return the requests of a sum or question with fields of the last one changed."""

    def change(message):
        inner = asked_of_method(message)
        values = {key: make(getattr(inner, key)) for key, make in changes.items()}
        body = as_array(to_bytes(dataclasses.replace(inner, **values)))
        return dataclasses.replace(message, bodies=(*message.bodies[:-1], body))

    return change


@pytest.fixture
def opened(monkeypatch):
    """Collect the ring elements of all sums that are opened."""
    totals, decode = [], FixedPoint.decode

    def decoding(codec, total):
        totals.append(np.array(total))
        return decode(codec, total)

    monkeypatch.setattr(FixedPoint, "decode", decoding)
    return totals


def refusals(worker):
    entries = worker.source.safe.audit.entries()
    return [entry.facts["sentence"] for entry in entries if entry.event == "request refused"]


TWO = protected_plan(MASKED, **BY_NMI, max_rounds=2)
OTHERS = "sent other requests before than the server says"


def test_a_site_that_was_asked_otherwise_than_the_rest_refuses_the_sum(opened, monkeypatch):
    """In round 2: the weights of round 1 follow from the seed."""

    def change(worker, body):
        message = from_bytes(body)
        asked = asked_of_method(message)
        if isinstance(message, m.AskRequest) and asked.round == 2:
            body = to_bytes(answering(weights=lambda w: w * 0.5)(message))
        return worker.handle(body)

    workers = protected_workers(SITES)
    with passing_time(monkeypatch):
        result = federate(TWO, workers, change={"site-00": change})
    assert result.status != "completed"
    assert len(opened) == 3  # survey, scaling, round 1
    sentences = refusals(workers["site-00"])
    assert sentences
    assert all(OTHERS in sentence for sentence in sentences)


def test_sites_that_were_asked_differently_give_a_sum_of_nothing(opened):
    """The server tells each of them what it was asked, so that none refuses."""
    told = {}

    def change(worker, body):
        message = from_bytes(body)
        asked = asked_of_method(message)
        if isinstance(message, m.AskRequest) and asked.round == 2:
            message = answering(weights=lambda w: w * 0.5)(message)
            told["history"] = m.history_of(asked_of_method(message))
            body = to_bytes(message)
        elif isinstance(asked, m.ShareTableRequest) and asked.round == 2:
            body = to_bytes(answering(history=lambda _: told["history"])(message))
        return worker.handle(body)

    workers = protected_workers(SITES)
    federate(TWO, workers, change={"site-00": change})
    assert refusals(workers["site-00"]) == []
    first, second = opened[2:4]
    assert chisquare(nibbles([second])).pvalue > 1e-6
    assert chisquare(nibbles([first])).pvalue < 1e-12


def test_a_scaling_that_one_site_was_sent_besides_ends_its_part(opened, monkeypatch):
    """An origin of its own, adopted before the honest one comes."""

    def change(worker, body):
        message = from_bytes(body)
        if isinstance(message, m.AskRequest) and asked_of_method(message).round == 1:
            scale = from_bytes(message.bodies[1].tobytes())
            scale = dataclasses.replace(scale, origin=scale.origin * 0.999)
            bodies = (message.bodies[0], as_array(to_bytes(scale)), *message.bodies[2:])
            worker.handle(to_bytes(dataclasses.replace(message, bodies=bodies)))
        return worker.handle(body)

    workers = protected_workers(SITES)
    with passing_time(monkeypatch):
        result = federate(TWO, workers, change={"site-00": change})
    assert result.status != "completed"
    assert len(opened) == 2
    first, *_, last = refusals(workers["site-00"])
    assert OTHERS in first
    assert "another ScalingRequest than the run began with" in last


def test_a_start_of_round_1_that_the_seed_does_not_give_is_refused(opened, monkeypatch):
    for options in (BY_NMI, {"local_sweeps": 1}):
        plan = protected_plan(MASKED, **options, max_rounds=1)

        def change(worker, body):
            message = from_bytes(body)
            if isinstance(asked_of_method(message), m.FitRequest):
                body = to_bytes(answering(weights=lambda w: w * 0.5)(message))
            return worker.handle(body)

        workers = protected_workers(SITES)
        with passing_time(monkeypatch):
            result = federate(plan, workers, change=dict.fromkeys(NAMES, change))
        assert result.status != "completed"
        for worker in workers.values():
            assert "does not follow from the plan's seed" in refusals(worker)[0]
    assert len(opened) == 4


# -- restarts --------------------------------------------------------------------------------------


def killed_before(worker, body):
    restart(worker, noted(worker))
    return worker.handle(body)


def test_sites_that_are_killed_around_every_request_change_no_bit(weighed):
    change = {"site-00": killed_before, "site-01": killed_while_it_answers}
    _, _, killed = recorded(protected_plan(MASKED, **WEIGHED), SITES, change)
    whole = weighed[2]
    np.testing.assert_array_equal(killed.selection.weights, whole.selection.weights)
    np.testing.assert_array_equal(killed.selection.ranking, whole.selection.ranking)
    assert killed.metrics == whole.metrics
    for name in NAMES:
        labels = [run.site_results[name].labels for run in (killed, whole)]
        np.testing.assert_array_equal(*labels)
