"""A selection with noise that hides a whole site: one noisy vector a round, and nothing else."""

import numpy as np
import pytest

from fedmvc_server.report_text import summary
from privacy import mechanisms
from privacy.protection import update_noise
from privacy.selection_privacy import SITE_LEVEL_UTILITY
from strategies import messages as m
from strategies.messages import Refusal, from_bytes, to_bytes
from tests.federation.harness import federate
from tests.federation.mufsht_harness import (
    SIZES,
    asked_of_method,
    hospitals,
    killed_while_it_answers,
    protected_plan,
    protected_workers,
    recorded,
)

SITES, _ = hospitals(n=120, n_sites=4)
NAMES = sorted(SITES)
NUMBERS = sum(d for d, _ in SIZES) * 3
CLIP = 0.5
NOISY = {"mechanism": "gaussian", "epsilon": 4.0, "clip": CLIP, "participants": []}
MASKED = {**NOISY, "secure_aggregation": True, "participants": NAMES}
ROUNDS = 2


def plan(privacy, **options):
    return protected_plan(privacy, **{"local_sweeps": 1, "max_rounds": ROUNDS, **options})


def vectors(tape):
    """Return what each site sent in each round, in steps of the grid."""
    replies = [r for r in map(from_bytes, tape.bodies("up")) if isinstance(r, m.SumReply)]
    return np.array([reply.vector.view(np.int64) for reply in replies])


@pytest.fixture(scope="module")
def local():
    """Return tape, workers and result of a run in which each site's own noise leaves unmasked."""
    return recorded(plan(NOISY), SITES)


def quiet(sigma):
    """Stand in for the sampler and draw nothing but 0."""
    return np.zeros(sigma.shape, dtype=np.int64)


