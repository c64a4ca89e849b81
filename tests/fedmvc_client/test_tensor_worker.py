"""The site half of a vertical run: restarts, and a server that asks for more than the plan."""

import dataclasses
import logging
import shutil
import stat

import numpy as np
import pytest

from fedmvc_client import sources
from fedmvc_client.results import read_results
from fedmvc_client.worker import folder_worker
from strategies import messages as m
from strategies.messages import Refusal, from_bytes, to_bytes
from tests.federation.harness import federate, plan_of
from tests.federation.tensor_harness import (
    edit_rows,
    folder_workers,
    hospitals,
    vertical_plan,
    view_file,
)

ROUNDS = 4
PLAN = vertical_plan(3, max_rounds=ROUNDS, tol=0.0)
PLANS = {
    "plus": PLAN,
    "paper": vertical_plan(3, max_rounds=ROUNDS, tol=0.0, profile="paper"),
    "two sweeps": vertical_plan(
        3, max_rounds=ROUNDS, tol=0.0, local_sweeps=2, z_encoding="float16"
    ),
    "paper, two sweeps": vertical_plan(
        3, max_rounds=ROUNDS, tol=0.0, profile="paper", local_sweeps=2, orientation="unfold"
    ),
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write three folders of 100 records, 80 of them shared; no test writes here."""
    out = tmp_path_factory.mktemp("worker") / "sites"
    return hospitals(out, sites=3, n=100, overlap=0.8, prefix="MRN-")


@dataclasses.dataclass
class Tape:
    """What one site was asked and what it answered in an honest run, and where its files are."""

    requests: list
    replies: list
    folder: object = None
    run_id: str = ""

    def __call__(self, worker, body):
        self.requests.append(body)
        self.replies.append(worker.handle(body))
        return self.replies[-1]

    def of(self, kind, number=0):
        """Return a request of a kind, decoded."""
        return [r for r in map(from_bytes, self.requests) if isinstance(r, kind)][number]


def recorded(pristine, folder, plan):
    """Run a plan over copies of the folders; returns the tape of riverside."""
    tape = Tape([], [])
    data = shutil.copytree(pristine, folder / "recorded")
    result = federate(plan, folder_workers(data), change={"riverside": tape})
    assert result.status == "completed", result.stop_reason
    assert len(tape.requests) == 4 + ROUNDS
    tape.folder, tape.run_id = data / "riverside", result.run_id
    return tape


@pytest.fixture(scope="module")
def tapes(pristine, tmp_path_factory):
    """Return the tape of each plan, recorded when first asked for."""
    known = {}

    def give(name):
        if name not in known:
            known[name] = recorded(pristine, tmp_path_factory.mktemp("tape"), PLANS[name])
        return known[name]

    return give


@pytest.fixture
def site(pristine, tmp_path):
    """Return a fresh copy of riverside's folder."""
    return shutil.copytree(pristine / "riverside", tmp_path / "riverside")


@pytest.fixture
def hashed(monkeypatch):
    """Count how often ids are hashed."""
    calls, real = [], sources.link_tokens

    def counting(ids, **options):
        calls.append(len(ids))
        return real(ids, **options)

    monkeypatch.setattr(sources, "link_tokens", counting)
    return calls


def ask(worker, request):
    return from_bytes(worker.handle(to_bytes(request)))


def refused(worker, request, code=8):
    reply = ask(worker, request)
    assert isinstance(reply, Refusal), type(reply).__name__
    assert reply.code == code, reply.message
    assert "MRN" not in reply.message
    return reply.message


# -- restarts --------------------------------------------------------------------------------


def test_a_restart_is_logged_where_there_is_one(tapes, site, caplog):
    caplog.set_level(logging.INFO, logger="fedmvc.site")
    tape = tapes("plus")
    caplog.clear()
    worker = folder_worker(site)
    for body in tape.requests[:4]:
        worker.handle(body)
    assert "after a restart" not in caplog.text
    folder_worker(site).handle(tape.requests[4])
    assert caplog.text.count("after a restart") == 1


@pytest.mark.parametrize("name", PLANS)
def test_a_worker_restarted_before_every_request_answers_the_same(tapes, site, hashed, name):
    tape = tapes(name)
    hashed.clear()
    for number, (body, expected) in enumerate(zip(tape.requests, tape.replies, strict=True)):
        assert folder_worker(site).handle(body) == expected, f"request {number}"
    assert hashed == [100]
    ours, theirs = (read_results(f / "results" / tape.run_id) for f in (site, tape.folder))
    assert ours.ids == theirs.ids
    for column in ("labels", "vote_labels", "view_labels"):
        np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column))


