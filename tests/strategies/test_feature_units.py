"""Sums of a selection in units that masks can carry: there and back, and never above the bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.plan import RunPlan
from fedmvc_client.solvers.feature_preparation import feature_moments
from fedmvc_client.solvers.feature_site import FeatureSite
from privacy.fixed_point import to_ring
from privacy.protection import grid
from strategies.feature_rounds import FeatureSurvey, initial_weights
from strategies.feature_scaling import FeatureMoments, declared_feature_scaling, feature_scaling
from strategies.feature_units import FeatureUnits

MOST = 1000
BOUNDS = (np.array([[0.0, 10.0], [-5.0, -1.0]]), np.array([[100.0, 100.5]]))
FLAT = np.concatenate(BOUNDS)


def plan(*, text=False, **mufsht):
    fields = {
        "method": "fed-mufsht",
        "n_clusters": 2,
        "mufsht": {"text": text, **mufsht},
        "privacy": {
            "secure_aggregation": True,
            "participants": ["a", "b", "c"],
            "max_rows": MOST,
        },
    }
    return RunPlan.parse(fields)


def opened(vectors):
    """Round each site's vector to the masks' grid and add up, as if masks were there and gone."""
    codec = grid(plan(), None)
    total = np.zeros(len(vectors[0]), dtype=np.uint64)
    for vector in vectors:
        total += to_ring(codec.encode(vector))
    return codec.decode(total)


def survey_of(cells):
    """Return the sums of a site whose views are cells (n, 3) with NaN where missing."""
    observed = ~np.isnan(cells)
    n, count = float(len(cells)), observed.sum(axis=0).astype(float)
    holding = np.array([observed[:, :2].any(axis=1).sum(), observed[:, 2].sum()], dtype=float)
    first = np.where(observed, cells, 0.0).sum(axis=0)
    return np.array([n]), holding, count, np.where(count > 0, n, 0.0), first, np.zeros(2)


def records(draw, n):
    rows = draw(st.lists(st.tuples(*[st.floats(0.0, 1.0)] * 3), min_size=n, max_size=n))
    cells = FLAT[:, 0] + (FLAT[:, 1] - FLAT[:, 0]) * np.array(rows)
    gaps = draw(st.lists(st.booleans(), min_size=3 * n, max_size=3 * n))
    return np.where(np.array(gaps).reshape(n, 3), np.nan, np.clip(cells, FLAT[:, 0], FLAT[:, 1]))


SITES = st.composite(lambda draw: [records(draw, n) for n in (2, 3)])()


@settings(max_examples=20, deadline=None)
@given(SITES)
def test_the_opened_survey_is_the_sum_of_the_sites(sites):
    units = FeatureUnits(plan(), BOUNDS)
    sums = [survey_of(cells) for cells in sites]
    vectors = [units.pack_survey(s) for s in sums]
    assert max(np.abs(v).max() for v in vectors) <= 3  # one record counts at most 1
    found = units.unpack_survey(opened(vectors))
    for part, *expected in zip(found[:4], *(s[:4] for s in sums), strict=True):
        np.testing.assert_array_equal(part, np.sum(expected, axis=0))
    np.testing.assert_allclose(found[4], sum(s[4] for s in sums), rtol=0, atol=1e-10)
    origin = FeatureSurvey.of(found, (2, 1), text=False).origin
    seen = found[2] > 0
    slack = 1e-12 * (FLAT[:, 1] - FLAT[:, 0])
    assert (origin >= FLAT[:, 0] - slack)[seen].all()
    assert (origin <= FLAT[:, 1] + slack)[seen].all()


@settings(max_examples=20, deadline=None)
@given(SITES)
def test_the_scaling_from_opened_sums_is_that_of_the_pooled_records(sites):
    units = FeatureUnits(plan(), BOUNDS)
    pooled = np.concatenate(sites)
    count = (~np.isnan(pooled)).sum(axis=0).astype(float)
    origin = np.where(count > 0, np.nansum(pooled, axis=0) / np.maximum(count, 1.0), 0.0)
    moments = [feature_moments(cells, origin) for cells in sites]
    vectors = [units.pack_scaling((m.total, m.squares)) for m in moments]
    assert max(np.abs(v).max() for v in vectors) <= 3 + 1e-9
    total, squares = units.unpack_scaling(opened(vectors), count)
    found = feature_scaling(FeatureMoments(count, total, squares), origin)
    exact = feature_scaling(feature_moments(pooled, origin), origin)
    wide = exact.spread > 1e-4 * (FLAT[:, 1] - FLAT[:, 0])  # narrower ones lose digits
    np.testing.assert_allclose(found.center, exact.center, rtol=0, atol=1e-11)
    np.testing.assert_allclose(found.spread[wide], exact.spread[wide], rtol=1e-5)
    assert not found.dead[wide & ~exact.dead].any()
    assert found.dead[exact.dead].all()


def test_a_column_that_hardly_moves_within_its_bounds_is_constant():
    units = FeatureUnits(plan(), BOUNDS)
    steady = np.array([[5.0, -2.0, 100.2], [5.0 + 1e-6, -2.0 + 1e-4, 100.2]])
    origin = steady.mean(axis=0)
    moments = feature_moments(steady, origin)
    total, squares = units.unpack_scaling(
        opened([units.pack_scaling((moments.total, moments.squares))]), moments.count
    )
    found = feature_scaling(FeatureMoments(moments.count, total, squares), origin)
    assert found.dead.tolist() == [True, False, True]


def test_text_travels_as_it_is():
    units = FeatureUnits(plan(text=True), BOUNDS)
    sums = (*(np.full(k, 7.0) for k in (1, 2, 3, 3)), np.array([4.0, 0.0, 2.0]), np.ones(2))
    packed = units.pack_survey(sums)
    np.testing.assert_array_equal(packed, np.concatenate(sums))
    for part, expected in zip(units.unpack_survey(opened([packed])), sums, strict=True):
        np.testing.assert_array_equal(part, expected)
    cells = np.array([0.5, 0.0, 1.0]), np.array([0.25, 0.0, 1.0])
    np.testing.assert_array_equal(units.pack_scaling(cells), np.concatenate(cells))


def share(rng, gamma, scale=1.0):
    """Return sums of a round as a site sends them."""
    weights = scale * rng.normal(size=(3, 2))
    norms = np.array([np.linalg.norm(weights[:2]), np.linalg.norm(weights[2:])])
    alpha = rng.dirichlet([1.0, 1.0])
    return gamma * weights, np.full(3, gamma), gamma * alpha, gamma * norms, np.array([-1.25])


def test_the_opened_share_is_the_sum_of_the_sites():
    rng, units = np.random.default_rng(0), FeatureUnits(plan(), BOUNDS)
    sums = [share(rng, gamma) for gamma in (0.2, 0.5, 0.3)]
    found = units.unpack_share(opened([units.pack_share(s) for s in sums]))
    for part, *expected in zip(found, *sums, strict=True):
        np.testing.assert_allclose(part, np.sum(expected, axis=0), rtol=0, atol=1e-12)


def test_a_feature_with_hardly_any_weight_behind_it_is_not_divided_by():
    rng, units = np.random.default_rng(0), FeatureUnits(plan(), BOUNDS)
    for gamma, kept in ((1e-5, 1e-5), (1e-7, 0.0)):
        mass = units.unpack_share(opened([units.pack_share(share(rng, gamma))]))[1]
        np.testing.assert_allclose(mass, kept, rtol=1e-9)


def test_what_is_above_its_bound_is_above_the_masks_room():
    rng, units = np.random.default_rng(0), FeatureUnits(plan(), BOUNDS)
    assert np.abs(units.pack_share(share(rng, 1.0))).max() == MOST  # gamma itself
    assert np.abs(units.pack_share(share(rng, 1.0, scale=1e3))).max() > MOST


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_real_weights_stay_far_below_the_bound_that_is_proved(text, missing):
    """A site of 30 records with nearly all of the variance, among 3 sites of at most 1000."""
    rng = np.random.default_rng(1)
    rows = [np.abs(rng.normal(size=(30, 4))), np.abs(rng.normal(size=(30, 3)))]
    for view in rows:
        view[rng.random(view.shape) < missing] = np.nan
    chosen = plan(text=text, mu=0.0, local_sweeps=10)
    units = FeatureUnits(
        chosen,
        [np.zeros((4, 2)), np.zeros((3, 2))]
        if text
        else [np.tile([0.0, 9.0], (4, 1)), np.tile([0.0, 9.0], (3, 1))],
    )
    scaling = []
    for view in rows:
        m = feature_moments(view)
        # 2970 records elsewhere that do not vary at all
        pooled = FeatureMoments(m.count + 2970.0, m.total, m.squares)
        scaling.append(feature_scaling(pooled, text=text))
    site = FeatureSite(
        rows, scaling, chosen.mufsht_settings(), 2, seed=0, device="cpu", name="the site"
    )
    own, broadcast = None, initial_weights(7, 2, 0)
    for _ in range(3):
        fit = site.fit(broadcast, own)
        own = broadcast = fit.weights
    norms = np.array([np.linalg.norm(fit.weights[:4]), np.linalg.norm(fit.weights[4:])])
    assert norms.max() > 1.0
    assert (norms < 0.5 * units.weight_bounds).all()
    sums = fit.weights, np.ones(7), fit.view_weights, norms, np.array([fit.objective])
    assert np.abs(units.pack_share(sums)).max() <= MOST


def test_the_declared_scaling_is_that_of_values_spread_evenly():
    found = declared_feature_scaling(np.array([[0.0, 12.0], [-1.0, 1.0]]))
    evenly = np.linspace(0.0, 12.0, 100_001)
    assert found.center.tolist() == [6.0, 0.0]
    assert found.spread == pytest.approx([evenly.std(), evenly.std() / 6.0], rel=1e-4)
    assert not found.dead.any()
