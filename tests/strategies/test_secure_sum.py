"""The server's side of protected sums, exchange by exchange, over sites that a test plays."""

import dataclasses
import re

import numpy as np
import pytest

from configs.errors import ConfigError, PolicyRefused, ProtocolError, QuorumLost
from configs.plan import RunPlan
from privacy.fixed_point import FixedPoint, to_ring
from privacy.secagg import RunTerms, SecureSumSite, request_digest
from privacy.vault import Vault
from strategies import messages as m
from strategies.gathering import gather
from strategies.messages import as_array, body_of, from_bytes, to_bytes
from strategies.run_state import Absence
from strategies.secure_sum import SumCollector
from tests.privacy.secure_sums import Federation, names_of

RUN = "0" * 32
VALUES = {
    "site-00": [1.0, -2.0],
    "site-01": [0.5, 0.25],
    "site-02": [-0.125, 8.0],
    "site-03": [0.0, 0.0],
}


def plan_of(n=3, *, masked=True, noisy=False, spare=0, rounds=2):
    privacy = {"max_rows": 100}
    if masked:
        privacy |= {"secure_aggregation": True, "participants": list(names_of(n))}
        privacy["spare_exchanges"] = spare
    if noisy:
        privacy |= {"mechanism": "gaussian", "epsilon": 1.0}
    fields = {"method": "fedhk-mvfc", "n_clusters": 2, "max_rounds": rounds, "privacy": privacy}
    if noisy:
        fields["fedhk"] = {"heat_kernel": "one"}
    else:
        fields |= {"profile": "paper", "fedhk": {"acceleration": "none", "init": "spread"}}
    return RunPlan.parse(fields)


class Strategy:
    """What a collector uses of a strategy."""

    def __init__(self, plan):
        self.plan = plan
        self.sites = list(plan.privacy.participants or names_of(3))
        self.ids = (RUN, plan.plan_id)
        self.absences = {}
        self.resumes = 0
        self.warnings = []
        self.dropped = {}
        self.now = 0.0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def warn(self, sentence):
        self.warnings.append(sentence)

    def checked(self, replies, check):
        kept = {}
        for site, reply in replies.items():
            try:
                check(site, reply)
                kept[site] = reply
            except ProtocolError as error:
                self.dropped[site] = error.public_message
        return kept


def hello(strategy, roster):
    return {
        site: m.HelloReply(RUN, site, "1", (), roster.hash.hex() if roster else "")
        for site in strategy.sites
    }


class Sites:
    """Honest sites with the numbers in VALUES."""

    def __init__(self, plan):
        federation = Federation(len(plan.privacy.participants))
        self.roster = federation.roster
        terms = RunTerms(RUN, plan.plan_id, self.roster.hash, plan.secure_terms())
        self.machines = {
            name: SecureSumSite(terms, name, key, self.roster, Vault(None))
            for name, key in federation.identities.items()
        }
        self.plan = plan

    def answer(self, site, request):
        machine = self.machines[site]
        if isinstance(request, m.KeysRequest):
            return m.KeysReply(RUN, as_array(machine.keys(request.first)))
        if isinstance(request, m.SharesRequest):
            messages = [message.tobytes() for message in request.messages]
            dealt = machine.shares(messages, request.first)
            envelopes = tuple(as_array(envelope) for envelope in dealt.values())
            return m.SharesReply(RUN, tuple(dealt), envelopes)
        if isinstance(request, m.UnmaskRequest):
            answer = machine.unmask(request.exchange, request.survivors)
            return m.UnmaskReply(RUN, request.exchange, as_array(answer))
        if request.senders:
            pairs = zip(request.senders, request.envelopes, strict=True)
            machine.receive({sender: envelope.tobytes() for sender, envelope in pairs})
        digest = request_digest(
            RUN, self.plan.plan_id, request.exchange, request.previous, body_of(request.bodies)
        )
        values = to_ring(codec_of(self.plan).encode(np.array(VALUES[site])))
        vector = machine.upload(request.exchange, digest, request.previous, values)
        return m.SumReply(RUN, request.exchange, vector)