@pytest.mark.parametrize("name", ["plus", "paper"])
@pytest.mark.parametrize("step", [1, 2, 3, 5, 3 + ROUNDS])
def test_a_worker_restarted_once_answers_the_same(tapes, site, hashed, name, step):
    """After hello, after link, after align, between rounds, before finish."""
    tape = tapes(name)
    hashed.clear()
    worker = folder_worker(site)
    for number, (body, expected) in enumerate(zip(tape.requests, tape.replies, strict=True)):
        if number == step:
            worker = folder_worker(site)
        assert worker.handle(body) == expected, f"request {number}"
    assert hashed == [100]


def test_two_runs_in_turns_do_not_mix(tapes, site):
    """More runs than are kept in memory: each goes on from the state folder."""
    tape = tapes("plus")
    bodies = [[body.replace(tape.run_id.encode(), run.encode()) for body in tape.requests]
              for run in ("1" * 36, "2" * 36, "3" * 36)]  # fmt: skip
    worker = folder_worker(site)
    for number, expected in enumerate(tape.replies):
        for other in bodies:
            reply = from_bytes(worker.handle(other[number]))
            honest = from_bytes(expected)
            if isinstance(honest, m.SweepReply):
                assert reply.labels.tobytes() == honest.labels.tobytes()
                assert reply.trace == honest.trace
            assert type(reply) is type(honest)


def test_the_state_holds_no_id_and_is_gone_after_the_run(tapes, site):
    tape = tapes("plus")
    worker = folder_worker(site)
    for body in tape.requests[:-1]:
        worker.handle(body)
    runs = site / "state" / "runs"
    kept = {path.name for path in runs.rglob("*") if path.is_file()}
    assert kept == {"hello.bin", "state.npz"}
    with np.load(runs / tape.run_id / "state.npz", allow_pickle=False) as state:
        assert all("MRN" not in str(state[name]) for name in state.files)
        assert not any(state[name].dtype == np.float64 and state[name].size > 9 for name in state)
    worker.handle(tape.requests[-1])
    assert not any(runs.iterdir())
    assert not list((site / "results").glob(".writing-*"))


def test_a_site_whose_records_changed_in_between_says_so(tapes, site):
    tape = tapes("plus")
    worker = folder_worker(site)
    for body in tape.requests[:5]:
        worker.handle(body)
    edit_rows(view_file(site), lambda rows: [[row[0], *([""] * (len(row) - 1))] for row in rows])
    reply = from_bytes(folder_worker(site).handle(tape.requests[5]))
    assert isinstance(reply, Refusal)
    assert reply.code == 3
    assert "'riverside'" in reply.message


def one_patient_for_another(rows):
    return [["MRN-99", *rows[0][1:]], *rows[1:]]


@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("change", [lambda rows: rows[:60], one_patient_for_another])
def test_a_list_that_changed_in_between_is_refused_and_labels_nobody_else(
    tapes, site, change, steps
):
    tape = tapes("plus")
    worker = folder_worker(site)
    for body in tape.requests[:steps]:
        worker.handle(body)
    edit_rows(view_file(site), change)
    reply = from_bytes(folder_worker(site).handle(tape.requests[steps]))
    assert isinstance(reply, Refusal)
    assert reply.code == 3, reply.message
    assert "site 'riverside': the list of its records has changed" in reply.message


