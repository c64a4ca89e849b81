"""What a site keeps of a run with masked sums, and how it forgets.

A vault holds two kinds of things, each written once and never changed, at most removed: public
records (messages sent and seen, questions answered) and secrets. The secrets of an exchange are
encrypted under a key in a file of their own; forgetting an exchange removes its file, and with it
every copy that a journal, a backup of the database or a free page may still hold. On solid-state
disks and in memory deletion is best effort: the medium may keep what was overwritten.

Whatever is written is committed to the disk before the transaction ends, so that nothing leaves a
site that a restarted one would not know. A vault that was put back from a backup remembers less
than was sent: its `counter` is then behind the one that the site's audit log names, and whoever
opens it must refuse. Keep the folder out of snapshots; a log that was put back with it tells
nothing.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from configs.errors import ConfigError
from privacy.canonical import pack
from privacy.key_files import KEY_BYTES, read_private, sync_folder, write_new

__all__ = ["Vault"]

_DATABASE = "vault.sqlite"
_KEY_FILES = "exchange-*.key"
#: What a process that was killed while it wrote a key may leave: another name of that key.
_DRAFTS = ".draft-*"
_NONCE_BYTES = 12
_WAIT_S = 30.0
#: Above any exchange.
_ALL = 2**62
_WAY_OUT = "stop the run with `fedmvc-client abort`; it cannot be resumed"
_TABLES = """
CREATE TABLE IF NOT EXISTS commits (total INTEGER NOT NULL);
INSERT INTO commits SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM commits);
CREATE TABLE IF NOT EXISTS records (
    kind TEXT NOT NULL, exchange INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (kind, exchange)
);
CREATE TABLE IF NOT EXISTS secrets (
    kind TEXT NOT NULL, exchange INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (kind, exchange)
);
"""


class Vault:
    """The durable memory of one site in one run.

    Parameters
    ----------
    path : Path or None
        The run's folder, made where it is missing; None keeps everything in memory.

    Raises
    ------
    ConfigError
        If the folder cannot be used.
    """

    def __init__(self, path: Path | None) -> None:
        self._keys: _Keys = _MemoryKeys() if path is None else _FolderKeys(Path(path))
        self._lock = threading.RLock()
        database = ":memory:" if path is None else str(Path(path) / _DATABASE)
        with self._faults_named():
            self._database = sqlite3.connect(
                database, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            # one file, whole after a crash; with FULL, truncating the journal is synced as well
            self._database.execute("PRAGMA journal_mode = TRUNCATE")
            self._database.execute("PRAGMA synchronous = FULL")
            if path is not None:
                Path(database).chmod(0o600)
            with self._committed():
                for statement in _TABLES.split(";\n"):
                    self._database.execute(statement)

    @property
    def counter(self) -> int:
        """Number of transactions that wrote something; it never falls unless a backup came back."""
        return self._number("SELECT total FROM commits")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Read and write as if alone, then commit all of it or, after an error, none of it.

        Raises
        ------
        ConfigError
            If the folder cannot be used.
        """
        with self._lock, self._faults_named(), self._committed():
            before = self._database.total_changes
            yield
            if self._database.total_changes > before:
                self._database.execute("UPDATE commits SET total = total + 1")

    def put(self, kind: str, body: bytes, exchange: int = 0) -> None:
        """Write a record; within a transaction."""
        self._database.execute("INSERT INTO records VALUES (?, ?, ?)", (kind, exchange, body))

    def get(self, kind: str, exchange: int = 0) -> bytes | None:
        """Return a record, None where there is none."""
        return self._body(
            "SELECT body FROM records WHERE kind = ? AND exchange = ?", kind, exchange
        )

    def last(self, kind: str, up_to: int = _ALL) -> int:
        """Return the highest exchange, up to one, with a record of a kind; 0 where none has."""
        query = "SELECT COALESCE(MAX(exchange), 0) FROM records WHERE kind = ? AND exchange <= ?"
        return self._number(query, kind, up_to)

    def seal(self, kind: str, bodies: Mapping[int, bytes]) -> None:
        """Write secrets by exchange, each under its exchange's key; within a transaction."""
        for exchange, body in bodies.items():
            nonce = secrets.token_bytes(_NONCE_BYTES)
            cipher = ChaCha20Poly1305(self._keys.make(exchange))
            sealed = nonce + cipher.encrypt(nonce, body, pack(kind, exchange))
            self._database.execute("INSERT INTO secrets VALUES (?, ?, ?)", (kind, exchange, sealed))

    def unseal(self, kind: str, exchange: int) -> bytes | None:
        """Return a secret, None where it was never written or is forgotten.

        Raises
        ------
        ConfigError
            If its key is missing or another's: files were removed or mixed by hand.
        """
        sealed = self._body(
            "SELECT body FROM secrets WHERE kind = ? AND exchange = ?", kind, exchange
        )
        if sealed is None:
            return None
        nonce, body = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            cipher = ChaCha20Poly1305(self._keys.read(exchange))
            return cipher.decrypt(nonce, body, pack(kind, exchange))
        except (InvalidTag, ValueError):
            raise ConfigError(
                f"the key file of exchange {exchange} does not fit the run's secure state: "
                f"{_WAY_OUT}"
            ) from None

    def drop(self, kind: str, exchange: int) -> None:
        """Remove a record that nothing depends on any more; within a transaction."""
        self._database.execute(
            "DELETE FROM records WHERE kind = ? AND exchange = ?", (kind, exchange)
        )

    def drop_secrets(self, kind: str, since: int = 0) -> None:
        """Remove secrets of a kind, from an exchange on, that were never used; in a transaction.

        What is to be gone for good goes with its key, see `forget`.
        """
        self._database.execute(
            "DELETE FROM secrets WHERE kind = ? AND exchange >= ?", (kind, since)
        )

    def forget(self, before: int = _ALL, since: int = 0) -> None:
        """Destroy the secrets of exchanges from one up to below another, by default all, for good.

        It removes key files first: a crash in between leaves rows that nobody can read.
        """
        self._keys.remove(range(since, before))
        with self.transaction():
            self._database.execute(
                "DELETE FROM secrets WHERE exchange >= ? AND exchange < ?", (since, before)
            )

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _body(self, query: str, kind: str, exchange: int) -> bytes | None:
        with self._lock, self._faults_named():
            row = self._database.execute(query, (kind, exchange)).fetchone()
        return None if row is None else bytes(row[0])

    def _number(self, query: str, *values: str | int) -> int:
        with self._lock, self._faults_named():
            return int(self._database.execute(query, values).fetchone()[0])

    @contextmanager
    def _committed(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk has ended it already
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # something was to be written twice: a defect
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                "the run's secure state cannot be used: check that the state folder can be "
                f"written and has room, or {_WAY_OUT}",
                local_detail=str(error),
            ) from error


