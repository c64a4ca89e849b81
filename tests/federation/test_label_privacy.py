"""A vertical run with randomised response: what leaves, what it costs, what a restart keeps."""

import dataclasses
import math
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.label_privacy import blurred_views, labels_moved_by_one_row, private_accuracy
from configs.plan import RunPlan
from fedmvc_client.worker import folder_worker
from fedmvc_server.report_text import summary
from privacy import randomised_response
from privacy.label_privacy import label_epsilon, label_messages
from privacy.protection import cost_of
from privacy.randomised_response import LabelRandomiser
from strategies import messages as m
from strategies.messages import Refusal, from_bytes, to_bytes
from tests.federation.harness import accuracy, federate
from tests.federation.tensor_harness import (
    Tape,
    edit_rows,
    folder_workers,
    hospitals,
    tables,
    vertical_workers,
    view_file,
)

RUN = "0123abcd-0000-4000-8000-000000000000"


def private_plan(n_clusters=3, *, epsilon=1.0, min_overlap=50, **fields):
    return RunPlan.parse(
        {
            "method": "tensor-fmvc",
            "n_clusters": n_clusters,
            "tol": 0.0,
            "tensor": {"link_cost": 1, "min_overlap": min_overlap},
            "privacy": {"mechanism": "randomised-response", "epsilon": epsilon},
            **fields,
        }
    )


class Site:
    """One site, asked as a server would that may choose the blend at will."""

    def __init__(self, worker, plan):
        self.worker, self.plan = worker, plan
        self.ids = (RUN, plan.plan_id)
        self.n = 0

    def ask(self, request):
        return from_bytes(self.worker.handle(to_bytes(request)))

    def refused(self, request, code):
        reply = self.ask(request)
        assert isinstance(reply, Refusal), type(reply).__name__
        assert reply.code == code, reply.message
        return reply.message

    def begin(self):
        hello = self.ask(m.HelloRequest(*self.ids, self.plan.canonical()))
        assert isinstance(hello, m.HelloReply), hello
        self.n = len(self.ask(m.LinkRequest(*self.ids)).tokens)
        return self

    @property
    def align(self):
        return m.AlignRequest(*self.ids, 0, self.n, np.packbits(np.ones(self.n, dtype=bool)))

    def start(self):
        reply = self.ask(self.align)
        assert isinstance(reply, m.StartReply), reply
        return self.unpacked(reply)

    def forcing(self, number, labels):
        """Return a round's request that makes the site's own labels what the server wants."""
        blend = np.eye(self.plan.n_clusters, dtype=np.int8)[labels]
        return m.SweepRequest(*self.ids, number, 0.0, 1.0, blend, 1.0, np.zeros(0, np.int64))

    def sweep(self, number, labels):
        reply = self.ask(self.forcing(number, labels))
        assert isinstance(reply, m.SweepReply), reply
        return self.unpacked(reply)

    def unpacked(self, reply):
        return m.unpack_labels(reply.labels, self.n, self.plan.n_clusters)

    def outcome(self):
        packed = m.pack_labels(np.zeros(self.n, np.int64), self.plan.n_clusters)
        known = np.packbits(np.ones(self.n, dtype=bool))
        return m.OutcomeRequest(*self.ids, known, packed, packed)

    @property
    def true_labels(self):
        (participant,) = self.worker._participants.values()
        return participant._solver._labels()

    @property
    def ledger(self):
        return self.worker.source.safe.ledger

    def spent(self):
        """Count the lists of labels that are paid for."""
        return round(self.ledger.status().rho_spent / (label_epsilon(self.plan) ** 2 / 2))


def site_of(plan, n=400, view=None):
    rng = np.random.default_rng(1)
    if view is None:
        view = rng.normal(size=(n, 3)) + 3.0 * rng.integers(plan.n_clusters, size=n)[:, None]
    return Site(vertical_workers({"anna": view, "mercy": view})["anna"], plan).begin()


# -- what leaves -----------------------------------------------------------------------------


