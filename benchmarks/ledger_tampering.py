"""Tamper with a site's ledger in every way that a file allows, and count what is found."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.ledger_faults import live, open_books, site_folder
from configs.errors import PolicyRefused
from privacy.ledger import LEDGER_HEAD, ledger_key
from privacy.ledger_rows import SCHEMA, Chain, Row, Sealed


@dataclass(frozen=True)
class Tampering:
    """How many ways of tampering were tried and found."""

    tried: int
    found: int
    false_alarms: int

    @property
    def passed(self) -> bool:
        """Whether each was found, and nothing else."""
        return self.tried > 0 and self.found == self.tried and not self.false_alarms


def tamper(rows_edited: int | None = None) -> Tampering:
    """Edit every column of every row, drop, cut, swap and recompute rows; count what is found."""
    with site_folder() as name:
        folder = Path(name) / "site"
        live(folder, lambda text: None)
        heads = [
            str(entry.facts[LEDGER_HEAD])
            for entry in open_books(folder).audit.entries()
            if LEDGER_HEAD in entry.facts
        ]
        key = ledger_key(folder / "state")
        n_rows = len(_rows(folder, key))
        attempts = [*_edits(n_rows, rows_edited), *_cuts(n_rows)]
        found = sum(_is_found(folder, statements, ()) for statements in attempts)
        found += _is_found(folder, _recomputed(folder, bytes(32)), ())
        # whoever has the key can write a chain that holds: the audit log knows better
        found += _is_found(folder, _recomputed(folder, key), heads)
        return Tampering(len(attempts) + 2, found, int(_is_found(folder, [], heads)))


def _rows(folder: Path, key: bytes) -> list[Sealed]:
    chain = Chain(key, "ledger")
    connection = sqlite3.connect(folder / "state" / "ledger.db")
    try:
        return list(chain.rows(connection, 0, chain.start))
    finally:
        connection.close()


def _edits(n_rows: int, most: int | None) -> list[list[str]]:
    """Change one cell, once for each column of each row."""
    edits = []
    for number in range(1, n_rows + 1)[:most]:
        for column in (*(field.name for field in fields(Row)), "mac"):
            kind = next((f.type for f in fields(Row) if f.name == column), "bytes")
            value = {
                "int": f"{column} + 100",
                "float": f"{column} / 2 + 0.001",
                "bytes": "zeroblob(32)" if column == "mac" else f"{column} || x'00'",
            }.get(str(kind), f"{column} || 'x'")
            if kind == "bytes" and column != "mac":
                value = f"CAST({value} AS BLOB)"
            edits.append([f"UPDATE entries SET {column} = {value} WHERE number = {number}"])
    return edits


def _cuts(n_rows: int) -> list[list[str]]:
    """Drop each row, cut each tail, swap neighbours."""
    return [
        *([f"DELETE FROM entries WHERE number = {i}"] for i in range(1, n_rows + 1)),
        *([f"DELETE FROM entries WHERE number >= {i}"] for i in range(1, n_rows + 1)),
        *(
            [
                f"UPDATE entries SET number = 0 WHERE number = {i}",
                f"UPDATE entries SET number = {i} WHERE number = {i + 1}",
                f"UPDATE entries SET number = {i + 1} WHERE number = 0",
            ]
            for i in range(1, n_rows)
        ),
    ]


def _recomputed(folder: Path, key: bytes) -> list[str]:
    """Halve the price of every row and write all rows again under a key."""
    chain = Chain(key, "ledger")
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    mac = chain.start
    for sealed in _rows(folder, ledger_key(folder / "state")):
        chain.append(connection, replace(sealed.row, rho=sealed.row.rho / 2), mac)
        *_, last = chain.rows(connection, 0, chain.start)
        mac = last.mac
    connection.commit()
    statements = ["DELETE FROM entries", "DELETE FROM head"]
    statements += [line for line in connection.iterdump() if line.startswith("INSERT")]
    connection.close()
    return statements


def _is_found(folder: Path, statements: list[str], heads: Sequence[str]) -> bool:
    """Say whether `Ledger.verify` finds what the statements did to a copy."""
    with site_folder() as name:
        copy = Path(shutil.copytree(folder, Path(name) / "copy"))
        connection = sqlite3.connect(copy / "state" / "ledger.db")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        try:
            open_books(copy).ledger.verify(heads)
        except PolicyRefused:
            return True
        return False
