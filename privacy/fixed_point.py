"""Sums as integers mod 2^64: what masks can hide, and additions that lose no bit.

A number is rounded to a grid of step 2^-f and counted in steps. The bounds are chosen so that the
sum over all sites cannot leave the signed half of the ring: n * clip * 2^f < 2^63.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError, ProtocolError

__all__ = ["FixedPoint", "to_ring"]

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Ring = NDArray[np.uint64]

_HALF_RING = 2**63


@dataclass(frozen=True)
class FixedPoint:
    """A grid that all sites of a run share.

    Parameters
    ----------
    fraction_bits : int
        f: the grid's step is 2^-f. May be negative.
    clip : float
        Largest magnitude of one site's number, noise included; positive, in the number's unit.
    n_sites : int
        Number of sites that may be summed.

    Raises
    ------
    ConfigError
        If the sum of all sites could leave the ring.
    """

    fraction_bits: int
    clip: float
    n_sites: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0 and self.n_sites >= 1):
            raise ConfigError(
                f"a fixed-point grid needs a positive bound and a site (bound {self.clip:g}, "
                f"{self.n_sites} sites): check the schema's bounds and privacy.max_rows"
            )
        if self._largest_steps >= _HALF_RING:
            raise ConfigError(
                f"sums of {self.n_sites} sites within {self.clip:g} in steps of "
                f"2^-{self.fraction_bits} need more than 63 bits: lower privacy.max_rows or the "
                "schema's bounds, or raise the noise"
            )

    @classmethod
    def finest(cls, clip: float, n_sites: int) -> FixedPoint:
        """Return the grid with the largest f for which n * clip * 2^f < 2^63."""
        bound = n_sites * Fraction(clip) if math.isfinite(clip) else Fraction(0)
        if bound <= 0:
            return cls(0, clip, n_sites)  # refused there, with its reason
        fraction_bits = 63 - math.ceil(math.log2(n_sites) + math.log2(clip))
        # the logarithm is rounded: step to the exact answer
        while bound * _power_of_two(fraction_bits) >= _HALF_RING:
            fraction_bits -= 1
        while bound * _power_of_two(fraction_bits + 1) < _HALF_RING:
            fraction_bits += 1
        return cls(fraction_bits, clip, n_sites)

    @property
    def step(self) -> float:
        """Distance of two neighbours on the grid, 2^-f."""
        return math.ldexp(1.0, -self.fraction_bits)

    @property
    def _largest_steps(self) -> Fraction:
        return self.n_sites * Fraction(self.clip) * _power_of_two(self.fraction_bits)

    def encode(self, values: Floats) -> Steps:
        """Round to the grid, halves to the even neighbour.

        Parameters
        ----------
        values : ndarray of shape (k,), float64
            One site's numbers before noise, each within ``clip``.

        Returns
        -------
        ndarray of shape (k,), int64
            In steps; the rounding error is at most half a step.

        Raises
        ------
        ProtocolError
            If a number is not finite or above ``clip``; the sentence holds no value.
        """
        # written so that NaN is found too
        outside = np.flatnonzero(~(np.abs(values) <= self.clip))
        if outside.size:
            raise ProtocolError(
                f"{outside.size} of the site's {values.size} sums are not finite or above their "
                f"bound {self.clip:g}: nothing was sent; check the schema's bounds and "
                "privacy.max_rows",
                local_detail=f"the first is number {outside[0]}",
            )
        # a product with a power of two is exact
        return np.rint(np.ldexp(values, self.fraction_bits)).astype(np.int64)

    def decode(self, total: Ring) -> Floats:
        """Read a sum over sites.

        Parameters
        ----------
        total : ndarray of shape (k,), uint64
            Sum mod 2^64 of at most ``n_sites`` encoded vectors.

        Returns
        -------
        ndarray of shape (k,), float64

        Raises
        ------
        ProtocolError
            If a sum is above ``n_sites * clip``: masks did not cancel, or a site sent too much.
        """
        steps = total.view(np.int64)
        # half a step a site is what rounding may add; no float64 lies between 2^63 and this bound
        largest = math.floor(self._largest_steps + Fraction(self.n_sites, 2))
        largest = min(largest, _HALF_RING - 1)
        outside = int(np.count_nonzero((steps > largest) | (steps < -largest)))
        if outside:
            raise ProtocolError(
                f"{outside} of {steps.size} opened sums are above the bound of {self.n_sites} "
                f"sites ({self.n_sites * self.clip:g}): the masks of this exchange do not cancel; "
                "start the run again"
            )
        return np.ldexp(steps.astype(np.float64), -self.fraction_bits)


def to_ring(steps: Steps) -> Ring:
    """See signed steps as elements of the ring mod 2^64, where numpy's uint64 sums wrap."""
    return np.ascontiguousarray(steps).view(np.uint64)


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent
