"""Parameter averaging over real federations: outliers, permuted columns, fewer clusters, blends."""

import dataclasses

import numpy as np
import pytest

from fedmvc_server.cardio import cardio_views, gaussian_views
from fedmvc_server.simulation import simulate
from strategies import messages as m
from strategies.messages import from_bytes, to_bytes
from tests.federation.harness import accuracy, federate, plan_of, pooled_labels, split, workers_of

VIEWS, TRUTH = gaussian_views(300, 3, n_clusters=3, dims=(2, 2))


def gap(a, b):
    """Largest distance of the centres of two models, clusters in the same order."""
    return max(np.abs(x - y).max() for x, y in zip(a.centers, b.centers, strict=True))


# -- median ----------------------------------------------------------------------------------


def shifted(worker, body):
    """Reply as the site would, with every centre moved by 10 in data units."""
    reply = from_bytes(worker.handle(body))
    if not isinstance(reply, m.LocalModelReply):
        return to_bytes(reply)
    (participant,) = worker._participants.values()
    scaling = participant._seed_request.scaling
    return to_bytes(
        dataclasses.replace(
            reply,
            centers=tuple(
                a + 10.0 / sc.scale for a, sc in zip(reply.centers, scaling, strict=True)
            ),
        )
    )


def scaled_gap(a, b):
    """Largest distance of two models' centres as a share of each column's range."""
    pairs = zip(a.centers, b.centers, a.scaling, strict=True)
    return max((np.abs(x - y) / sc.scale).max() for x, y, sc in pairs)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_median_bears_one_shifted_site_of_five(seed):
    views, labels = cardio_views(2000, seed)
    sites, rows = split(views, labels, "iid", 5)
    moved, lost = {}, {}
    for aggregation in ("median", "weighted"):
        plan = plan_of(4, profile="paper", aggregation=aggregation, n_init=1, max_rounds=15)
        honest = federate(plan, workers_of(sites))
        attacked = federate(plan, workers_of(sites), change={"site-04": shifted})
        moved[aggregation] = scaled_gap(honest.model, attacked.model)
        lost[aggregation] = accuracy(labels, pooled_labels(honest, rows)) - accuracy(
            labels, pooled_labels(attacked, rows)
        )
    print(f"centres move by {moved} of the range, accuracy falls by {lost}")
    assert moved["median"] < 0.02
    assert lost["median"] < 0.02
    assert moved["weighted"] > 0.1
    assert lost["weighted"] > 0.02


# -- NMI weights -----------------------------------------------------------------------------


def test_a_site_with_permuted_columns_gets_the_smallest_weight():
    """Label-free: its own model and the broadcast one disagree about its records."""
    views, truth = gaussian_views(400, 5, n_clusters=4, dims=(3, 3), separation=5.0)
    sites, _ = split(views, truth, "iid", 4)
    sites["site-02"]["views"] = [v[:, [1, 2, 0]] for v in sites["site-02"]["views"]]
    plan = plan_of(
        4,
        profile="paper",
        aggregation="nmi_softmax",
        local_iterations=20,
        max_rounds=1,
    )
    result = federate(plan, workers_of(sites))
    weights = result.history[0]["site_weights"]
    assert min(weights, key=weights.get) == "site-02"
    assert sum(weights.values()) == pytest.approx(1.0)
    others = [w for name, w in weights.items() if name != "site-02"]
    assert weights["site-02"] < 0.97 * min(others)


def test_at_a_high_temperature_nmi_weights_are_fedavg():
    sites, _ = split(VIEWS, TRUTH, "dirichlet", 3)
    options = {"n_init": 1, "max_rounds": 6, "heat_kernel": "one"}
    hot = plan_of(3, aggregation="nmi_softmax", nmi_temperature=1e13, **options)
    fedavg = plan_of(3, aggregation="fedavg", **options)
    a, b = (federate(p, workers_of(sites)) for p in (hot, fedavg))
    assert a.rounds == b.rounds
    assert gap(a.model, b.model) < 1e-12
    assert np.abs(a.model.view_weights - b.model.view_weights).max() < 1e-12


