"""Run a function over fixed chunks of records in parallel, with a result that never depends on how.

Every chunk is computed on one thread and the results are taken in chunk order, so sums of them are
bit-identical whatever the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")

#: Most records of a chunk on the CPU (measured: flat between 2,048 and 8,192) and on a GPU.
CPU_CHUNK_ROWS = 4096
GPU_CHUNK_ROWS = 1 << 18


class _IntraOpThreads:
    """The one place that changes torch's process-wide number of intra-op threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 1

    def enter(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = torch.get_num_threads()
                torch.set_num_threads(1)
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                torch.set_num_threads(self._before)


_intra_op_threads = _IntraOpThreads()


@contextmanager
def one_intra_op_thread() -> Iterator[None]:
    """Set torch's intra-op threads to 1 inside the block and back afterwards, also on an exception.

    Blocks may overlap in several threads: the first sets, the last restores.
    """
    _intra_op_threads.enter()
    try:
        yield
    finally:
        _intra_op_threads.leave()


def chunk_rows(n_rows: int, device: torch.device) -> int:
    """Return the records of a chunk: equal parts of the data, none above the device's size."""
    largest = GPU_CHUNK_ROWS if device.type == "cuda" else CPU_CHUNK_ROWS
    n_chunks = -(-n_rows // largest)
    return -(-n_rows // (8 * n_chunks)) * 8


def fold_chunks(
    function: Callable[[int], T],
    take: Callable[[T], None],
    n_chunks: int,
    *,
    device: torch.device,
    n_threads: int | None = None,
) -> None:
    """Call ``take(function(0)), take(function(1)), ...``: functions in parallel, takes in order.

    Parameters
    ----------
    function : callable
        Called with the number of a chunk; must be safe to run on several threads.
    take : callable
        Called on the calling thread with each result, in chunk order.
    n_chunks : int
    device : torch.device
        Away from the CPU the chunks run one after the other on the calling thread.
    n_threads : int, optional
        By default as many as torch would use inside one operation of the calling thread.
    """
    if n_threads is None:
        n_threads = torch.get_num_threads() if device.type == "cpu" else 1
    n_threads = min(n_threads, n_chunks)
    with one_intra_op_thread():
        if n_threads <= 1:
            for chunk in range(n_chunks):
                take(function(chunk))
            return
        with ThreadPoolExecutor(
            n_threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            for result in pool.map(function, range(n_chunks)):
                take(result)
