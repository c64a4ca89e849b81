"""The noise of the FedHK-MVFC paper, Eqs. 73, 74 and 76 as printed: for comparison only.

The paper's example gives a variance of 23.03 for epsilon = 1 and delta = 1e-5. That is 2 log(1e5),
the 1.25 lost; its Eq. 73 gives 23.47. Its sensitivity is taken to be 1. Encrypt and SecAgg of Eq.
75 are the masked sums of :mod:`privacy.secagg`, not a mechanism of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.gaussian_noise import rounded_gaussian

__all__ = ["NO_GUARANTEE", "PaperMechanism"]

Floats = NDArray[np.float64]

#: Why a certificate names no epsilon for this mechanism.
NO_GUARANTEE = (
    "no guarantee: the noise follows Eqs. 73, 74 and 76 of the FedHK-MVFC paper as printed, but a "
    "centre is a ratio that one patient can move across the whole range of the data, 1/n is not "
    "how far one moves a view weight, Eq. 73 holds for epsilon below 1 only, and the epsilons of "
    "Eq. 76 add up to more than the total (to 1.59 times it over 10 rounds)"
)
#: Noise is drawn in steps of sigma / 2^20.
_STEPS = 2.0**20


@dataclass(frozen=True)
class PaperMechanism:
    """What each site adds to its centres and view weights.

    Attributes
    ----------
    epsilon : float
        The total of Eq. 76.
    delta : float
        The same in every round.
    rounds : int
        T.
    sensitivity : float
        Delta of Eq. 73; the paper's example has 1.
    """

    epsilon: float
    delta: float
    rounds: int
    sensitivity: float = 1.0

    def round_epsilon(self, t: int) -> float:
        """Return epsilon of round t = 0 .. T-1 (Eq. 76)."""
        return self.epsilon / math.sqrt(self.rounds) / math.sqrt(t + 1)

    def center_sigma(self, t: int) -> float:
        """Return the standard deviation of the noise of a centre's coordinate (Eq. 73)."""
        return self.sensitivity * self._root / self.round_epsilon(t)

    def view_weight_sigma(self, t: int, n_rows: int) -> float:
        """Return that of a view weight of a site of ``n_rows`` (Eq. 74)."""
        return self._root / (self.round_epsilon(t) * n_rows)

    def perturb(
        self, centers: Sequence[Floats], view_weights: Floats, t: int, n_rows: int
    ) -> tuple[tuple[Floats, ...], Floats]:
        """Return a site's model with fresh noise.

        Parameters
        ----------
        centers : sequence of ndarray of shape (R, c, d_h)
        view_weights : ndarray of shape (R, s)
            They need not be on the simplex afterwards.
        t : int
            Round, 0 .. T-1.
        n_rows : int
            Records of the site.
        """
        noisy = tuple(a + _normal(self.center_sigma(t), a.shape) for a in centers)
        return noisy, view_weights + _normal(self.view_weight_sigma(t, n_rows), view_weights.shape)

    @property
    def _root(self) -> float:
        return math.sqrt(2 * math.log(1.25 / self.delta))


def _normal(sigma: float, shape: tuple[int, ...]) -> Floats:
    return np.asarray(rounded_gaussian(np.full(shape, _STEPS)) * (sigma / _STEPS))