def codec_of(plan):
    return FixedPoint.finest(100.0, len(plan.privacy.participants) or 3)


def drive(strategy, exchanges, answer):
    """Play a generator of exchanges; ``answer(action, site, request)`` may give an Absence."""
    asked = []
    try:
        exchange = next(exchanges)
        while True:
            asked.append((exchange.action, sorted(exchange.requests)))
            strategy.absences, replies = {}, {}
            for site, request in sorted(exchange.requests.items()):
                reply = answer(exchange.action, site, request)
                if isinstance(reply, Absence):
                    strategy.absences[site] = reply
                else:
                    replies[site] = reply
            exchange = exchanges.send(replies)
    except StopIteration as end:
        return end.value, asked


def collected(plan, sites, answer=None):
    strategy = Strategy(plan)
    collector = SumCollector(strategy, hello(strategy, sites.roster), codec_of(plan))
    answer = answer or (lambda action, site, request: sites.answer(site, request))
    drive(strategy, collector.set_up(), answer)
    return strategy, collector, answer


BODY = [m.PrepareRequest(RUN, "0" * 64, ("a",), np.array([1]))]


# -- masked ----------------------------------------------------------------------------------


def test_a_masked_sum_is_the_sum_and_takes_two_exchanges():
    sites = Sites(plan_of())
    strategy, collector, answer = collected(sites.plan, sites)
    total, asked = drive(strategy, collector.sum(BODY, 2), answer)
    assert total.vector.tolist() == [1.375, 6.25]
    assert total.sites == ("site-00", "site-01", "site-02")
    assert [action for action, _ in asked] == ["sum", "unmask"]
    assert strategy.warnings == []


def test_the_request_is_the_same_for_all_but_for_envelopes_that_come_once():
    sites = Sites(plan_of())
    seen = []

    def spy(action, site, request):
        seen.append((action, site, request))
        return sites.answer(site, request)

    strategy, collector, _ = collected(sites.plan, sites)
    for _ in range(2):
        drive(strategy, collector.sum(BODY, 2), spy)
    first, second = ([r for a, _, r in seen if a == "sum"][i : i + 3] for i in (0, 3))
    assert [len(request.senders) for request in first] == [2, 2, 2]
    assert [len(request.senders) for request in second] == [0, 0, 0]
    assert [request.exchange for request in (*first, *second)] == [1, 1, 1, 2, 2, 2]
    assert second[0].previous == ("site-00", "site-01", "site-02")
    stripped = [dataclasses.replace(r, senders=(), envelopes=()) for r in first]
    assert len({to_bytes(request) for request in stripped}) == 1
    assert isinstance(from_bytes(first[0].bodies[0].tobytes()), m.PrepareRequest)


def test_a_site_that_missed_the_first_sum_gets_its_envelopes_with_the_next():
    plan = plan_of(4, noisy=True, spare=2)
    sites = Sites(plan)
    gone = Absence("is away")

    def answer(action, site, request):
        if action == "sum" and request.exchange == 1 and site == "site-03":
            return gone
        return sites.answer(site, request)

    strategy, collector, _ = collected(plan, sites)
    total, _ = drive(strategy, collector.sum(BODY, 2, 1), answer)
    assert total.sites == ("site-00", "site-01", "site-02")
    assert strategy.warnings == ["the sum of round 1 is without 'site-03'"]
    total, _ = drive(strategy, collector.sum(BODY, 2, 2), answer)
    assert total.sites == names_of(4)
    assert total.vector.tolist() == [1.375, 6.25]


