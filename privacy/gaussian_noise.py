"""Gaussian noise in whole steps of a grid, drawn so that its low bits tell nothing.

A float near 1 has 53 bits, so a sampler that inverts the distribution there reaches only some of
the far values: which of two neighbouring sums was sent could then be read off the last bits of the
noisy one (Mironov, CCS 2012). Here the magnitude comes from the small end, where floats are dense,
the sign from a bit of its own, and the result is rounded to a step 2^-20 times as large.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privacy.os_random import random_bytes, random_words

__all__ = ["TAIL", "WORST_RELATIVE_ERROR", "rounded_gaussian"]

#: Probability that a number lies beyond 7.65 sigma, where nothing is claimed of the sampler: it is
#: charged to delta, once a number.
TAIL = 2e-14
#: Up to there a step's probability is off by sigma times this factor at most on average, sigma in
#: steps: the edges of the step are placed to one unit in the last place. It is charged to epsilon,
#: twice a number.
WORST_RELATIVE_ERROR = 2.0**-52


def rounded_gaussian(sigma: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw independent normal numbers of mean 0, rounded to whole steps.

    Each is ``round(sigma (+-) ndtri(u / 2))`` with ``u = (k + 1/2) / 2^128`` and k uniform: with 64
    bits the probabilities of steps near 7 sigma would be coarse multiples of 2^-65.

    Parameters
    ----------
    sigma : ndarray of any shape, float64
        Standard deviations in steps, each below 2^58.

    Returns
    -------
    ndarray of the same shape, int64
    """
    high, low = random_words(2 * sigma.size).astype(np.float64).reshape(2, *sigma.shape)
    uniform = (high + (low + 0.5) * 2.0**-64) * 2.0**-64
    magnitude = np.rint(sigma * -ndtri(uniform / 2)).astype(np.int64)
    negative = (random_bytes(sigma.size) & 1).reshape(sigma.shape)
    return np.asarray(np.where(negative, -magnitude, magnitude))
