"""A small SQLite file whose commits are durable before anything is sent."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import ConfigError, PolicyRefused

__all__ = ["Database"]

#: How long a process waits for another one's transaction.
_WAIT_S = 30.0


class Database:
    """One SQLite file that several processes may use, or a database in memory.

    Parameters
    ----------
    path : Path or None
        The file, made with mode 0600 where it does not exist; None keeps everything in memory.
    schema : str
        Statements ``CREATE TABLE IF NOT EXISTS``, separated by semicolons.
    what : str
        What the file is, for messages: ``"privacy ledger"``.

    Raises
    ------
    ConfigError
        If the file cannot be used.
    PolicyRefused
        If it was damaged.
    """

    def __init__(self, path: Path | None, schema: str, what: str) -> None:
        self._what = what
        self._detail = "" if path is None else str(path)
        self._lock = threading.RLock()
        with self._explained():
            if path is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # and so are its side files
            self._connection = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=_WAIT_S,
                isolation_level=None,  # transactions are begun by hand
                check_same_thread=False,
            )
            weakref.finalize(self, self._connection.close)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        with self.transaction() as connection:
            for statement in filter(str.strip, schema.split(";")):
                connection.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run statements as one: all are on disk when the block ends, or none where it raises.

        The first statement already keeps other writers out, so what is read inside stays true.

        Raises
        ------
        ConfigError
            If the file cannot be used.
        """
        with self._lock, self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one sentence why a file cannot be used."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if type(error) is sqlite3.DatabaseError:  # what it holds; the rest is about using it
                raise PolicyRefused(
                    f"{self._what} was altered ({reason}): take part in no run, find out who "
                    "changed it, and restore the state folder as it was last written",
                    local_detail=f"{self._detail}: {error}",
                ) from error
            fault = f"({reason}): check that the site's state folder can be written and has space"
            if "locked" in reason:
                fault = f"(another process holds it for over {_WAIT_S:g} s): end that one"
            raise ConfigError(
                f"{self._what} cannot be used {fault}", local_detail=f"{self._detail}: {error}"
            ) from error
