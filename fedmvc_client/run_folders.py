"""The folders in which a site keeps what would set a run up again after a restart."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from configs.errors import ProtocolError

__all__ = ["HELLO", "RunFolders", "check_run_id"]

#: The file with a run's first request.
HELLO = "hello.bin"
#: Runs whose set-up stays on disk; the oldest goes when another begins.
_RUNS_ON_DISK = 8


class RunFolders:
    """``state/runs/RUN_ID`` of a site; nothing is kept where there is no state folder.

    Parameters
    ----------
    state : Path or None
    """

    def __init__(self, state: Path | None) -> None:
        self._root = None if state is None else state / "runs"

    @property
    def kept(self) -> bool:
        """Whether anything outlives this process."""
        return self._root is not None

    def path(self, run_id: str) -> Path | None:
        """Return a run's folder, there or not; None where nothing is kept.

        Raises
        ------
        ProtocolError
            Where the run id is none.
        """
        if self._root is None:
            return None
        check_run_id(run_id)
        return self._root / run_id

    def write(self, run_id: str, name: str, body: bytes) -> None:
        """Write one file of a run's folder, durable when the call returns."""
        folder = self.path(run_id)
        if folder is None:
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f"{name}.part"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / name)

    def read(self, run_id: str, name: str) -> bytes | None:
        """Return a file of a run's folder; None where it is not there."""
        folder = self.path(run_id)
        if folder is None or not (folder / name).is_file():
            return None
        return (folder / name).read_bytes()

    def remove(self, run_id: str) -> None:
        """Remove a run's folder, if it is there."""
        folder = self.path(run_id)
        if folder is not None and folder.is_dir():
            shutil.rmtree(folder)

    def remove_oldest(self, run_id: str) -> None:
        """Remove the oldest folders beside a run's, so that few stay."""
        folder = self.path(run_id)
        if folder is None:
            return
        others = [path for path in folder.parent.iterdir() if path.is_dir() and path != folder]
        others.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
        for old in others[: max(len(others) + 1 - _RUNS_ON_DISK, 0)]:
            shutil.rmtree(old)


def check_run_id(run_id: str) -> None:
    """Refuse ids that could name a path: run ids are UUIDs in hexadecimal form.

    Raises
    ------
    ProtocolError
    """
    if not (8 <= len(run_id) <= 64) or not all(ch in "0123456789abcdef-" for ch in run_id):
        raise ProtocolError("the run id is not a UUID")
