"""A server that lies in a protected run: every lie is refused for its own reason, and noted."""

import dataclasses

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.fixed_point import FixedPoint
from privacy.key_agreement import new_secret, public_of
from privacy.secagg import RunTerms
from privacy.secagg_keys import read_keys, write_keys
from strategies import messages as m
from strategies.messages import Refusal, as_array, from_bytes, to_bytes
from tests.federation.harness import federate, workers_of
from tests.federation.protected_harness import (
    ask,
    clustered_sites,
    events,
    inner,
    is_round,
    noisy_plan,
    passing_time,
    plain_twin,
    protected_plan,
    protected_workers,
    run,
)

SITE = "site-01"


@pytest.fixture(scope="module")
def three():
    return clustered_sites(3)[0]


@pytest.fixture(scope="module")
def four():
    return clustered_sites(4)[0]


class Liar:
    """Tells a site each lie once, just before or after the honest request that it is made from.

    Parameters
    ----------
    lies : mapping
        By name: "before" or "after", a condition on the honest request, and what makes the lie.
    """

    def __init__(self, lies):
        self.lies = lies
        self.replies = {}

    def __call__(self, worker, body):
        """Lie, answer honestly, lie."""
        request = from_bytes(body)
        self._tell(worker, "before", request)
        reply = worker.handle(body)
        self._tell(worker, "after", request)
        return reply

    def _tell(self, worker, moment, request):
        for name, (when, fits, make) in self.lies.items():
            if when == moment and name not in self.replies and fits(request):
                self.replies[name] = ask(worker, make(request))


def halved_scaling(request):
    """Carry along a scaling of half the size, to a site that adopted the honest one."""
    honest = from_bytes(request.bodies[1].tobytes())
    own = dataclasses.replace(honest.scaling[0], scale=honest.scaling[0].scale * 0.5)
    carried = dataclasses.replace(honest, scaling=(own, *honest.scaling[1:]))
    bodies = (request.bodies[0], as_array(to_bytes(carried)), *request.bodies[2:])
    return dataclasses.replace(request, bodies=bodies)


def of_kind(kind):
    return lambda request: isinstance(request, kind)


def unmasks(request):
    return isinstance(request, m.UnmaskRequest) and request.exchange == 2


def second_round(request):
    return is_round(request, 2)


def third_round(request):
    return is_round(request, 3)


def surveyed_less(request):
    """Ask for the moments of one view alone."""
    honest = from_bytes(request.bodies[0].tobytes())
    return dataclasses.replace(honest, views=honest.views[:1], n_columns=honest.n_columns[:1])


def changed(**changes):
    return lambda request: dataclasses.replace(request, **changes)


def asking(make):
    """Change the method's request in a sum: ``make(inner request)`` gives a message."""

    def lie(request):
        body = as_array(to_bytes(make(inner(request))))
        return dataclasses.replace(request, bodies=(*request.bodies[:-1], body))

    return lie


def round_with(**changes):
    """Change fields of a round; a callable gets the honest value."""

    def make(asked):
        values = {
            name: change(getattr(asked, name)) if callable(change) else change
            for name, change in changes.items()
        }
        return dataclasses.replace(asked, **values)

    return asking(make)


def far(centers):
    """Move one centre of one view to far outside the bounds."""
    moved = [np.array(view) for view in centers]
    moved[0][0, 0, 0] += 1e3
    return tuple(moved)


def spoilt(value):
    def spoil(arrays):
        if isinstance(arrays, tuple):
            return (spoil(arrays[0]), *arrays[1:])
        array = np.array(arrays)
        array.flat[0] = value
        return array

    return spoil


def forged(request, plan, worker):
    """Put keys of the server's own in the place of a site's, signed with an identity of its own."""
    roster = worker.source.safe.roster()
    terms = RunTerms(request.run_id, plan.plan_id, roster.hash, plan.secure_terms())
    keys = read_keys(terms, request.messages[0].tobytes(), request.first)
    keys = dataclasses.replace(keys, envelope_key=public_of(new_secret()))
    message = write_keys(terms, keys, Ed25519PrivateKey.generate())
    return dataclasses.replace(request, messages=(as_array(message), *request.messages[1:]))


