"""What a site answers where something went wrong: one typed sentence, and a line of its log."""

from __future__ import annotations

import logging

from configs.errors import ConfigError, DataRefused, FedMVCError, InternalError
from configs.plan import RunPlan
from fedmvc_client.faults import Declined, reason
from fedmvc_client.safe import Safe
from strategies.messages import Message, Refusal

__all__ = ["refusal"]

log = logging.getLogger("fedmvc.site")


def refusal(safe: Safe, error: Exception, request: Message | None, plan: RunPlan | None) -> Refusal:
    """Log an error with what only the site may know, and return what the server may read of it.

    In a run with noise whatever the data, this machine or a defect may have caused reads alike.
    Both logs take the first of a day of each kind (`fedmvc_client.refusal_notes`).

    Parameters
    ----------
    safe : Safe
    error : Exception
        The one being handled.
    request : Message or None
        None where it could not be read.
    plan : RunPlan or None
        Of the run that the request is of; None where it is not known.
    """
    named = _named(safe.site, error)
    if plan is not None and plan.private and isinstance(named, _CAUSED_HERE):
        named = Declined(safe.site, named)
    if safe.note_refusal(request, named):
        _log(safe.site, named, error)
    return Refusal(named.code, named.public_message)


def _log(site: str, named: FedMVCError, error: Exception) -> None:
    if not isinstance(error, FedMVCError | OSError):
        log.error("site '%s': an unexpected error", site, exc_info=error)
    if isinstance(named, Declined):
        log.error("%s", named.local_detail)
    else:
        log.error("%s", named.public_message, extra={"local_detail": named.local_detail})


class _FolderFault(ConfigError):
    """The site's own folder cannot be used."""


#: Errors that a server must not tell apart where noise hides the data.
_CAUSED_HERE = (DataRefused, InternalError, _FolderFault)


def _named(site: str, error: Exception) -> FedMVCError:
    if isinstance(error, FedMVCError):
        return error
    if isinstance(error, OSError):
        return _FolderFault(
            f"site '{site}' cannot use its own folder ({reason(error)}): check that its state and "
            "results can be written",
            local_detail=str(error),
        )
    return InternalError(f"site '{site}' met an internal error: its own log has the reason")
