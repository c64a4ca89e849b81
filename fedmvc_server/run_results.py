"""What a deployed run leaves in its output folder while it goes on, as `run` follows it."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from configs.errors import ConfigError
from fedmvc_server.checkpoint import RUN_FILE, note_server
from fedmvc_server.progress_file import NAME as PROGRESS

__all__ = ["Progress", "RunResults"]

log = logging.getLogger("fedmvc")

Progress = Callable[[dict[str, str]], None]


class RunResults:
    """What the ServerApp leaves in its output folder, ignoring what lay there before."""

    def __init__(
        self, folder: Path, on_progress: Progress | None, server: tuple[str, Path | None]
    ) -> None:
        self.folder = folder
        self._on_progress = on_progress
        self._server = server
        self._noted = False
        names = (RUN_FILE, "result.json", "rounds.csv", PROGRESS)
        self._before = {name: self._stamp(name) for name in names}
        self.rows_shown = 0

    def note_server(self) -> None:
        """Note where the SuperLink is once the ServerApp has begun, for ``resume``."""
        if self._noted or not self._read_new(RUN_FILE):
            return
        self._noted = True
        try:
            note_server(self.folder, *self._server)
        except ConfigError as error:
            log.warning("%s cannot be completed: %s", RUN_FILE, error.public_message)

    def exit_code(self) -> int | None:
        """Exit code in a complete ``result.json`` of this run, if there is one."""
        text = self._read_new("result.json")
        try:
            return int(json.loads(text)["exit_code"])
        except (KeyError, TypeError, ValueError):
            return None  # not there yet, or being written

    def show_new_rounds(self) -> None:
        """Report the rows of ``rounds.csv`` that were not reported yet."""
        if self._on_progress is None:
            return
        text = self._read_new("rounds.csv")
        complete = text[: text.rfind("\n") + 1]
        rows = list(csv.DictReader(complete.splitlines()))
        for row in rows[self.rows_shown :]:
            self._on_progress(row)
        self.rows_shown = max(self.rows_shown, len(rows))

    def waiting(self, least_s: float) -> str:
        """Say for whom the run has waited for `least_s` seconds or more; "" where for nobody."""
        try:
            found = json.loads(self._read_new(PROGRESS))
            since = datetime.fromisoformat(found["since"])
            phase, number, names = found["phase"], found["round"], found["waiting_for"]
        except (KeyError, TypeError, ValueError):
            return ""
        seconds = (datetime.now(UTC) - since).total_seconds()
        if not names or seconds < least_s:
            return ""
        where = f"round {number}" if phase == "round" else phase
        return f"{where}: waiting for {', '.join(names)} for {seconds:.0f} s"

    def _read_new(self, name: str) -> str:
        stamp = self._stamp(name)
        if stamp is None or stamp == self._before[name]:
            return ""
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except OSError:
            return ""  # just being replaced

    def _stamp(self, name: str) -> tuple[int, int, int] | None:
        try:
            found = (self.folder / name).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