NAMES = ("site-00", "site-01", "site-02")
PLAN = protected_plan(NAMES, max_rounds=3)
OTHER = "0" * 64
#: Lies in a masked run without noise. Exchange 1 is the survey, 2 to 4 are rounds, 5 the figures.
LIES = {
    "a message missing from the key list": (
        "before", of_kind(m.SharesRequest),
        lambda r: dataclasses.replace(r, messages=r.messages[1:]),
        "holds 2 of 3 participants; missing: site-00",
    ),
    "a message twice": (
        "before", of_kind(m.SharesRequest),
        lambda r: dataclasses.replace(r, messages=(r.messages[0], *r.messages[:2])),
        "stands twice in the key list",
    ),
    "another plan": (
        "before", of_kind(m.SharesRequest), changed(plan_id=OTHER), "belongs to plan",
    ),
    "a hello with another plan": (
        "before", of_kind(m.SharesRequest),
        lambda r: m.HelloRequest(r.run_id, OTHER_PLAN.plan_id, OTHER_PLAN.canonical()),
        "start another run",
    ),
    "a sum before the shares": (
        "before", of_kind(m.SharesRequest),
        lambda r: m.SumRequest(r.run_id, r.plan_id, 1, (), (as_array(b"x"),), (), ()),
        "before the set-up is complete",
    ),
    "keys from an exchange on that was answered": (
        "before", second_round,
        lambda r: m.KeysRequest(r.run_id, r.plan_id, r.exchange - 1),
        "comes after exchange 2 was answered",
    ),
    "keys from an exchange on that there is not": (
        "before", second_round,
        lambda r: m.KeysRequest(r.run_id, r.plan_id, 2**62),
        "no set-up begins with exchange 4611686018427387904 of",
    ),
    "shares of a set-up that was not begun": (
        "before", second_round,
        lambda r: m.SharesRequest(r.run_id, r.plan_id, r.exchange, ()),
        "its own keys are asked for after those of all sites",
    ),
    "an envelope missing": (
        "before", lambda r: isinstance(r, m.SumRequest) and r.senders,
        lambda r: dataclasses.replace(r, senders=r.senders[1:], envelopes=r.envelopes[1:]),
        "1 envelopes; one of each of the other 2",
    ),
    "an envelope of somebody else": (
        "before", lambda r: isinstance(r, m.SumRequest) and r.senders,
        lambda r: dataclasses.replace(r, envelopes=r.envelopes[::-1]),
        "cannot open the envelope of site 'site-00'",
    ),
    "a plain prepare": (
        "before", second_round,
        lambda r: from_bytes(r.bodies[0].tobytes()),
        "PrepareRequest, which has no part in a run of method 'fedhk-mvfc' with masked replies",
    ),
    "a plain seed": (
        "before", second_round,
        lambda r: from_bytes(r.bodies[1].tobytes()), "SeedRequest, which has no part",
    ),
    "a plain round": ("before", second_round, inner, "RoundRequest, which has no part"),
    "a plain finish": (
        "before", lambda r: isinstance(inner(r), m.FinishRequest), inner,
        "FinishRequest, which has no part",
    ),
    "a reply as a request": (
        "before", second_round, lambda r: m.CloseReply(r.run_id), "was sent a CloseReply, not a",
    ),
    "a question in the clear": (
        "before", second_round,
        lambda r: m.AskRequest(r.run_id, r.plan_id, r.bodies),
        "RoundRequest has no answer in the clear",
    ),
    "nothing to sum": (
        "before", second_round, changed(bodies=()), "asked for an answer to nothing",
    ),
    "a round to adopt": (
        "before", second_round,
        lambda r: dataclasses.replace(r, bodies=(*r.bodies, r.bodies[-1])),
        "a RoundRequest cannot be adopted",
    ),
    "views of nobody": (
        "before", lambda r: isinstance(inner(r), m.PrepareRequest),
        asking(lambda asked: dataclasses.replace(asked, views=("view_0", "spies"))),
        "view 'spies', which no schema here has",
    ),
    "another scaling than before": (
        "before", second_round, halved_scaling, "another SeedRequest than the run began with",
    ),
    "an exchange of the past": (
        "before", second_round, changed(exchange=1), "exchange 1",
    ),
    "an exchange behind the last": (
        "before", second_round, changed(exchange=99), "exchange 99",
    ),
    "other survivors before": (
        "before", second_round, changed(previous=("site-00", "site-01")), "survivors that the",
    ),
    "far centres": ("before", second_round, round_with(centers=far), "outside the declared bounds"),
    "a centre that is none": (
        "before", second_round, round_with(centers=spoilt(np.nan)), "not finite",
    ),
    "an infinite centre": (
        "before", second_round, round_with(centers=spoilt(np.inf)), "not finite",
    ),
    "a view weight that is none": (
        "before", second_round, round_with(view_weights=spoilt(np.nan)), "not finite",
    ),
    "view weights of 2": (
        "before", second_round, round_with(view_weights=lambda v: 2 * v), "do not sum to 1",
    ),
    "a bandwidth of 0": (
        "before", second_round, round_with(bandwidth=spoilt(0.0)), "finite numbers above 0",
    ),
    "more clusters": (
        "before", second_round,
        round_with(centers=lambda a: tuple(np.repeat(view, 2, axis=1) for view in a)),
        "the plan's clusters and the view's columns make it (2, 3, 2)",
    ),
    "more starts": (
        "before", second_round,
        round_with(
            starts=np.arange(3),
            centers=lambda a: tuple(view[[0, 1, 1]] for view in a),
            view_weights=lambda v: v[[0, 1, 1]],
            bandwidth=lambda b: b[[0, 1, 1]],
            rows=lambda r: r[[0, 1, 1]],
        ),
        "asks about 3 starts, the plan has 2",
    ),
    "a round behind the last": (
        "before", second_round, round_with(round=4), "not one of the plan's rounds 1 to 3",
    ),
    "the same exchange, another body": (
        "after", second_round,
        round_with(centers=lambda a: tuple(view * 0.99 for view in a)),
        "asked for with another request before",
    ),
    "an earlier round": (
        "after", lambda r: is_round(r, 3),
        lambda r: dataclasses.replace(round_with(round=1)(r), exchange=r.exchange + 1),
        "after round 3",
    ),
    "too few survivors": (
        "before", unmasks, changed(survivors=("site-00", "site-01")),
        "must name at least 3 of the 3",
    ),
    "strangers": (
        "before", unmasks, changed(survivors=("site-00", "site-01", "site-99")),
        "the set of 3 survivors must name",
    ),
    "survivors twice": (
        "before", unmasks, changed(survivors=("site-00", "site-01", "site-01")), "each once",
    ),
    "another exchange to unmask": (
        "before", unmasks, changed(exchange=3), "exchange 3 is to be opened and its last one is 2",
    ),
    "other centres for a round that was answered": (
        "before", third_round,
        round_with(round=2, centers=lambda a: tuple(view * 0.99 for view in a)),
        "has answered another RoundRequest of round 2",
    ),
    "a round of the past": (
        "before", third_round, round_with(round=1), "asked for round 1 after round 2",
    ),
    "another survey": (
        "before", second_round,
        lambda r: dataclasses.replace(r, bodies=(as_array(to_bytes(surveyed_less(r))),)),
        "has answered another PrepareRequest",
    ),
    "far centres at the end": (
        "before", lambda r: isinstance(inner(r), m.FinishRequest),
        asking(
            lambda asked: dataclasses.replace(
                asked,
                model=dataclasses.replace(
                    asked.model, centers=(asked.model.centers[0] + 1e3, *asked.model.centers[1:])
                ),
            )
        ),
        "outside the declared bounds",
    ),
    "an end with other survivors": (
        "before", of_kind(m.CloseRequest), changed(survivors=("site-00", "site-01")),
        "survivors that the server names",
    ),
}  # fmt: skip
OTHER_PLAN = protected_plan(NAMES, max_rounds=2)


