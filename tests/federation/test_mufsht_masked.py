"""A selection over masked sums: the plain run's result, and nothing of one site but its NMI."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from fedmvc_client.participants.fed_mufsht import FedMUFSHTParticipant
from fedmvc_server.simulation import simulate
from privacy.fixed_point import to_ring
from privacy.protection import grid
from strategies import messages as m
from strategies.feature_rounds import by_votes
from strategies.messages import from_bytes, to_bytes
from tests.federation.harness import federate, workers_of
from tests.federation.mufsht_harness import (
    asked_of_method,
    hospitals,
    killed_while_it_answers,
    noted,
    protected_plan,
    recorded,
    restart,
    selection_plan,
)

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


WEIGHED = {"local_sweeps": 1, "agg_temp": 0.5, "search": "keys"}


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


def test_each_site_finds_its_own_gamma_in_the_table_and_one_above_all_is_named():
    change = {name: rated(q) for name, q in zip(NAMES, (0.0, 1.0, 0.3), strict=True)}
    options = {"local_sweeps": 1, "max_rounds": 1, "agg_temp": 0.25}
    tape, _, found = recorded(protected_plan(MASKED, **options), SITES, change)
    assert_alike(found, federate(selection_plan(**options), workers_of(SITES), change=change))
    gamma = found.metrics["weights"]
    assert gamma["site-01"] > 0.9 > 0.1 > gamma["site-02"] > 3 * gamma["site-00"]
    requests = [asked_of_method(message) for message in map(from_bytes, tape.bodies("down"))]
    tables = [r for r in requests if isinstance(r, m.ShareTableRequest)]
    assert [dict(zip(t.sites, t.weights.tolist(), strict=True)) for t in tables] == [gamma] * 3
    (warning,) = found.warnings
    assert warning.startswith("site 'site-01' had more than 0.9 of the weight in a round")


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

    options = {"local_sweeps": 1, "max_rounds": 1}
    plan = protected_plan(MASKED, **options)
    _, _, found = recorded(plan, SITES, {"site-01": greedy})
    for words, sentence in zip(
        ("has no part in a run", "asked for an answer to nothing", "no answer in the clear"),
        refused,
        strict=True,
    ):
        assert words in sentence
    assert found.sites == NAMES


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
