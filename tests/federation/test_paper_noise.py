"""The paper's noise on site models: its printed size, with and without masks, and no promise."""

import dataclasses
import math

import numpy as np
import pytest

from configs.plan import RunPlan
from fedmvc_server.cardio import gaussian_views
from fedmvc_server.simulation import simulate
from privacy import paper_mechanism
from privacy.disclosure import disclosures
from strategies import messages as m
from strategies.messages import Refusal, from_bytes, to_bytes
from tests.federation.harness import accuracy, federate, pooled_labels, split, workers_of
from tests.federation.tensor_harness import Tape

VIEWS, TRUTH = gaussian_views(300, 3, n_clusters=3, dims=(2, 2))
SITES, ROWS = split(VIEWS, TRUTH, "iid", 3)
EPSILON, DELTA, ROUNDS = 50.0, 1e-5, 4


def paper_plan(aggregation="weighted", epsilon=EPSILON, masked=False, **privacy):
    privacy = {"mechanism": "paper", "epsilon": epsilon, **privacy}
    if masked:
        privacy |= {"secure_aggregation": True, "participants": list(SITES)}
    return RunPlan.parse(
        {
            "method": "fedhk-mvfc",
            "n_clusters": 3,
            "profile": "paper",
            "max_rounds": ROUNDS,
            "fedhk": {"aggregation": aggregation, "init": "spread"},
            "privacy": privacy,
        }
    )


def printed_sigma(number):
    """Eqs. 73 and 76 for round 1, 2, ..., sensitivity 1."""
    of_round = EPSILON / math.sqrt(ROUNDS) / math.sqrt(number)
    return math.sqrt(2 * math.log(1.25 / DELTA)) / of_round


@pytest.fixture(scope="module")
def taped():
    """Run once over plain workers; return the workers, the tape and the result."""
    tape = Tape()
    workers = workers_of(SITES)
    result = federate(paper_plan(), workers, grid_class=tape.grid_class())
    assert result.status == "completed", result.stop_reason
    return workers, tape, result


class Model:
    """A site's models under a plan, for one request that is asked as any round."""

    def __init__(self, tape, plan):
        self.plan = plan
        self.worker = workers_of(SITES)["site-00"]
        self.requests = tape
        for kind in (m.HelloRequest, m.PrepareRequest, m.SeedRequest):
            self.ask(tape.of(kind)[0])

    def ask(self, request, **changes):
        mine = {"plan_id": self.plan.plan_id, **changes}
        if isinstance(request, m.HelloRequest):
            mine["plan"] = self.plan.canonical()
        reply = from_bytes(self.worker.handle(to_bytes(dataclasses.replace(request, **mine))))
        assert not isinstance(reply, Refusal), reply.message
        return reply

    def of_round(self, number):
        return self.ask(self.requests.of(m.RoundRequest)[0], round=number)


def test_the_noise_of_each_round_follows_the_printed_schedule(taped, monkeypatch):
    """Chance injected: every number moves by one sigma."""
    _, tape, _ = taped
    plain = RunPlan.parse({**paper_plan().fields(), "privacy": {}})
    honest = Model(tape, plain).of_round(1)
    noisy = Model(tape, paper_plan())
    steps = int(paper_mechanism._STEPS)
    monkeypatch.setattr(
        paper_mechanism, "rounded_gaussian", lambda s: np.full(s.shape, steps, np.int64)
    )
    for number in (1, 2, 3, ROUNDS):
        sent = noisy.of_round(number)
        for own, moved in zip(honest.centers, sent.centers, strict=True):
            assert moved - own == pytest.approx(printed_sigma(number), rel=1e-12)
        # Eq. 74; then back on the simplex
        raised = honest.view_weights + printed_sigma(number) / honest.n_rows
        assert sent.view_weights == pytest.approx(raised / raised.sum(), rel=1e-12)
    assert printed_sigma(ROUNDS) == pytest.approx(2 * printed_sigma(1))


def test_negative_view_weights_become_zero(taped, monkeypatch):
    _, tape, _ = taped
    noisy = Model(tape, paper_plan(epsilon=0.001))
    draws = iter([0, 0, [[-1, 1]]])  # of two views' centres and of the weights

    def drawn(sigma):
        return (np.broadcast_to(next(draws), sigma.shape) * sigma).astype(np.int64)

    monkeypatch.setattr(paper_mechanism, "rounded_gaussian", drawn)
    assert noisy.of_round(1).view_weights.tolist() == [[0.0, 1.0]]


def test_the_plans_seed_does_not_say_what_the_noise_is(taped):
    _, tape, _ = taped
    first, second = (Model(tape, paper_plan()).of_round(1) for _ in range(2))
    assert not np.isclose(first.centers[0], second.centers[0], rtol=1e-6).any()


def test_a_run_takes_nothing_from_the_budget_and_promises_nothing(taped):
    workers, _, result = taped
    for worker in workers.values():
        status = worker.source.safe.ledger.status()
        assert (status.rho_spent, status.rho_reserved) == (0, 0)
    found = result.certificate
    assert (found["mechanism"], found["epsilon"], found["delta"]) == ("paper", None, None)
    assert (found["relation"], found["sigma"]) == (None, None)
    for words in (
        "no guarantee: the noise follows Eqs. 73, 74 and 76",
        "a centre is a ratio",
        "add up to more than the total",
        "starting centres that sites propose",
        "answered with fresh noise",
    ):
        assert words in found["not_covered"]
    assert "not anonymity" not in found["not_covered"]


@pytest.mark.parametrize("aggregation", ["weighted", "fedavg"])
def test_masked_models_with_noise_are_summed(aggregation):
    result = simulate(paper_plan(aggregation, epsilon=1000.0, masked=True), SITES)
    assert result.status == "completed", result.stop_reason
    assert accuracy(TRUTH, pooled_labels(result, ROWS)) > 0.9
    assert result.certificate["epsilon"] is None
    assert result.certificate["threshold"] == 3
    assert "no guarantee" in result.certificate["not_covered"]
    assert "not anonymity" in result.certificate["not_covered"]


def test_masked_centres_stay_within_the_declared_bounds():
    """Noise far larger than the bounds; a sum has room for what lies within them."""
    result = simulate(paper_plan(epsilon=0.1, masked=True), SITES)
    assert result.status == "completed", result.stop_reason
    for centers, view in zip(result.model.centers, VIEWS, strict=True):
        room = 1e-9 * np.ptp(view, axis=0)
        assert (centers >= view.min(axis=0) - room).all()
        assert (centers <= view.max(axis=0) + room).all()


def test_who_approves_is_told():
    for masked in (False, True):
        text = " ".join(disclosures(paper_plan(masked=masked)))
        assert "by Eqs. 73, 74 and 76 of the paper (its epsilon: 50)" in text
        assert "this guarantees nothing, takes nothing from the budget" in text
    assert "Masks without noise are not anonymity" in text
