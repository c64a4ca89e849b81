"""What the rows of a privacy ledger say: each run's account, taken in row by row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from privacy.budget import Cost, Loss
from privacy.ledger_rows import Sealed

__all__ = ["Account", "Book"]


@dataclass
class Account:
    """What one run reserved, paid and was answered.

    Attributes
    ----------
    plan_id, cohort : str
    cost : Cost
        What it reserved.
    paid : int
        Releases paid.
    answers : dict
        By exchange and request hash, the hash of the reply that was released.
    unanswered : dict
        By exchange, the request hash of its last release that is paid and not answered.
    ended : {"", "return", "forfeit"}
    """

    plan_id: str
    cohort: str
    cost: Cost
    paid: int = 0
    answers: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    unanswered: dict[int, bytes] = field(default_factory=dict)
    ended: Literal["", "return", "forfeit"] = ""

    def is_for(self, plan_id: str, cohort: str, cost: Cost) -> bool:
        """Say whether this is what such a run reserved."""
        return (self.plan_id, self.cohort, self.cost) == (plan_id, cohort, cost)

    def replies_in(self, exchange: int) -> set[bytes]:
        """Return the hashes of the replies that were released in an exchange."""
        return {reply for (number, _), reply in self.answers.items() if number == exchange}

    @property
    def left(self) -> int:
        """Releases that are reserved and not paid."""
        return self.cost.releases - self.paid

    @property
    def spent(self) -> int:
        """Releases that count as spent."""
        return self.cost.releases if self.ended == "forfeit" else self.paid

    @property
    def committed(self) -> int:
        """Releases that count as spent or may still be asked for."""
        return self.paid if self.ended == "return" else self.cost.releases


class Book:
    """All accounts as of the last row taken in.

    Parameters
    ----------
    start : bytes
        HMAC before the first row.
    """

    def __init__(self, start: bytes) -> None:
        self.accounts: dict[str, Account] = {}
        self.macs: list[bytes] = [start]
        self.audit_heads: dict[str, None] = {}

    @property
    def n_rows(self) -> int:
        """Number of rows taken in."""
        return len(self.macs) - 1

    def take(self, sealed: Sealed) -> None:
        """Take in the next row."""
        row = sealed.row
        self.macs.append(sealed.mac)
        self.audit_heads[row.audit_head] = None
        if row.event == "reserve":
            self.accounts[row.run_id] = Account(row.plan_id, row.cohort, row.cost)
            return
        account = self.accounts[row.run_id]
        if row.event == "spend":
            account.paid += 1
            account.unanswered[row.exchange] = row.request_hash
        elif row.event == "answer":
            account.answers[row.exchange, row.request_hash] = row.reply_hash
            del account.unanswered[row.exchange]
        else:
            account.ended = row.event

    def losses(self, separate: Collection[str]) -> tuple[Loss, Loss]:
        """Return what is spent, and what is spent or reserved, by all but some cohorts.

        Parameters
        ----------
        separate : collection of str
            Names of cohorts that do not count.
        """
        counted = [a for a in self.accounts.values() if a.cohort not in separate]
        return (
            Loss.of((account.cost, account.spent) for account in counted),
            Loss.of((account.cost, account.committed) for account in counted),
        )
