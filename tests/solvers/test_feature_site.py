"""One site's part in a selection: fits that forget, quality without labels, gaps, clusters."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from configs.errors import DataRefused
from configs.mufsht_profiles import resolve_mufsht
from fedmvc_client.solvers import feature_site
from fedmvc_client.solvers.feature_preparation import feature_moments, prepare_features, text_rows
from fedmvc_client.solvers.feature_site import FeatureSite
from fedmvc_client.solvers.tensor_learning import TensorLearning
from fedmvc_server.planted import without_cells
from strategies.feature_ranking import procrustes_align
from strategies.messages import FeatureScaling, feature_scaling
from tests.solvers.mufsht_reference import planted

SIZES = ((12, 5), (9, 4), (15, 6))
RAW, INFORMATIVE = planted(0, n=60, sizes=SIZES, n_clusters=3)
HOLES = without_cells(RAW, 0.2, 0)


def scalings(views, *, text=False):
    return [feature_scaling(feature_moments(view), text=text) for view in views]


def site(views, scaling=None, *, k=3, seed=0, name="site 'a'", **options):
    settings = resolve_mufsht(**({"local_sweeps": 3} | options))
    scaling = scaling or scalings(views, text=settings.text)
    return FeatureSite(views, scaling, settings, k, seed=seed, device="cpu", name=name)


def start(views=RAW, seed=1, k=3):
    d = sum(view.shape[1] for view in views)
    return np.random.default_rng(seed).normal(size=(d, k)) / np.sqrt(d)


def blobs():
    """Two views of three classes far apart."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(3), 40)
    views = [rng.normal(size=(120, 20)) for _ in range(2)]
    for view in views:
        view += 5 * rng.normal(size=(3, 20))[truth]
    return views, truth


# -- fits ------------------------------------------------------------------------------------------


def test_a_fit_starts_from_the_blend_and_is_turned_onto_the_broadcast():
    broadcast, own = start(seed=1), start(seed=2)
    found = site(HOLES, mix=0.25).fit(broadcast, own)

    prepared = [prepare_features(v, s) for v, s in zip(HOLES, scalings(HOLES), strict=True)]
    model = TensorLearning([p.values for p in prepared], [p.observed for p in prepared], 3)
    ends = [12, 21]
    model.start_from(np.split(0.25 * broadcast + 0.75 * own, ends))
    for _ in range(3):
        model.sweep()
    expected = np.concatenate(procrustes_align(model.weights, np.split(broadcast, ends)))
    np.testing.assert_array_equal(found.weights, expected)
    np.testing.assert_array_equal(found.view_weights, model.view_weights)
    assert found.objective == model.objective()
    cross = found.weights.T @ broadcast
    np.testing.assert_allclose(cross, cross.T, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"profile": "paper"}, {"profile": "paper", "stages": "search"}],
    ids=["sweeps", "loop", "search"],
)
def test_a_fit_forgets_the_ones_before(options):
    """A restarted site has none behind it; the search once took over the last round's consensus."""
    used, fresh = site(HOLES, **options), site(HOLES, **options)
    first = used.fit(start())
    used.quality(first.weights)
    again, expected = (s.fit(start(seed=2), first.weights) for s in (used, fresh))
    np.testing.assert_array_equal(again.weights, expected.weights)
    assert again.objective == expected.objective
    assert used.quality(again.weights) == fresh.quality(again.weights)


def test_the_search_alone_sweeps_not_and_the_loop_ends_lower():
    alone = site(RAW, profile="paper", stages="search").fit(start())
    both = site(RAW, profile="paper").fit(start())
    thro = site(RAW, profile="paper", hcl=False, acm=False).fit(start())
    assert both.objective < 0.5 * alone.objective
    assert not np.array_equal(both.weights, thro.weights)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 3),
        ({"profile": "paper"}, 3),
        ({"profile": "paper", "stages": "tensor", "search": "off"}, 3),
        ({"profile": "paper", "stages": "search"}, 0),
    ],
)
def test_a_fit_makes_the_plans_sweeps(monkeypatch, options, expected):
    sweeps = []
    real = TensorLearning.sweep
    monkeypatch.setattr(TensorLearning, "sweep", lambda self: sweeps.append(1) or real(self))
    site(RAW, **options).fit(start())
    assert len(sweeps) == expected


def test_a_view_that_the_site_lacks_takes_no_part():
    absent = np.full((60, 7), np.nan)
    never = FeatureScaling(np.zeros(7), np.ones(7), np.zeros(7, dtype=bool))
    first, second = scalings(RAW[:2])
    views, scaling = [RAW[0], absent, RAW[1]], [first, never, second]
    broadcast = start(views)
    lacking = site(views, scaling)
    found = lacking.fit(broadcast)
    part = np.r_[0:12, 19:28]
    expected = site(RAW[:2]).fit(broadcast[part])
    np.testing.assert_array_equal(found.weights[part], expected.weights)
    assert not found.weights[12:19].any()
    assert found.view_weights[1] == 0
    assert found.view_weights.sum() == pytest.approx(1.0)
    assert np.flatnonzero(~lacking.observes).tolist() == list(range(12, 19))
    assert 0 <= lacking.quality(found.weights) <= 1


