"""The form of a figure of trust: what was measured, what must hold, and whether it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Row", "print_rows"]


@dataclass(frozen=True)
class Row:
    """One figure beside its pass line."""

    what: str
    figure: str
    pass_line: str
    passed: bool


def print_rows(title: str, rows: Iterable[Callable[[], Row]]) -> int:
    """Measure and print rows; return the number of those that did not pass."""
    from benchmarks.common import print_table  # loads torch, which a measurement may not need

    found = [measure() for measure in rows]
    print_table(
        title,
        ("", "figure", "pass line", ""),
        [(row.what, row.figure, row.pass_line, "ok" if row.passed else "FAILED") for row in found],
    )
    return sum(not row.passed for row in found)