# -- a server that asks for more than the plan -----------------------------------------------


class Site:
    """A fresh worker, and the honest requests to set it up with."""

    def __init__(self, folder, tape):
        self.tape = tape
        self.worker = folder_worker(folder)

    def set_up(self, steps):
        """Answer the first honest requests: 1 hello, 2 link, 3 align, then the rounds."""
        for body in self.tape.requests[:steps]:
            assert not isinstance(from_bytes(self.worker.handle(body)), Refusal)
        return self

    def refused(self, request, code=8):
        return refused(self.worker, request, code)


@pytest.fixture
def honest(tapes, site, hashed):
    """Return a site that knows no run yet."""
    tape = tapes("plus")
    hashed.clear()
    return Site(site, tape)


def test_requests_out_of_order_are_refused(honest, hashed):
    tape = honest.tape
    align, round_ = tape.of(m.AlignRequest), tape.of(m.SweepRequest)
    finish = tape.of(m.OutcomeRequest)
    for request in (tape.of(m.LinkRequest), align, round_, finish):
        assert "knows no run" in honest.refused(request)
    honest.set_up(1)
    assert "sent align before link" in honest.refused(align)
    assert "sent round before link" in honest.refused(round_)
    assert "sent finish before link" in honest.refused(finish)
    assert hashed == []
    honest.set_up(2)
    assert "before align" in honest.refused(round_)
    assert "before align" in honest.refused(finish)
    assert honest.worker.result(tape.run_id) is None


def other_rows(tape):
    """Return an honest align's twin: as many rows, one of them another."""
    align = tape.of(m.AlignRequest)
    mask = np.unpackbits(align.shared, count=100)
    mask[[np.flatnonzero(mask == 1)[0], np.flatnonzero(mask == 0)[0]]] = 0, 1
    return dataclasses.replace(align, shared=np.packbits(mask))


@pytest.mark.parametrize("steps", [3, 5])
@pytest.mark.parametrize("again", [False, True], ids=["at once", "after another link"])
@pytest.mark.parametrize("restart", [False, True], ids=["same worker", "restarted"])
def test_other_rows_than_before_are_refused(honest, site, steps, again, restart):
    honest.set_up(steps)
    if restart:
        honest.worker = folder_worker(site)
    if again:
        ask(honest.worker, honest.tape.of(m.LinkRequest))
    refused = honest.refused(other_rows(honest.tape))
    assert ("align after round" if steps > 3 else "other shared rows before") in refused


def test_another_position_is_refused(honest):
    honest.set_up(3)
    align = honest.tape.of(m.AlignRequest)
    assert "other shared rows" in honest.refused(dataclasses.replace(align, position=7))


def test_a_link_that_is_asked_again_is_answered_the_same_without_hashing(honest, site, hashed):
    """A reply may be lost."""
    honest.set_up(2)
    for worker in (honest.worker, folder_worker(site)):
        assert worker.handle(honest.tape.requests[1]) == honest.tape.replies[1]
    assert hashed == [100]


def test_an_align_that_is_asked_again_is_answered_the_same(honest):
    honest.set_up(3)
    assert honest.worker.handle(honest.tape.requests[2]) == honest.tape.replies[2]