def test_keys_for_more_sums_than_were_agreed_are_not_there():
    sites = Sites(plan_of(rounds=1))
    assert sites.plan.secure_terms().exchanges == 3
    strategy, collector, answer = collected(sites.plan, sites)
    for _ in range(3):
        drive(strategy, collector.sum(BODY, 2), answer)
    with pytest.raises(QuorumLost, match="all 3 exchanges that the sites made keys for"):
        drive(strategy, collector.sum(BODY, 2), answer)


MISFITS = [
    ({"exchange": 2}, "it answers exchange 2, asked was 1"),
    ({"vector": np.zeros(3, np.uint64)}, r"shape \(3,\), expected 2 ring elements"),
    ({"vector": np.zeros(2)}, r"expected 2 ring elements"),
]


@pytest.mark.parametrize(("change", "words"), MISFITS)
def test_a_masked_vector_that_does_not_fit_ends_a_run_that_waits_for_all(change, words):
    sites = Sites(plan_of())
    strategy, collector, _ = collected(sites.plan, sites)

    def answer(action, site, request):
        reply = sites.answer(site, request)
        return dataclasses.replace(reply, **change) if site == "site-01" else reply

    with pytest.raises(QuorumLost, match=words):
        drive(strategy, collector.sum(BODY, 2), answer)


@pytest.mark.parametrize(("change", "words"), MISFITS)
def test_a_noisy_vector_that_does_not_fit_is_in_no_sum(change, words):
    plan = plan_of(masked=False, noisy=True)
    strategy = Strategy(plan)
    collector = SumCollector(strategy, hello(strategy, None), codec_of(plan))
    assert drive(strategy, collector.set_up(), None) == (None, [])

    def answer(action, site, request):
        reply = m.SumReply(RUN, 1, to_ring(codec_of(plan).encode(np.array(VALUES[site]))))
        return dataclasses.replace(reply, **change) if site == "site-01" else reply

    total, asked = drive(strategy, collector.sum(BODY, 2), answer)
    assert total.vector.tolist() == [0.875, 6.0]
    assert total.sites == ("site-00", "site-02")
    assert asked == [("sum", list(names_of(3)))]
    assert re.search(words, strategy.dropped["site-01"])


def test_shares_of_another_question_open_nothing():
    sites = Sites(plan_of())
    strategy, collector, _ = collected(sites.plan, sites)

    def answer(action, site, request):
        reply = sites.answer(site, request)
        if action == "unmask" and site == "site-02":
            return dataclasses.replace(reply, answer=reply.answer[::-1].copy())
        return reply

    with pytest.raises(QuorumLost, match=r"2 of 3 sites answered unmask .*'site-02' sent a reply"):
        drive(strategy, collector.sum(BODY, 2), answer)


def test_sites_with_other_rosters_have_no_run():
    plan = plan_of()
    strategy = Strategy(plan)
    found = hello(strategy, Federation(3).roster)
    found["site-02"] = dataclasses.replace(found["site-02"], roster="ab" * 32)
    with pytest.raises(
        ConfigError, match=r"'site-00' and 'site-02' hold different rosters \(.*abab"
    ):
        SumCollector(strategy, found, codec_of(plan))
    del found["site-01"]
    with pytest.raises(ConfigError, match="lists site 'site-01', which is not in the run"):
        SumCollector(strategy, found, codec_of(plan))


# -- asking again ----------------------------------------------------------------------------

AWAY = Absence("is away")
REFUSED = Absence("refused: no", PolicyRefused("site 'b' wants no part"))


def gathered(answers, *, enough=3, patience_s=10.0, round_=1):
    """Gather from a, b and c; ``answers`` are what each of them says, one a wave."""
    strategy, taken = Strategy(plan_of(3)), []
    waves = {site: iter(said) for site, said in zip("abc", answers, strict=True)}
    exchanges = gather(
        strategy, "sum", lambda sites: dict.fromkeys(sites, "request"), str,
        lambda site, reply: taken.append(site) if reply == "yes" else _misfit(),
        sites="abc", enough=enough, patience_s=patience_s, round_=round_,
    )  # fmt: skip
    _, asked = drive(strategy, exchanges, lambda action, site, request: next(waves[site]))
    return taken, [sites for _, sites in asked], strategy.now


