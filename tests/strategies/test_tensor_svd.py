"""Tensor shrinkage beside brute force and slow loops; its symmetries and their failures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.tensor_svd import gst, largest_singular_value, shrink

ORIENTATIONS = ("sample", "cluster", "view", "unfold", "identity")
TRANSFORMED = {"sample": 0, "cluster": 1, "view": 2}
SHAPES = [(7, 4, 3), (8, 3, 4), (6, 2, 5), (3, 5, 1)]


def tensor(shape=(8, 3, 4), seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def slow_shrink(t, tau, p, orientation, iterations):
    """Full complex slices, one singular value decomposition each; also the norm of the result."""
    if orientation == "unfold":
        slices, back = [t.reshape(-1, t.shape[2])], lambda found: found[0].reshape(t.shape)
    elif orientation == "identity":
        slices, back = list(t), np.stack
    else:
        axis = TRANSFORMED[orientation]
        slices = list(np.moveaxis(np.fft.fft(t, axis=axis), axis, 0))

        def back(found):
            return np.fft.ifft(np.moveaxis(np.stack(found), 0, axis), axis=axis)

    found, norm = [], 0.0
    for piece in slices:
        u, sigma, vh = np.linalg.svd(piece, full_matrices=False)
        x = np.array([gst(np.array([s]), tau, p, iterations)[0] for s in sigma])
        found.append(u @ np.diag(x) @ vh)
        norm += (x**p).sum()
    n3 = len(slices) if orientation in TRANSFORMED else 1
    shrunk = back(found)
    assert np.abs(np.imag(shrunk)).max() < 1e-12
    return np.real(shrunk), norm / n3


def norm_of(t, p, orientation):
    return slow_shrink(t, 0.0, p, orientation, 1)[1]


# -- the generalised soft threshold ---------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.8, 0.9, 0.97, 1.0])
@pytest.mark.parametrize("tau", [0.01, 0.4, 1.0, 3.0])
def test_gst_is_the_minimiser(p, tau):
    grid = np.linspace(0.0, 6.0, 60_001)
    for sigma in (0.0, 0.1, 0.37, 0.9, 1.5, 2.2, 4.0, 6.0):
        values = 0.5 * (grid - sigma) ** 2 + tau * grid**p
        x = gst(np.array([sigma]), tau, p, 60)[0]
        assert 0.5 * (x - sigma) ** 2 + tau * x**p <= values.min() + 1e-12
        assert abs(x - grid[values.argmin()]) < 2e-4


@pytest.mark.parametrize("p", [0.3, 0.9])
def test_ten_iterations_reach_the_limit(p):
    sigma = np.linspace(0.0, 5.0, 400)
    assert np.abs(gst(sigma, 0.7, p, 10) - gst(sigma, 0.7, p, 200)).max() < 1e-3


def test_the_papers_four_iterations_do_not_reach_the_limit():
    sigma = np.linspace(0.0, 5.0, 4000)
    assert 1e-3 < np.abs(gst(sigma, 0.7, 0.9, 4) - gst(sigma, 0.7, 0.9, 200)).max() < 2e-2


def test_p_one_is_the_soft_threshold():
    assert gst(np.array([0.0, 1.0, 2.0, 3.5]), 2.0, 1.0, 4).tolist() == [0.0, 0.0, 0.0, 1.5]


def test_small_p_is_almost_the_hard_threshold():
    edge = np.sqrt(2 * 0.5)
    found = gst(np.array([0.97 * edge, 1.1 * edge]), 0.5, 1e-4, 10)
    assert found[0] == 0.0
    assert found[1] == pytest.approx(1.1 * edge, abs=1e-3)


@given(st.floats(0.01, 0.99), st.floats(1e-3, 10.0))
def test_nothing_passes_at_or_below_the_threshold(p, tau):
    knee = (2 * tau * (1 - p)) ** (1 / (2 - p))
    edge = knee + tau * p * knee ** (p - 1)
    found = gst(np.array([0.0, edge / 2, edge * (1 - 1e-9), edge * (1 + 1e-9)]), tau, p, 200)
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert found[3] == pytest.approx(knee, rel=1e-3)  # the jump is as high as the knee


@given(st.floats(0.05, 1.0), st.floats(1e-3, 5.0), st.integers(1, 20))
def test_gst_is_monotone_and_never_above_its_argument(p, tau, iterations):
    sigma = np.linspace(0.0, 12.0, 300)
    found = gst(sigma, tau, p, iterations)
    assert (np.diff(found) >= 0).all()
    assert (found <= sigma).all()
    assert (found >= 0).all()


def test_tau_zero_changes_nothing():
    sigma = np.array([0.0, 1e-300, 2.0])
    for p in (0.3, 0.9, 1.0):
        assert np.array_equal(gst(sigma, 0.0, p, 10), sigma)


# -- shrink beside slow loops ---------------------------------------------------------------------


@pytest.mark.parametrize("route", ["gram", "svd"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_shrink_is_the_slow_loop_over_full_slices(orientation, shape, route):
    t = tensor(shape)
    for tau, p in ((0.5, 0.9), (1.5, 0.4), (0.8, 1.0)):
        found, penalty = shrink(t, tau, p, orientation, 10, route)
        expected, norm = slow_shrink(t, tau, p, orientation, 10)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        assert penalty == pytest.approx(norm, abs=1e-12)
        # the case is not empty: something changes, something stays
        assert np.abs(found - t).max() > 0.1
        assert np.abs(found).max() > 0.01


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_lost_at_tau_zero(orientation, shape):
    t = tensor(shape)
    found, penalty = shrink(t, 0.0, 1.0, orientation, 10)
    np.testing.assert_allclose(found, t, atol=5e-14)
    assert penalty == pytest.approx(slow_shrink(t, 0.0, 1.0, orientation, 1)[1])


def test_many_rows_are_multiplied_in_blocks_without_a_seam():
    t = tensor((9001, 4, 6))  # more than one block in "cluster", "view" and "unfold"
    for orientation in ("cluster", "view", "unfold"):
        found, _ = shrink(t, 20.0, 0.9, orientation, 10)
        expected, _ = shrink(t, 20.0, 0.9, orientation, 10, "svd")
        np.testing.assert_allclose(found, expected, atol=1e-11)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_sigma_one_is_where_everything_vanishes(orientation):
    t = tensor()
    sigma = largest_singular_value(t, orientation)
    assert not shrink(t, sigma * (1 + 1e-9), 1.0, orientation, 1)[0].any()
    assert shrink(t, sigma * (1 - 1e-6), 1.0, orientation, 1)[0].any()


@pytest.mark.parametrize("p", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_shrink_is_a_proximal_point(orientation, p):
    """No perturbation lowers 1/2 ||X - T||^2 + tau ||X||_Sp^p: the factor 1/n_3 is part of it."""
    rng = np.random.default_rng(1)
    t, tau = tensor((5, 3, 4)), 0.6

    def objective(x):
        return 0.5 * ((x - t) ** 2).sum() + tau * norm_of(x, p, orientation)

    found, penalty = shrink(t, tau, p, orientation, 100)
    least = 0.5 * ((found - t) ** 2).sum() + tau * penalty
    assert objective(found) == pytest.approx(least, abs=1e-6)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(25):
            assert objective(found + size * rng.normal(size=t.shape)) >= least
            assert objective(found + size * (t - found) * rng.random()) >= least - 1e-9


def test_without_the_factor_the_threshold_is_not_the_proximal_point():
    """Definition 2 as printed lacks 1/n_3; then a smaller tensor is better than the prox."""
    t, tau, n3 = tensor((5, 3, 4)), 0.6, 4
    found, penalty = shrink(t, tau, 1.0, "view", 1)
    other, other_penalty = shrink(t, tau * n3, 1.0, "view", 1)
    printed = 0.5 * ((found - t) ** 2).sum() + tau * n3 * penalty
    assert 0.5 * ((other - t) ** 2).sum() + tau * n3 * other_penalty < printed - 0.1


# -- section 5 of the specification: what each orientation is blind to, and what not --------------

ROWS, NAMES = (0, np.array([3, 0, 6, 1, 7, 5, 2, 4])), (1, np.array([1, 0, 2, 3]))
VIEWS_4, VIEWS_3 = (2, np.array([1, 0, 2, 3])), (2, np.array([1, 0, 2]))


def commutes(orientation, axis, order, t):
    """Largest difference between shrinking the permuted and permuting the shrunk tensor."""
    found, _ = shrink(np.take(t, order, axis), 0.8, 0.9, orientation, 10)
    return np.abs(found - np.take(shrink(t, 0.8, 0.9, orientation, 10)[0], order, axis)).max()


@pytest.mark.parametrize(
    ("orientation", "axis", "order", "holds"),
    [
        ("sample", *ROWS, False),
        ("sample", *NAMES, True),
        ("sample", *VIEWS_4, True),
        ("cluster", *ROWS, True),
        ("cluster", *NAMES, False),
        ("cluster", *VIEWS_4, True),
        ("view", *ROWS, True),
        ("view", *NAMES, True),
        ("view", *VIEWS_4, False),
        ("unfold", *ROWS, True),
        ("unfold", *NAMES, True),
        ("unfold", *VIEWS_4, True),
        ("identity", *ROWS, True),
        ("identity", *NAMES, True),
        ("identity", *VIEWS_4, True),
    ],
)
def test_symmetries_and_their_failures(orientation, axis, order, holds):
    # four names and four views: any order of three is only a shift or a reflection
    difference = commutes(orientation, axis, order, tensor((8, 4, 4), seed=3))
    assert difference < 1e-12 if holds else difference > 0.01


def test_up_to_three_views_have_no_order():
    assert commutes("view", *VIEWS_3, tensor((8, 3, 3))) < 1e-12


def test_sample_orientation_knows_shifts_and_reversal():
    """The smoothness of a file sorted by class is what its transform sees."""
    t = tensor((8, 3, 4))
    assert commutes("sample", 0, np.roll(np.arange(8), 3), t) < 1e-12
    assert commutes("sample", 0, np.arange(8)[::-1], t) < 1e-12


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(12)))
def test_unfold_commutes_with_any_row_order(seed, order):
    assert commutes("unfold", 0, np.array(order), tensor((12, 3, 4), seed)) < 1e-12