def test_quality_weights_follow_the_certainty_of_memberships():
    """One site's records are noise: its memberships are nearly equal."""
    rng = np.random.default_rng(0)
    sites, _ = split(VIEWS, TRUTH, "iid", 3)
    sites["site-01"]["views"] = [
        rng.uniform(v.min(axis=0), v.max(axis=0), (len(v), v.shape[1])) * 0.02 + v.mean(axis=0)
        for v in sites["site-01"]["views"]
    ]
    plan = plan_of(3, profile="paper", aggregation="quality", n_init=1, max_rounds=4)
    weights = federate(plan, workers_of(sites)).history[0]["site_weights"]
    assert weights["site-01"] < 0.8 * min(weights["site-00"], weights["site-02"])


# -- fewer clusters --------------------------------------------------------------------------


def test_sites_that_know_their_number_of_clusters_end_where_pooled_rows_end():
    """Section 3: with c(l) known and clusters matched, missing clusters cost nothing."""
    views, truth = cardio_views(800, 0)
    sites, rows = split(views, truth, "missing", 4)
    known = {name: int(np.unique(truth[index]).size) for name, index in rows.items()}
    assert set(known.values()) == {2}
    options = {"profile": "paper", "aggregation": "weighted", "local_iterations": 5}
    oracle = federate(plan_of(4, local_clusters=known, **options), workers_of(sites))
    without = federate(plan_of(4, **options), workers_of(sites))
    assert accuracy(truth, pooled_labels(oracle, rows)) > 0.99
    assert accuracy(truth, pooled_labels(without, rows)) < 0.9


def test_a_site_with_fewer_clusters_is_asked_for_its_own():
    sites, _ = split(VIEWS, TRUTH, "iid", 2)
    widths = []

    def watch(worker, body):
        reply = worker.handle(body)
        message = from_bytes(reply)
        if isinstance(message, m.LocalModelReply):
            widths.append({a.shape[1] for a in message.centers})
        return reply

    plan = plan_of(3, aggregation="weighted", local_clusters={"site-01": 2}, max_rounds=3)
    result = federate(plan, workers_of(sites), change={"site-01": watch})
    assert result.status == "completed", result.stop_reason
    assert widths == [{2}] * result.rounds
    assert result.site_results["site-01"].membership.shape[1] == 3


def test_fewer_distinct_records_than_own_clusters_drops_the_site():
    sites, _ = split(VIEWS, TRUTH, "iid", 3)
    sites["site-01"]["views"] = [v[:1].repeat(20, axis=0) for v in sites["site-01"]["views"]]
    plan = plan_of(3, aggregation="weighted", local_clusters={"site-01": 2}, max_rounds=3)
    result = federate(plan, workers_of(sites))
    assert "1 distinct record" in result.dropped["site-01"]


# -- personalisation -------------------------------------------------------------------------

UNEVEN, _ = split(VIEWS, TRUTH, "dirichlet", 3, seed=1)


def personal_gaps(aggregation, **options):
    """Largest gap between personal and global model of each site, and the results."""
    plan = plan_of(
        3, aggregation=aggregation, heat_kernel="one", local_iterations=5, max_rounds=8, **options
    )
    result = simulate(plan, UNEVEN)
    assert result.status == "completed", result.stop_reason
    return {n: gap(k.personal_model, k.model) for n, k in result.site_results.items()}, result


@pytest.mark.parametrize("aggregation", ["exact", "weighted"])
def test_gamma_and_rho_1_give_the_global_model(aggregation):
    gaps, result = personal_gaps(aggregation, gamma=1.0, rho=1.0)
    assert set(gaps.values()) == {0.0}
    for kept in result.site_results.values():
        assert kept.personal_model.sha256() == result.model.sha256()


