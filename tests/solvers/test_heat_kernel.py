import numpy as np
import pytest

from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, memberships, spread_sums
from fedmvc_client.solvers.views import PreparedViews
from strategies.messages import ViewScaling
from tests.solvers.cases import (
    KERNELS,
    SCALINGS,
    assert_statistics_close,
    blobs,
    make_case,
)


def with_holes(seed=3):
    """Blobs where cells, one view of some records, and all views of record 7 are missing."""
    rng = np.random.default_rng(seed)
    views = blobs(seed=seed)
    for raw in views:
        raw[rng.random(raw.shape) < 0.15] = np.nan
    views[0][20:60] = np.nan
    views[0][7] = views[1][7] = np.nan
    return views


def one_membership_row(case, row, centers, weights, fuzzifier=2.0):
    u = memberships(
        case.prepared,
        centers,
        weights,
        bandwidth=case.bandwidth,
        holding_share=case.share,
        fuzzifier=fuzzifier,
        view_exponent=5.0,
    )
    return u[row]


@pytest.mark.parametrize("fuzzifier", [2.0, 1.5, 1.1, 1.37, 1.003])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("heat_kernel", KERNELS)
@pytest.mark.parametrize("holes", [False, True])
def test_pass_equals_the_reference(heat_kernel, scaling, fuzzifier, holes):
    case = make_case(with_holes() if holes else blobs(), heat_kernel, scaling)
    centers, weights = case.starts(3, 4)

    found = case.run(centers, weights, fuzzifier)

    settings = case.settings(3, fuzzifier)
    expected = case.reference.statistics(
        centers, weights, settings["bandwidth"], case.share, fuzzifier, 5.0
    )
    assert_statistics_close(found, expected, 1e-10)
    u = one_membership_row(case, slice(None), [a[1] for a in centers], weights[1], fuzzifier)
    reference = case.reference.memberships(
        [a[1] for a in centers], weights[1], case.bandwidth, case.share, fuzzifier, 5.0
    )
    np.testing.assert_allclose(u, reference, rtol=0, atol=1e-10)
    np.testing.assert_allclose(u.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert u.min() >= 0.0


def test_far_from_zero_keeps_its_digits():
    """Without the shift phi of these values (mean 1e6, scaling "none") has not one right digit."""
    views = [raw + 1e6 for raw in blobs()]
    case = make_case(views, "one", "none")
    centers, weights = case.starts(2, 3)

    found = case.run(centers, weights)

    settings = case.settings(2)
    expected = case.reference.statistics(
        centers, weights, settings["bandwidth"], case.share, 2.0, 5.0
    )
    np.testing.assert_allclose(found.dispersion, expected.dispersion, rtol=1e-9)


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_float32_agrees_to_its_precision(heat_kernel):
    views = blobs(n=5000, dims=(4, 20))
    double = make_case(views, heat_kernel)
    single = make_case(views, heat_kernel, dtype="float32")
    centers, weights = double.starts(2, 5)

    assert_statistics_close(single.run(centers, weights), double.run(centers, weights), 2e-5)


def test_cell_mass_and_record_mass_give_the_same_centers():
    """A site without missing cells may have to send cell masses because another site has some."""
    by_record = make_case(blobs(), "one", "standard", cell_mass=[False, False])
    by_cell = make_case(blobs(), "one", "standard", cell_mass=[True, True])
    centers, weights = by_record.starts(2, 3)

    record, cell = by_record.run(centers, weights), by_cell.run(centers, weights)

    for a, b in zip(record.next_centers(centers), cell.next_centers(centers), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    for w, cells in zip(record.mass, cell.mass, strict=True):
        np.testing.assert_allclose(np.broadcast_to(w[..., None], cells.shape), cells, rtol=1e-12)


def test_record_with_coefficient_zero_everywhere_is_uniform_and_weightless():
    """Under Eq. 1 the record with the smallest value of every column is at distance 0 of all."""
    views = blobs()
    for raw in views:
        raw[5] = raw.min(axis=0) - 1.0
    case = make_case(views, "minmax", "minmax")
    centers, weights = case.starts(1, 4)

    row = one_membership_row(case, 5, [a[0] for a in centers], weights[0])

    np.testing.assert_allclose(row, 0.25, atol=1e-15)
    with_it = case.run(centers, weights)
    without = make_case([np.delete(raw, 5, axis=0) for raw in views], pooled=case.scaling)
    without.bandwidth, without.share = case.bandwidth, case.share
    assert_statistics_close(without.run(centers, weights), with_it, 1e-12)


def test_record_at_the_mean_is_uniform_under_absdev():
    views = blobs()
    for raw in views:
        raw[5] = np.delete(raw, 5, axis=0).mean(axis=0)
    case = make_case(views, "absdev", "none")
    centers, weights = case.starts(1, 4)

    row = one_membership_row(case, 5, [a[0] for a in centers], weights[0])

    # The mean itself is rounded, so the coefficient is some 1e-16, not 0: S stays below its floor.
    np.testing.assert_allclose(row, 0.25, atol=1e-12)


@pytest.mark.parametrize("fuzzifier", [2.0, 1.1])
@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_record_on_a_center_belongs_to_it(heat_kernel, fuzzifier):
    case = make_case(blobs(), heat_kernel, "standard")
    centers, weights = case.starts(1, 3)
    row = 11
    for x, a in zip(case.reference.x, centers, strict=True):
        a[0, 2] = x[row]

    u = one_membership_row(case, row, [a[0] for a in centers], weights[0], fuzzifier)

    np.testing.assert_allclose(u, [0.0, 0.0, 1.0], atol=1e-10)


@pytest.mark.parametrize("fuzzifier", [2.0, 1.1])
def test_record_far_from_all_centers_is_uniform(fuzzifier):
    case = make_case(blobs(), "one", "standard", factor=1e5)
    centers, weights = case.starts(1, 4)
    centers = [a + 50.0 for a in centers]

    u = one_membership_row(case, slice(None), [a[0] for a in centers], weights[0], fuzzifier)

    np.testing.assert_array_equal(u, 0.25)


@pytest.mark.parametrize("cells", [True, False])
def test_center_without_mass_keeps_its_place(cells):
    case = make_case(blobs(), "one", "standard", factor=1e5, cell_mass=[cells, cells])
    centers, weights = case.starts(1, 3)
    for a in centers:
        a[0, 1] = 77.0

    sums = case.run(centers, weights)

    for a, new in zip(centers, sums.next_centers(centers), strict=True):
        np.testing.assert_array_equal(new[0, 1], a[0, 1])
        assert not np.isnan(new).any()


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_constant_column_has_no_effect(heat_kernel, scaling):
    views = blobs()
    plain = make_case(views, heat_kernel, scaling)
    views_with = [np.column_stack([views[0], np.full(len(views[0]), 3.5)]), views[1]]
    case = make_case(views_with, heat_kernel, scaling)
    case.bandwidth = plain.bandwidth
    centers, weights = plain.starts(1, 3)
    wide = [np.concatenate([centers[0], [[[-2.0], [0.0], [9.0]]]], axis=2), centers[1]]

    found, expected = case.run(wide, weights), plain.run(centers, weights)

    np.testing.assert_allclose(found.dispersion, expected.dispersion, rtol=1e-12)
    next_centers = found.next_centers(wide)[0]
    np.testing.assert_allclose(
        next_centers[..., :-1], expected.next_centers(centers)[0], atol=1e-12
    )
    # The column's centre: kept where its mass is summed by cell (mass 0), else the constant itself.
    constant = (3.5 - case.scaling[0].offset[-1]) / case.scaling[0].scale[-1]
    kept = wide[0][0, :, -1] if case.cell_mass[0] else np.full(3, constant)
    np.testing.assert_allclose(next_centers[0, :, -1], kept, atol=1e-12)


@pytest.mark.parametrize("fuzzifier", [1.01, 1.001, 1.0001, 1.000001])
def test_fuzzifier_near_one_does_not_overflow(fuzzifier):
    case = make_case(blobs())
    centers, weights = case.starts(2, 3)

    sums = case.run(centers, weights, fuzzifier)

    assert all(np.isfinite(a).all() for a in (*sums.numerator, *sums.mass, sums.dispersion))
    u = one_membership_row(case, slice(None), [a[0] for a in centers], weights[0], fuzzifier)
    np.testing.assert_allclose(u.sum(axis=1), 1.0, rtol=0, atol=1e-12)


def test_record_lacking_one_view_is_judged_by_the_others():
    views = blobs()
    views[0][4] = np.nan
    case = make_case(views, "one", "standard")
    centers, weights = case.starts(1, 3)
    row = one_membership_row(case, 4, [a[0] for a in centers], weights[0])

    only = make_case([views[1]], "one", "standard")
    expected = one_membership_row(only, 4, [centers[1][0]], np.array([1.0]))

    np.testing.assert_allclose(row, expected, atol=1e-12)
    assert case.prepared.held[4].tolist() == [False, True]


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_record_lacking_all_views_is_uniform_and_contributes_nothing(heat_kernel):
    views = blobs()
    for raw in views:
        raw[9] = np.nan
    case = make_case(views, heat_kernel, "standard")
    centers, weights = case.starts(1, 4)

    row = one_membership_row(case, 9, [a[0] for a in centers], weights[0])

    np.testing.assert_array_equal(row, 0.25)
    without = make_case(
        [np.delete(raw, 9, axis=0) for raw in views], heat_kernel, pooled=case.scaling
    )
    without.bandwidth, without.share = case.bandwidth, case.share
    assert_statistics_close(without.run(centers, weights), case.run(centers, weights), 1e-12)


def test_view_not_held_by_the_site_equals_a_view_of_missing_cells():
    views = blobs()
    pooled = make_case(views).scaling
    blank = np.full_like(views[1], np.nan)
    options = {"cell_mass": [True, True]}
    absent = PreparedViews([views[0], None], pooled, "minmax", **options)
    empty = PreparedViews([views[0], blank], pooled, "minmax", **options)
    case = make_case(views)
    centers, weights = case.starts(2, 3)
    settings = case.settings(2)

    found = heat_kernel_pass(absent, centers, weights, **settings)

    assert_statistics_close(heat_kernel_pass(empty, centers, weights, **settings), found, 1e-14)
    assert found.numerator[1].shape == (2, 3, 3)
    assert not found.mass[1].any()
    assert not found.dispersion[:, 1].any()
    np.testing.assert_array_equal(absent.held, empty.held)


def test_missing_cell_is_a_partial_distance():
    """Record (1, missing, 4) to centre 0: the two observed squares count 3/2 times."""
    raw = np.array([[1.0, np.nan, 4.0]])
    scaling = ViewScaling(np.zeros(3), np.ones(3), np.zeros(3), np.ones(3))
    prepared = PreparedViews([raw], [scaling], "one", cell_mass=[True])

    sums = heat_kernel_pass(
        prepared,
        [np.zeros((1, 1, 3))],
        np.ones((1, 1)),
        bandwidth=np.full((1, 1), 0.01),
        holding_share=np.ones(1),
        fuzzifier=2.0,
        view_exponent=2.0,
    )

    phi = 0.01 * 1.5 * (1.0 + 16.0)
    np.testing.assert_allclose(sums.dispersion, [[1 - np.exp(-phi)]], rtol=1e-12)
    np.testing.assert_allclose(sums.mass[0][0, 0], 1.5 * np.exp(-phi) * np.array([1, 0, 1]))
    np.testing.assert_allclose(sums.numerator[0][0, 0], 1.5 * np.exp(-phi) * np.array([1, 0, 4]))


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_spread_sums_are_sums_over_records(heat_kernel):
    case = make_case(with_holes(), heat_kernel, "standard")

    sums = spread_sums(case.prepared)

    for found, x, delta in zip(sums, case.reference.x, case.reference.delta, strict=True):
        expected = [(delta * x**2).sum(axis=0), (delta * x).sum(axis=0), delta.sum(axis=0)]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_wrong_shapes_are_refused_with_both_numbers():
    case = make_case(blobs())
    centers, weights = case.starts(2, 3)
    with pytest.raises(ValueError, match=r"view 1 have shape \(2, 3, 2\), expected \(2, 3, 3\)"):
        case.run([centers[0], centers[0]], weights)
    with pytest.raises(ValueError, match=r"view_weights has shape \(2, 1\)"):
        case.run(centers, weights[:, :1])
    with pytest.raises(ValueError, match="centres must be finite"):
        case.run([centers[0] * np.nan, centers[1]], weights)


def test_illegal_preparations_are_refused():
    views = blobs()
    pooled = make_case(views).scaling
    with pytest.raises(ValueError, match="needs cell_mass=True in view 0"):
        PreparedViews(views, pooled, "minmax", cell_mass=[False, True])
    with pytest.raises(ValueError, match=r"number of rows >= 1, got \[199, 200\]"):
        PreparedViews([views[0][1:], views[1]], pooled, "minmax", cell_mass=[True, True])
    with pytest.raises(ValueError, match="number of rows >= 1"):
        PreparedViews([None, None], pooled, "minmax", cell_mass=[True, True])
    with pytest.raises(ValueError, match=r"view 1 has shape \(200, 2\) .* 3 columns"):
        PreparedViews(views[::-1], pooled[::-1][:1] * 2, "minmax", cell_mass=[True, True])
    views[0][0, 0] = np.nan
    with pytest.raises(ValueError, match="no partly missing row"):
        PreparedViews(views, pooled, "one", cell_mass=[False, True])