def _misfit():
    raise ProtocolError("it does not fit")


def test_only_those_that_were_away_are_asked_again():
    answers = [["yes"], [AWAY, AWAY, "yes"], [AWAY, "yes"]]
    taken, asked, waited = gathered(answers)
    assert taken == ["a", "c", "b"]
    assert asked == [["a", "b", "c"], ["b", "c"], ["b"]]
    assert waited == 4.0


def test_nobody_is_waited_for_once_enough_have_answered():
    taken, asked, waited = gathered([["yes"], [AWAY], ["yes"]], enough=2)
    assert (taken, len(asked), waited) == (["a", "c"], 1, 0.0)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ([AWAY] * 9, r"2 of 3 sites answered sum of round 1 and 3 are needed .*'c' is away$"),
        ([REFUSED], r"'c' refused: no$"),
        (["no"], r"'c' sent a reply that does not fit: it does not fit$"),
    ],
)
def test_what_ends_the_waiting_is_named(last, words):
    with pytest.raises(QuorumLost, match=words):
        gathered([["yes"], ["yes"], last])


def test_before_round_1_a_refusal_is_passed_on_as_it_is():
    with pytest.raises(PolicyRefused, match="wants no part"):
        gathered([["yes"], [REFUSED], [AWAY, AWAY]], round_=0)
    with pytest.raises(QuorumLost, match="'b' refused: no; 'c' is away"):
        gathered([["yes"], [REFUSED], [AWAY, AWAY]])
    # a refusal that was not what ended it
    assert gathered([["yes"], [REFUSED], [AWAY, "yes"]], enough=2, round_=0)[0] == ["a", "c"]


def test_waiting_ends_with_the_patience_of_the_plan():
    with pytest.raises(QuorumLost, match=r"asked for 6 s\): 'b' is away"):
        gathered([["yes"], [AWAY] * 4, ["yes"]], patience_s=7.0)
    assert gathered([["yes"], [AWAY] * 3 + ["yes"], ["yes"]], patience_s=9.0)[2] == 6.0


# -- after a resume --------------------------------------------------------------------------


def actions(asked):
    return [action for action, _ in asked]


def test_after_a_resume_the_next_sum_and_all_later_ones_have_fresh_keys():
    sites = Sites(plan_of(rounds=4))
    seen = []

    def spy(action, site, request):
        seen.append((action, site, request))
        return sites.answer(site, request)

    strategy, collector, _ = collected(sites.plan, sites)
    drive(strategy, collector.sum(BODY, 2), spy)
    strategy.resumes = 1
    asked = []
    for number in (2, 3):
        total, waves = drive(strategy, collector.sum(BODY, 2, number), spy)
        assert total.vector.tolist() == [1.375, 6.25]
        asked += actions(waves)
    assert asked == ["keys", "shares", "sum", "unmask", "sum", "unmask"]
    assert {r.first for action, _, r in seen if action in ("keys", "shares")} == {2}
    envelopes = [len(r.senders) for action, _, r in seen if action == "sum"]
    assert envelopes == [2] * 6 + [0] * 3
    assert strategy.warnings == []
    strategy.resumes = 3  # twice before the next sum
    total, waves = drive(strategy, collector.sum(BODY, 2, 4), spy)
    assert actions(waves) == ["keys", "shares", "sum", "unmask"]
    assert seen[-1][2].exchange == 4
    assert total.vector.tolist() == [1.375, 6.25]


