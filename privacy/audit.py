"""The site's audit log: what was seen, allowed, refused and sent, one line an event, no values.

Each line carries the SHA-256 of itself and the hash of the line before, so that a changed or
missing line shows. Whoever can write the file could still compute a whole new chain, or cut the
last lines off: that shows against the heads that the privacy ledger, under its key, and the
certificates keep (`AuditLog.verify`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from configs.errors import ConfigError, PolicyRefused
from privacy.canonical import pack
from privacy.key_files import sync_folder

__all__ = ["EMPTY", "AuditEntry", "AuditLog", "Fact"]

#: What one may write about an event: names, hashes, counts, sizes, epsilons; never data.
Fact = str | int | float | bool | None | Sequence[str]
#: Head of a log without a line.
EMPTY = "0" * 64
#: No line is longer, so the last one is found without reading the whole file.
_LONGEST_LINE = 65_536
#: Nothing was read yet: bytes, their SHA-256, and the events in them.
_UNREAD = (0, hashlib.sha256().digest(), ())


@dataclass(frozen=True)
class AuditEntry:
    """One event of the log.

    Attributes
    ----------
    number : int
        1, 2, 3, ...
    at : str
        When, UTC.
    event : str
    facts : mapping of str to Fact
    hash : str
        SHA-256 of the line and of all lines before it, hexadecimal.
    """

    number: int
    at: str
    event: str
    facts: Mapping[str, Any]
    hash: str


class AuditLog:
    """Append-only log of a site.

    Parameters
    ----------
    path : Path or None
        The file, made with mode 0600 at the first event; None keeps the log in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._memory = b""
        self._read: tuple[int, bytes, tuple[AuditEntry, ...]] = _UNREAD

    def write(self, event: str, **facts: Fact) -> str:
        """Add an event; it is on disk when the call returns.

        Parameters
        ----------
        event : str
            What happened: ``"plan approved"``.
        **facts : str, int, float, bool, None or sequence of str
            Names, hashes, counts and sizes. Never a value or an id of a record.

        Returns
        -------
        str
            The new head.

        Raises
        ------
        TypeError
            For a fact of another type, such as an array or bytes.
        ValueError
            For a number that is not finite, or an event of more than 64 KiB.
        PolicyRefused
            Where the log's last line is damaged.
        ConfigError
            Where the file cannot be written.
        """
        for name, fact in facts.items():
            texts = isinstance(fact, list | tuple) and all(isinstance(each, str) for each in fact)
            if not (texts or fact is None or isinstance(fact, str | int | float)):
                raise TypeError(f"fact '{name}' of event '{event}' is a {type(fact).__name__}")
        if self._path is None:
            line, head = _next_line(_last_complete(self._memory), event, facts)
            self._memory += line
            return head
        with self._locked() as handle:
            size = os.fstat(handle).st_size
            tail = os.pread(handle, _LONGEST_LINE + 1, max(0, size - _LONGEST_LINE - 1))
            # a process that died while writing leaves half a line, of an event nobody relied on
            whole = size - (len(tail) - tail.rfind(b"\n") - 1)
            last = _last_complete(tail)
            if whole and not last:
                raise _broken(None, "it does not end")
            os.ftruncate(handle, whole)
            line, head = _next_line(last, event, facts)
            while line:
                line = line[os.write(handle, line) :]
            os.fsync(handle)
            if size == 0:
                sync_folder(self._path.parent)
        return head

    def head(self) -> str:
        """Return the hash of the last line; `EMPTY` where there is none."""
        last = _last_complete(self._tail())
        return _entry(last).hash if last else EMPTY

    def entries(self) -> tuple[AuditEntry, ...]:
        """Read and check all lines; of those that this object checked before, only the hash.

        Half a line at the end is what a process that died left, and is no event.

        Raises
        ------
        PolicyRefused
            Where the chain breaks, with the number of the line.
        """
        body = self._whole_lines()
        size, digest, known = self._read
        hashed = hashlib.sha256(memoryview(body)[:size])
        if len(body) < size or hashed.digest() != digest:
            (size, _, known), hashed = _UNREAD, hashlib.sha256()
        found = list(known)
        previous = found[-1].hash if found else EMPTY
        rest = body[size:]
        for number, text in enumerate(rest.split(b"\n")[:-1], len(found) + 1):
            line = text + b"\n"
            entry = _entry(line, number)
            if entry.number != number or _line(_body(entry, previous)) != (line, entry.hash):
                raise _broken(number, "it was edited, or a line before it is missing")
            previous = entry.hash
            found.append(entry)
        hashed.update(rest)
        self._read = len(body), hashed.digest(), tuple(found)
        return self._read[2]

    def verify(self, heads: Iterable[str] = ()) -> None:
        """Check all lines, and that none that was there is missing.

        Parameters
        ----------
        heads : iterable of str
            Heads that the log once had, from the ledger's rows and from certificates.

        Raises
        ------
        PolicyRefused
            Where the chain breaks, with the number of the line, or a head is not in it.
        """
        entries = self.entries()
        known = {EMPTY, *(entry.hash for entry in entries)}
        if any(head not in known for head in heads):
            raise _broken(
                len(entries) + 1,
                "lines that the privacy ledger or a certificate vouches for are gone",
            )

    def _whole_lines(self) -> bytes:
        body = self._memory
        if self._path is not None:
            with self._explained():
                body = self._path.read_bytes() if self._path.exists() else b""
        return body[: body.rfind(b"\n") + 1]

    def _tail(self) -> bytes:
        if self._path is None:
            return self._memory
        with self._explained():
            if not self._path.exists():
                return b""
            with self._path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LONGEST_LINE - 1))
                return file.read()

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for one process at a time."""
        assert self._path is not None
        with self._explained():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield handle
            finally:
                os.close(handle)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one sentence why the file cannot be used."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"audit log cannot be used ({error.strerror}): check that the site's state folder "
                "can be written and has space",
                local_detail=str(error),
            ) from error


def _last_complete(body: bytes) -> bytes:
    """Return the last line that ends, with its end; empty where there is none."""
    whole = body[: body.rfind(b"\n") + 1]
    return whole[whole[:-1].rfind(b"\n") + 1 :]


def _next_line(last: bytes, event: str, facts: Mapping[str, Fact]) -> tuple[bytes, str]:
    """Return the line that follows ``last``, and its hash."""
    number, previous = 0, EMPTY
    if last:
        entry = _entry(last)
        number, previous = entry.number, entry.hash
    at = datetime.now(UTC).isoformat(timespec="seconds")
    line, head = _line(_body(AuditEntry(number + 1, at, event, facts, ""), previous))
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"event '{event}' takes {len(line)} bytes; at most {_LONGEST_LINE}")
    return line, head


def _body(entry: AuditEntry, previous: str) -> dict[str, Any]:
    return {
        "number": entry.number,
        "at": entry.at,
        "event": entry.event,
        "facts": dict(entry.facts),
        "previous": previous,
    }


def _line(body: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a line and its hash."""
    text = _ENCODER.encode(body)
    digest = hashlib.sha256(pack("fedmvc audit", text)).hexdigest()
    return f'{text[:-1]}, "hash": "{digest}"}}\n'.encode(), digest


def _entry(line: bytes, number: int | None = None) -> AuditEntry:
    try:
        fields = _DECODER.decode(line.decode())
        return AuditEntry(
            fields["number"], fields["at"], fields["event"], dict(fields["facts"]), fields["hash"]
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _broken(number, "it is no event") from None


def _no_number(text: str) -> None:
    raise ValueError(text)


# made once: each line of a log is read and written anew to be checked
_ENCODER, _DECODER = json.JSONEncoder(allow_nan=False), json.JSONDecoder(parse_constant=_no_number)


def _broken(number: int | None, fault: str) -> PolicyRefused:
    where = "in its last line" if number is None else f"at line {number}"
    return PolicyRefused(
        f"audit log breaks {where} ({fault}): take part in no run, find out who changed it, and "
        "restore the state folder as it was last written"
    )