def all_but_labels(message):
    """Return a message's fields that are neither labels nor tokens, as bytes."""
    kept = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    for name in ("labels", "tokens"):
        if name in kept:
            kept[name] = kept[name].shape
    return {n: v.tobytes() if isinstance(v, np.ndarray) else v for n, v in kept.items()}


def taped(plan, views):
    tape = Tape()
    result = federate(plan, vertical_workers(views), grid_class=tape.grid_class())
    assert result.status == "completed", result.stop_reason
    return tape, result


@pytest.mark.parametrize("max_rounds", [0, 2])
def test_nothing_of_the_data_leaves_but_the_labels_that_were_drawn(max_rounds):
    """Two data sets, one with gaps: every reply is the same but for labels and tokens."""
    plan = private_plan(max_rounds=max_rounds)
    views, _ = tables()
    other = {name: np.nan_to_num(np.roll(view, 7, axis=0) ** 3) for name, view in views.items()}
    found = []
    for data in (views, other):
        tape, result = taped(plan, data)
        replies = [from_bytes(body) for body in tape.bodies("up")]
        kinds = (m.StartReply, m.SweepReply, m.OutcomeReply)
        replies = [reply for reply in replies if isinstance(reply, kinds)]
        found.append([all_but_labels(dataclasses.replace(r, run_id=RUN)) for r in replies])
        assert len(tape.of((m.StartReply, m.SweepReply))) == 3 * label_messages(plan)
        assert result.rounds == max_rounds
        for reply in tape.of(m.StartReply):
            assert (reply.trace, reply.alone.size) == (0.0, 0)
            assert np.unpackbits(reply.held, count=90).all()
        assert {reply.trace for reply in tape.of(m.SweepReply)} <= {0.0}
    assert found[0] == found[1]
    assert set(result.metrics["view_weights"].values()) == {1 / 3}
    text = summary(result, Path("results"), {})
    assert "its own labels as drawn agree on" in text
    assert "own clustering" not in text


def test_no_id_leaves_and_the_books_hold_neither_ids_nor_labels(tmp_path):
    data = hospitals(tmp_path / "sites", sites=2, n=100, overlap=0.8, prefix="MRN-")
    tape = Tape()
    plan = private_plan(epsilon=1.0, max_rounds=1)
    result = federate(plan, folder_workers(data), grid_class=tape.grid_class())
    assert result.status == "completed", result.stop_reason
    assert not any(b"MRN" in body for body in [*tape.bodies("up"), *tape.bodies("down")])
    for folder in data.iterdir():
        if folder.is_dir():
            books = (folder / "state" / "audit.jsonl").read_bytes()
            assert b"MRN" not in books
            assert books.count(b"release sent") == 2
            assert b"run closed" in books


def test_what_in_the_data_makes_a_run_impossible_stays_at_the_site(caplog):
    site = site_of(private_plan(), view=np.repeat([[1.0, 2.0]], 60, axis=0))
    assert site.refused(site.align, 4) == "site 'anna' declined"
    assert "all 60 rows" in caplog.text
    assert site.spent() == 0


# -- label privacy as wired --------------------------------------------------------------------


@pytest.mark.parametrize(("max_rounds", "epsilon"), [(0, 1.0), (3, 1.0), (0, 8.0)])
def test_the_odds_of_an_answer_are_those_of_the_plans_share(max_rounds, epsilon, monkeypatch):
    """Two rows, chance injected: where the truth ends and what comes after it, exactly."""
    plan = private_plan(2, epsilon=epsilon, max_rounds=max_rounds, min_overlap=1)
    edge = int(LabelRandomiser(2, epsilon / (1 + max_rounds))._truth_below)
    answers = {}
    for chance in (edge - 1, edge):
        words = np.array([chance, chance, 0, 0], np.uint64)
        monkeypatch.setattr(randomised_response, "random_words", lambda n, w=words: w)
        site = site_of(plan, view=np.array([[0.0, 1.0], [5.0, -3.0]]))
        answers[chance] = site.start()
        truth = site.true_labels
    assert np.array_equal(answers[edge - 1], truth)
    assert np.array_equal(answers[edge], 1 - truth)
    odds = Fraction(edge, 2**64 - edge)
    limit = math.exp(epsilon / (1 + max_rounds))
    assert limit * (1 - 1e-7) < odds <= limit


