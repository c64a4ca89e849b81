"""Gaussian noise for the sums of a run: how much, on which grid, and what it guarantees.

A site rounds its sums to the grid, adds integer noise, and only then masks. What T releases cost
follows from the exact curve of :mod:`privacy.accountant`, with the sensitivity counted in whole
steps: ``S (1 + 1e-6) 2^f`` plus what rounding may add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError
from privacy.accountant import gaussian_epsilon, noise_multiplier
from privacy.fixed_point import FixedPoint
from privacy.gaussian_noise import TAIL, WORST_RELATIVE_ERROR, rounded_gaussian
from privacy.sensitivity import Blocks

__all__ = ["GaussianNoise", "NoisePlacement", "calibrate"]

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
NoisePlacement = Literal["distributed", "local"]

#: Room for the rounding of the floating-point sums themselves.
_ROUNDING_OF_SUMS = 1e-6
#: The smallest noise of a site has at least this many steps of the grid, as a power of two.
_STEP_BITS = 20
#: Beyond this many standard deviations (probability 4e-33) noise is not expected to go.
_REACH = 12.0


@dataclass(frozen=True)
class GaussianNoise:
    """All that a site needs to make its sums noisy, and what a certificate says of it.

    Attributes
    ----------
    blocks : Blocks
        What a release sends.
    codec : FixedPoint
        The grid of the run.
    noise : {"distributed", "local"}
        Whether the sites' noise adds up to sigma or each site adds sigma.
    honest_sites : int
        Sites whose noise is counted on: n - d - c, or 1 if local.
    max_rows : int
        No site has more records.
    noise_multiplier : float
        z.
    sensitivity : float
        S, of one release.
    sigma : float
        Standard deviation that is counted on, for a number of weight 1, in the numbers' unit.
    releases : int
        T, fixed beforehand.
    delta : float
        Of the whole run.
    epsilon : float
        Of the whole run, against the server and c sites.
    epsilon_if_others_collude : float
        Of the whole run, if all other sites collude with the server: the site's own noise alone.
    """

    blocks: Blocks
    codec: FixedPoint
    noise: NoisePlacement
    honest_sites: int
    max_rows: int
    noise_multiplier: float
    sensitivity: float
    sigma: float
    releases: int
    delta: float
    epsilon: float
    epsilon_if_others_collude: float

    @property
    def rho(self) -> float:
        """Zero-concentrated cost of one release, against the server and c sites."""
        return 0.5 / self.noise_multiplier**2

    @property
    def rho_if_others_collude(self) -> float:
        """Zero-concentrated cost of one release, if all other sites collude."""
        return self.rho * self.honest_sites

    @property
    def limits(self) -> Floats:
        """Largest magnitude of each true sum of a site, shape (k,): more means too many rows."""
        return self.max_rows * self.blocks.record_bounds

    def sum_sigma(self, contributors: int) -> dict[str, float]:
        """Return the noise in an opened sum: standard deviation a number, by name of the block.

        Parameters
        ----------
        contributors : int
            Sites that are in the sum.
        """
        scale = self.sigma * math.sqrt(contributors / self.honest_sites)
        return {block.name: scale * block.weight for block in self.blocks.blocks}

    def add(self, steps: Steps) -> Steps:
        """Return one site's sums with fresh noise; every call is a release and must be paid.

        Parameters
        ----------
        steps : ndarray of shape (..., k), int64
            The true sums on the grid of ``codec``; leading axes are releases of their own.
        """
        per_site = self.sigma / math.sqrt(self.honest_sites) / self.codec.step
        return steps + rounded_gaussian(
            np.broadcast_to(per_site * self.blocks.weights, steps.shape)
        )


def calibrate(
    blocks: Blocks,
    *,
    epsilon: float,
    delta: float,
    releases: int,
    n_sites: int,
    colluders: int,
    tolerated_dropouts: int,
    noise: NoisePlacement,
    max_rows: int,
) -> GaussianNoise:
    """Find the least noise that keeps a run within (epsilon, delta).

    Parameters
    ----------
    blocks : Blocks
        What one release sends.
    epsilon, delta : float
        Of the whole run.
    releases : int
        T: noisy exchanges that the run reserves.
    n_sites, colluders, tolerated_dropouts : int
        n, c and d. Distributed noise counts on n - d - c sites, c being at least 1.
    noise : {"distributed", "local"}
    max_rows : int
        Largest number of records of a site (1 where a "record" is a site's update).

    Returns
    -------
    GaussianNoise

    Raises
    ------
    ConfigError
        If no site is left to count on, delta is too small for the sampler, or the sums do not fit
        the ring of 64 bits.
    """
    honest = n_sites - tolerated_dropouts - colluders if noise == "distributed" else 1
    if honest < 1 or colluders < 1:
        raise ConfigError(
            f"noise = 'distributed' counts on the sites that are neither lost nor colluding, "
            f"{n_sites} - {tolerated_dropouts} - {colluders} here (at least 1 colludes): add "
            "sites or use noise = 'local'"
        )
    smallest = float(blocks.weights.min())
    tail, inexact = _sampler_cost(blocks, releases, honest)
    if tail >= delta or inexact >= epsilon:
        raise ConfigError(
            f"privacy.delta {delta:g} and epsilon {epsilon:g} are too small for {releases} "
            f"releases of {blocks.size} numbers, of which the sampler alone takes {tail:.0e} and "
            f"{inexact:.0e}: raise them or lower max_rounds"
        )
    z = noise_multiplier(epsilon - inexact, delta - tail, releases)
    step_bits = math.floor(math.log2(z * blocks.sensitivity * smallest / math.sqrt(honest)))
    step = math.ldexp(1.0, step_bits - _STEP_BITS)
    sensitivity = blocks.sensitivity * (1 + _ROUNDING_OF_SUMS) + blocks.rounding * step
    sigma = z * sensitivity
    per_site = sigma / math.sqrt(honest) * blocks.weights
    clip = float(np.max(max_rows * blocks.record_bounds + _REACH * per_site))
    mu = math.sqrt(releases) / z
    return GaussianNoise(
        blocks=blocks,
        codec=FixedPoint(_STEP_BITS - step_bits, clip, n_sites),
        noise=noise,
        honest_sites=honest,
        max_rows=max_rows,
        noise_multiplier=z,
        sensitivity=blocks.sensitivity,
        sigma=sigma,
        releases=releases,
        delta=delta,
        epsilon=gaussian_epsilon(delta - tail, mu) + inexact,
        epsilon_if_others_collude=gaussian_epsilon(delta - tail, mu * math.sqrt(honest)) + inexact,
    )


def _sampler_cost(blocks: Blocks, releases: int, honest_sites: int) -> tuple[float, float]:
    """Return what the sampler's arithmetic may add to delta and to epsilon over all releases."""
    numbers = releases * honest_sites * blocks.size
    relative = blocks.weights / blocks.weights.min()
    largest_steps = 2.0 ** (_STEP_BITS + 1) * float(relative.sum())
    return (
        numbers * TAIL,
        2 * releases * honest_sites * largest_steps * WORST_RELATIVE_ERROR,
    )
