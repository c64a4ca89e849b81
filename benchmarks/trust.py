"""Every figure of trust at full size: prints them and writes docs/trust.md.

Run with ``make trust`` or ``python -m benchmarks.trust``: about half an hour on two cores. Exits
with the number of figures that do not hold. Each group can also be run alone, by its module.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import privacy_utility, trust_ledger, trust_privacy, trust_runs, trust_secure_sum
from benchmarks.trust_rows import Row
from benchmarks.trust_trajectory import trajectory_row

__all__ = ["main"]

Floats = NDArray[np.float64]
DOCUMENT = Path(__file__).parents[1] / "docs" / "trust.md"
GROUPS: dict[str, tuple[str, Sequence[Callable[[], Row]]]] = {
    "Secure aggregation": ("trust_secure_sum", trust_secure_sum.ROWS),
    "Masked runs against plain runs": ("trust_runs", trust_runs.ROWS),
    "Differential privacy": ("trust_privacy", trust_privacy.ROWS),
    "A site's ledger": ("trust_ledger", trust_ledger.ROWS),
    "What sums give away": ("trust_trajectory", (trajectory_row,)),
}
_HEAD = """# Figures of trust

What `make trust` (`python -m benchmarks.trust`) measures and writes. What has to hold
stands beside each figure; the tests check smaller versions of the same rows. Noise is drawn from
the operating system and cannot be seeded, so figures with noise differ a little from run to run.
"""
_UTILITY = """
## What noise costs in accuracy

The cardio set, delta 1e-5, T rounds; the mean over seeds (standard deviation, least). "central":
the noise once on the sum, for which the lines hold. "three sites": with masks and distributed
noise; as one of the three may collude with the server, two have to add up to what is needed, so
that the sum of all three carries 1.5 times the variance. "before" is what an independent reference
gave. **With 2,000 patients an epsilon below 2 is poor, with 400 every epsilon is**: what is sent
then is mostly noise.

| kernel | patients | T | seeds | epsilon | central | before | has to be at least | three sites |
|---|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    """Measure everything; return the number of figures that do not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the utility table")
    parser.add_argument("--out", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    began = time.monotonic()
    failed, parts = 0, [_HEAD]
    for title, (module, rows) in GROUPS.items():
        parts.append(f"\n## {title}\n\n`python -m benchmarks.{module}`\n\n")
        parts.append("| what | figure | has to be | |\n|---|---|---|---|\n")
        for measure in rows:
            row = measure()
            failed += not row.passed
            parts.append(_line(row.what, row.figure, row.pass_line, _verdict(row.passed)))
            print(f"{_verdict(row.passed):8} {row.what}: {row.figure}", flush=True)
    parts.append(_UTILITY)
    for text, passed in _utility(options.seeds):
        failed += not passed
        parts.append(text)
        print(text.strip(), flush=True)
    parts.append(
        f"\nflwr {version('flwr')}, torch {version('torch')}, numpy {version('numpy')}, "
        f"cryptography {version('cryptography')}; {(time.monotonic() - began) / 60:.0f} minutes; "
        f"{failed} figures do not hold.\n"
    )
    options.out.write_text("".join(parts), encoding="utf-8")
    return failed


def _utility(seeds: int) -> Iterator[tuple[str, bool]]:
    """Yield the lines of the accuracy table, and whether each reaches its line."""
    for case in privacy_utility.CASES:
        n_seeds = seeds or (10 if case.heat_kernel == "one" else 30)
        for i, epsilon in enumerate((*privacy_utility.EPSILONS, np.inf)):
            central, federated = (
                privacy_utility.accuracies(run, case, epsilon, n_seeds)
                for run in (privacy_utility.central_run, trust_runs.federated_accuracy)
            )
            least = case.line[i] if i < len(case.line) else 0.0
            passed = round(float(central.mean()), 2) >= least
            line = _line(
                case.heat_kernel,
                f"{case.n:,}",
                privacy_utility.ROUNDS[case.n],
                n_seeds,
                "none" if np.isinf(epsilon) else f"{epsilon:g}",
                _spread(central),
                f"{case.before[i]:.3f}" if i < len(case.before) else "",
                f"{least:.2f} {_verdict(passed)}" if least else "",
                _spread(federated),
            )
            yield line, passed


def _spread(found: Floats) -> str:
    deviation = found.std(ddof=min(1, found.size - 1))
    return f"{found.mean():.3f} ({deviation:.3f}, {found.min():.3f})"


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def _verdict(passed: bool) -> str:
    return "holds" if passed else "**FAILS**"


if __name__ == "__main__":
    raise SystemExit(main())