class _MemoryKeys:
    """Keys of exchanges that end with the process."""

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}

    def make(self, exchange: int) -> bytes:
        return self._keys.setdefault(exchange, secrets.token_bytes(KEY_BYTES))

    def read(self, exchange: int) -> bytes:
        return self._keys[exchange]

    def remove(self, exchanges: range) -> None:
        self._keys = {number: key for number, key in self._keys.items() if number not in exchanges}


class _FolderKeys:
    """One file an exchange."""

    _WHAT = "exchange key"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in missing:
                sync_folder(path.parent)
        except OSError as error:
            raise ConfigError(
                f"the run's secure state cannot be made: {error.strerror}",
                local_detail=str(folder),
            ) from None

    def _path(self, exchange: int) -> Path:
        return self._folder / _KEY_FILES.replace("*", str(exchange))

    def make(self, exchange: int) -> bytes:
        # a set-up that was cut short may have left a key that encrypts nothing yet
        if not self._path(exchange).exists():
            write_new(self._path(exchange), secrets.token_bytes(KEY_BYTES), self._WHAT, _WAY_OUT)
        return self.read(exchange)

    def read(self, exchange: int) -> bytes:
        return read_private(self._path(exchange), self._WHAT, _WAY_OUT)

    def remove(self, exchanges: range) -> None:
        numbers = {path: int(path.stem.split("-")[1]) for path in self._folder.glob(_KEY_FILES)}
        gone = [path for path, number in numbers.items() if number in exchanges]
        gone += self._folder.glob(_DRAFTS)
        for path in gone:
            path.unlink(missing_ok=True)
        if gone:
            sync_folder(self._folder)


_Keys = _MemoryKeys | _FolderKeys