@pytest.fixture(scope="module")
def told(three):
    """Run PLAN honestly but for what one site is told besides; every lie once."""
    workers = protected_workers(three)
    lies = {name: lie[:3] for name, lie in LIES.items()}
    lies["swapped keys"] = (
        "before",
        of_kind(m.SharesRequest),
        lambda request: forged(request, PLAN, workers[SITE]),
    )
    liar = Liar(lies)
    result = federate(PLAN, workers, change={SITE: liar})
    return liar.replies, result, workers[SITE]


@pytest.mark.parametrize("lie", [*LIES, "swapped keys"])
def test_a_lie_is_refused_for_its_own_reason_and_noted(told, lie):
    replies, _, worker = told
    words = LIES[lie][3] if lie in LIES else "not signed by the identity in this site's roster"
    reply = replies[lie]
    assert isinstance(reply, Refusal), type(reply).__name__
    assert (reply.code, words in reply.message) == (8, True), reply.message
    noted = [fact["sentence"] for fact in events(worker, "request refused")]
    assert reply.message in noted


def test_what_was_refused_changed_nothing(told, three):
    replies, result, worker = told
    assert len(replies) == len(LIES) + 1
    honest = run(PLAN, three)
    assert result.status == "completed", result.stop_reason
    for one, other in zip(result.model.centers, honest.model.centers, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(events(worker, "request refused")) == len(replies)
    assert worker.source.safe.audit.verify() is None


# -- with noise ------------------------------------------------------------------------------

FOUR = ("site-00", "site-01", "site-02", "site-03")
NOISY = noisy_plan(FOUR, max_rounds=3)


def adopting(**changes):
    """Change fields of the scaling that a sum brings along."""

    def lie(request):
        scaling = dataclasses.replace(from_bytes(request.bodies[1].tobytes()), **changes)
        bodies = (request.bodies[0], as_array(to_bytes(scaling)), *request.bodies[2:])
        return dataclasses.replace(request, bodies=bodies)

    return lie


def scaled_anew(request):
    honest = from_bytes(request.bodies[1].tobytes()).scaling
    own = dataclasses.replace(honest[0], scale=honest[0].scale * 0.5)
    return adopting(scaling=(own, *honest[1:]))(request)


def first_round(request):
    return is_round(request, 1)


NOISY_LIES = {
    "a scaling of its own": ("before", first_round, scaled_anew, 8, "declared bounds alone"),
    "shares of its own": (
        "before", first_round, adopting(holding_share=np.array([1.0, 0.5])), 8, "bounds alone",
    ),
    "masses by cell": (
        "before", first_round, adopting(cell_mass=(True, True)), 8, "declared bounds alone",
    ),
    "a sum of moments": (
        "before", second_round,
        lambda r: dataclasses.replace(r, bodies=r.bodies[:1]), 8, "nothing but rounds is summed",
    ),
    "a sum of spreads": (
        "before", second_round,
        lambda r: dataclasses.replace(r, bodies=r.bodies[:2]), 8, "nothing but rounds is summed",
    ),
    "two starts in one message": (
        "before", second_round,
        round_with(
            starts=np.arange(2),
            centers=lambda a: tuple(np.repeat(view, 2, axis=0) for view in a),
            view_weights=lambda v: np.repeat(v, 2, axis=0),
            bandwidth=lambda b: np.repeat(b, 2, axis=0),
            rows=lambda r: np.repeat(r, 2, axis=0),
        ),
        8, "asks about 2 starts, the plan has 1",
    ),
    "an enormous bandwidth": (
        "before", second_round, round_with(bandwidth=lambda b: b * 1e18), 8,
        "the bandwidth is the plan's 1, no other",
    ),
    "a survivor set below n - d": (
        "before", unmasks, changed(survivors=FOUR[:2]), 8, "at least 3 of the 4",
    ),
    "survivors without the site": (
        "before", unmasks, changed(survivors=(FOUR[0], *FOUR[2:])), 8, "do not include this site",
    ),
    "both secrets of a site": (
        "after", unmasks, changed(survivors=FOUR[:3]), 8, "opened for another set of survivors",
    ),
    "one release more than is reserved": (
        "after", lambda r: isinstance(r, m.UnmaskRequest) and r.exchange == 3,
        lambda r: one_more[-1], 5, "reserved 3 releases",
    ),
}  # fmt: skip
#: The last round's request, changed to be another release.
one_more = []


@pytest.fixture(scope="module")
def told_with_noise(four):
    """Run NOISY with one site that is lied to, as `told`."""
    workers = protected_workers(four)
    liar = Liar({name: lie[:3] for name, lie in NOISY_LIES.items()})

    def change(worker, body):
        request = from_bytes(body)
        if is_round(request, 3):
            other = round_with(centers=lambda a: tuple(view * 0.99 for view in a))(request)
            one_more.append(
                dataclasses.replace(other, exchange=4, previous=FOUR, senders=(), envelopes=())
            )
        return liar(worker, body)

    result = federate(NOISY, workers, change={SITE: change})
    return liar.replies, result, workers[SITE]


@pytest.mark.parametrize("lie", NOISY_LIES)
def test_a_lie_with_noise_is_refused_for_its_own_reason_and_noted(told_with_noise, lie):
    replies, _, worker = told_with_noise
    *_, code, words = NOISY_LIES[lie]
    reply = replies[lie]
    assert isinstance(reply, Refusal), type(reply).__name__
    assert (reply.code, words in reply.message) == (code, True), reply.message
    assert (code, reply.message) in [
        (fact["code"], fact["sentence"]) for fact in events(worker, "request refused")
    ]


def test_what_was_refused_with_noise_was_not_paid(told_with_noise):
    _, result, worker = told_with_noise
    assert result.status == "completed", result.stop_reason
    assert [len(row["sites"]) for row in result.history] == [4, 4, 4]
    assert len(events(worker, "release paid")) == 3
    assert len(events(worker, "release sent")) == 3


def test_other_centres_under_a_new_number_are_a_new_release_and_paid(three):
    """A resumed run asks the same round again; nothing of it is free but the same bytes."""
    plan = noisy_plan(max_rounds=3)
    worker = protected_workers(three)[SITE]
    asked = []

    def spy(other, body):
        asked.append(from_bytes(body))
        return other.handle(body)

    federate(plan, protected_workers(three), change={SITE: spy})
    hello = next(r for r in asked if isinstance(r, m.HelloRequest))
    rounds = [r for r in asked if is_round(r)]
    assert isinstance(ask(worker, hello), m.HelloReply)
    first = ask(worker, rounds[0])
    assert np.array_equal(ask(worker, rounds[0]).vector, first.vector)
    other = round_with(centers=lambda a: tuple(view * 0.99 for view in a))(rounds[0])
    assert "asked for exchange 1 after exchange 1" in ask(worker, other).message
    for exchange in (2, 5):
        again = dataclasses.replace(other, exchange=exchange)
        assert not np.array_equal(ask(worker, again).vector, first.vector)
    assert len(events(worker, "release paid")) == 3
    reply = ask(worker, dataclasses.replace(rounds[1], exchange=6))
    assert (reply.code, "reserved 3 releases" in reply.message) == (5, True)
    masked = m.UnmaskRequest(hello.run_id, hello.plan_id, 5, FOUR)
    assert "no part in a run of method 'fedhk-mvfc' with noisy" in ask(worker, masked).message


# -- lies that differ from site to site ------------------------------------------------------


@pytest.mark.parametrize("noisy", [False, True])
def test_different_broadcasts_give_a_sum_of_nothing(three, monkeypatch, noisy):
    """One site is shown centres a billionth away: what is opened is uniform, not a sum."""
    plan = noisy_plan(NAMES, max_rounds=2) if noisy else PLAN
    totals, decode = [], FixedPoint.decode

    def decoding(codec, total):
        totals.append((codec, np.array(total)))
        return decode(codec, total)

    monkeypatch.setattr(FixedPoint, "decode", decoding)
    moved = round_with(centers=lambda a: tuple(view * (1.0 - 1e-9) for view in a))

    def change(worker, body):
        request = from_bytes(body)
        return worker.handle(to_bytes(moved(request)) if first_round(request) else body)

    federate(plan, protected_workers(three), change={SITE: change})
    honest = len(totals)
    federate(plan, protected_workers(three))
    number = 0 if noisy else 1  # the survey comes first
    codec, broken = totals[number]
    _, clear = totals[honest + number]
    distance = (broken - clear).astype(np.int64) * codec.step
    # of 25 and more numbers none is near; uniform ones come so near once in 2^20 runs
    assert (np.abs(distance) > 1e-6 * codec.clip).all()
    high = (broken >> np.uint64(40)).astype(float) / 2**24
    assert 0.2 < high.mean() < 0.8


def test_survivors_that_differ_from_site_to_site_open_nothing(four, monkeypatch):
    """Two of four are told that one site is lost, two that none is: no set has three answers."""
    opened, decode = [], FixedPoint.decode
    monkeypatch.setattr(
        FixedPoint, "decode", lambda codec, total: opened.append(1) or decode(codec, total)
    )

    def change(worker, body):
        request = from_bytes(body)
        if unmasks(request):
            body = to_bytes(changed(survivors=FOUR[:3])(request))
        return worker.handle(body)

    with passing_time(monkeypatch):
        result = federate(NOISY, protected_workers(four), change=dict.fromkeys(FOUR[:2], change))
    assert len(opened) == 1
    assert result.exit_code == 6
    assert "2 of 4 sites answered unmask of round 2 and 3 are needed" in result.stop_reason


def test_a_site_told_other_survivors_than_the_rest_takes_no_further_part(four):
    def change(worker, body):
        request = from_bytes(body)
        if unmasks(request):
            body = to_bytes(changed(survivors=FOUR[:3])(request))
        return worker.handle(body)

    workers = protected_workers(four)
    result = federate(NOISY, workers, change={"site-00": change})
    assert [len(row["sites"]) for row in result.history] == [4, 4, 3]
    assert (
        "survivors that the server names"
        in events(workers["site-00"], "request refused")[0]["sentence"]
    )


# -- runs that nobody allowed ----------------------------------------------------------------


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("kind", [m.SumRequest, m.UnmaskRequest])
def test_nothing_leaves_a_run_whose_plan_was_rejected(three, monkeypatch, noisy, kind):
    """Rejected before a sum, or after its vector left and before the shares that open it."""
    plan = noisy_plan(NAMES, max_rounds=3) if noisy else PLAN
    workers = protected_workers(three)
    safe, left = workers[SITE].source.safe, []

    def change(worker, body):
        request = from_bytes(body)
        if isinstance(request, kind) and request.exchange == 2:
            safe.register.reject(plan.plan_id)
            left.append(len(events(worker)))
        return worker.handle(body)

    with passing_time(monkeypatch):
        result = federate(plan, workers, change={SITE: change})
    assert result.status != "completed"
    after = events(workers[SITE])[left[0] :]
    assert set(after) <= {"request refused", "budget returned", "run closed", "run finished"}
    assert after[-1] == "run finished"  # its closing is answered
    sentence = events(workers[SITE], "request refused")[0]["sentence"]
    assert f"has rejected plan {plan.plan_id[:12]}" in sentence


def with_policy(worker, **changes):
    worker.source.policy = worker.source.policy.model_copy(update=changes)
    return worker


def test_a_plan_approved_once_runs_once(three):
    workers = protected_workers(three)
    with_policy(workers[SITE], approval="required")
    register = workers[SITE].source.safe.register
    refused = federate(PLAN, workers)
    assert (refused.exit_code, f"'{SITE}'" in refused.stop_reason) == (4, True)
    assert "no approval of plan" in refused.stop_reason
    register.approve(PLAN.plan_id)
    assert federate(PLAN, workers).status == "completed"
    again = federate(PLAN, workers)
    assert (again.exit_code, f"'{SITE}'" in again.stop_reason) == (4, True)
    assert "of 1 approved run of plan" in again.stop_reason
    assert [fact["code"] for fact in events(workers[SITE], "request refused")] == [4, 4]


def test_two_runs_that_begin_at_once_share_one_approval_between_them(three):
    """Both hellos are answered, for neither run has begun; only one gets keys."""
    workers = protected_workers(three)
    worker = with_policy(workers[SITE], approval="required")
    worker.source.safe.register.see(PLAN)
    worker.source.safe.register.approve(PLAN.plan_id)
    runs = ["0" * 32, "1" * 32]
    for run_id in runs:
        hello = m.HelloRequest(run_id, PLAN.plan_id, PLAN.canonical())
        assert isinstance(ask(worker, hello), m.HelloReply)
    assert isinstance(ask(worker, m.KeysRequest(runs[0], PLAN.plan_id, 1)), m.KeysReply)
    reply = ask(worker, m.KeysRequest(runs[1], PLAN.plan_id, 1))
    assert (reply.code, "of 1 approved run of" in reply.message) == (4, True)


def test_a_run_id_is_used_once(three):
    workers = protected_workers(three)
    result = federate(PLAN, workers)
    hello = m.HelloRequest(result.run_id, OTHER_PLAN.plan_id, OTHER_PLAN.canonical())
    reply = ask(workers[SITE], hello)
    assert (reply.code, "start another run" in reply.message) == (8, True)
    # the server may have lost the last reply: it is told again who is there, and nothing more
    hello = m.HelloRequest(result.run_id, PLAN.plan_id, PLAN.canonical())
    assert isinstance(ask(workers[SITE], hello), m.HelloReply)
    for request in (
        m.KeysRequest(result.run_id, PLAN.plan_id, 1),
        m.UnmaskRequest(result.run_id, PLAN.plan_id, 5, NAMES),
    ):
        assert "knows no run" in ask(workers[SITE], request).message
    assert len(events(workers[SITE], "request refused")) == 3


def test_masked_sums_of_other_participants_are_refused_and_noisy_ones_are_not(four):
    workers = protected_workers(four)
    assert federate(protected_plan(NAMES), {n: workers[n] for n in NAMES}).status == "completed"
    fewer = protected_plan(FOUR)
    result = federate(fewer, workers)
    assert (result.exit_code, "with other participants" in result.stop_reason) == (4, True)
    assert federate(noisy_plan(FOUR, max_rounds=1), workers).status == "completed"
    for worker in workers.values():
        safe = worker.source.safe
        if fewer.plan_id not in [entry.plan_id for entry in safe.register.list()]:
            safe.register.see(fewer)
        safe.register.approve(fewer.plan_id)
    assert federate(fewer, workers).status == "completed"


@pytest.mark.parametrize(
    "request_of",
    [
        lambda ids: m.KeysRequest(*ids, 1),
        lambda ids: m.SharesRequest(*ids, 1, ()),
        lambda ids: m.SumRequest(*ids, 1, (), (as_array(b"x"),), (), ()),
        lambda ids: m.UnmaskRequest(*ids, 1, NAMES),
        lambda ids: m.CloseRequest(*ids, 0, (), as_array(b"")),
        lambda ids: m.AskRequest(*ids, (as_array(b"x"),)),
    ],
)
def test_a_plain_run_has_no_part_for_masks(three, request_of):
    plan = plain_twin(PLAN)
    worker = workers_of(three)[SITE]
    ids = ("0" * 32, plan.plan_id)
    ask(worker, m.HelloRequest(*ids, plan.canonical()))
    reply = ask(worker, request_of(ids))
    words = "no part in a run of method 'fedhk-mvfc' with plain replies"
    assert (reply.code, words in reply.message) == (8, True)