def test_a_resume_in_the_middle_of_a_sum_or_of_a_set_up_comes_to_the_next_sum():
    sites = Sites(plan_of(rounds=4))
    strategy = Strategy(sites.plan)
    collector = SumCollector(strategy, hello(strategy, sites.roster), codec_of(sites.plan))

    def resumed_at(what):
        def answer(action, site, request):
            if action == what and site == "site-00":
                strategy.resumes += 1
            return sites.answer(site, request)

        return answer

    drive(strategy, collector.set_up(), resumed_at("shares"))
    _, waves = drive(strategy, collector.sum(BODY, 2, 1), resumed_at("sum"))
    assert actions(waves) == ["sum", "unmask"]  # nothing was masked by the keys of this set-up
    _, waves = drive(strategy, collector.sum(BODY, 2, 2), resumed_at("keys"))
    assert actions(waves) == ["keys", "shares", "sum", "unmask"]
    _, waves = drive(strategy, collector.sum(BODY, 2, 3), resumed_at("nothing"))
    assert actions(waves) == ["keys", "shares", "sum", "unmask"]
    _, waves = drive(strategy, collector.sum(BODY, 2, 4), resumed_at("nothing"))
    assert actions(waves) == ["sum", "unmask"]


@pytest.mark.parametrize("step", ["keys", "shares"])
def test_a_site_that_misses_the_new_set_up_does_not_end_the_run(step):
    """Of four sites one may be away: the sum keeps to the keys there are, the next tries again."""
    plan = plan_of(4, noisy=True, spare=4)
    sites = Sites(plan)
    away = set()

    def answer(action, site, request):
        return Absence("is away") if site in away else sites.answer(site, request)

    strategy, collector, _ = collected(plan, sites)
    drive(strategy, collector.sum(BODY, 2, 1), answer)
    strategy.resumes = 1

    def leaves(action, site, request):
        if action == step:
            away.add("site-03")
        return answer(action, site, request)

    total, waves = drive(strategy, collector.sum(BODY, 2, 2), leaves)
    steps = ["keys", "shares"][: 1 + (step == "shares")]
    assert actions(waves) == [*steps, "sum", "unmask"]
    assert total.sites == names_of(3)
    assert strategy.warnings == [
        "after it was resumed the run has no fresh keys yet: 'site-03' is away",
        "the sum of round 2 is without 'site-03'",
    ]
    # it was not in the last sum, so nobody waits for it
    _, waves = drive(strategy, collector.sum(BODY, 2, 3), answer)
    assert actions(waves) == ["sum", "unmask"]
    away.clear()
    total, waves = drive(strategy, collector.sum(BODY, 2, 4), answer)
    assert (actions(waves), total.sites) == (["sum", "unmask"], names_of(4))
    total, waves = drive(strategy, collector.sum(BODY, 2, 5), answer)
    assert actions(waves) == ["keys", "shares", "sum", "unmask"]
    assert total.vector.tolist() == [1.375, 6.25]


def test_a_reply_that_does_not_fit_the_new_set_up_is_in_none():
    plan = plan_of(4, noisy=True, spare=4)
    sites = Sites(plan)
    strategy, collector, answer = collected(plan, sites)
    drive(strategy, collector.sum(BODY, 2, 1), answer)
    strategy.resumes = 1

    def swapped(action, site, request):
        reply = answer(action, site, request)
        if action == "keys" and site == "site-02":
            return dataclasses.replace(reply, message=reply.message[::-1].copy())
        return reply

    total, waves = drive(strategy, collector.sum(BODY, 2, 2), swapped)
    assert actions(waves) == ["keys", "sum", "unmask"]
    assert total.sites == names_of(4)
    (warning,) = strategy.warnings
    assert "no fresh keys yet: 'site-02' sent a reply that does not fit: " in warning


def test_sums_without_masks_have_no_keys_to_make_anew():
    plan = plan_of(masked=False, noisy=True)
    strategy = Strategy(plan)
    collector = SumCollector(strategy, hello(strategy, None), codec_of(plan))
    strategy.resumes = 1
    reply = m.SumReply(RUN, 1, to_ring(codec_of(plan).encode(np.zeros(2))))
    _, waves = drive(strategy, collector.sum(BODY, 2), lambda action, site, request: reply)
    assert actions(waves) == ["sum"]
