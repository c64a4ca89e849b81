"""How far one patient, or one site, can move what a release sends.

FedHK-MVFC, exact sums, one start. With g_k = u_k^m exp(-phi_k), heat-kernel coefficients delta_j
and values x_j in [0, 1], one patient adds to the sums of view h::

    N_kj - W_kj / 2:  g_k delta_j (x_j - 1/2)
    W_kj (or W_k):    g_k delta_j (or g_k, where all coefficients are 1)
    Q_h:              sum_k u_k^m (1 - exp(-phi_k))

so that, p_k = exp(-phi_k), the squared length of it is at most ``B_h sum_k u_k^2m p_k^2 + (sum_k
u_k^m (1 - p_k))^2``. This is convex in p, so it is largest where every p_k is 0 or 1; there, u
summing to 1 and m being at least 1, it is at most ``B_h t^2 + (1 - t)^2`` with t the membership
where p_k = 1, which is convex again: at most ``max(B_h, 1)``. Together ``S^2 = sum_h max(B_h, 1)``,
and some patient reaches it.

A record's term may depend on nothing but itself, the plan and earlier releases. Extremes, means or
shares of the data in it (for imputation, for pi_h) void every bound of this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError

__all__ = ["Block", "Blocks", "clip_to_norm", "clipped_update_blocks", "heat_kernel_blocks"]

Floats = NDArray[np.float64]
HeatKernel = Literal["minmax", "absdev", "one"]

#: Shares of the noise budget of numerators and masses (6 to 3).
_NUMERATOR, _MASS = 2 / 3, 1 / 3
#: Largest heat-kernel coefficient of values in [0, 1]; absdev is taken around 1/2.
_LARGEST_COEFFICIENT = {"minmax": 1.0, "absdev": 0.5, "one": 1.0}


@dataclass(frozen=True)
class Block:
    """Numbers of a release that get the same noise.

    Attributes
    ----------
    name : str
        "numerator", "mass", "dispersion" or "update".
    size : int
        How many numbers.
    record_bound : float
        Largest magnitude of each number for one record.
    weight : float
        Standard deviation of each number's noise, divided by the release's sigma.
    """

    name: str
    size: int
    record_bound: float
    weight: float


@dataclass(frozen=True)
class Blocks:
    """What one noisy release sends, in the order of its flat vector.

    Attributes
    ----------
    blocks : tuple of Block
    sensitivity : float
        S: adding or removing one unit moves the vector, each number divided by its block's weight,
        by at most this much (Euclidean length).
    relation : str
        Which data sets count as neighbours.
    unit : str
        What is protected.
    """

    blocks: tuple[Block, ...]
    sensitivity: float
    relation: str
    unit: str

    @property
    def size(self) -> int:
        """Numbers sent."""
        return sum(block.size for block in self.blocks)

    @property
    def weights(self) -> Floats:
        """Noise weight of each number, shape (size,)."""
        return np.concatenate([np.full(b.size, b.weight) for b in self.blocks])

    @property
    def record_bounds(self) -> Floats:
        """Largest magnitude of each number for one record, shape (size,)."""
        return np.concatenate([np.full(b.size, b.record_bound) for b in self.blocks])

    @property
    def rounding(self) -> float:
        """What rounding both neighbours to a grid adds to S, in steps: up to 1 a number."""
        return math.sqrt(sum(b.size / b.weight**2 for b in self.blocks))


def heat_kernel_blocks(
    dims: Sequence[int],
    n_clusters: int,
    heat_kernel: HeatKernel,
    cell_mass: Sequence[bool],
    n_starts: int = 1,
) -> Blocks:
    """Describe a round of FedHK-MVFC: N - W/2, W and Q, for values scaled to [0, 1].

    The noise of a block is z times its weight times S. The weights are in the ratio
    ``s_b / sqrt(f_b)``, s_b^2 being the block's own squared sensitivity and f = 2/3 and 1/3 for N
    and W. The bound of the module's text holds with every number divided by its weight, so with
    ``B_h = (N's bound / w_N^2 + W's bound / w_W^2)`` and ``q = 1 / w_Q^2`` it is
    ``sum_h max(B_h, q)``: Q is free as long as q is at most the smallest B_h, and w_Q is so chosen.

    Parameters
    ----------
    dims : sequence of int
        d_h, columns of each view.
    n_clusters : int
        c.
    heat_kernel : {"minmax", "absdev", "one"}
        Eq. 1; Eq. 2 around the middle of the declared bounds; all coefficients 1.
    cell_mass : sequence of bool
        For each view whether W is (c, d_h), else (c,); only kernel "one" has the latter.
    n_starts : int, default 1
        R starts in one message cost S sqrt(R).

    Returns
    -------
    Blocks
        In the order numerators of all views, masses of all views, dispersions.
    """
    largest = _LARGEST_COEFFICIENT[heat_kernel]
    masses = [d if cells else 1 for d, cells in zip(dims, cell_mass, strict=True)]
    # squared sensitivities of N and of W, by view
    of_numerator = [largest**2 * d / 4 for d in dims]
    of_mass = [largest**2 * d for d in masses]
    sensitivity = math.sqrt(
        sum(max(a + b, 1.0) for a, b in zip(of_numerator, of_mass, strict=True))
    )
    numerator_weight = math.sqrt(sum(of_numerator) / _NUMERATOR)
    mass_weight = math.sqrt(sum(of_mass) / _MASS)
    view_bounds = [
        a / numerator_weight**2 + b / mass_weight**2
        for a, b in zip(of_numerator, of_mass, strict=True)
    ]
    # The view bounds add up to 1; weights smaller by S make it S, as under equal noise.
    weights = [w / sensitivity for w in (numerator_weight, mass_weight, min(view_bounds) ** -0.5)]
    sums = n_starts * n_clusters
    return Blocks(
        (
            Block("numerator", sums * sum(dims), largest / 2, weights[0]),
            Block("mass", sums * sum(masses), largest, weights[1]),
            Block("dispersion", n_starts * len(dims), 1.0, weights[2]),
        ),
        sensitivity * math.sqrt(n_starts),
        "add or remove one patient",
        "one patient of one site",
    )


def clipped_update_blocks(n_numbers: int, clip: float) -> Blocks:
    """Describe a round of Fed-MUFSHT: the plain sum over sites of updates of length at most C.

    Another update of one site moves the sum by at most 2C, that is the mean over K sites by 2C/K.
    This holds where no site's weight depends on data (``weighting = "uniform"``).

    Parameters
    ----------
    n_numbers : int
        Size of the update.
    clip : float
        C > 0, see :func:`clip_to_norm`.

    Returns
    -------
    Blocks
        Its "record" is a site's update.

    Raises
    ------
    ConfigError
        If C is not positive.
    """
    if not 0 < clip < math.inf:
        raise ConfigError(f"privacy.clip is {clip:g}: give the largest length of a site's update")
    return Blocks(
        (Block("update", n_numbers, clip, 1.0),),
        2 * clip,
        "replace the update of one site",
        "one site",
    )


def clip_to_norm(update: Floats, clip: float) -> Floats:
    """Shorten a flat update to Euclidean length ``clip`` where it is longer."""
    length = float(np.linalg.norm(update))
    return update if length <= clip else np.asarray(update * (clip / length))
