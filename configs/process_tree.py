"""A process and all that it started, whatever sessions and process groups they are in (Linux).

Where there is no ``/proc``, only a process itself is known.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "kill_left", "kill_tree", "tree"]

_PROC = Path("/proc")


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with its id.

    Attributes
    ----------
    pid : int
        Its id.
    started : str
        When it started, in the kernel's ticks; "" where that is not known.
    """

    pid: int
    started: str


def tree(pid: int) -> list[Process]:
    """Return a process and all its descendants that live now, parents first."""
    found, ids = [], [pid]
    for each in ids:  # grows
        started = _started(each)
        if started is not None:
            found.append(Process(each, started))
            ids += _children(each)
    return found


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants at once: none of them gets to react to another's end.

    They are stopped first, until nobody is left who could start one more.
    """
    stopped: set[Process] = set()
    while new := set(tree(pid)) - stopped:
        for each in new:
            _signal(each.pid, signal.SIGSTOP)
        stopped |= new
    kill_left(stopped)


def kill_left(processes: Iterable[Process]) -> None:
    """Kill those that still live."""
    for each in processes:
        if _started(each.pid) == each.started:
            _signal(each.pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in _PROC.glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, thread.read_text(encoding="ascii").split())
    return found


def _started(pid: int) -> str | None:
    """Return when a process started; None where it has ended."""
    if not _PROC.joinpath("self").exists():
        return ""
    try:
        # the second field, the program's name, may hold anything
        fields = _PROC.joinpath(str(pid), "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
