"""What a federated selection must equal, and what must not matter to it."""

import numpy as np
import pytest

from fedmvc_client.solvers.feature_preparation import prepare_features, standardise
from fedmvc_client.solvers.tensor_learning import TensorLearning
from fedmvc_server.planted import PLANTED_SIZES
from fedmvc_server.simulation import simulate
from strategies.feature_ranking import procrustes_align, row_norm_scores
from strategies.messages import FitRequest, ShareReply
from tests.federation.harness import federate, workers_of
from tests.federation.mufsht_harness import Wire, hospitals, selection_plan

SITES, INFORMATIVE = hospitals()


def completed(plan, sites=SITES, **options):
    result = simulate(plan, sites, **options)
    assert result.status == "completed", result.stop_reason
    return result


def changed(sites, change):
    return {name: {"views": change(name, site["views"])} for name, site in sites.items()}


def test_one_site_and_one_round_are_the_local_run():
    sites = {"alone": {"views": [np.concatenate(v) for v in zip(*views_of(SITES), strict=True)]}}
    wire = Wire()
    plan = selection_plan(max_rounds=1)
    result = federate(plan, workers_of(sites), change={"alone": wire})
    (request,) = wire.of(FitRequest)

    prepared = [standardise(view)[0] for view in sites["alone"]["views"]]
    local = TensorLearning([p.values for p in prepared], None, 3)
    start = np.split(request.weights, np.cumsum([len(p.values) for p in prepared])[:-1])
    local.start_from(start)
    for _ in range(3):
        local.sweep()
    expected = np.concatenate(procrustes_align(local.weights, start))
    np.testing.assert_allclose(result.selection.weights, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        result.selection.scores, row_norm_scores(expected), rtol=0, atol=1e-12
    )
    assert result.history[0]["objective"] == pytest.approx(local.objective(), abs=1e-12)


def views_of(sites):
    return [site["views"] for site in sites.values()]


def test_two_rounds_are_the_loop_of_the_paper():
    """Eqs. 17 and 18 written as a plain loop over the sites' solvers."""
    wires = {name: Wire() for name in SITES}
    plan = selection_plan(max_rounds=3, weighting="uniform", mix=0.25, lam=0.0)
    result = federate(plan, workers_of(SITES), change=wires)
    requests = wires["site-00"].of(FitRequest)
    scaling = requests[0].scaling
    models = {}
    for name, site in SITES.items():
        prepared = [prepare_features(v, s) for v, s in zip(site["views"], scaling, strict=True)]
        models[name] = TensorLearning([p.values for p in prepared], None, 3, lam=0.0)
    ends = np.cumsum([len(s.center) for s in scaling])[:-1]
    broadcast, own = np.split(requests[0].weights, ends), {}
    for number in range(3):
        if number:
            np.testing.assert_allclose(
                np.concatenate(broadcast), requests[number].weights, rtol=0, atol=1e-12
            )
        for name, model in models.items():
            start = broadcast
            if name in own:
                pairs = zip(broadcast, own[name], strict=True)
                start = [0.25 * common + 0.75 * mine for common, mine in pairs]
            model.start_from(start)
            for _ in range(3):
                model.sweep()
            own[name] = procrustes_align(model.weights, broadcast)
        broadcast = [sum(parts) / 3 for parts in zip(*own.values(), strict=True)]
    np.testing.assert_allclose(
        result.selection.weights, np.concatenate(broadcast), rtol=0, atol=1e-12
    )


def test_names_and_so_the_order_of_sites_do_not_matter():
    plan = selection_plan(max_rounds=3)
    names = list(SITES)
    turned = dict(zip([names[2], names[0], names[1]], SITES.values(), strict=True))
    first, second = completed(plan), completed(plan, turned)
    np.testing.assert_allclose(first.selection.scores, second.selection.scores, rtol=0, atol=1e-12)
    assert np.array_equal(first.selection.ranking, second.selection.ranking)


@pytest.mark.parametrize(
    "change",
    [
        lambda name, views: [view[::-1] for view in views],
        lambda name, views: [1e3 * view + 1e5 for view in views],
    ],
    ids=["rows in another order", "other units"],
)
def test_order_of_rows_and_units_do_not_matter(change):
    plan = selection_plan(weighting="uniform")
    before = completed(plan).selection.scores
    after = completed(plan, changed(SITES, change)).selection.scores
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-9)


def test_equal_sites_weigh_the_same_and_change_nothing():
    one = SITES["site-00"]
    plan = selection_plan(max_rounds=1)
    alone = completed(plan, {"a": one})
    twins = completed(plan, {"a": one, "b": one, "c": one})
    assert twins.history[0]["site_weights"] == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    np.testing.assert_allclose(twins.selection.scores, alone.selection.scores, rtol=0, atol=1e-12)


def test_a_site_without_a_view_does_not_shrink_it():
    plan = selection_plan()
    whole = completed(plan)
    lacking = dict(SITES) | {"site-02": {"views": [*SITES["site-02"]["views"][:2], None]}}
    result = completed(plan, lacking)
    part = slice(27, 40)
    ratio = np.linalg.norm(result.selection.weights[part]) / np.linalg.norm(
        whole.selection.weights[part]
    )
    assert 0.85 < ratio < 1.2
    assert result.selection.observed_share[part].tolist() == [1.0] * 13


def test_every_round_sums_weights_that_were_turned_onto_the_broadcast():
    wires = {name: Wire() for name in SITES}
    federate(selection_plan(weighting="uniform"), workers_of(SITES), change=wires)
    for wire in wires.values():
        for request, reply in zip(wire.of(FitRequest), wire.of(ShareReply), strict=True):
            cross = reply.sums[0].T @ request.weights
            np.testing.assert_allclose(cross, cross.T, atol=1e-10 * np.abs(cross).max())
            assert np.linalg.eigvalsh(cross).min() > -1e-10


def test_planted_features_are_found_by_five_sites():
    sites, informative = hospitals(400, 5, sizes=PLANTED_SIZES, n_clusters=5)
    plan = selection_plan(5, max_rounds=5, tol=1e-3, local_sweeps=8)
    ranking = completed(plan, sites).selection.ranking
    assert informative[ranking[: informative.sum()]].mean() >= 0.95
