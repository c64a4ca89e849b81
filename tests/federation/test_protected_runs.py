"""Protected runs against plain ones: the same numbers under masks, the same plus noise with it."""

import re

import numpy as np
import pytest

from strategies import messages as m
from tests.federation.harness import accuracy, federate, pooled_labels
from tests.federation.protected_harness import (
    clustered_sites,
    declared_schema,
    events,
    noisy_plan,
    plain_twin,
    protected_plan,
    protected_workers,
    run,
    watched_sums,
)

NAMES = ("site-00", "site-01", "site-02")


def lacking(sites):
    """Take the second view from the second site."""
    views = sites["site-01"]["views"]
    return {**sites, "site-01": {"views": [views[0], None]}}


def constant(sites):
    """Let the first column of each view hold one value."""
    return {
        name: {"views": [np.where(np.arange(v.shape[1]) == 0, 7.1, v) for v in site["views"]]}
        for name, site in sites.items()
    }


def largest_difference(one, other):
    for result in (one, other):
        assert result.status == "completed", result.stop_reason
    pairs = zip(one.model.centers, other.model.centers, strict=True)
    return max(np.abs(a - b).max() for a, b in pairs)


WHOLE, _ = clustered_sites(3)
GAPS, _ = clustered_sites(3, missing=0.08, seed=1)
BOUNDED = declared_schema(clustered_sites(3, n=150)[0])
CASES = {
    "scaled by extremes": (WHOLE, {}),
    "bandwidth from the data, missing cells": (GAPS, {"bandwidth": "auto", "scaling": "standard"}),
    "absolute deviations": (WHOLE, {"heat_kernel": "absdev", "n_init": 1}),
    "a view that one site lacks": (lacking(WHOLE), {"profile": "robust", "anneal": False}),
    "a column of one value": (constant(WHOLE), {"bandwidth": "auto"}),
    "missing cells and a view": (lacking(GAPS), {"heat_kernel": "one", "n_init": 1}),
    "weighted means": (WHOLE, {"aggregation": "weighted"}),
    "means": (lacking(GAPS), {"aggregation": "fedavg", "n_init": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_masks_change_nothing(case):
    sites, options = CASES[case]
    plan = protected_plan(NAMES, max_rounds=6, **options)
    masked, plain = run(plan, sites), run(plain_twin(plan), sites)
    assert largest_difference(masked, plain) <= 1e-12
    assert masked.rounds == plain.rounds == 6
    np.testing.assert_allclose(masked.model.view_weights, plain.model.view_weights, atol=1e-12)
    assert masked.metrics["objective"] == pytest.approx(plain.metrics["objective"], rel=1e-9)
    assert masked.metrics["expected_cluster_sizes"] == pytest.approx(
        plain.metrics["expected_cluster_sizes"], rel=1e-9
    )
    for name, site in masked.site_results.items():
        np.testing.assert_array_equal(site.labels, plain.site_results[name].labels)
        own, same = site.personal_model, plain.site_results[name].personal_model
        for one, other in zip(own.centers, same.centers, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)


def test_masks_change_no_label_of_an_accelerated_run():
    """Its least-squares steps magnify what rounding leaves: 1e-15 becomes 1e-8 of a width."""
    plan = protected_plan(NAMES, max_rounds=80, tol=1e-12, acceleration="anderson", n_init=1)
    masked, plain = run(plan, WHOLE), run(plain_twin(plan), WHOLE)
    for one, other in zip(masked.model.scaled_centers, plain.model.scaled_centers, strict=True):
        assert np.abs(one - other).max() <= 1e-7
    for name, site in masked.site_results.items():
        np.testing.assert_array_equal(site.labels, plain.site_results[name].labels)


# -- noise -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_sites", "masked", "options"),
    [
        (4, True, {"heat_kernel": "minmax"}),
        (3, True, {"privacy": {"noise": "local"}}),
        (2, False, {"heat_kernel": "absdev"}),
    ],
)
def test_what_is_opened_is_the_sum_and_the_noise(monkeypatch, n_sites, masked, options):
    """As far as rounding to the grid allows: half a step a site."""
    sites, _ = clustered_sites(n_sites, missing=0.05)
    plan = noisy_plan(sites if masked else (), **options)
    with watched_sums(monkeypatch) as watched:
        result = run(plan, sites)
    assert result.status == "completed", result.stop_reason
    assert len(watched.opened) == plan.max_rounds
    assert len(watched.sums) == len(watched.noise) == n_sites * plan.max_rounds
    for i, opened in enumerate(watched.opened):
        own = slice(n_sites * i, n_sites * (i + 1))
        clear = sum(watched.sums[own]) + sum(watched.noise[own]) * watched.step
        assert np.abs(opened - clear).max() <= n_sites * watched.step / 2 * (1 + 1e-6)
        assert np.abs(sum(watched.noise[own])).min() > 0
    assert result.rounds == plan.max_rounds


def test_local_noise_of_two_sites_still_finds_the_clusters():
    sites, rows = clustered_sites(2, n=2000)
    plan = noisy_plan(epsilon=8.0, max_rounds=6, privacy={"max_rows": 2000})
    result = run(plan, sites)
    assert result.status == "completed", result.stop_reason
    clear = run(plain_twin(noisy_plan()), sites)
    assert accuracy(pooled_labels(clear, rows), pooled_labels(result, rows)) > 0.9


def test_masks_halve_the_noise_that_local_sites_would_add(monkeypatch):
    """Of four sites two are counted on: each adds sigma over the root of two."""
    sites, _ = clustered_sites(4)
    spread = {}
    for where in ("distributed", "local"):
        with watched_sums(monkeypatch) as watched:
            run(noisy_plan(sites, max_rounds=2, privacy={"noise": where}), sites)
        spread[where] = watched.step * np.std([n.astype(float) for n in watched.noise])
    assert spread["local"] / spread["distributed"] == pytest.approx(np.sqrt(2), rel=0.05)


# -- what the server is never told -----------------------------------------------------------


def test_the_number_of_records_never_travels_with_noise():
    """Two federations that differ in their rows alone differ in no message but in noisy sums."""
    lengths = []
    for n in (120, 150):
        sites, _ = clustered_sites(3, n=n)
        told = []

        def spy(worker, body, told=told):
            reply = worker.handle(body)
            told.append((type(m.from_bytes(body)).__name__, len(body), len(reply)))
            return reply

        plan = noisy_plan(NAMES, max_rounds=2)
        workers = protected_workers(sites, BOUNDED)
        result = federate(plan, workers, change={"site-01": spy})
        assert result.status == "completed", result.stop_reason
        assert sites["site-01"]["views"][0].shape[0] == n // 3
        assert "n_rows" not in str(result.metrics) + str(result.certificate) + str(result.history)
        lengths.append(told)
    assert lengths[0] == lengths[1]


def few_rows(worker):
    worker.source.policy = worker.source.policy.model_copy(update={"min_cohort": 41})


def few_of_a_view(worker):
    worker.source.policy = worker.source.policy.model_copy(update={"min_cell": 10})
    worker.source._views[1] = np.where(np.arange(40)[:, None] < 36, np.nan, worker.source._views[1])


def another_shape(worker):
    worker.source._views[1] = worker.source._views[1][:37]


def one_row_more(worker):
    worker.source._views = [np.vstack([view, view[:1]]) for view in worker.source._views]


DECLINED = {
    "a small cohort": (few_rows, "has 40 rows; policy.min_cohort is 41"),
    "few records with a view": (few_of_a_view, "has 4 records that hold view 'view_1'"),
    "rows that do not fit": (another_shape, "has 37 rows, the views before it have 40"),
    "more rows than max_rows": (one_row_more, "more rows than privacy.max_rows, 40"),
}


@pytest.mark.parametrize(
    ("case", "masked"), [*((case, True) for case in DECLINED), ("a small cohort", False)]
)
def test_with_noise_the_server_reads_only_that_a_site_declined(caplog, case, masked):
    spoil, reason = DECLINED[case]
    workers = protected_workers(WHOLE, BOUNDED)
    spoil(workers["site-01"])
    plan = noisy_plan(NAMES if masked else (), privacy={"max_rows": 40}, max_rounds=2)
    replies = []

    def spy(worker, body):
        replies.append(m.from_bytes(worker.handle(body)))
        return m.to_bytes(replies[-1])

    result = federate(plan, workers, change=dict.fromkeys(["site-01"], spy))
    first = next(reply for reply in replies if isinstance(reply, m.Refusal))
    assert (first.code, first.message) == (4, "site 'site-01' declined")
    learnt = result.stop_reason + str(result.dropped)
    assert "'site-01' declined" in learnt
    assert not re.search("rows|records|view_1|polic|max_rows", learnt)
    # before round 1 it ends the run; without masks nothing reads data so early
    assert result.exit_code == ((6 if case == "few records with a view" else 4) if masked else 0)
    assert reason in caplog.text
    safe = workers["site-01"].source.safe
    assert events(workers["site-01"], "request refused")[0]["sentence"] == first.message
    assert safe.ledger.status().spent == 0.0
    assert safe.ledger.open_runs() == ()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (few_rows, "has fewer rows than policy.min_cohort, 41"),
        (one_row_more, "has more rows than privacy.max_rows, 40"),
        (few_of_a_view, "has fewer records that hold view 'view_1' than policy.min_cell, 10"),
    ],
)
def test_without_noise_the_server_reads_the_reason_and_no_count(spoil, words):
    workers = protected_workers(WHOLE, BOUNDED)
    spoil(workers["site-01"])
    result = federate(protected_plan(NAMES, privacy={"max_rows": 40}), workers)
    assert words in result.stop_reason
    assert not re.search("has [0-9]+ (rows|records)", result.stop_reason)


