"""`fedmvc_client.supernode` with shorter waits: ``python -m fedmvc_client.fast_poll ARGUMENTS...``.

Flower 1.42 waits 3 s between two looks for messages and has no setting for it. Here the wait is
short while a run is under way: longer with each look that finds nothing, since a look costs the
server a signed request, and Flower's own again once nothing came for a minute.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from configs.errors import ConfigError, FedMVCError
from configs.flower_version import check_flower
from configs.flower_waits import ask_again_soon
from fedmvc_client import supernode

__all__ = ["IDLE_S", "SLOWEST", "ShortWaits", "main"]

IDLE_S = 0.05
"""Seconds between two looks, at first; the environment's ``FEDMVC_FAST_POLL`` gives another number.

Later up to `SLOWEST` times as many, by steps of a quarter."""
SLOWEST = 5.0

_SETTING = "FEDMVC_FAST_POLL"
_FLOWERS_IDLE_S = 3.0
_QUIET_S = 60.0


class ShortWaits:
    """Stands in for ``time.sleep`` of Flower's loop.

    Parameters
    ----------
    idle_s : float
        Wait while a run is under way, in seconds: `SLOWEST` times as much if nothing comes.
    sleep, clock : callable
        How time passes.
    """

    def __init__(
        self,
        idle_s: float = IDLE_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle_s, self._sleep, self._clock = idle_s, sleep, clock
        self._busy_at, self._wait_s = clock(), idle_s

    def __call__(self, seconds: float) -> None:
        """Sleep for at most `seconds`."""
        now = self._clock()
        if seconds < _FLOWERS_IDLE_S:  # it waits for the reply to a message
            self._busy_at, self._wait_s = now, self._idle_s
            self._sleep(min(seconds, self._idle_s))
            return
        quiet = now - self._busy_at > _QUIET_S
        self._sleep(seconds if quiet else min(seconds, self._wait_s))
        self._wait_s = min(1.25 * self._wait_s, SLOWEST * self._idle_s)


def main() -> None:
    """Run ``flower-supernode`` with this process's arguments.

    Raises
    ------
    SystemExit
        With one sentence: 8 where Flower is another version, 2 where the setting is none; else as
        `fedmvc_client.supernode` ends, also where the SuperNode lost its work.
    """
    try:
        check_flower()
        waits = ShortWaits(_idle_s())
    except FedMVCError as error:
        print(f"error: {error.public_message}", file=sys.stderr)
        sys.exit(error.code)
    loop: Any = import_module(supernode.LOOP)
    loop.time = SimpleNamespace(sleep=waits)
    ask_again_soon()
    supernode.main()


def _idle_s() -> float:
    given = os.environ.get(_SETTING, str(IDLE_S))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0.01 <= seconds <= _FLOWERS_IDLE_S:
        raise ConfigError(
            f"the environment's {_SETTING} is '{given}' and must be a number of seconds from 0.01 "
            f"to {_FLOWERS_IDLE_S:g}: change it or leave it out"
        )
    return seconds


if __name__ == "__main__":
    main()
