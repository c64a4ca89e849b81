"""The sums of rounds and of the finish leave a site only through the plan's protection."""

import numpy as np
import pytest

from fedmvc_client.participants import fedhk_mvfc
from fedmvc_server.cardio import cardio_views
from strategies import messages as m
from strategies.messages import ChangeCoder, from_bytes
from tests.federation.harness import federate, plan_of, split, workers_of


class Recording:
    """Keeps what it was given and lets a changed copy leave."""

    def __init__(self):
        self.seen = []

    def protect(self, exchange, sums):
        released = tuple(np.asarray(a) * 1.5 for a in sums)
        self.seen.append((exchange, released))
        return released


def recorded(monkeypatch, **options):
    """Run three rounds; return the first site's protection and its replies."""
    protections = []

    def protection_for(plan):
        protections.append(Recording())
        return protections[-1]

    monkeypatch.setattr(fedhk_mvfc, "protection_for", protection_for)
    replies = []

    def tap(worker, body):
        reply = worker.handle(body)
        replies.append(from_bytes(reply))
        return reply

    views, labels = cardio_views(120, 0)
    sites, _ = split(views, labels, "iid", 2)
    plan = plan_of(4, profile="paper", max_rounds=3, tol=0.0, acceleration="none", **options)
    federate(plan, workers_of(sites), change={"site-00": tap})
    assert len(protections) == 2
    # sites answer in any order: the first one's is that whose numbers crossed the wire
    finish = next(r for r in replies if isinstance(r, m.FinishReply))
    own = [p for p in protections if np.array_equal(p.seen[-1][1][1], finish.dispersion)]
    assert len(own) == 1
    return own[0], replies, finish


def test_every_sum_of_a_round_and_of_the_finish_is_what_the_protection_let_out(monkeypatch):
    protection, replies, finish = recorded(monkeypatch)
    rounds = [r for r in replies if isinstance(r, m.StatisticsReply)]
    assert [exchange for exchange, _ in protection.seen] == [1, 2, 3, 0]
    assert [r.round for r in rounds] == [1, 2, 3]
    for reply, (_, released) in zip(rounds, protection.seen[:-1], strict=True):
        sent = (
            *reply.statistics.numerator,
            *reply.statistics.mass,
            reply.statistics.dispersion,
        )
        assert len(sent) == len(released) == 5
        assert all(np.array_equal(a, b) for a, b in zip(sent, released, strict=True))
    mean_membership, dispersion, coefficient = protection.seen[-1][1]
    assert np.array_equal(finish.mean_membership, mean_membership)
    assert np.array_equal(finish.dispersion, dispersion)
    assert finish.partition_coefficient == coefficient[0]
    assert finish.mean_membership.sum() == pytest.approx(1.5)


def test_coded_sums_are_those_the_protection_let_out(monkeypatch):
    protection, replies, _ = recorded(monkeypatch, encoding="int16")
    first = next(r for r in replies if isinstance(r, m.CodedStatistics))
    codes, scales = ChangeCoder("int16").encode(1, [0, 1, 2, 3, 4], protection.seen[0][1])
    assert np.array_equal(first.scales, scales)
    assert all(np.array_equal(a, b) for a, b in zip(first.codes, codes, strict=True))
