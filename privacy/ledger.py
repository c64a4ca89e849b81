"""A site's privacy ledger: what was promised, what was paid, and what is left of the budget.

Every release of a patient-level mechanism is paid here before its noise is drawn. Nothing is ever
taken back but releases that were never asked for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Literal

from configs.errors import BudgetExceeded, PolicyRefused, ProtocolError
from privacy.audit import EMPTY, AuditLog, Fact
from privacy.budget import Budget, BudgetStatus, Cost, Loss
from privacy.database import Database
from privacy.ledger_book import Account, Book
from privacy.ledger_keys import ledger_key
from privacy.ledger_rows import SCHEMA, Chain, Event, Row

__all__ = ["LEDGER_HEAD", "BudgetStatus", "Cost", "Ledger", "ledger_key"]

#: Fact under which the audit log notes the ledger's head.
LEDGER_HEAD = "ledger_head"

_REPLIES = """
CREATE TABLE IF NOT EXISTS replies (
    hash BLOB PRIMARY KEY, run_id TEXT NOT NULL, reply BLOB NOT NULL)
"""


class Ledger:
    """The ledger of one site, as one of its cohorts sees it.

    The budget belongs to the cohort's name, not to a file: reading a new export renews nothing.
    Runs of other cohorts count too, unless the site has stated that no patient is in both. How
    losses add up is said by `privacy.budget.Budget`.

    Parameters
    ----------
    path : Path or None
        SQLite file; None keeps the ledger in memory.
    key : bytes
        Key of the rows' HMACs, 32 bytes that never leave the site.
    cohort : str
        Name that the budget belongs to (policy.cohort).
    epsilon_budget, delta_budget : float
        The budget (policy.epsilon_budget, policy.delta_budget).
    site : str
        The site's name, for messages.
    separate : collection of str, optional
        Other cohorts that share no patient with this one, by the site's signed statement.
    audit : AuditLog, optional
        Each row notes its head and it notes the ledger's, so that one shows what the other lost.

    Raises
    ------
    ConfigError
        If the file cannot be used.
    """

    def __init__(
        self,
        path: Path | None,
        key: bytes,
        *,
        cohort: str,
        epsilon_budget: float,
        delta_budget: float,
        site: str,
        separate: Collection[str] = (),
        audit: AuditLog | None = None,
    ) -> None:
        self._site = site
        self._budget = Budget(cohort, epsilon_budget, delta_budget)
        self._separate = frozenset(separate) - {cohort}
        self._audit = audit
        named = f"privacy ledger of site '{site}'"
        self._chain = Chain(key, named)
        self._database = Database(path, f"{SCHEMA};{_REPLIES}", named)
        self._book = Book(self._chain.start)

    # -- what a run does ---------------------------------------------------------------------

    def reserve(self, run_id: str, plan_id: str, cost: Cost) -> None:
        """Set a run's whole cost aside, before any data is read; the same again is free.

        A run that has given back what it did not ask for may come again to end elsewhere too; it
        can spend nothing any more.

        Parameters
        ----------
        run_id, plan_id : str
        cost : Cost

        Raises
        ------
        BudgetExceeded
            If what is left of the budget does not cover it.
        ProtocolError
            If the run id is that of another plan or cost, or of a run that died.
        """
        with self._reading() as connection:
            known = self._book.accounts.get(run_id)
            if known is not None:
                if not known.is_for(plan_id, self._budget.cohort, cost):
                    raise ProtocolError(
                        f"site '{self._site}' has reserved another cost for run {run_id[:8]}: "
                        "start another run"
                    )
                if known.ended == "forfeit":
                    self._refuse_ended(run_id, known)
                return
            self._refuse_dear(run_id, cost)
            account = Account(plan_id, self._budget.cohort, cost)
            self._append(connection, "reserve", run_id, account, cost.releases)
        self._note("budget reserved", run_id, releases=cost.releases, rho=cost.rho)

    def refuse_dear(self, run_id: str, cost: Cost) -> None:
        """Refuse what `reserve` would refuse for lack of budget, and reserve nothing.

        Parameters
        ----------
        run_id : str
            "" where no run has one yet.
        cost : Cost

        Raises
        ------
        BudgetExceeded
            If what is left of the budget does not cover the cost.
        """
        with self._reading():
            if run_id not in self._book.accounts:
                self._refuse_dear(run_id, cost)

    def spend(
        self, run_id: str, exchange: int, request_hash: bytes, *, unsent: bool = False
    ) -> bytes | None:
        """Pay for one release, before its noise is drawn.

        A release that was paid but of which no answer is kept (the site died in between) is paid
        again: nobody knows then what left.

        Parameters
        ----------
        run_id : str
        exchange : int
            Number of the exchange, 0 or more.
        request_hash : bytes
            SHA-256 of the whole request.
        unsent : bool, default False
            The caller's own durable memory shows that nothing was sent for this request: a payment
            without an answer then stands.

        Returns
        -------
        bytes or None
            The bytes that answered this very request before, to be sent again at no cost; None
            where the release is new, and now paid.

        Raises
        ------
        BudgetExceeded
            If all releases that the run reserved are paid.
        ProtocolError
            If nothing is reserved for the run, or it is over.
        """
        with self._reading() as connection:
            account = self._open_account(run_id)
            kept = account.answers.get((exchange, request_hash))
            if kept is not None:
                return self._reply(connection, run_id, kept)
            if unsent and account.unanswered.get(exchange) == request_hash:
                return None
            if account.left < 1:
                raise BudgetExceeded(
                    f"site '{self._site}' reserved {account.cost.releases} releases for run "
                    f"{run_id[:8]} and all are paid: start another run"
                )
            self._append(connection, "spend", run_id, account, 1, exchange, request_hash)
        self._note("release paid", run_id, exchange=exchange, rho=account.cost.rho)
        return None

    def answered(self, run_id: str, exchange: int, reply: bytes) -> None:
        """Keep the answer to a paid release, before it leaves; until the run is over.

        Parameters
        ----------
        run_id : str
        exchange : int
        reply : bytes
            What is sent, and sent again where the same request comes again.

        Raises
        ------
        ProtocolError
            If no release of the exchange is paid and unanswered. The same answer may come again.
        """
        digest = hashlib.sha256(reply).digest()
        with self._reading() as connection:
            account = self._open_account(run_id)
            request_hash = account.unanswered.get(exchange)
            if request_hash is None:
                if digest in account.replies_in(exchange):
                    return
                raise ProtocolError(
                    f"site '{self._site}' has no paid and unanswered release of exchange "
                    f"{exchange} of run {run_id[:8]}: start another run"
                )
            connection.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", (digest, run_id, reply)
            )
            self._append(connection, "answer", run_id, account, 1, exchange, request_hash, digest)

    def give_back(self, run_id: str) -> None:
        """End a run: releases that were never asked for are returned. Without a run, nothing."""
        self._end(run_id, "return")

    def forfeit(self, run_id: str) -> None:
        """End a run that died: all that it reserved counts as spent. Without a run, nothing."""
        self._end(run_id, "forfeit")

    # -- what the site asks ------------------------------------------------------------------

    def status(self) -> BudgetStatus:
        """Say how the budget stands."""
        with self._reading():
            return self._budget.status(*self._book.losses(self._separate))

    def price(self, cost: Cost) -> float:
        """Return by how much a run would raise the epsilon of all that is spent and reserved."""
        with self._reading():
            _, committed = self._book.losses(self._separate)
            before = self._budget.epsilon_of(committed)
            after = self._budget.epsilon_of(committed + Loss.of([(cost, cost.releases)]))
            return after - before if math.isfinite(before) else math.inf

    def open_runs(self) -> tuple[str, ...]:
        """Return the ids of runs that have a reservation and are not over, oldest first."""
        with self._reading():
            return tuple(
                run_id for run_id, account in self._book.accounts.items() if not account.ended
            )

    def head(self) -> str:
        """Return the HMAC of the last row, hexadecimal, for certificates and the audit log."""
        with self._reading():
            return self._book.macs[-1].hex()

    def audit_heads(self) -> tuple[str, ...]:
        """Return the audit log's heads that the rows note, oldest first (see `AuditLog.verify`)."""
        with self._reading():
            return tuple(self._book.audit_heads)

    def verify(self, heads: Iterable[str] = ()) -> None:
        """Check every row from the first, and every reply that is kept.

        Parameters
        ----------
        heads : iterable of str
            Heads that the ledger once had, from certificates and the audit log: each must still be
            in it, so a ledger that was cut or put back shows.

        Raises
        ------
        PolicyRefused
            Where the chain breaks, with the number of the row, or a head is not in it.
        """
        before = self._book.macs
        with self._reading(afresh=True) as connection:
            for digest, reply in connection.execute("SELECT hash, reply FROM replies"):
                if not _is_reply(reply, digest):
                    raise self._altered("a reply that it keeps was edited")
            macs = self._book.macs
            known = {mac.hex() for mac in macs}
            if macs[: len(before)] != before or any(head not in known for head in heads):
                raise self._altered(
                    f"it has {self._book.n_rows} rows and lacks some that the audit log or a "
                    "certificate vouches for"
                )

    # -- inside ------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, *, afresh: bool = False) -> Iterator[Connection]:
        """Begin a transaction and take in the rows that this object has not read, each checked."""
        with self._database.transaction() as connection:
            if afresh:
                self._book = Book(self._chain.start)
            for sealed in self._chain.rows(connection, self._book.n_rows, self._book.macs[-1]):
                self._book.take(sealed)
            yield connection

    def _append(
        self,
        connection: Connection,
        event: Event,
        run_id: str,
        account: Account,
        releases: int,
        exchange: int = 0,
        request_hash: bytes = b"",
        reply_hash: bytes = b"",
    ) -> None:
        """Write a row; it is taken in like any other, by the next transaction."""
        cost = account.cost
        row = Row(
            number=self._book.n_rows + 1,
            event=event,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            cohort=account.cohort,
            run_id=run_id,
            plan_id=account.plan_id,
            exchange=exchange,
            request_hash=request_hash,
            reply_hash=reply_hash,
            mechanism=cost.mechanism,
            releases=releases,
            sigma=float(cost.sigma),
            sensitivity=float(cost.sensitivity),
            rho=float(cost.rho),
            rho_if_others_collude=float(cost.rho_if_others_collude),
            delta=float(cost.delta),
            audit_head=EMPTY if self._audit is None else self._audit.head(),
        )
        self._chain.append(connection, row, self._book.macs[-1])

    def _note(self, event: str, run_id: str, **facts: Fact) -> None:
        """Write an event to the audit log, after the row that it is about."""
        if self._audit is not None:
            spent = self.status().spent
            self._audit.write(
                event,
                run_id=run_id,
                **facts,
                epsilon_spent=spent if math.isfinite(spent) else None,
                **{LEDGER_HEAD: self.head()},
            )

    def _end(self, run_id: str, event: Literal["return", "forfeit"]) -> None:
        with self._reading() as connection:
            account = self._book.accounts.get(run_id)
            if account is None or account.ended:
                return
            left = account.left
            self._append(connection, event, run_id, account, left)
            connection.execute("DELETE FROM replies WHERE run_id = ?", (run_id,))
        self._note(
            f"budget {'returned' if event == 'return' else 'forfeited'}", run_id, releases=left
        )

    def _refuse_dear(self, run_id: str, cost: Cost) -> None:
        spent, committed = self._book.losses(self._separate)
        asked = Loss.of([(cost, cost.releases)])
        status = self._budget.status(spent, committed)
        what = f"run {run_id[:8]}" if run_id else "this plan"
        self._budget.refuse_dear(self._site, what, status, committed + asked)

    def _open_account(self, run_id: str) -> Account:
        if run_id not in self._book.accounts:
            raise ProtocolError(
                f"site '{self._site}' has reserved nothing for run {run_id[:8]}: start another run"
            )
        account = self._book.accounts[run_id]
        self._refuse_ended(run_id, account)
        return account

    def _refuse_ended(self, run_id: str, account: Account) -> None:
        if account.ended:
            raise ProtocolError(
                f"site '{self._site}' has closed the account of run {run_id[:8]}: start another run"
            )

    def _reply(self, connection: Connection, run_id: str, digest: bytes) -> bytes:
        found = connection.execute(
            "SELECT reply FROM replies WHERE hash = ? AND run_id = ?", (digest, run_id)
        ).fetchone()
        if found is None or not _is_reply(found[0], digest):
            raise self._altered("a reply that it keeps was edited or is missing")
        return bytes(found[0])

    def _altered(self, fault: str) -> PolicyRefused:
        return PolicyRefused(
            f"privacy ledger of site '{self._site}' was altered ({fault}): take part in no run, "
            "find out who changed it, and restore the state folder as it was last written"
        )


def _is_reply(reply: object, digest: bytes) -> bool:
    return isinstance(reply, bytes) and hashlib.sha256(reply).digest() == digest
