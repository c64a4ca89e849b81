"""What a fit must satisfy: descent, stationarity, symmetries, limits."""

import numpy as np
import pytest

from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, memberships
from fedmvc_client.solvers.local import local_iterations
from fedmvc_client.solvers.views import PreparedViews
from strategies.statistics import pooled as pooled_statistics
from tests.solvers.cases import KERNELS, SCALINGS, assert_statistics_close, blobs, make_case

ACTIVE = np.ones(2, dtype=bool)


def objectives(case, centers, weights, n_iterations, fuzzifier=2.0, view_exponent=5.0):
    """J of every start before each iteration, (n_iterations, R), and the end state."""
    history = []
    for _ in range(n_iterations):
        before = weights
        centers, weights, first = local_iterations(
            case.prepared,
            centers,
            weights,
            1,
            active=ACTIVE,
            **case.settings(len(weights), fuzzifier, view_exponent),
        )
        history.append(first.objective(before, case.share, view_exponent))
    return np.array(history), centers, weights


def final_memberships(case, centers, weights, fuzzifier=2.0):
    return memberships(
        case.prepared,
        [a[0] for a in centers],
        weights[0],
        bandwidth=case.bandwidth,
        holding_share=case.share,
        fuzzifier=fuzzifier,
        view_exponent=5.0,
    )


@pytest.mark.parametrize("fuzzifier", [2.0, 1.3])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_objective_never_rises(heat_kernel, scaling, fuzzifier):
    case = make_case(blobs(separation=1.5), heat_kernel, scaling, factor=2.0)
    centers, weights = case.starts(20, 4)

    history, _, weights = objectives(case, centers, weights, 40, fuzzifier)

    rise = (history[1:] - history[:-1]) / history[:-1]
    assert rise.max() <= 1e-12
    assert (history[-1] < 0.999 * history[0]).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert weights.min() >= 0.0


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_objective_never_rises_where_records_lack_views(heat_kernel):
    views = blobs(separation=1.5)
    rng = np.random.default_rng(5)
    views[0][rng.random(200) < 0.6] = np.nan
    views[1][rng.random(views[1].shape) < 0.2] = np.nan
    case = make_case(views, heat_kernel, "standard", factor=2.0)
    centers, weights = case.starts(20, 4)

    history, _, _ = objectives(case, centers, weights, 40)

    assert ((history[1:] - history[:-1]) / history[:-1]).max() <= 1e-12


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_the_order_memberships_centres_view_weights_descends_too(heat_kernel):
    """U -> A -> V: the view weights come from a second pass, at the new centres."""
    case = make_case(blobs(separation=1.5), heat_kernel, "minmax", factor=2.0)
    centers, weights = case.starts(20, 4)
    history = []
    for _ in range(40):
        first = case.run(centers, weights)
        history.append(first.objective(weights, case.share, 5.0))
        centers = list(first.next_centers(centers))
        second = case.run(centers, weights)
        history.append(second.objective(weights, case.share, 5.0))
        weights = second.next_view_weights(case.share, 5.0, ACTIVE)

    values = np.array(history)
    assert values.shape == (80, 20)
    assert ((values[1:] - values[:-1]) / values[:-1]).max() <= 1e-12
    assert (values[-1] < 0.999 * values[0]).all()


