"""Kill, race and tamper with a site's books: nothing is under-counted, overspent or overlooked.

Run with ``python -m benchmarks.trust_ledger``.
"""

from __future__ import annotations

from benchmarks.ledger_faults import (
    POLICY,
    RELEASES,
    Crashes,
    kill_at_points,
    kill_at_random,
    race,
)
from benchmarks.ledger_tampering import tamper
from benchmarks.trust_rows import Row, print_rows


def kill_row() -> Row:
    """Kill a site at every point of a run where something is written, and restart it."""
    return _crash_row("kill -9 at every write point of a run, restart", kill_at_points())


def random_kill_row(kills: int = 300) -> Row:
    """Kill a site after random times of a run, and restart it."""
    return _crash_row("kill -9 at random times of a run, restart", kill_at_random(kills))


def _crash_row(what: str, found: Crashes) -> Row:
    return Row(
        what,
        f"{found.crashes} crashes: {found.under_counted} under-counted, {found.overspent} "
        f"overspent, {found.changed_replies} replies changed, {found.second_runs} second runs of "
        f"one approval, {found.false_alarms} false alarms, {found.stuck} that could not go on",
        "0 of each",
        found.passed,
    )


def race_row(processes: int = 8) -> Row:
    """Let processes race for one budget, and for the releases of one run."""
    found = race(processes)
    return Row(
        f"{processes} processes race for one budget and one run",
        f"{found.runs_reserved} runs reserved of {found.runs_that_fit} that fit, epsilon "
        f"{found.epsilon:.4f} of {POLICY.epsilon_budget:g}; {found.releases_paid} releases paid "
        f"of {RELEASES}",
        "as many as fit, epsilon within the budget; as many as reserved",
        found.passed,
    )


def tamper_row() -> Row:
    """Edit every column of every row, drop, cut, swap and recompute rows."""
    found = tamper()
    return Row(
        "an edited, dropped, cut, swapped or recomputed row",
        f"{found.found} of {found.tried} found, {found.false_alarms} false alarms",
        "all found, 0 false alarms",
        found.passed,
    )


ROWS = (kill_row, random_kill_row, race_row, tamper_row)


def main() -> int:
    """Print the figures; return the number that did not pass."""
    return print_rows("a site's books", ROWS)


if __name__ == "__main__":
    raise SystemExit(main())