def test_features_that_are_not_seen_or_do_not_vary_here():
    """The pooled scaling says that both vary elsewhere."""
    views = [view.copy() for view in RAW]
    views[0][:, 4] = np.nan
    views[1][:, 2] = 3.0
    here = site(views, scalings(RAW))
    found = here.fit(start())
    assert not found.weights[4].any()
    assert np.flatnonzero(~here.observes).tolist() == [4]
    assert np.isfinite(found.weights).all()
    assert np.linalg.norm(found.weights[14]) < 3


def test_too_few_rows_and_views_that_do_not_vary_are_refused_by_name():
    with pytest.raises(DataRefused, match="site 'a' has 2 rows but k is 3"):
        site([view[:2] for view in RAW], scalings(RAW))
    with pytest.raises(DataRefused, match="site 'a' has 3 views and 0 of them vary"):
        site([np.full_like(view, np.nan) for view in RAW], scalings(RAW))


# -- quality ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([1, 1, 0, 0], 1.0),
        ([0, 1, 0, 1], 0.0),
        # .21576 nats in common; the two have .69315 (2 : 2) and .56234 (3 : 1)
        ([0, 0, 1, 0], 0.21576 / ((0.69315 + 0.56234) / 2)),
    ],
    ids=["renamed", "independent", "one record apart"],
)
def test_quality_is_the_mutual_information_of_two_clusterings_by_hand(monkeypatch, other, expected):
    views = [view[:4] for view in RAW]
    clusterings = iter(([0, 0, 1, 1], other))
    monkeypatch.setattr(feature_site, "clusters_of", lambda *_, **__: np.array(next(clusterings)))
    here = site(views, scalings(RAW), k=2)
    found = here.quality(here.fit(start(k=2)).weights)
    assert found == pytest.approx(expected, abs=1e-4)


def test_quality_tells_groups_from_noise():
    grouped, _ = blobs()
    noise = [np.random.default_rng(v).normal(size=(120, 20)) for v in range(2)]
    found = {}
    for name, views in (("grouped", grouped), ("noise", noise)):
        here = site(views, local_sweeps=8)
        found[name] = here.quality(here.fit(start(views)).weights)
    assert found["grouped"] == 1.0
    assert 0 <= found["noise"] < 0.4


def test_quality_of_many_rows_takes_a_sample(monkeypatch):
    views, _ = blobs()
    views[0][5] = views[1][5] = np.nan
    clustered = []
    real = feature_site.clusters_of

    def counting(points, *arguments, **options):
        clustered.append(len(points))
        return real(points, *arguments, **options)

    monkeypatch.setattr(feature_site, "clusters_of", counting)
    here = site(views, local_sweeps=8)
    weights = here.fit(start(views)).weights
    first = here.quality(weights)
    monkeypatch.setattr(feature_site, "QUALITY_ROWS", 40)
    assert here.quality(weights) == here.quality(weights) == first == 1.0
    assert clustered == [119] * 2 + [40] * 4


def test_quality_of_no_more_known_rows_than_clusters_is_0():
    views = [view[:5].copy() for view in RAW]
    for view in views:
        view[3:] = np.nan
    here = site(views, scalings(RAW))
    assert here.quality(here.fit(start()).weights) == 0.0


def test_text_is_compared_as_unit_rows():
    rng = np.random.default_rng(0)
    topics = np.repeat(np.arange(3), 20)
    rates = np.full((3, 12), 0.2)
    for topic in range(3):
        rates[topic, 4 * topic : 4 * topic + 4] = 6.0
    # documents of very different lengths: by plain counts these would be the groups
    words = rng.poisson(rates[topics] * rng.choice([0.5, 20.0], size=(60, 1))).astype(float)
    views = [text_rows(words, None)]
    here = site(views, text=True)
    assert here.quality(here.fit(start(views)).weights) > 0.8
    here.settle(start(views))
    assert adjusted_rand_score(topics, here.labels()) > 0.8


# -- after the rounds ------------------------------------------------------------------------------


def test_consensus_clusters_are_the_groups_and_empty_rows_have_none():
    views, truth = blobs()
    for view in views:
        view[7] = np.nan
    here = site(views, local_sweeps=8)
    here.settle(here.fit(start(views)).weights)
    labels = here.labels()
    assert labels.dtype == np.int64
    assert np.flatnonzero(labels < 0).tolist() == [7]
    assert adjusted_rand_score(np.delete(truth, 7), np.delete(labels, 7)) == 1.0
    assert np.array_equal(labels, here.labels())


def test_only_gaps_of_what_is_known_are_completed():
    views = [view.copy() for view in HOLES]
    views[2][:, 6] = np.nan
    for view in views:
        view[11] = np.nan
    here = site(views, scalings(RAW))
    here.settle(here.fit(start()).weights)
    for v, view in enumerate(views):
        found = here.completed(v)
        observed = ~np.isnan(view)
        np.testing.assert_array_equal(found[observed], view[observed])
        left = np.zeros(view.shape, dtype=bool)
        left[11] = True
        if v == 2:
            left[:, 6] = True
        np.testing.assert_array_equal(np.isnan(found), left)


def test_a_key_search_chooses_that_many_features():
    here = site(RAW, search="keys")
    weights = here.fit(start()).weights
    here.settle(weights)
    order = np.argsort(-np.linalg.norm(weights, axis=1))
    chosen = here.refined(order, 9)
    assert set(chosen.tolist()) == {0.0, 1.0}
    assert chosen.sum() == 9
    assert INFORMATIVE[chosen > 0].mean() > INFORMATIVE.mean()
    np.testing.assert_array_equal(chosen, here.refined(order, 9))