def test_after_a_round_no_start_is_given_again(honest):
    """Otherwise a server could have as many rounds as it likes."""
    honest.set_up(4)
    assert "after round 1" in honest.refused(honest.tape.of(m.AlignRequest))
    assert honest.worker.handle(honest.tape.requests[4]) == honest.tape.replies[4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shared": np.zeros(12, np.uint8)}, "a mask of 12 bytes for 13"),
        ({"shared": np.zeros(14, np.uint8)}, "a mask of 14 bytes for 13"),
        ({"shared": np.zeros((13, 1), np.uint8)}, "a mask of 13 bytes for 13"),
        ({"n_shared": 81}, "another number of shared rows"),
        ({"n_shared": -1}, "another number of shared rows"),
        (
            {"shared": np.packbits(np.arange(100) < 49), "n_shared": 49},
            "fewer shared rows than tensor.min_overlap = 50",
        ),
        ({"shared": np.zeros(13, np.uint8), "n_shared": 0}, "fewer shared rows"),
        ({"position": -1}, "number -1 of the sites"),
        ({"position": 10**6}, "number 1000000 of the sites"),
        ({"plan_id": "0" * 64}, "belongs to plan"),
    ],
)
def test_an_align_outside_the_plan_is_refused(honest, changes, words):
    honest.set_up(2)
    align = honest.tape.of(m.AlignRequest)
    assert words in honest.refused(dataclasses.replace(align, **changes))
    assert honest.worker.handle(honest.tape.requests[2]) == honest.tape.replies[2]


def like(blend, **changes):
    """Return the fields of a round with another blend."""
    return {"blend": blend, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (like(np.zeros((79, 3), np.int8)), "shape (79, 3) for 80 rows and 3 clusters"),
        (like(np.zeros((80, 4), np.int8)), "shape (80, 4)"),
        (like(np.zeros((3, 80), np.int8)), "shape (3, 80)"),
        (like(np.zeros(240, np.int8)), "shape (240,)"),
        (like(np.zeros((0, 4), np.int8)), "shape (0, 4)"),
        (like(np.zeros((80, 3))), "a blend of type float64"),
        (like(np.zeros((80, 3), np.float16)), "a blend of type float16"),
        (like(np.zeros((80, 3), np.uint8)), "a blend of type uint8"),
        ({"round": 0}, "round 0 after 0 of at most 4"),
        ({"round": ROUNDS + 1}, "round 5 after 0 of at most 4"),
        ({"round": -3}, "round -3"),
        ({"weight": -1.0}, "a weight that is not"),
        ({"mu": 0.0}, "a mu that is not"),
        ({"mu": -1.0}, "a mu that is not"),
        ({"scale": 0.0}, "a scale that is not"),
        ({"scale": -0.1}, "a scale that is not"),
        ({"names": np.array([0, 0, 1])}, "no permutation of 3"),
        ({"names": np.array([1, 2, 3])}, "no permutation of 3"),
        ({"names": np.array([0, 1])}, "no permutation of 3"),
        ({"names": np.array([[0, 1, 2]])}, "no permutation of 3"),
        ({"plan_id": "0" * 64}, "belongs to plan"),
    ],
)
def test_a_round_outside_the_plan_is_refused(honest, changes, words):
    honest.set_up(3)
    request = honest.tape.of(m.SweepRequest)
    assert words in honest.refused(dataclasses.replace(request, **changes))
    assert honest.worker.handle(honest.tape.requests[3]) == honest.tape.replies[3]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["paper", "two sweeps"])
def test_a_blend_that_is_not_finite_is_refused(tapes, site, name, value):
    tape = tapes(name)
    second = tape.of(m.SweepRequest, 1)
    blend = np.array(second.blend)
    blend[5, 1] = value
    there = Site(site, tape).set_up(4)
    sentence = there.refused(dataclasses.replace(second, blend=blend))
    assert "field blend holds a number that is not finite" in sentence
    assert there.worker.handle(tape.requests[4]) == tape.replies[4]


@pytest.mark.parametrize("text", [b"NaN", b"1e999", b"-1e999"])
@pytest.mark.parametrize("name", ["weight", "mu", "scale"])
def test_numbers_that_are_not_finite_are_refused(honest, name, text):
    honest.set_up(3)
    request = dataclasses.replace(honest.tape.of(m.SweepRequest), **{name: 0.123456789})
    body = to_bytes(request)
    length = int.from_bytes(body[:4], "little")
    head = body[4 : 4 + length].replace(b"0.123456789", text)
    spoilt = len(head).to_bytes(4, "little") + head + body[4 + length :]
    reply = from_bytes(honest.worker.handle(spoilt))
    assert (type(reply), reply.code) == (Refusal, 8)
    assert "not finite" in reply.message


