"""Attack the sampler: low bits of a noisy sum that tell two neighbours apart for certain.

Run with ``python -m benchmarks.trust_sampler``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from benchmarks.trust_rows import Row, print_rows
from privacy.gaussian_noise import rounded_gaussian

#: The largest sigma in steps that a calibration gives the least noisy number.
_SIGMA = 2.0**21 - 1


def reachable(noise: NDArray[np.int64], sigma: float) -> NDArray[np.bool_]:
    """Whether the sampler can draw this noise: a float u between the step's edges leads there."""
    k = np.abs(noise)
    inner, outer = (k - 0.5) / sigma, (k + 0.5) / sigma
    u = ndtr(-np.maximum(inner, 0.0)) + ndtr(-outer)
    return np.rint(sigma * -ndtri(u / 2)).astype(np.int64) == k


def certain_decisions(n: int, sigma: float) -> int:
    """Count the draws that a neighbour at the distance sigma / 2 could not have given."""
    noise = rounded_gaussian(np.full(n, sigma))
    return int(np.count_nonzero(~reachable(noise - round(sigma / 2), sigma)))


def low_bit_row(n: int = 1_000_000) -> Row:
    """Attack the grid of the product, and a far finer one as a control that must fall."""
    certain, control = certain_decisions(n, _SIGMA), certain_decisions(n, 2.0**53)
    return Row(
        f"low-bit attack on the sampler, {n:,} draws",
        f"{certain} certain decisions (steps of sigma 2^-53: {control / n:.0%})",
        "0, and at least 10% with steps of sigma 2^-53",
        certain == 0 and control >= 0.1 * n,
    )


def main() -> None:
    """Print the figure; exit with 1 where it fails."""
    raise SystemExit(print_rows("sampler", [low_bit_row]))


if __name__ == "__main__":
    main()
