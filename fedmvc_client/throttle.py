"""How many lines an hour a stranger may make a site write."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Throttle"]


class Throttle:
    """Let so many events pass at once and so many an hour; count the others.

    Parameters
    ----------
    most : int
        Events that pass at once, and on average an hour.
    period_s : float
        Seconds in which `most` more may pass.
    clock : callable
        Seconds that only grow.
    """

    def __init__(
        self,
        most: int = 100,
        period_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._rate, self._clock = most, most / period_s, clock
        self._left, self._at, self._held_back = float(most), clock(), 0

    def admit(self) -> int | None:
        """Count one event.

        Returns
        -------
        int or None
            None where it is held back; else how many were since the last one that passed.
        """
        now = self._clock()
        self._left = min(float(self._most), self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            self._held_back += 1
            return None
        self._left -= 1.0
        held_back, self._held_back = self._held_back, 0
        return held_back