def test_rounds_never_go_back_and_clusters_are_renamed_once(honest):
    honest.set_up(5)
    first, second = honest.tape.of(m.SweepRequest), honest.tape.of(m.SweepRequest, 1)
    assert "round 1 after 2" in honest.refused(first)
    assert to_bytes(ask(honest.worker, second)) == honest.tape.replies[4]
    other = dataclasses.replace(second, weight=second.weight + 1.0)
    assert "round 2 after 2" in honest.refused(other)
    renamed = dataclasses.replace(honest.tape.of(m.SweepRequest, 2), names=np.array([2, 0, 1]))
    assert "new cluster names after round 2" in honest.refused(renamed)
    assert honest.worker.handle(honest.tape.requests[5]) == honest.tape.replies[5]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"known": np.zeros(9, np.uint8)}, "a mask of 9 bytes for 10"),
        ({"labels": np.zeros(19, np.uint8)}, "shape (19,)"),
        ({"vote": np.zeros(21, np.uint8)}, "shape (21,)"),
        ({"labels": m.pack_labels(np.full(80, 3), 4)}, "a packed label is 3"),
        ({"vote": m.pack_labels(np.full(80, 3), 4)}, "a packed label is 3"),
        ({"plan_id": "0" * 64}, "belongs to plan"),
    ],
)
def test_a_result_that_does_not_fit_is_refused_and_not_kept(honest, changes, words):
    honest.set_up(3 + ROUNDS)
    finish = honest.tape.of(m.OutcomeRequest)
    assert words in honest.refused(dataclasses.replace(finish, **changes))
    assert honest.worker.result(honest.tape.run_id) is None
    assert isinstance(ask(honest.worker, finish), m.OutcomeReply)
    assert isinstance(ask(honest.worker, finish), m.OutcomeReply)
    other = dataclasses.replace(finish, known=np.zeros_like(finish.known))
    assert "already has results" in honest.refused(other)
    assert isinstance(ask(honest.worker, honest.tape.of(m.HelloRequest)), m.HelloReply)
    assert "knows no run" in honest.refused(honest.tape.of(m.LinkRequest))


def test_requests_of_the_other_method_are_refused(honest, site):
    honest.set_up(3)
    run_id, plan_id = honest.tape.run_id, PLAN.plan_id
    prepare = m.PrepareRequest(run_id, plan_id, ("laboratory",), np.array([5]))
    round_ = m.RoundRequest(
        run_id, plan_id, 1, np.arange(1), (np.zeros((1, 3, 5)),), np.ones((1, 1)),
        np.ones((1, 1)), -1, np.zeros((1, 0), np.int64),
    )  # fmt: skip
    for request in (prepare, round_):
        sentence = honest.refused(request)
        assert f"was sent a {type(request).__name__}" in sentence
        assert "no part in a run of method 'tensor-fmvc' with plain replies" in sentence
    other = plan_of(3)
    there = folder_worker(site)
    run = "9" * 36
    assert isinstance(
        ask(there, m.HelloRequest(run, other.plan_id, other.canonical())), m.HelloReply
    )
    for kind in (m.LinkRequest, m.AlignRequest, m.SweepRequest, m.OutcomeRequest):
        request = dataclasses.replace(honest.tape.of(kind), run_id=run, plan_id=other.plan_id)
        assert "no part in a run of method 'fedhk-mvfc'" in refused(there, request)


def test_a_message_cut_short_is_refused_without_a_value(honest):
    for body in honest.tape.requests:
        reply = from_bytes(honest.worker.handle(body[:-9]))
        assert isinstance(reply, Refusal)
        assert reply.code == 8
        assert len(reply.message) < 200


def test_what_a_site_keeps_during_a_run_is_closed_to_others(honest, site):
    honest.set_up(4)
    (folder,) = (site / "state" / "runs").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