# -- certificates ----------------------------------------------------------------------------


def test_the_result_certifies_what_the_run_did():
    sites, _ = clustered_sites(4)
    plan = noisy_plan(sites, epsilon=2.0, max_rounds=3)
    result = run(plan, sites)
    found = result.certificate
    assert (found["mechanism"], found["noise"]) == ("gaussian", "distributed")
    assert (found["relation"], found["unit"]) == (
        "add or remove one patient",
        "one patient of one site",
    )
    assert (found["exchanges"], found["delta"]) == (3, 1e-5)
    assert 1.99 < found["epsilon"] <= 2.0 < found["epsilon_if_others_collude"]
    assert (found["tolerated_dropouts"], found["threshold"], found["colluders"]) == (1, 3, 1)
    assert found["participants"] == sorted(sites)
    # of n = 4 sites n - d - c = 2 are counted on; the masses have twice the numerators' noise
    sigma = found["sigma"]
    assert set(sigma) == {"numerator", "mass", "dispersion"}
    assert all(value > found["sensitivity"] for value in sigma.values())


def test_the_last_noisy_sum_is_used_and_no_figure_is_claimed():
    result = run(noisy_plan(NAMES, max_rounds=2), WHOLE)
    assert "expected_cluster_sizes" not in result.metrics
    assert "rows" not in result.metrics
    bounds = [column.bounds for view in declared_schema(WHOLE).views for column in view.columns]
    low, high = np.array(bounds).T
    centers = np.concatenate(result.model.centers, axis=1)
    assert ((low <= centers) & (centers <= high)).all()
