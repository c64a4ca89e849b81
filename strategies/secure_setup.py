"""The set-up of masked sums: two exchanges that give every site keys, and shares of all secrets.

It is done before the first sum, and again after the server was lost and the run resumed, so that
what is asked from then on is masked by keys that were not there before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from configs.errors import ProtocolError
from privacy.secagg import KeyRelay
from strategies.base import FederatedStrategy
from strategies.gathering import ask_s, gather_all
from strategies.messages import (
    KeysReply,
    KeysRequest,
    Message,
    SharesReply,
    SharesRequest,
    as_array,
)
from strategies.run_state import Exchange

__all__ = ["set_up", "set_up_again"]

Replies = dict[str, Any]


@dataclass(frozen=True)
class _Step:
    """One step of a set-up: what is asked of every site, and what takes its answer."""

    action: str
    request: Callable[[], Message]
    kind: type[Any]
    take: Callable[[str, Any], None]


def set_up(strategy: FederatedStrategy, setup: KeyRelay) -> Generator[Exchange, Replies, None]:
    """Exchange keys and shares; those that are away are asked again.

    Raises
    ------
    QuorumLost
        Where not all sites have answered when the plan's patience is over.
    """
    for step in _steps(strategy, setup):
        yield from gather_all(strategy, step.action, step.request(), step.kind, step.take)


def set_up_again(
    strategy: FederatedStrategy, setup: KeyRelay
) -> Generator[Exchange, Replies, bool]:
    """Exchange fresh keys and shares in a run that goes on; return whether all sites took part.

    Each step is asked once: what becomes of it follows from the replies alone, so that a run that
    is resumed later finds the same way again.
    """
    for step in _steps(strategy, setup):
        replies = yield Exchange(
            step.action,
            dict.fromkeys(setup.run.names, step.request()),
            (step.kind,),
            lenient=True,
            timeout_s=ask_s(strategy.plan.quorum.timeout_s),
        )
        missing = {site: absence.reason for site, absence in strategy.absences.items()}
        for site, reply in replies.items():
            try:
                step.take(site, reply)
            except ProtocolError as error:
                missing[site] = f"sent a reply that does not fit: {error.public_message}"
        if missing:
            why = "; ".join(f"'{site}' {reason}" for site, reason in sorted(missing.items()))
            strategy.warn(f"after it was resumed the run has no fresh keys yet: {why}")
            return False
    return True


def _steps(strategy: FederatedStrategy, setup: KeyRelay) -> tuple[_Step, _Step]:
    """Return the two steps of a set-up; the second asks what the first gave."""
    ids = strategy.ids
    return (
        _Step(
            "keys",
            lambda: KeysRequest(*ids, setup.first),
            KeysReply,
            lambda site, r: setup.take_keys(site, r.message.tobytes()),
        ),
        _Step(
            "shares",
            lambda: SharesRequest(*ids, setup.first, tuple(as_array(m) for m in setup.key_list())),
            SharesReply,
            lambda site, r: setup.take_shares(site, _envelopes(r)),
        ),
    )


def _envelopes(reply: SharesReply) -> dict[str, bytes]:
    if len(reply.receivers) != len(reply.envelopes):
        raise ProtocolError(
            f"it names {len(reply.receivers)} receivers of {len(reply.envelopes)} envelopes"
        )
    return {
        name: envelope.tobytes()
        for name, envelope in zip(reply.receivers, reply.envelopes, strict=True)
    }
