"""Progress of a run: a live table on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedmvc_server.runner import Observer
from strategies.run_state import RunState

__all__ = ["log_round", "print_row", "progress"]

log = logging.getLogger("fedmvc")

#: Rounds shown at once on a terminal.
_VISIBLE = 12


def _objective(value: float) -> str:
    """Write J; while the bandwidth anneals, or behind noise, there is none."""
    return "not measured" if math.isnan(value) else f"{value:.8g}"


def _weights(values: list[float]) -> str:
    return " ".join(f"{w:.3f}" for w in values) or "not measured"


def log_round(state: RunState) -> None:
    """Log the last round in one line."""
    last = state.history[-1]
    log.info(
        "round %d: J %s, view weights %s, %d sites, %d B up, %d B down, %.2f s",
        last.round,
        _objective(last.objective),
        _weights(last.view_weights),
        len(last.sites),
        last.bytes_up,
        last.bytes_down,
        last.seconds,
    )


def print_row(row: dict[str, str]) -> None:
    """Print a row of ``rounds.csv`` on standard error."""
    print(
        f"round {row['round']}: J {row['objective'] or 'not measured'}, view weights "
        f"{row['view_weights'] or 'not measured'}, sites {row['sites']}, {row['bytes_up']} B up, "
        f"{row['seconds']} s",
        file=sys.stderr,
    )


def _table(state: RunState) -> Table:
    table = Table(title=f"run {state.run_id[:8]}", title_justify="left")
    for name in ("round", "J", "view weights", "sites", "bytes up", "bytes down", "s"):
        table.add_column(name, justify="right")
    for record in state.history[-_VISIBLE:]:
        table.add_row(
            str(record.round),
            _objective(record.objective),
            _weights(record.view_weights),
            str(len(record.sites)),
            f"{record.bytes_up:,}",
            f"{record.bytes_down:,}",
            f"{record.seconds:.2f}",
        )
    return table


@contextmanager
def progress() -> Iterator[Observer]:
    """Yield an observer that shows rounds on standard error: rich on a terminal, else log lines."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield log_round
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda state: live.update(_table(state), refresh=True)
