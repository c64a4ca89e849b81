"""The rows of a site's privacy ledger: append-only events, each authenticated with those before."""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from typing import Literal, NoReturn

from configs.errors import PolicyRefused
from privacy.budget import Cost
from privacy.canonical import pack

__all__ = ["SCHEMA", "Chain", "Event", "Row", "Sealed"]

#: ``reserve`` sets a run's whole cost aside, ``spend`` pays for one release before its noise is
#: drawn, ``answer`` notes what was released, ``return`` gives back what was never asked for,
#: ``forfeit`` counts the rest of a run that died as spent.
Event = Literal["reserve", "spend", "answer", "return", "forfeit"]


@dataclass(frozen=True)
class Row:
    """One event; hashes are empty and numbers 0 where the event has none.

    Attributes
    ----------
    number : int
        1, 2, 3, ...
    event : Event
    at : str
        When, UTC.
    cohort, run_id, plan_id : str
    exchange : int
        Number of the exchange that a release belongs to.
    request_hash, reply_hash : bytes
        SHA-256 of what was asked and what was answered.
    mechanism : str
    releases : int
        How many releases the event is about.
    sigma, sensitivity, rho, rho_if_others_collude, delta : float
        Of one release, see `Cost`.
    audit_head : str
        Head of the audit log when the row was written.
    """

    number: int
    event: Event
    at: str
    cohort: str
    run_id: str
    plan_id: str
    exchange: int
    request_hash: bytes
    reply_hash: bytes
    mechanism: str
    releases: int
    sigma: float
    sensitivity: float
    rho: float
    rho_if_others_collude: float
    delta: float
    audit_head: str

    @property
    def cost(self) -> Cost:
        """What one release costs and how many the event is about."""
        return Cost(
            mechanism=self.mechanism,
            releases=self.releases,
            rho=self.rho,
            rho_if_others_collude=self.rho_if_others_collude,
            sigma=self.sigma,
            sensitivity=self.sensitivity,
            delta=self.delta,
        )


@dataclass(frozen=True)
class Sealed:
    """A row and its HMAC, which covers all rows before it too."""

    row: Row
    mac: bytes


_KINDS: dict[str, tuple[type, str]] = {
    "int": (int, "INTEGER"),
    "float": (float, "REAL"),
    "bytes": (bytes, "BLOB"),
}
#: Name of each column with its type here and in SQLite.
_COLUMNS = {field.name: _KINDS.get(str(field.type), (str, "TEXT")) for field in fields(Row)}
_NAMES = ", ".join(_COLUMNS)
#: Tables of the rows and of the last row's seal.
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS entries (
    {", ".join(f"{name} {kind} NOT NULL" for name, (_, kind) in _COLUMNS.items())},
    mac BLOB NOT NULL, PRIMARY KEY (number));
CREATE TABLE IF NOT EXISTS head (
    one INTEGER PRIMARY KEY CHECK (one = 1), seal BLOB NOT NULL);
"""


class Chain:
    """Writes and checks rows under the site's key.

    Each row's HMAC-SHA256 covers the row and the HMAC before it, so no row can be edited, left out
    or put in without the key. A seal over the last row shows where rows at the end are missing.

    Parameters
    ----------
    key : bytes
        The site's ledger key.
    what : str
        What the ledger is called in messages: ``"privacy ledger of site 'st-anna'"``.
    """

    def __init__(self, key: bytes, what: str) -> None:
        self._key = key
        self._what = what
        self.start = self._mac("fedmvc ledger")

    def append(self, connection: sqlite3.Connection, row: Row, previous: bytes) -> None:
        """Add a row to those that end with the HMAC ``previous``; part of a transaction."""
        mac = self._seal_row(row, previous)
        values = (*astuple(row), mac)
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO entries ({_NAMES}, mac) VALUES ({marks})", values)
        connection.execute(
            "INSERT OR REPLACE INTO head VALUES (1, ?)", (self._seal_end(row.number, mac),)
        )

    def rows(
        self, connection: sqlite3.Connection, number: int, previous: bytes
    ) -> Iterator[Sealed]:
        """Read and check the rows after row ``number``, whose HMAC is ``previous``.

        Raises
        ------
        PolicyRefused
            Where the chain breaks, with the number of the row.
        """
        mac = previous
        for values in connection.execute(
            f"SELECT {_NAMES}, mac FROM entries WHERE number > ? ORDER BY number", (number,)
        ):
            number += 1
            row, kept = Row(*values[:-1]), values[-1]
            kinds = tuple(kind for kind, _ in _COLUMNS.values())
            if tuple(map(type, values)) != (*kinds, bytes):
                self._broken(number, "it holds a value of another kind")
            if row.number != number:
                self._broken(number, "it is missing")
            mac = self._seal_row(row, mac)
            if not hmac.compare_digest(mac, kept):
                self._broken(number, "it was edited, or written without the site's ledger key")
            yield Sealed(row, mac)
        found = connection.execute("SELECT seal FROM head").fetchone()
        if found is None and number == 0:
            return
        if found is None or found[0] != self._seal_end(number, mac):
            self._broken(number + 1, "rows from there on are missing")

    def _broken(self, number: int, fault: str) -> NoReturn:
        raise PolicyRefused(
            f"{self._what} breaks at row {number} ({fault}): take part in no run, find out who "
            "changed it, and restore the state folder as it was last written"
        )

    def _mac(self, *parts: bytes | str | int) -> bytes:
        return hmac.digest(self._key, pack(*parts), hashlib.sha256)

    def _seal_row(self, row: Row, previous: bytes) -> bytes:
        values = [
            value.hex() if isinstance(value, float) else value for value in astuple(row)
        ]  # hexadecimal digits write a float exactly
        return self._mac("fedmvc ledger row", previous, *values)

    def _seal_end(self, number: int, mac: bytes) -> bytes:
        return self._mac("fedmvc ledger head", number, mac)
