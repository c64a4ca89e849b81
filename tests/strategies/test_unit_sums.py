import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, spread_sums
from fedmvc_client.solvers.views import PreparedViews
from strategies.preparation import view_scaling
from strategies.statistics import Moments, SufficientStatistics, ViewScaling
from strategies.unit_sums import (
    FinalFigures,
    HeatKernelUnits,
    SurveyedView,
    declared_scaling,
    pack_figures,
    pack_survey,
    split,
    survey_size,
    unpack_figures,
    unpack_survey,
)

BOUNDS = [np.array([[0.0, 10.0], [-4.0, 4.0]]), np.array([[100.0, 102.0]])]
KERNELS = ["minmax", "absdev", "one"]


def surveyed(views):
    """Survey rows of views (n, d_h) as a site does."""
    return [
        SurveyedView(
            float(np.isfinite(view).any(axis=1).sum()),
            float((np.isfinite(view).any(axis=1) & ~np.isfinite(view).all(axis=1)).sum()),
            Moments.of(view),
        )
        for view in views
    ]


def rows_within(bounds, n, seed, missing=0.2):
    """Draw rows within bounds; some cells, and some whole rows of a view, are missing."""
    rng = np.random.default_rng(seed)
    views = []
    for b in bounds:
        view = rng.uniform(b[:, 0], b[:, 1], (n, len(b)))
        view[rng.random(view.shape) < missing] = np.nan
        view[rng.random(n) < missing] = np.nan
        views.append(view)
    return views


def test_blocks_are_cut_in_order_and_must_add_up():
    one, none, two = split(np.arange(3.0), [1, 0, 2])
    assert (one.tolist(), none.tolist(), two.tolist()) == ([0.0], [], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"shape \(3,\) has no blocks of \[1, 1\]"):
        split(np.arange(3.0), [1, 1])


