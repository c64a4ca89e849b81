"""The exceptions a user may meet, each with the exit code of its process.

::

    FedMVCError
    ├── ConfigError       2   a plan, a setting or a combination that cannot run
    ├── DataRefused       3   a site's data do not fit the schema or the plan
    ├── PolicyRefused     4   a site's policy does not allow the plan
    ├── BudgetExceeded    5   a site's privacy budget does not cover the plan
    ├── QuorumLost        6   fewer sites than the plan needs
    ├── TransportError    7   a peer cannot be reached
    ├── ProtocolError     8   a peer said something that the protocol does not allow
    └── InternalError    70   a defect of this software
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "INTERRUPTED",
    "BudgetExceeded",
    "ConfigError",
    "DataRefused",
    "FedMVCError",
    "InternalError",
    "PolicyRefused",
    "ProtocolError",
    "QuorumLost",
    "TransportError",
    "error_for_code",
]

#: Exit code of a run that was stopped at the keyboard, as shells count it; no exception of ours.
INTERRUPTED = 130


class FedMVCError(Exception):
    """Base of every exception that FedMVC raises on purpose.

    Parameters
    ----------
    public_message : str
        One sentence that names the thing and the way out. It may leave the site: it carries no
        data value, no record id and no path. ``str(error)`` is this sentence.
    local_detail : str, default ""
        What helps whoever sits in front of this machine (a path, a line); never sent.
    """

    code: ClassVar[int] = 70

    def __init__(self, public_message: str, *, local_detail: str = "") -> None:
        super().__init__(public_message)
        self.public_message = public_message
        self.local_detail = local_detail


class ConfigError(FedMVCError):
    """A plan, a setting or a combination of settings cannot run."""

    code = 2


class DataRefused(FedMVCError):
    """A site's data do not fit the schema or the plan."""

    code = 3


class PolicyRefused(FedMVCError):
    """A site's policy does not allow what the plan asks."""

    code = 4


class BudgetExceeded(FedMVCError):
    """A site's privacy budget does not cover what the plan would spend."""

    code = 5


class QuorumLost(FedMVCError):
    """Fewer sites are left than the plan's quorum."""

    code = 6


class TransportError(FedMVCError):
    """A peer could not be reached or did not answer in time."""

    code = 7


class ProtocolError(FedMVCError):
    """A message is malformed, out of order or does not belong to this run."""

    code = 8


class InternalError(FedMVCError):
    """A defect of this software, reported without the exception's own text."""

    code = 70


_BY_CODE: dict[int, type[FedMVCError]] = {
    error.code: error
    for error in (
        ConfigError,
        DataRefused,
        PolicyRefused,
        BudgetExceeded,
        QuorumLost,
        TransportError,
        ProtocolError,
        InternalError,
    )
}


def error_for_code(code: int) -> type[FedMVCError]:
    """Return the exception class of an exit code.

    Parameters
    ----------
    code : int
        Exit code, for instance the one that a peer's refusal carries.

    Returns
    -------
    type of FedMVCError
        The class with that code; `InternalError` for a code that is not ours.
    """
    return _BY_CODE.get(code, InternalError)
