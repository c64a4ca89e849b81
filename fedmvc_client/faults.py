"""Faults in words: of the system, without a path; of the data, for the site alone."""

from __future__ import annotations

import os

from configs.errors import FedMVCError, PolicyRefused

__all__ = ["Declined", "reason"]


class Declined(PolicyRefused):
    """What the data forbid in a run with noise: the server does not learn why.

    Parameters
    ----------
    site : str
    error : FedMVCError
        What would have been said; ``reason`` keeps its sentence for the site.
    """

    def __init__(self, site: str, error: FedMVCError) -> None:
        why = " ".join(filter(None, (error.public_message, error.local_detail)))
        super().__init__(f"site '{site}' declined", local_detail=why)
        self.reason = error.public_message


def reason(error: OSError) -> str:
    """Return the system's own words for an error's number.

    ``error.strerror`` is not used: libraries put the path there.
    """
    if error.errno is None:
        return "the system gives no reason"
    return os.strerror(error.errno)