def test_declared_scaling_follows_from_the_bounds_alone():
    minmax = declared_scaling(BOUNDS[0], "minmax")
    assert minmax.offset.tolist() == [0.0, -4.0]
    assert minmax.scale.tolist() == [10.0, 8.0]
    assert (minmax.delta_a.tolist(), minmax.delta_b.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert declared_scaling(BOUNDS[0], "absdev").delta_a.tolist() == [0.5, 0.5]


# -- the survey ------------------------------------------------------------------------------


def test_a_survey_by_hand():
    """Two records: (0, 4) and (10, missing); the second view holds 101 once."""
    views = [np.array([[0.0, 4.0], [10.0, np.nan]]), np.array([[101.0], [np.nan]])]
    packed = pack_survey(2, surveyed(views), BOUNDS)
    assert packed.size == survey_size([2, 1]) == 14
    # rows; holding; partly; of each column of each view: count, sum of places, of their squares
    assert packed.tolist() == [2, 2, 1, 1, 0, 2, 1, 0, 1, 2, 1, 1, 0, 0]
    rows, found = unpack_survey(packed, BOUNDS)
    assert (rows, [v.holding for v in found], [v.partly_missing for v in found]) == (
        2,
        [2, 1],
        [1, 0],
    )
    assert found[0].moments.mean.tolist() == [5.0, 4.0]
    assert found[0].moments.m2.tolist() == [50.0, 0.0]
    # the second column and the second view hold one value each
    assert found[0].moments.minimum.tolist() == [0.0, 4.0]
    assert found[0].moments.maximum.tolist() == [10.0, 4.0]
    assert found[1].moments.maximum.tolist() == [101.0]


@given(st.integers(0, 10_000), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_the_sum_of_surveys_is_the_survey_of_all_rows(seed, sizes):
    sites = [rows_within(BOUNDS, n, seed + i) for i, n in enumerate(sizes)]
    total = sum(pack_survey(v[0].shape[0], surveyed(v), BOUNDS) for v in sites)
    rows, found = unpack_survey(total, BOUNDS)
    pooled = surveyed([np.concatenate(view) for view in zip(*sites, strict=True)])
    assert rows == sum(sizes)
    for one, other in zip(found, pooled, strict=True):
        assert (one.holding, one.partly_missing) == (other.holding, other.partly_missing)
        np.testing.assert_array_equal(one.moments.count, other.moments.count)
        np.testing.assert_allclose(one.moments.mean, other.moments.mean, atol=1e-9)
        np.testing.assert_allclose(one.moments.m2, other.moments.m2, atol=1e-7)


def test_a_column_of_one_value_has_no_variance_left_over_from_rounding():
    view = np.full((1000, 1), 100.1)
    total = pack_survey(1000, surveyed([view]), BOUNDS[1:])
    _, (found,) = unpack_survey(total + 1e-13, BOUNDS[1:])
    assert found.moments.m2.tolist() == [0.0]
    assert found.moments.minimum.tolist() == found.moments.maximum.tolist()
    assert found.moments.minimum.tolist() == pytest.approx([100.1])


# -- heat-kernel sums ------------------------------------------------------------------------


def units_of(views, heat_kernel, scaling_kind, *, declared=False):
    """Scale by what the rows say, or by the bounds, and return units and scaling."""
    if declared:
        scaling = [declared_scaling(b, heat_kernel) for b in BOUNDS]
    else:
        moments = [Moments.of(view) for view in views]
        scaling = [view_scaling(mo, scaling_kind, heat_kernel) for mo in moments]
    partly = any((np.isfinite(v).any(axis=1) & ~np.isfinite(v).all(axis=1)).any() for v in views)
    cells = [heat_kernel != "one" or bool(partly)] * len(views)
    return HeatKernelUnits(scaling, BOUNDS, heat_kernel, cells, imputed=False), scaling, cells


def test_a_place_is_minus_one_half_to_one_half_between_the_bounds():
    scaling = [ViewScaling(*np.array([[50.0], [10.0], [0.0], [1.0]]))]
    units = HeatKernelUnits(scaling, [np.array([[40.0, 80.0]])], "one", [False], imputed=True)
    assert (units.low[0].tolist(), units.high[0].tolist()) == ([-1.0], [3.0])
    places = np.array([[-1.0], [1.0], [3.0]])
    assert units.place(0, places).ravel().tolist() == [-0.5, 0.0, 0.5]
    assert units.value(0, units.place(0, places)).ravel().tolist() == [-1.0, 1.0, 3.0]


def test_with_values_in_0_to_1_a_numerator_is_n_less_half_of_w():
    scaling = [declared_scaling(BOUNDS[1], "one")]
    units = HeatKernelUnits(scaling, BOUNDS[1:], "one", [False], imputed=True)
    sums = SufficientStatistics(
        (np.array([[[3.0], [1.0]]]),), (np.array([[4.0, 8.0]]),), np.array([[0.7]])
    )
    assert units.pack(sums).tolist() == [1.0, -3.0, 4.0, 8.0, 0.7]


@pytest.mark.parametrize("scaling_kind", ["minmax", "standard"])
@pytest.mark.parametrize("heat_kernel", KERNELS)
@pytest.mark.parametrize("seed", range(3))
def test_packing_is_undone_and_a_record_counts_at_most_1(heat_kernel, scaling_kind, seed):
    """Whatever the scaling, missing cells and points inside the bounds."""
    views = rows_within(BOUNDS, 30, seed)
    units, scaling, cells = units_of(views, heat_kernel, scaling_kind)
    rng = np.random.default_rng(seed)
    points = [
        rng.uniform(lo, hi, (2, 3, len(lo))) for lo, hi in zip(units.low, units.high, strict=True)
    ]
    weights = rng.dirichlet(np.ones(2), 2)

    def sums_of(rows):
        chosen = [view[rows] for view in views]
        return heat_kernel_pass(
            PreparedViews(chosen, scaling, heat_kernel, cell_mass=cells),
            points,
            weights,
            bandwidth=np.full((2, 2), 0.7),
            holding_share=np.ones(2),
            fuzzifier=1.8,
            view_exponent=3.0,
        )

    whole = sums_of(np.arange(30))
    back = units.unpack(units.pack(whole), 2, 3)
    for one, other in zip(
        (*back.numerator, *back.mass), (*whole.numerator, *whole.mass), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(back.dispersion, whole.dispersion)
    alone = [units.pack(sums_of(np.array([row]))) for row in range(30)]
    assert np.abs(alone).max() <= 1.0 + 1e-12
    np.testing.assert_allclose(sum(alone), units.pack(whole), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_spreads_are_undone_and_a_record_counts_at_most_1(heat_kernel):
    views = rows_within(BOUNDS, 25, 5)
    units, scaling, cells = units_of(views, heat_kernel, "standard")

    def spread(rows):
        chosen = [view[rows] for view in views]
        return spread_sums(PreparedViews(chosen, scaling, heat_kernel, cell_mass=cells))

    whole = spread(np.arange(25))
    for one, other in zip(units.unpack_spread(units.pack_spread(whole)), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    alone = [units.pack_spread(spread(np.array([row]))) for row in range(25)]
    assert np.abs(alone).max() <= 1.0 + 1e-12


def test_the_survey_gives_the_scaling_that_the_rows_give():
    """With bounds at the extremes: what a masked run prepares is what a plain one does."""
    views = rows_within(BOUNDS, 40, 9)
    tight = [np.stack([np.nanmin(v, axis=0), np.nanmax(v, axis=0)], axis=1) for v in views]
    _, found = unpack_survey(pack_survey(40, surveyed(views), tight), tight)
    for one, view in zip(found, views, strict=True):
        for kind in ("minmax", "standard"):
            masked = view_scaling(one.moments, kind, "minmax")
            plain = view_scaling(Moments.of(view), kind, "minmax")
            for part in ("offset", "scale", "delta_a", "delta_b"):
                np.testing.assert_allclose(
                    getattr(masked, part), getattr(plain, part), rtol=1e-12, atol=1e-12
                )


# -- final figures ---------------------------------------------------------------------------


def test_figures_come_back_and_never_below_zero():
    figures = FinalFigures(30, np.array([10.5, 19.5]), np.array([2.0, 0.25]), 21.0)
    packed = pack_figures(figures)
    assert packed.tolist() == [30, 10.5, 19.5, 2.0, 0.25, 21.0]
    back = unpack_figures(packed, 2, 2)
    assert (back.n_rows, back.coefficient) == (30, 21.0)
    assert (back.sizes.tolist(), back.dispersion.tolist()) == ([10.5, 19.5], [2.0, 0.25])
    assert unpack_figures(packed - 11, 2, 2).sizes.tolist() == [0.0, 8.5]