def test_gamma_and_rho_0_give_the_local_model():
    """In exact mode: local_iterations passes at the site from the final centres, written slowly."""
    from tests.solvers.reference import Reference

    _, result = personal_gaps("exact", gamma=0.0, rho=0.0)
    model = result.model
    for name, kept in result.site_results.items():
        reference = Reference.of(UNEVEN[name]["views"], model.scaling, "one", [False, False])
        a, v = [x[None] for x in model.scaled_centers], model.view_weights[None]
        for _ in range(5):
            sums = reference.statistics(
                a, v, model.bandwidth[None], np.ones(2), model.fuzzifier, model.view_exponent
            )
            a = [n / w[..., None] for n, w in zip(sums.numerator, sums.mass, strict=True)]
            power = sums.dispersion ** (-1.0 / (model.view_exponent - 1.0))
            v = power / power.sum()
        for found, expected in zip(kept.personal_model.scaled_centers, a, strict=True):
            assert np.abs(found - expected[0]).max() < 1e-9
        assert np.abs(kept.personal_model.view_weights - v[0]).max() < 1e-9


def test_a_half_blend_is_half_way():
    _, half = personal_gaps("exact", gamma=0.5, rho=0.5)
    _, local = personal_gaps("exact", gamma=0.0, rho=0.0)
    for name, kept in half.site_results.items():
        far = local.site_results[name].personal_model
        for found, a, b in zip(
            kept.personal_model.centers, half.model.centers, far.centers, strict=True
        ):
            assert np.abs(found - 0.5 * (a + b)).max() < 1e-9
        weights = 0.5 * (half.model.view_weights + far.view_weights)
        assert np.abs(kept.personal_model.view_weights - weights).max() < 1e-9


@pytest.mark.parametrize("aggregation", ["exact", "weighted"])
def test_uneven_sites_have_a_personal_model_of_their_own(aggregation):
    gaps, result = personal_gaps(aggregation, gamma=0.5, rho=0.5)
    assert min(gaps.values()) > 1e-3
    hashes = {kept.personal_model.sha256() for kept in result.site_results.values()}
    assert len(hashes) == 3


def test_the_adaptive_blend_lies_between():
    """Gamma = J(local) / (J(local) + J(global)), so below one half where local fits better."""
    _, result = personal_gaps("exact", gamma="adaptive", rho="adaptive")
    _, local = personal_gaps("exact", gamma=0.0, rho=0.0)
    for name, kept in result.site_results.items():
        far = local.site_results[name].personal_model
        top = bottom = 0.0
        for found, a, b in zip(
            kept.personal_model.centers, result.model.centers, far.centers, strict=True
        ):
            top += float(((found - b) * (a - b)).sum())
            bottom += float(((a - b) ** 2).sum())
        assert 0.0 < top / bottom <= 0.5 + 1e-9


def test_the_adaptive_blend_of_a_site_that_lacks_a_view_measures_the_views_it_has():
    """Weight on a view it lacks once made the broadcast look good there: gamma was .94."""
    sites = {name: {"views": list(site["views"])} for name, site in UNEVEN.items()}
    sites["site-01"]["views"][1] = None
    options = {"aggregation": "exact", "heat_kernel": "one", "local_iterations": 5, "max_rounds": 8}
    blended, local = (
        simulate(plan_of(3, gamma=gamma, rho=1.0, **options), sites) for gamma in ("adaptive", 0.0)
    )
    kept = blended.site_results["site-01"]
    found, near = kept.personal_model.centers[0], blended.model.centers[0]
    far = local.site_results["site-01"].personal_model.centers[0]
    gamma = float(((found - far) * (near - far)).sum() / ((near - far) ** 2).sum())
    assert 0.0 < gamma <= 0.5 + 1e-9
    assert kept.personal_model.view_weights.tolist() == blended.model.view_weights.tolist()


@pytest.mark.parametrize("aggregation", ["weighted", "nmi_softmax", "median"])
def test_blended_rounds_still_end(aggregation):
    gaps, result = personal_gaps(aggregation, gamma=0.7, rho="adaptive")
    assert np.isfinite(list(gaps.values())).all()
    assert result.model.view_weights.sum() == pytest.approx(1.0)
