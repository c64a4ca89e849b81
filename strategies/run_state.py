"""What a run asks and what it has done so far: plain data, no Flower."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from configs.errors import FedMVCError
from strategies.messages import Message


@dataclass(frozen=True)
class Exchange:
    """One request to each site named, and the type its reply must have.

    A site without a fitting reply is out of the run, or ends it, unless the exchange is
    ``lenient``: then it stays, and the strategy's ``absences`` say why it is missing.
    A site that is missing from one that is ``open`` may come back (`FederatedStrategy.take_back`).
    ``timeout_s`` is the plan's where it is None. After one that ``ends`` the run at the sites it
    cannot go on, whatever becomes of the server.
    """

    action: str
    requests: Mapping[str, Message]
    replies: tuple[type, ...]
    round: int = 0
    lenient: bool = False
    timeout_s: float | None = None
    ends: bool = False
    open: bool = False


@dataclass(frozen=True)
class Absence:
    """Why a site is missing from a lenient exchange; ``refusal`` where asking again is no use."""

    reason: str
    refusal: FedMVCError | None = None


@dataclass(frozen=True)
class RoundRecord:
    """What is kept of one round (a row of ``rounds.csv``)."""

    round: int
    objective: float
    view_weights: list[float]
    site_weights: dict[str, float]
    bytes_up: int
    bytes_down: int
    seconds: float
    sites: list[str]


@dataclass
class Tally:
    """Bytes of encoded messages and seconds."""

    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0


@dataclass
class RunState:
    """What a run has done so far; complete enough for a result file at any moment."""

    run_id: str
    sites: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    history: list[RoundRecord] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    total: Tally = field(default_factory=Tally)


def as_rows(history: Iterable[RoundRecord]) -> list[dict[str, Any]]:
    """Return rounds as plain dictionaries."""
    return [dataclasses.asdict(record) for record in history]