@pytest.fixture(scope="module")
def silent():
    """Return the same run without its noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "rounded_gaussian", quiet)
        return recorded(plan(NOISY), SITES)


@pytest.fixture(scope="module")
def masked():
    return recorded(plan(MASKED), SITES)


# -- what leaves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "masked"])
def test_nothing_but_the_update_leaves(kind, request):
    tape, workers, result = request.getfixturevalue(kind)
    replies = [from_bytes(body) for body in tape.bodies("up")]
    setting_up = {"KeysReply", "SharesReply", "UnmaskReply"} if kind == "masked" else set()
    names = {type(reply).__name__ for reply in replies}
    assert names == {"HelloReply", "SumReply", "CloseReply"} | setting_up
    sums = [reply for reply in replies if isinstance(reply, m.SumReply)]
    assert len(sums) == len(NAMES) * ROUNDS == len(NAMES) * result.rounds
    assert {reply.vector.shape for reply in sums} == {(NUMBERS,)}
    # hello is all else that could tell something of a site: it is the same for all but the name
    hellos = [reply for reply in replies if isinstance(reply, m.HelloReply)]
    assert len({to_bytes(m.HelloReply("", "", "", h.views)) for h in hellos}) == 1
    spent = workers["site-00"].source.safe.ledger.status()
    assert spent.reserved == 0.0
    events = [entry.event for entry in workers["site-00"].source.safe.audit.entries()]
    assert events.count("release sent") == ROUNDS


def test_what_is_asked_follows_from_the_plan_and_the_bounds(local):
    """Nothing that the server sends before round 1 has come from a site."""
    tape, workers, _ = local
    sums = [r for r in map(from_bytes, tape.bodies("down")) if isinstance(r, m.SumRequest)]
    bounds = np.concatenate([view.bounds for view in workers["site-00"].source.describe()])
    for request in sums:
        survey, scale, fit = (from_bytes(body.tobytes()) for body in request.bodies)
        assert survey.n_columns.tolist() == [d for d, _ in SIZES]
        np.testing.assert_array_equal(scale.origin, bounds.mean(axis=1))
        assert not scale.frequencies.any()
        center = np.concatenate([s.center for s in fit.scaling])
        spread = np.concatenate([s.spread for s in fit.scaling])
        np.testing.assert_array_equal(center, bounds.mean(axis=1))
        np.testing.assert_allclose(spread, np.diff(bounds)[:, 0] / np.sqrt(12), rtol=1e-15)
        assert fit.weight == 1.0


def test_without_its_noise_an_update_is_as_long_as_the_clip(silent):
    tape, _, result = silent
    step = update_noise(plan(NOISY), NUMBERS).codec.step
    updates = vectors(tape) * step
    np.testing.assert_allclose(np.linalg.norm(updates, axis=1), CLIP, rtol=1e-4)
    last = updates[-len(NAMES) :].mean(axis=0)
    np.testing.assert_allclose(result.selection.weights.ravel(), last, rtol=0, atol=step)


def test_the_noise_of_an_update_is_the_calibrated_one(local, silent):
    """Round 1 starts from the same weights with noise and without."""
    noise = update_noise(plan(NOISY), NUMBERS)
    first = slice(0, len(NAMES))
    drawn = (vectors(local[0])[first] - vectors(silent[0])[first]) * noise.codec.step
    # 480 numbers: the standard deviation's own is 3.2%, the mean's 4.6% of sigma
    assert drawn.std() == pytest.approx(noise.sigma, rel=0.2)
    assert abs(drawn.mean()) < 0.3 * noise.sigma
    # sigma is the multiplier times the largest change, 2 C, of a sum of clipped updates
    assert noise.sigma == pytest.approx(2 * CLIP * noise.noise_multiplier, rel=1e-4)


def test_distributed_noise_adds_up_over_the_honest_sites():
    noise, alone = (update_noise(plan(privacy), NUMBERS) for privacy in (MASKED, NOISY))
    # 4 sites, 1 of which may be lost and 1 collude
    assert (noise.honest_sites, alone.honest_sites) == (2, 1)
    assert noise.sigma == pytest.approx(alone.sigma, rel=1e-3)
    assert noise.epsilon_if_others_collude > 1.2 * noise.epsilon


# -- what is said ----------------------------------------------------------------------------------


def test_what_was_not_released_is_not_measured(masked, tmp_path):
    _, _, result = masked
    assert not {"objective", "rows", "dead", "quality", "kept", "view_weights"} & set(
        result.metrics
    )
    assert result.metrics["weights"] == dict.fromkeys(NAMES, 0.25)
    assert all(np.isnan(row["objective"]) for row in result.history)
    assert {tuple(row["view_weights"]) for row in result.history} == {()}
    assert {row["sites"] == NAMES for row in result.history} == {True}
    text = summary(result, tmp_path, {})
    assert "patients" not in text
    assert "agreement" not in text
    assert "selected     16 of 40 columns" in text
    assert "view view_1: " in text


def test_the_certificate_and_a_warning_say_how_little_is_left(masked):
    _, _, result = masked
    assert result.warnings == [SITE_LEVEL_UTILITY]
    found = result.certificate
    assert SITE_LEVEL_UTILITY in found["not_covered"]
    assert (found["unit"], found["relation"]) == ("one site", "replace the update of one site")
    assert found["sensitivity"] == 2 * CLIP
    assert 3.9 < found["epsilon"] <= 4.0
    assert found["exchanges"] == ROUNDS


# -- sites that lack a view, or a round ------------------------------------------------------------


def test_a_view_is_averaged_over_the_sites_that_declare_it(monkeypatch):
    monkeypatch.setattr(mechanisms, "rounded_gaussian", quiet)
    sites = {name: {"views": list(site["views"])} for name, site in SITES.items()}
    for name in NAMES[1:]:
        sites[name]["views"][2] = None
    privacy = {**NOISY, "clip": 1e3}
    tape, _, result = recorded(plan(privacy, max_rounds=1), sites)
    step = update_noise(plan(privacy, max_rounds=1), NUMBERS).codec.step
    total = vectors(tape).sum(axis=0).reshape(-1, 3) * step
    weights = result.selection.weights
    np.testing.assert_allclose(weights[:27], total[:27] / 4, rtol=0, atol=1e-9)
    np.testing.assert_allclose(weights[27:], total[27:], rtol=0, atol=1e-9)
    assert np.linalg.norm(weights[27:]) > 0.1


def test_a_site_that_is_away_in_the_first_round_finds_all_it_needs_in_the_second():
    def away(worker, body):
        request = asked_of_method(from_bytes(body))
        if isinstance(request, m.FitRequest) and request.round == 1:
            return to_bytes(Refusal(7, "its worker is away"))
        return worker.handle(body)

    _, workers, result = recorded(plan(MASKED), SITES, {"site-03": away})
    assert [row["sites"] for row in result.history] == [NAMES[:3], NAMES]
    assert result.metrics["weights"] == dict.fromkeys(NAMES, 0.25)
    assert list(result.site_results) == NAMES
    ledger = workers["site-03"].source.safe.ledger.status()
    assert ledger.rho_spent == pytest.approx(
        workers["site-00"].source.safe.ledger.status().rho_spent / 2
    )


def test_a_request_that_comes_again_is_answered_by_the_same_noise_at_no_cost(local):
    def twice(worker, body):
        first, again = worker.handle(body), None
        if isinstance(from_bytes(body), m.SumRequest):
            again = worker.handle(body)
            assert again == first
        return first

    change = {"site-00": twice, "site-01": killed_while_it_answers}
    _, workers, result = recorded(plan(NOISY), SITES, change)
    assert result.sites == NAMES
    for name in NAMES:
        spent = workers[name].source.safe.ledger.status().rho_spent
        assert spent == local[1][name].source.safe.ledger.status().rho_spent


def test_a_site_says_no_more_than_that_it_declined():
    sites = {**SITES, "site-02": {"views": [v[:2] for v in SITES["site-02"]["views"]]}}
    result = federate(plan(NOISY, max_rounds=1), protected_workers(sites))
    assert result.dropped == {"site-02": "refused: site 'site-02' declined"}
    assert result.metrics["weights"] == pytest.approx(
        dict.fromkeys(["site-00", "site-01", "site-03"], 1 / 3)
    )