def test_the_odds_that_leave_the_worker():
    site = site_of(private_plan(2, epsilon=1.0), n=1000)
    told = (site.start() == site.true_labels).sum()
    truth = math.e / (math.e + 1)
    assert abs(told - 1000 * truth) < 5 * math.sqrt(1000 * truth * (1 - truth))


def test_a_gap_gets_any_label_and_keeps_it():
    rng = np.random.default_rng(2)
    view = rng.normal(size=(900, 3)) + 4.0 * rng.integers(3, size=900)[:, None]
    view[:600] = np.nan
    plan = private_plan(epsilon=8.0, max_rounds=1)
    site = site_of(plan, view=view)
    first = site.start()
    gaps = site.true_labels < 0
    assert gaps.sum() == 600
    assert np.abs(np.bincount(first[gaps], minlength=3) - 200).max() < 60
    # whatever the blend says, a row without data has nothing new to say
    second = site.sweep(1, np.zeros(900, np.int64))
    assert np.array_equal(first[gaps], second[gaps])


def test_a_label_that_stays_is_sent_again_and_one_that_changes_is_drawn():
    site = site_of(private_plan(2, epsilon=3.0, max_rounds=2), n=1000)
    first = site.start()
    truth = site.true_labels
    assert not np.array_equal(first, truth)
    assert np.array_equal(site.sweep(1, truth), first)
    changed = truth.copy()
    changed[:500] = 1 - truth[:500]
    third = site.sweep(2, changed)
    assert np.array_equal(third[500:], first[500:])
    # redrawn: honest with probability e / (e + 1), whatever was said before
    for before in (0, 1):
        rows = np.flatnonzero(first[:500] == before)
        honest = (third[rows] == changed[rows]).mean()
        assert honest == pytest.approx(math.e / (math.e + 1), abs=5 * 0.45 / math.sqrt(rows.size))


def test_the_clusters_new_names_cost_nothing():
    plan = private_plan(epsilon=2.0, max_rounds=1)
    site = site_of(plan)
    first, truth = site.start(), site.true_labels
    names = np.array([2, 0, 1])
    request = dataclasses.replace(site.forcing(1, names[truth]), names=names)
    assert np.array_equal(site.unpacked(site.ask(request)), names[first])


# -- what it costs -----------------------------------------------------------------------------


@pytest.mark.parametrize("max_rounds", [0, 1, 3])
def test_the_cost_is_what_is_sent(max_rounds):
    plan = private_plan(epsilon=2.0, max_rounds=max_rounds)
    cost = cost_of(plan, [3])
    site = site_of(plan)
    site.start()
    for number in range(1, max_rounds + 1):
        site.sweep(number, site.true_labels)
    assert cost.releases == 1 + max_rounds == site.spent()
    assert cost.rho == (2.0 / (1 + max_rounds)) ** 2 / 2
    assert site.ledger.status().rho_reserved == pytest.approx(0.0, abs=1e-15)
    more = site.forcing(max_rounds + 1, site.true_labels)
    assert "of at most" in site.refused(more, 8)


def test_lists_that_nobody_asked_for_are_given_back():
    site = site_of(private_plan(epsilon=2.0, max_rounds=5))
    site.start()
    site.sweep(1, site.true_labels)
    assert site.ledger.status().rho_reserved > 0
    assert isinstance(site.ask(site.outcome()), m.OutcomeReply)
    assert site.spent() == 2
    assert site.ledger.status().rho_reserved == 0
    assert site.ledger.open_runs() == ()


def test_a_request_that_comes_again_is_free_and_another_one_is_refused():
    site = site_of(private_plan(epsilon=2.0, max_rounds=3))
    first = site.start()
    assert np.array_equal(site.start(), first)
    assert site.spent() == 1
    truth = site.true_labels
    second = site.sweep(1, truth)
    assert np.array_equal(site.sweep(1, truth), second)
    assert site.spent() == 2
    assert "round 1 after 1" in site.refused(site.forcing(1, (truth + 1) % 3), 8)
    assert "after round 1" in site.refused(site.align, 8)
    assert site.spent() == 2


