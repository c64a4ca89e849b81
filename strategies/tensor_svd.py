"""Tensor Schatten-p shrinkage by the t-SVD: the G step (Eq. 32) of TensorFMVC.

A tensor (N, K, M) is cut into frontal slices after a Fourier transform along one axis, the
"orientation"; each slice's singular values pass the generalised soft threshold. The norm is
``||T||_Sp^p = 1/n_3 sum_f sum_i sigma_i(T^_f)^p`` with the un-normalised transform; the factor
1/n_3, which Definition 2 lacks, is what makes the thresholded slices the exact proximal point.

============  ==========================  =========================
orientation   slices                      transform along
============  ==========================  =========================
sample        N of K x M                  rows (depends on their order)
cluster       K of N x M                  clusters (on their names)
view          M of N x K                  views (on their order from 4 on)
unfold        one of NK x M               nothing
identity      N of K x M                  nothing
============  ==========================  =========================
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from configs.tensor_profiles import Orientation
from strategies.statistics import Floats

__all__ = ["ORIENTATIONS", "gram_map", "gst", "largest_singular_value", "shrink"]

#: Slices (F, a, b), float64 or complex128.
Slices = NDArray[Any]

#: Axis that becomes the slice number, and whether it is transformed.
ORIENTATIONS: dict[Orientation, tuple[int, bool]] = {
    "sample": (0, True),
    "cluster": (1, True),
    "view": (2, True),
    "identity": (0, False),
}
#: Multiplications of one matrix product, complex ones at that: below this a BLAS library uses one
#: thread, so that no result depends on the number of threads.
SMALL_PRODUCT = 1 << 15


def gst(sigma: Floats, tau: float, p: float, iterations: int) -> Floats:
    """Generalised soft threshold: ``argmin_x 1/2 (x - sigma)^2 + tau x^p`` over x >= 0.

    Parameters
    ----------
    sigma : ndarray, float64
        None negative.
    tau : float
        0 or more.
    p : float
        Above 0, at most 1. At p = 1 this is the soft threshold.
    iterations : int
        Of ``x <- sigma - tau p x^(p-1)`` (Zuo et al. 2013); its error shrinks by p/2 or more each.

    Returns
    -------
    ndarray of the shape of ``sigma``
        0 at and below ``tau* = (2 tau (1-p))^(1/(2-p)) + tau p (2 tau (1-p))^((p-1)/(2-p))``.
    """
    if tau == 0:
        return sigma.copy()
    if p == 1:
        return np.asarray(np.maximum(sigma - tau, 0.0))
    knee = (2 * tau * (1 - p)) ** (1 / (2 - p))
    kept = sigma > knee + tau * p * knee ** (p - 1)
    start = sigma[kept]
    x = start
    for _ in range(iterations):
        x = start - tau * p * x ** (p - 1)
    out = np.zeros_like(sigma)
    out[kept] = x
    return out


def shrink(
    tensor: Floats,
    tau: float,
    p: float,
    orientation: Orientation,
    iterations: int,
    route: Literal["gram", "svd"] = "gram",
) -> tuple[Floats, float]:
    """Proximal point of ``tau ||.||_Sp^p`` at a tensor.

    Parameters
    ----------
    tensor : ndarray of shape (N, K, M), float64
    tau : float
        lambda / mu, 0 or more.
    p : float
        Above 0, at most 1.
    orientation : {"sample", "cluster", "view", "unfold", "identity"}
    iterations : int
        Of `gst`.
    route : {"gram", "svd"}
        Singular values from the eigenvalues of the smaller Gram matrix, or from an SVD: the same
        up to rounding, since small values, where the Gram route loses digits, become 0.

    Returns
    -------
    shrunk : ndarray of shape (N, K, M)
    penalty : float
        ``||shrunk||_Sp^p``.
    """
    slices, weights = _slices(tensor, orientation)
    if slices.shape[2] > slices.shape[1]:
        flipped, sigma = _shrink_slices(slices.swapaxes(1, 2), tau, p, iterations, route)
        found = flipped.swapaxes(1, 2)
    else:
        found, sigma = _shrink_slices(slices, tau, p, iterations, route)
    penalty = float(weights @ (sigma**p).sum(axis=1))
    return _tensor(found, tensor.shape, orientation), penalty


def largest_singular_value(tensor: Floats, orientation: Orientation) -> float:
    """Largest singular value of any slice: `shrink` at p = 1 and this ``tau`` gives 0."""
    slices, _ = _slices(tensor, orientation)
    tall = slices if slices.shape[1] >= slices.shape[2] else slices.swapaxes(1, 2)
    return float(np.sqrt(max(float(np.linalg.eigvalsh(_gram(tall)).max()), 0.0)))


def gram_map(gram: Slices, tau: float, p: float, iterations: int) -> tuple[Slices, Floats]:
    """Map A that shrinks slices from the right: S A is the proximal point of S.

    Parameters
    ----------
    gram : ndarray of shape (..., b, b)
        ``S^H S``.
    tau, p, iterations
        Of `gst`.

    Returns
    -------
    map : ndarray of shape (..., b, b)
        ``V diag(gst(sigma) / sigma) V^H``.
    sigma : ndarray of shape (..., b)
        Singular values of the proximal point.
    """
    eigenvalues, vectors = np.linalg.eigh(gram)
    sigma = np.sqrt(np.maximum(eigenvalues, 0.0))
    shrunk = gst(sigma, tau, p, iterations)
    factor = np.divide(shrunk, sigma, out=np.zeros_like(sigma), where=sigma > 0)
    return (vectors * factor[..., None, :]) @ vectors.conj().swapaxes(-1, -2), shrunk


def _slices(tensor: Floats, orientation: Orientation) -> tuple[Slices, Floats]:
    """Cut a tensor into slices (F, a, b), each with its weight in the norm.

    The second half of a real tensor's spectrum is the conjugate of the first: it is left out and
    counted by the weights.
    """
    if orientation == "unfold":
        return tensor.reshape(1, -1, tensor.shape[2]), np.ones(1)
    axis, transformed = ORIENTATIONS[orientation]
    moved = np.moveaxis(tensor, axis, 0)
    n3 = moved.shape[0]
    if not transformed:
        return moved, np.ones(n3)
    half = np.fft.rfft(moved, axis=0)
    weights = np.full(half.shape[0], 2.0 / n3)
    weights[0] = 1.0 / n3
    if n3 % 2 == 0:
        weights[-1] = 1.0 / n3
    return half, weights


def _tensor(slices: Slices, shape: tuple[int, ...], orientation: Orientation) -> Floats:
    """Undo `_slices`."""
    if orientation == "unfold":
        return np.asarray(slices.real.reshape(shape))
    axis, transformed = ORIENTATIONS[orientation]
    moved = np.fft.irfft(slices, n=shape[axis], axis=0) if transformed else slices.real
    return np.ascontiguousarray(np.moveaxis(moved, 0, axis))


def _steps(shape: tuple[int, ...]) -> range:
    """First rows of the blocks that tall slices (F, a, b) are multiplied in."""
    _, a, b = shape
    return range(0, a, max(SMALL_PRODUCT // b**2, 1))


def _gram(slices: Slices) -> Slices:
    """Return ``S^H S`` of tall slices, summed over blocks of rows in order."""
    steps = _steps(slices.shape)
    total = np.zeros((slices.shape[0], slices.shape[2], slices.shape[2]), slices.dtype)
    for start in steps:
        block = slices[:, start : start + steps.step]
        total += block.conj().swapaxes(1, 2) @ block
    return total


def _shrink_slices(
    slices: Slices, tau: float, p: float, iterations: int, route: str
) -> tuple[Slices, Floats]:
    """Shrink tall slices (F, a, b), b at most a; also return the shrunk values (F, b)."""
    if route == "svd":
        u, sigma, vh = np.linalg.svd(slices, full_matrices=False)
        shrunk = gst(sigma, tau, p, iterations)
        return (u * shrunk[:, None, :]) @ vh, shrunk
    matrix, shrunk = gram_map(_gram(slices), tau, p, iterations)
    steps = _steps(slices.shape)
    out = np.empty(slices.shape, slices.dtype)
    for start in steps:
        out[:, start : start + steps.step] = slices[:, start : start + steps.step] @ matrix
    return out, shrunk
