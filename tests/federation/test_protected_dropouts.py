"""Sites that are lost in a protected run: waited for, left out of one sum, or its end."""

import numpy as np
import pytest

from strategies import messages as m
from tests.federation.harness import federate
from tests.federation.protected_harness import (
    Away,
    clustered_sites,
    events,
    folder_workers,
    inner,
    is_round,
    noisy_plan,
    once,
    passing_time,
    protected_plan,
    protected_workers,
    run,
    site_folders,
    watched_sums,
)

#: Kinds of secrets that a vault holds.
SECRETS = ("envelope secret", "own", "own shares", "shares", "upload")


def of_kind(kind):
    return lambda request: isinstance(request, kind)


@pytest.fixture(scope="module")
def three():
    return clustered_sites(3)[0]


@pytest.fixture(scope="module")
def four():
    return clustered_sites(4)[0]


def centers(result):
    assert result.status == "completed", result.stop_reason
    return np.concatenate([c.ravel() for c in result.model.centers])


# -- d = 0: waited for -----------------------------------------------------------------------

LOST = {
    "keys": of_kind(m.KeysRequest),
    "shares": of_kind(m.SharesRequest),
    "the survey": lambda r: isinstance(inner(r), m.PrepareRequest),
    "the spread": lambda r: isinstance(inner(r), m.SeedRequest),
    "a vector": lambda r: is_round(r, 2),
    "an unmasking": lambda r: isinstance(r, m.UnmaskRequest) and r.exchange == 4,
    "the figures": lambda r: isinstance(r, m.SumRequest) and isinstance(inner(r), m.FinishRequest),
}


@pytest.mark.parametrize("answers", [False, True])
def test_a_site_that_is_away_is_asked_again_and_is_in_every_sum(three, monkeypatch, answers):
    """Once at every step; its worker got the request, or did not."""
    plan = protected_plan(three, bandwidth="auto")
    expected = run(plan, three)
    firsts = [once(when) for when in LOST.values()]
    away = Away(lambda r: any(first(r) for first in firsts), answers=answers)
    pauses = []
    with passing_time(monkeypatch, pauses.append):
        result = run(plan, three, change={"site-01": away})
    assert len(away.missed) == len(LOST)
    assert pauses == [2.0 * i for i in range(1, 1 + len(LOST))]
    np.testing.assert_array_equal(centers(result), centers(expected))
    assert result.warnings == expected.warnings


def test_one_that_stays_away_ends_the_run_with_6_and_its_name_and_the_others_forget(
    three, monkeypatch
):
    workers = protected_workers(three)
    away = Away(lambda r: is_round(r) and inner(r).round >= 2)
    with passing_time(monkeypatch):
        result = federate(protected_plan(three), workers, change={"site-01": away})
    assert (result.status, result.exit_code) == ("stopped", 6)
    assert "2 of 3 sites answered sum of round 2" in result.stop_reason
    assert "'site-01' refused: the worker of this site is not running" in result.stop_reason
    for name in ("site-00", "site-02"):
        safe = workers[name].source.safe
        (closed,) = events(workers[name], "run closed")
        assert (closed["with_result"], closed["exchanges"]) == (False, 3)
        vault = safe.vault(result.run_id)
        assert vault.get("over") is not None
        for exchange in range(6):
            assert all(vault.unseal(kind, exchange) is None for kind in SECRETS)
        assert workers[name].result(result.run_id) is None


def test_the_folder_of_a_run_that_failed_is_gone_with_its_secrets(tmp_path, monkeypatch):
    data = site_folders(tmp_path / "sites")
    workers = folder_workers(data)
    keys = []

    def look(request):
        keys.append(len([*data.glob("st-anna/state/runs/*/secure/exchange-*.key")]))
        return is_round(request, 2)

    plan = protected_plan(workers, n_clusters=4)
    with passing_time(monkeypatch):
        result = federate(plan, workers, change={"riverside": Away(look)})
    assert (result.exit_code, "'riverside'" in result.stop_reason) == (6, True)
    assert max(keys) >= 5
    assert not any(data.glob("st-anna/state/runs/*"))
    assert not any(data.glob("charite-nord/state/runs/*"))


LEFT = {
    "keys": (of_kind(m.KeysRequest), "2 of 3 sites answered keys of round 0"),
    "shares": (of_kind(m.SharesRequest), "2 of 3 sites answered shares of round 0"),
    "unmask": (of_kind(m.UnmaskRequest), "2 of 3 sites answered unmask of round 0"),
}


