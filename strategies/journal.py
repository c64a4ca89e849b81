"""What a run must remember of its exchanges to go on after its server was lost.

A method is deterministic given its replies. So a checkpoint is a journal: what came back from each
exchange, by site name, written down before the next one is sent. Played back into a fresh strategy
it leads to the same state and to the very same next request, which the sites have either not seen,
or answer with the bytes that they kept: nothing is computed, drawn or paid twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from strategies.exchange import Failure
from strategies.messages import to_bytes
from strategies.run_state import Exchange

__all__ = ["RESUMED", "Heard", "Journal", "Waiting", "answers", "fingerprint"]


@dataclass(frozen=True)
class Heard:
    """What came back from one exchange.

    Attributes
    ----------
    action : str
    round : int
    asked : mapping of str to str
        `fingerprint` of each site's request, by name.
    bodies : mapping of str to bytes
        Replies by site, as they came.
    unreadable : mapping of str to str
        Sites whose reply was no message of ours, and why; after hello, sites that were turned away.
    failures : mapping of str to Failure
        Sites that gave no reply.
    back : tuple of str
        Sites that were missing from earlier exchanges and are asked again from the next one on.
    bytes_up, bytes_down : int
    seconds : float
    """

    action: str
    round: int = 0
    asked: Mapping[str, str] = field(default_factory=dict)
    bodies: Mapping[str, bytes] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    back: tuple[str, ...] = ()


#: Stands between what came back before a run was resumed and after it.
RESUMED = Heard("resumed")


class Journal(Protocol):
    """Where a run's exchanges are kept; one that fails to keep one ends the run."""

    def recorded(self) -> Sequence[Heard]:
        """Return the exchanges of the run so far, hello first; none where it begins."""
        ...

    def resumed(self, after_round: int) -> None:
        """Note that the run goes on after what is recorded."""
        ...

    def append(self, heard: Heard) -> None:
        """Keep an exchange, durable when the call returns."""
        ...

    def discard(self) -> None:
        """Forget the run: its sites are told that it is over, and it cannot go on."""
        ...


@dataclass(frozen=True)
class Waiting:
    """Whom a run is waiting for: names only.

    Attributes
    ----------
    action : str
    round : int
    asked, waiting_for : tuple of str
        In name order.
    """

    action: str
    round: int
    asked: tuple[str, ...]
    waiting_for: tuple[str, ...]


def fingerprint(request: bytes) -> str:
    """Return the SHA-256 of a request's bytes, hexadecimal."""
    return hashlib.sha256(request).hexdigest()


def answers(heard: Heard, pending: Exchange) -> bool:
    """Say whether what was recorded came back from the exchange that a protocol asks for now."""
    return (pending.action, pending.round) == (heard.action, heard.round) and all(
        site in pending.requests and fingerprint(to_bytes(pending.requests[site])) == asked
        for site, asked in heard.asked.items()
    )
