"""``OUT/progress.json``: what a run is doing now and for whom it waits; names only."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from strategies.journal import Waiting

__all__ = ["NAME", "Phase", "ProgressFile", "phase_of"]

log = logging.getLogger("fedmvc")

Phase = Literal["admission", "setup", "round", "finish"]

NAME = "progress.json"
#: Seconds between two writes, and between two that say the same.
_PAUSE_S, _HEARTBEAT_S = 0.25, 5.0
_LAST_WORDS = ("refine", "finish", "close")


def phase_of(action: str, round_: int) -> Phase:
    """Say in which part of a run an exchange is."""
    if action == "hello":
        return "admission"
    if action in _LAST_WORDS:
        return "finish"
    return "round" if round_ > 0 else "setup"


class ProgressFile:
    """Rewrites the file while a run goes on; a disk that takes no more does not end the run.

    Parameters
    ----------
    out : Path
    run_id : str
    clock : callable, optional
        Seconds that only grow.
    """

    def __init__(self, out: Path, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = out / NAME
        self._run_id = run_id
        self._clock = clock
        self._last = Waiting("hello", 0, (), ())
        self._asked_at = _now()
        self._written: Waiting | None = None
        self._written_at = float("-inf")
        self._failed = False

    def __call__(self, waiting: Waiting) -> None:
        """Take in for whom the run waits."""
        key = waiting.action, waiting.round
        if key != (self._last.action, self._last.round):
            self._asked_at = _now()
        self._last = waiting
        pause = _HEARTBEAT_S if waiting == self._written else _PAUSE_S
        if self._clock() - self._written_at >= pause:
            self._write(waiting)

    def close(self) -> None:
        """Say that the run waits for nobody any more."""
        last = self._last
        self._write(Waiting(last.action, last.round, last.asked, ()))

    def _write(self, waiting: Waiting) -> None:
        self._written, self._written_at = waiting, self._clock()
        fields = {
            "run_id": self._run_id,
            "phase": phase_of(waiting.action, waiting.round),
            "round": waiting.round,
            "asked": list(waiting.asked),
            "waiting_for": list(waiting.waiting_for),
            "since": self._asked_at,
            "updated_at": _now(),
        }
        draft = self._path.with_name(f"{NAME}.part")
        try:
            draft.write_text(json.dumps(fields) + "\n", encoding="utf-8")
            draft.replace(self._path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            if not self._failed:
                log.warning("%s cannot be written: %s", NAME, error.strerror)
            self._failed = True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