@pytest.mark.parametrize("step", LEFT)
def test_one_that_leaves_before_the_first_sum_ends_the_run_at_the_others_too(
    three, monkeypatch, step
):
    when, words = LEFT[step]
    workers = protected_workers(three)
    with passing_time(monkeypatch):
        result = federate(protected_plan(three), workers, change={"site-01": Away(when)})
    assert (result.exit_code, words in result.stop_reason) == (6, True), result.stop_reason
    assert "'site-01'" in result.stop_reason
    for name in ("site-00", "site-02"):
        assert events(workers[name], "run closed")[0]["with_result"] is False
        assert workers[name].source.safe.vault(result.run_id).get("over") is not None


def test_one_that_is_away_at_the_end_is_named_in_a_warning(three):
    workers = protected_workers(three)
    away = Away(of_kind(m.CloseRequest))
    result = federate(protected_plan(three), workers, change={"site-01": away})
    assert result.status == "completed"
    assert any("'site-01' did not close the run" in warning for warning in result.warnings)
    assert set(result.site_results) == {"site-00", "site-02"}


# -- d = 1: left out of one sum --------------------------------------------------------------


def releases(watched, survivors):
    """Pair what was opened in each round with the sums and noise of the sites in it."""
    sums, noise = iter(watched.sums), iter(watched.noise)
    for opened, n in zip(watched.opened, survivors, strict=True):
        exact = sum(next(sums) for _ in range(n))
        drawn = sum(next(noise) for _ in range(n))
        yield opened, exact + drawn * watched.step, n


@pytest.mark.parametrize("round_", [1, 2, 4])
def test_a_site_lost_in_one_round_is_missing_from_that_sum_alone(four, monkeypatch, round_):
    plan = noisy_plan(four)
    assert (plan.privacy.tolerated_dropouts, plan.secure_terms().threshold) == (1, 3)
    away = Away(lambda r: is_round(r, round_))
    with watched_sums(monkeypatch) as watched:
        result = run(plan, four, change={"site-02": away})
    assert result.status == "completed", result.stop_reason
    survivors = [3 if number == round_ else 4 for number in (1, 2, 3, 4)]
    for opened, expected, n in releases(watched, survivors):
        assert np.abs(opened - expected).max() <= n * watched.step
    assert f"the sum of round {round_} is without 'site-02'" in result.warnings
    assert [len(row["sites"]) for row in result.history] == survivors
    assert result.site_results["site-02"].labels.shape == four["site-02"]["views"][0].shape[:1]


def test_one_of_four_may_stay_away_for_good_and_a_second_may_not(four, monkeypatch):
    plan, workers = noisy_plan(four), protected_workers(four)
    gone = Away(lambda r: is_round(r) or isinstance(r, m.CloseRequest))
    result = federate(plan, workers, change={"site-02": gone})
    assert result.status == "completed", result.stop_reason
    assert [len(row["sites"]) for row in result.history] == [3] * 4
    assert set(result.site_results) == {"site-00", "site-01", "site-03"}

    leaves = Away(lambda r: isinstance(r, m.CloseRequest) or is_round(r, 3))
    workers = protected_workers(four)
    with passing_time(monkeypatch):
        result = federate(plan, workers, change={"site-02": gone, "site-03": leaves})
    assert result.exit_code == 6
    assert "2 of 4 sites answered sum of round 3 and 3 are needed" in result.stop_reason
    assert "'site-02'" in result.stop_reason
    assert "'site-03'" in result.stop_reason
    for name in ("site-00", "site-01"):
        assert events(workers[name], "budget returned")[0]["releases"] == 1


def test_a_site_lost_without_masks_ends_the_run_and_the_others_get_their_budget_back(three):
    workers = protected_workers(three)
    away = Away(lambda r: is_round(r, 2))
    result = federate(noisy_plan(), workers, change={"site-01": away})
    assert (result.exit_code, "'site-01'" in result.stop_reason) == (6, True)
    for name in ("site-00", "site-02"):
        assert events(workers[name], "budget returned")[0]["releases"] == 2
        assert workers[name].source.safe.ledger.open_runs() == ()
    assert workers["site-01"].source.safe.ledger.open_runs() == (result.run_id,)