# -- restarts ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return hospitals(tmp_path_factory.mktemp("labels") / "sites", sites=2, n=100, overlap=0.8)


@pytest.fixture
def folder(pristine, tmp_path):
    return shutil.copytree(pristine / "st-anna", tmp_path / "st-anna")


def site_in(folder, max_rounds=3):
    return Site(folder_worker(folder), private_plan(epsilon=0.5, max_rounds=max_rounds))


def restarted(site, folder):
    site.worker = folder_worker(folder)
    return site


def test_a_run_that_the_budget_does_not_cover_is_refused_before_data_are_read(folder):
    site = Site(folder_worker(folder), private_plan(epsilon=9.0))
    hello = m.HelloRequest(*site.ids, site.plan.canonical())
    assert "the privacy budget of its patients (epsilon 8 at delta" in site.refused(hello, 5)


def test_a_restarted_site_draws_no_label_twice(folder):
    edit_rows(
        view_file(folder),
        lambda rows: [[row[0], *[""] * (len(row) - 1)] for row in rows[:20]] + rows[20:],
    )
    site = site_in(folder).begin()
    first = site.start()
    assert np.array_equal(restarted(site, folder).start(), first)
    held = site.true_labels
    assert (held < 0).sum() >= 20
    assert np.array_equal(restarted(site, folder).sweep(1, np.maximum(held, 0)), first)
    assert np.array_equal(restarted(site, folder).sweep(1, np.maximum(held, 0)), first)
    assert np.array_equal(restarted(site, folder).sweep(2, np.maximum(held, 0)), first)
    assert site.spent() == 3


def test_a_site_that_died_after_it_answered_answers_the_same(folder):
    """Its books have the answer, its own notes not yet."""
    site = site_in(folder).begin()
    notes = folder / "state" / "runs" / RUN / "state.npz"
    wanted = np.arange(site.n) % 3
    for request in (site.align, site.forcing(1, wanted)):
        before = notes.read_bytes()
        sent = site.unpacked(site.ask(request))
        notes.write_bytes(before)
        assert np.array_equal(site.unpacked(restarted(site, folder).ask(request)), sent)
    assert site.spent() == 2
    assert np.array_equal(site.sweep(2, wanted), sent)  # and goes on from there


def test_a_site_that_died_between_payment_and_answer_pays_again(folder, monkeypatch):
    """Nobody knows what left."""
    site = site_in(folder, max_rounds=1).begin()
    with monkeypatch.context() as dying:
        dying.setattr(type(site.ledger), "answered", lambda *_: 1 / 0)
        site.refused(site.align, 4)  # with noise a defect reads like a refusal
    restarted(site, folder).start()
    assert site.spent() == 2
    assert "all are paid" in site.refused(site.forcing(1, site.true_labels), 5)


# -- accuracy ----------------------------------------------------------------------------------


def test_accuracy_by_epsilon():
    views, truth = blurred_views(300, 0)
    found = {epsilon: private_accuracy(views, truth, epsilon, 0) for epsilon in (1.0, 4.0, 8.0)}
    print(f"accuracy by epsilon, one list of labels a site: {found}")
    # three votes of four labels, each honest with probability .475
    assert 0.3 < found[1.0] < 0.7
    assert found[4.0] > 0.9
    assert found[8.0] > 0.95
    assert private_accuracy(views, truth, 4.0, 3) < found[4.0] - 0.15


def test_the_site_keeps_its_own_labels_under_the_results_names():
    views, truth = blurred_views(300, 1)
    _, result = taped(private_plan(4, epsilon=8.0), dict(zip("abc", views, strict=True)))
    for site in result.site_results.values():
        assert (site.view_labels == site.labels).mean() == accuracy(site.labels, site.view_labels)
    assert accuracy(truth, site.labels) > 0.9
    assert result.warnings == []


def test_one_row_moves_most_labels_of_a_view():
    assert labels_moved_by_one_row() > 500
