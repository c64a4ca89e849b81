"""Attack the noise: what the best possible attacker learns, against the epsilon that is claimed.

The worst patient is in the sums of one release or not. The attacker knows everything else and
scores a release by its likelihood ratio; a threshold is chosen on one half of the draws, and on the
other half Clopper-Pearson intervals give a lower bound on epsilon, right 99 times in 100. Two
broken builds have to be found out: half the noise, and a sensitivity without the masses.

Run with ``python -m benchmarks.trust_audit``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.dp_reference import record_terms
from benchmarks.trust_rows import Row, print_rows
from benchmarks.trust_sensitivity import blocks_of, worst_record
from privacy.mechanisms import GaussianNoise, calibrate

Floats = NDArray[np.float64]

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
BUILDS = ("as it is", "half the noise", "masses left out")
_DELTA = 1e-5
_CONFIDENCE = 0.99
#: One view of four columns and one cluster: a release of 9 numbers, of which the patient moves 8.
_DIMS = (4,)
_CHUNK = 100_000


def build(name: str, epsilon: float) -> tuple[GaussianNoise, Floats]:
    """Return the noise of a build, and what the worst patient adds to the sums."""
    views, model = worst_record([True], _DIMS, 1, "minmax")
    blocks = blocks_of(_DIMS, model)
    if name == "masses left out":
        # N - W/2 alone: sum_h max(d_h / 4, 1)
        blocks = replace(blocks, sensitivity=math.sqrt(sum(max(d / 4, 1) for d in _DIMS)))
    noise = calibrate(
        blocks,
        epsilon=epsilon,
        delta=_DELTA,
        releases=1,
        n_sites=1,
        colluders=1,
        tolerated_dropouts=0,
        noise="local",
        max_rows=100_000,
    )
    if name == "half the noise":
        noise = replace(noise, sigma=noise.sigma / 2)
    return noise, record_terms(views, model)[0]


def scores(noise: GaussianNoise, sums: Floats, patient: Floats, n: int) -> Floats:
    """Draw ``n`` releases of ``sums`` and score each for the patient: shape (n,)."""
    steps = noise.codec.encode(sums)
    direction = patient / noise.blocks.weights**2
    found = []
    for start in range(0, n, _CHUNK):
        rows = min(_CHUNK, n - start)
        found.append(noise.add(np.tile(steps, (rows, 1))) @ direction)
    return np.concatenate(found)


def epsilon_lower_bound(present: Floats, absent: Floats) -> float:
    """Lower bound on epsilon from the scores with and without the patient, in draw order."""
    from scipy.stats import beta

    def bound(threshold: float, half: slice) -> float:
        hits = int(np.count_nonzero(present[half] > threshold))
        alarms = int(np.count_nonzero(absent[half] > threshold))
        n, risk = present[half].size, (1 - _CONFIDENCE) / 2
        least = float(beta.ppf(risk, hits, n - hits + 1)) if hits else 0.0
        most = float(beta.ppf(1 - risk, alarms + 1, n - alarms)) if alarms < n else 1.0
        return math.log((least - _DELTA) / most) if least > _DELTA else -math.inf

    middle = present.size // 2
    choosing, measuring = slice(0, middle), slice(middle, None)
    # from half of all false alarms down to none
    tails = np.append(0.5 * 10 ** -np.linspace(0, np.log10(middle / 2), 40), 0.0)
    thresholds = np.quantile(absent[choosing], 1 - tails)
    best = max(thresholds.tolist(), key=lambda t: bound(t, choosing))
    return bound(best, measuring)


def audit(name: str, epsilon: float, n: int) -> float:
    """Lower bound on the epsilon of one build from ``n`` releases each way."""
    noise, patient = build(name, epsilon)
    present = scores(noise, patient, patient, n)
    return epsilon_lower_bound(present, scores(noise, np.zeros_like(patient), patient, n))


def audit_row(n: int = 1_000_000, epsilons: tuple[float, ...] = EPSILONS) -> Row:
    """Audit every build at every epsilon."""
    found = {(name, e): audit(name, e, n) for name, e in product(BUILDS, epsilons)}
    figure = "; ".join(
        f"{name}: " + " ".join(f"{found[name, epsilon]:.2f}" for epsilon in epsilons)
        for name in BUILDS
    )
    kept = all(found[BUILDS[0], e] <= e for e in epsilons)
    caught = all(found[name, e] > e for name in BUILDS[1:] for e in epsilons)
    return Row(
        f"empirical audit, {n:,} releases each way, epsilon {' '.join(f'{e:g}' for e in epsilons)}",
        figure,
        "lower bound at most epsilon as it is, above it in both broken builds",
        kept and caught,
    )


def main() -> None:
    """Print the figure; exit with 1 where it fails."""
    raise SystemExit(print_rows("audit", [audit_row]))


if __name__ == "__main__":
    main()