@pytest.mark.parametrize("heat_kernel", ["minmax", "absdev"])
def test_printed_center_update_rises(heat_kernel):
    """Eq. 48 as printed loses delta: not a descent, in most starts."""
    case = make_case(blobs(separation=1.5), heat_kernel, "minmax", factor=2.0)
    centers, weights = case.starts(8, 4)
    risen = 0
    for r in range(8):
        own, v = [a[r] for a in centers], weights[r : r + 1]
        history = []
        for _ in range(40):
            sums = case.run([a[None] for a in own], v)
            history.append(sums.objective(v, case.share, 5.0)[0])
            new_v = sums.next_view_weights(case.share, 5.0, ACTIVE)
            own = case.reference.plain_centers(own, v[0], case.bandwidth, case.share, 2.0, 5.0)
            v = new_v
        risen += bool((np.diff(history) > 1e-12 * np.array(history[:-1])).any())

    assert risen >= 4


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_gradient_vanishes_at_the_limit(heat_kernel):
    case = make_case(blobs(n=100), heat_kernel, "minmax")
    centers, weights = case.starts(1, 3)
    centers, weights, _ = local_iterations(
        case.prepared, centers, weights, 300, active=ACTIVE, **case.settings(1)
    )

    def objective(h, k, j, step):
        moved = [a.copy() for a in centers]
        moved[h][0, k, j] += step
        return case.run(moved, weights).objective(weights, case.share, 5.0)[0]

    # Memberships are recomputed at the moved centres: at their minimum they do not change the
    # derivative (envelope theorem).
    step = 1e-5
    for h, a in enumerate(centers):
        for k, j in np.ndindex(a.shape[1:]):
            slope = (objective(h, k, j, step) - objective(h, k, j, -step)) / (2 * step)
            assert abs(slope) <= 1e-6


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_order_of_records_clusters_and_views_does_not_matter(heat_kernel):
    rng = np.random.default_rng(2)
    views = blobs()
    case = make_case(views, heat_kernel, "standard")
    centers, weights = case.starts(1, 3)
    rows, clusters = rng.permutation(200), np.array([2, 0, 1])
    other = make_case([raw[rows] for raw in views[::-1]], heat_kernel, "standard")

    _, a, v = objectives(case, centers, weights, 15)
    _, b, w = objectives(
        other, [m[:, clusters] for m in centers[::-1]], weights[:, ::-1].copy(), 15
    )

    np.testing.assert_allclose(w[:, ::-1], v, rtol=0, atol=1e-9)
    for found, expected in zip(b[::-1], a, strict=True):
        np.testing.assert_allclose(found, expected[:, clusters], rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        final_memberships(other, b, w),
        final_memberships(case, a, v)[rows][:, clusters],
        rtol=0,
        atol=1e-9,
    )


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_positive_affine_map_of_a_feature_does_not_matter_under_minmax_scaling(heat_kernel):
    views = blobs()
    mapped = [raw.copy() for raw in views]
    mapped[1][:, 2] = 37.0 * mapped[1][:, 2] - 900.0
    case, other = make_case(views, heat_kernel), make_case(mapped, heat_kernel)
    centers, weights = case.starts(1, 3)

    _, a, v = objectives(case, centers, weights, 15)
    _, b, w = objectives(other, centers, weights, 15)

    np.testing.assert_allclose(w, v, rtol=0, atol=1e-8)
    for found, expected in zip(b, a, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_sign_flip_of_a_feature_matters_only_to_minmax(heat_kernel):
    views = blobs(separation=1.5)
    flipped = [raw.copy() for raw in views]
    flipped[0][:, 0] *= -1.0
    case, other = make_case(views, heat_kernel), make_case(flipped, heat_kernel)
    other.bandwidth = case.bandwidth
    centers, weights = case.starts(1, 3)
    mirrored = [a.copy() for a in centers]
    mirrored[0][..., 0] = 1.0 - mirrored[0][..., 0]

    _, a, v = objectives(case, centers, weights, 10)
    _, b, w = objectives(other, mirrored, weights, 10)

    difference = np.abs(final_memberships(case, a, v) - final_memberships(other, b, w)).max()
    if heat_kernel == "minmax":
        assert difference > 0.01
    else:
        assert difference < 1e-9


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_centers_lie_in_the_box_of_the_data(heat_kernel, scaling):
    case = make_case(blobs(), heat_kernel, scaling)
    centers, weights = case.starts(5, 3)
    centers = [a + 0.3 for a in centers]

    centers, _, _ = local_iterations(
        case.prepared, centers, weights, 3, active=ACTIVE, **case.settings(5)
    )

    for a, x in zip(centers, case.reference.x, strict=True):
        slack = 1e-12 * np.abs(x).max()
        assert (a >= x.min(axis=0) - slack).all()
        assert (a <= x.max(axis=0) + slack).all()


def fuzzy_c_means(x, centers, m, n_iterations):
    """Plain fuzzy c-means, the limit of the heat kernel at small bandwidth."""
    for _ in range(n_iterations):
        distance = ((x[:, None, :] - centers[None]) ** 2).sum(axis=2)
        inverse = np.maximum(distance, 1e-15) ** (-1.0 / (m - 1.0))
        u = inverse / inverse.sum(axis=1, keepdims=True)
        centers = (u**m).T @ x / (u**m).sum(axis=0)[:, None]
    return centers, u


@pytest.mark.parametrize("fuzzifier", [2.0, 1.3])
def test_small_bandwidth_is_fuzzy_c_means(fuzzifier):
    case = make_case(blobs(), "one", "standard", factor=1e-7)
    centers, _ = case.starts(1, 3)
    weights = np.full((1, 2), 0.5)
    root = np.sqrt(case.bandwidth / case.bandwidth.max())
    x = np.hstack([view * f for view, f in zip(case.reference.x, root, strict=True)])
    start = np.hstack([a[0] * f for a, f in zip(centers, root, strict=True)])

    expected, _ = fuzzy_c_means(x, start, fuzzifier, 30)
    for _ in range(30):
        centers = case.run(centers, weights, fuzzifier).next_centers(centers)

    found = np.hstack([a[0] * f for a, f in zip(centers, root, strict=True)])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    _, u = fuzzy_c_means(x, expected, fuzzifier, 1)
    np.testing.assert_allclose(
        final_memberships(case, centers, weights, fuzzifier), u, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_splitting_a_site_in_two_leaves_the_sums_unchanged(heat_kernel):
    views = blobs(n=9001)
    case = make_case(views, heat_kernel, "standard")
    centers, weights = case.starts(2, 3)
    parts = []
    for rows in (slice(0, 4000), slice(4000, None)):
        part = PreparedViews(
            [raw[rows] for raw in views], case.scaling, heat_kernel, cell_mass=case.cell_mass
        )
        parts.append(heat_kernel_pass(part, centers, weights, **case.settings(2)))

    assert_statistics_close(pooled_statistics(parts), case.run(centers, weights), 1e-13)


def test_local_iterations_return_the_statistics_of_the_first_pass():
    case = make_case(blobs())
    centers, weights = case.starts(2, 3)

    once = case.run(centers, weights)
    moved, v, first = local_iterations(
        case.prepared, centers, weights, 3, active=ACTIVE, **case.settings(2)
    )

    assert_statistics_close(first, once, 0.0)
    step = once
    a, w = centers, weights
    for _ in range(3):
        step = case.run(a, w)
        a, w = step.next_centers(a), step.next_view_weights(case.share, 5.0, ACTIVE)
    np.testing.assert_array_equal(v, w)
    for found, expected in zip(moved, a, strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="n_iterations=0 must be >= 1"):
        local_iterations(case.prepared, centers, weights, 0, active=ACTIVE, **case.settings(2))
