"""Why the system refused a file, in words that hold no path."""

from __future__ import annotations

import os

__all__ = ["reason"]


def reason(error: OSError) -> str:
    """Return the system's own words for an error's number.

    ``error.strerror`` is not used: libraries put the path there.
    """
    if error.errno is None:
        return "the system gives no reason"
    return os.strerror(error.errno)
