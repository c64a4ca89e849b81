"""Single values in words: checks, each as one sentence, and numbers with their noun."""

from __future__ import annotations

import math
from typing import Any

from configs.errors import ConfigError

__all__ = ["check_name", "check_number", "check_whole", "counted"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an "s" where there is not one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_name(key: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a name that is none of ``allowed``.

    Raises
    ------
    ConfigError
    """
    if value not in allowed:
        raise ConfigError(f"{key} is {value!r}; allowed: {', '.join(map(repr, allowed))}.")


def check_whole(key: str, value: Any, least: int) -> int:
    """Return a whole number of at least ``least``.

    Raises
    ------
    ConfigError
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ConfigError(f"{key} is {value!r}: give a whole number, {least} or more.")
    return int(value)


def check_number(
    key: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """Return a finite number inside its range.

    Raises
    ------
    ConfigError
    """
    try:
        number = float(value) if not isinstance(value, bool | str) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    fits = (
        math.isfinite(number)
        and (above is None or number > above)
        and (least is None or number >= least)
        and (below is None or number < below)
        and (most is None or number <= most)
    )
    if not fits:
        stated = {"above": above, "at least": least, "below": below, "at most": most}
        words = " and ".join(f"{word} {x:g}" for word, x in stated.items() if x is not None)
        raise ConfigError(f"{key} is {value!r}: give a number {words}.")
    return number
