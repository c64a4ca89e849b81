"""The files from which an interrupted run goes on: ``run.json``, ``checkpoint/`` and a lock.

``checkpoint`` holds one file for each exchange that came to its end: the replies of single sites as
they came. It is readable by the server's own user only and goes when the run has its result.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from configs.errors import ConfigError
from configs.plan import RunPlan
from fedmvc_server.artefacts import FOLDER, replace_file, unwritable, versions
from strategies.exchange import Failure
from strategies.journal import Heard

__all__ = ["RUN_FILE", "Checkpoint", "RunFile", "note_server", "unfinished"]

log = logging.getLogger("fedmvc")
T = TypeVar("T")

RUN_FILE = "run.json"
_LOCK = ".lock"
_MAGIC = b"FedMVC exchange 2\n"
_DIGEST = hashlib.sha256().digest_size
#: A checkpoint above this many bytes is given up: the run goes on and cannot be resumed.
MOST_BYTES = 4 * 2**30


@dataclass(frozen=True)
class RunFile:
    """What ``run.json`` says of a run.

    Attributes
    ----------
    run_id, plan_id : str
    plan : dict
    versions : dict
        What it began with: another version may compute something else.
    server, ca : str or None
        Where ``fedmvc-server run`` found the SuperLink.
    flower_run_id : str or None
        Flower's id of the last part, for its log.
    resumed : list of dict
        ``{at, after_round}`` of each time that it went on.
    """

    run_id: str
    plan_id: str
    plan: dict[str, Any]
    versions: dict[str, str]
    server: str | None = None
    ca: str | None = None
    flower_run_id: str | None = None
    resumed: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, out: Path) -> RunFile:
        """Read ``OUT/run.json``.

        Raises
        ------
        ConfigError
            Where it is missing or damaged.
        """
        try:
            found = cls(**json.loads((out / RUN_FILE).read_text(encoding="utf-8")))
            if RunPlan.parse(found.plan).plan_id != found.plan_id:
                raise ValueError("the plan is not the one of its id")
        except FileNotFoundError as error:
            raise ConfigError(
                f"folder '{out.name}' holds no {RUN_FILE}, so no run began there that could be "
                "resumed: give the folder that 'fedmvc-server run' was given with --out",
                local_detail=str(out),
            ) from error
        except (OSError, ValueError, TypeError, AttributeError, ConfigError) as error:
            raise ConfigError(
                f"{RUN_FILE} in folder '{out.name}' is damaged: start another run",
                local_detail=str(error),
            ) from error
        return found

    def write(self, out: Path) -> None:
        """Write ``OUT/run.json``, whole or not at all."""
        replace_file(out / RUN_FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())


def note_server(out: Path, server: str, ca: Path | None) -> None:
    """Note in ``OUT/run.json`` where the run's SuperLink is, for ``resume``."""
    known = RunFile.read(out)
    replace(known, server=server, ca=None if ca is None else str(ca)).write(out)


def unfinished(out: Path) -> RunFile:
    """Return the run that a folder can go on with.

    Raises
    ------
    ConfigError
        One sentence: why there is none.
    """
    known = RunFile.read(out)
    named = f"run {known.run_id[:8]} in folder '{out.name}'"
    over = _why_over(out)
    if over:
        raise ConfigError(f"{named} {over}")
    here = versions()
    for name in sorted(known.versions.keys() | here.keys()):
        if known.versions.get(name) != here.get(name):
            raise ConfigError(
                f"{named} began with {name} {known.versions.get(name)} and here is "
                f"{here.get(name)}: resume it with what it began, or start another run"
            )
    _Lock(out).release()
    _read_entries(out, known.run_id)
    return known


def _why_over(out: Path) -> str:
    """Say why a run cannot go on; "" where it can."""
    try:
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
        status, rounds = result["status"], result["rounds"]
    except (OSError, ValueError, KeyError, TypeError):
        status, rounds = "", -1
    if status == "completed":
        return "is complete: there is nothing to resume"
    if (out / FOLDER).is_dir():
        return ""
    if rounds == 0:
        return "was refused before its first round: start it again with 'fedmvc-server run'"
    if status:
        return "was ended, and its sites were told that it is over: start another run"
    return "has no checkpoint: start another run"


class Checkpoint:
    """The journal of one run in its results folder (see `strategies.journal.Journal`).

    Make one by `begin` or `reopen`; it locks the folder until it is closed.

    Attributes
    ----------
    run : RunFile
    seconds_before : float
        What the run took before it was interrupted, as far as it was kept.
    given_up : bool
        Whether it grew too large and was removed.
    """

    def __init__(self, out: Path, run: RunFile, lock: _Lock, recorded: Sequence[_Entry]) -> None:
        self.run = run
        self.given_up = False
        self.seconds_before = recorded[-1].elapsed if recorded else 0.0
        self._out = out
        self._lock = lock
        self._recorded = [entry.heard for entry in recorded]
        self._number = len(recorded)
        self._bytes = sum(entry.size for entry in recorded)
        self._began = time.perf_counter()

    @classmethod
    def begin(
        cls, out: Path, plan: RunPlan, run_id: str, flower_run_id: str | None = None
    ) -> Checkpoint:
        """Begin a run's journal in an existing folder (see `prepare_folder`).

        Raises
        ------
        ConfigError
            Where another process is at work in the folder, or it cannot be written.
        """
        lock = _Lock(out)
        try:
            fields = json.loads(plan.canonical())
            run = RunFile(run_id, plan.plan_id, fields, versions(), flower_run_id=flower_run_id)
            run.write(out)
            _at_work(out, lambda: (out / FOLDER).mkdir(mode=0o700))
        except BaseException:
            lock.release()
            raise
        return cls(out, run, lock, [])

    @classmethod
    def reopen(cls, out: Path, plan: RunPlan, run_id: str, flower_run_id: str | None) -> Checkpoint:
        """Take up the journal of an interrupted run.

        Raises
        ------
        ConfigError
            Where there is none, or it is another run's or plan's.
        """
        known = unfinished(out)
        if (known.run_id, known.plan_id) != (run_id, plan.plan_id):
            raise ConfigError(
                f"folder '{out.name}' holds run {known.run_id[:8]} of plan {known.plan_id[:12]}, "
                f"not run {run_id[:8]} of plan {plan.plan_id[:12]}: resume it with its own plan"
            )
        lock = _Lock(out)
        try:
            run = replace(known, flower_run_id=flower_run_id)
            return cls(out, run, lock, _read_entries(out, run_id))
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.release()

    # -- strategies.journal.Journal ----------------------------------------------------------

    def recorded(self) -> Sequence[Heard]:
        """Return the exchanges of the run so far."""
        return self._recorded

    def resumed(self, after_round: int) -> None:
        """Note that the run goes on: what ended its last part is no result of it any more."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        event = {"at": at, "after_round": after_round}
        self.run = replace(self.run, resumed=[*self.run.resumed, event])
        self.run.write(self._out)
        _at_work(self._out, lambda: (self._out / "result.json").unlink(missing_ok=True))

    def append(self, heard: Heard) -> None:
        """Write an exchange, whole or not at all.

        Raises
        ------
        ConfigError
            Where the folder cannot be written.
        """
        if self.given_up:
            return
        elapsed = self.seconds_before + time.perf_counter() - self._began
        body = _entry_bytes(heard, elapsed)
        self._bytes += len(body)
        if self._bytes > MOST_BYTES:
            log.warning(
                "the checkpoint is above %d bytes and is removed: the run goes on, but it could "
                "not be resumed",
                MOST_BYTES,
            )
            self.given_up = True
            self.discard()
            return
        self._number += 1
        replace_file(self._out / FOLDER / _name(self._number), body, self._out, mode=0o600)

    def discard(self) -> None:
        """Remove the checkpoint: the run has its result, or its sites were told that it is over."""
        shutil.rmtree(self._out / FOLDER, ignore_errors=True)


# -- one file an exchange --------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    heard: Heard
    elapsed: float
    size: int


def _name(number: int) -> str:
    return f"{number:06d}.exchange"


def _entry_bytes(heard: Heard, elapsed: float) -> bytes:
    """Write an exchange: a line of JSON, the replies one after the other, and their SHA-256."""
    head = {
        "action": heard.action,
        "round": heard.round,
        "asked": dict(heard.asked),
        "bodies": {site: len(body) for site, body in heard.bodies.items()},
        "unreadable": dict(heard.unreadable),
        "failures": {s: [f.reason, f.missing] for s, f in heard.failures.items()},
        "bytes": [heard.bytes_up, heard.bytes_down],
        "seconds": heard.seconds,
        "back": list(heard.back),
        "elapsed": elapsed,
    }
    body = b"".join([_MAGIC, json.dumps(head).encode(), b"\n", *heard.bodies.values()])
    return body + hashlib.sha256(body).digest()


def _read_entry(body: bytes) -> _Entry:
    """Read what `_entry_bytes` wrote.

    Raises
    ------
    ValueError
        Where the bytes are not whole.
    """
    content, digest = body[:-_DIGEST], body[-_DIGEST:]
    if not content.startswith(_MAGIC) or hashlib.sha256(content).digest() != digest:
        raise ValueError("it is not whole")
    line, _, rest = content.removeprefix(_MAGIC).partition(b"\n")
    head = json.loads(line)
    bodies = {}
    for site, length in head["bodies"].items():
        bodies[site], rest = rest[:length], rest[length:]
    up, down = head["bytes"]
    heard = Heard(
        head["action"],
        head["round"],
        head["asked"],
        bodies,
        head["unreadable"],
        {site: Failure(*fields) for site, fields in head["failures"].items()},
        up,
        down,
        head["seconds"],
        tuple(head["back"]),
    )
    return _Entry(heard, head["elapsed"], len(body))


def _read_entries(out: Path, run_id: str) -> list[_Entry]:
    """Read a checkpoint; of its last file nothing is taken where it is not whole.

    Raises
    ------
    ConfigError
        Where another one is not whole, or is missing.
    """
    paths = sorted((out / FOLDER).glob("*.exchange"))
    entries: list[_Entry] = []
    for number, path in enumerate(paths, 1):
        try:
            if path.name != _name(number):
                raise ValueError(f"{_name(number)} is missing")
            entries.append(_read_entry(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            if number == len(paths) and path.name == _name(number):
                log.warning("the checkpoint's last exchange is not whole: it is asked again")
                break
            raise ConfigError(
                f"the checkpoint of run {run_id[:8]} in folder '{out.name}' is damaged (exchange "
                f"{number} of {len(paths)}): start another run",
                local_detail=f"{path}: {error}",
            ) from error
    return entries


class _Lock:
    """The right to run in a folder; it ends with the process.

    Raises
    ------
    ConfigError
        Where another process has it.
    """

    def __init__(self, out: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT
        self._file = _at_work(out, lambda: os.open(out / _LOCK, flags, 0o600))
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            raise ConfigError(
                f"another process ({owner or 'unknown'}) is at work on the run in folder "
                f"'{out.name}', also where the command that began it has ended: wait for it, or "
                "end it first",
                local_detail=str(error),
            ) from error
        os.ftruncate(self._file, 0)
        _at_work(out, lambda: os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0))

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _at_work(out: Path, act: Callable[[], T]) -> T:
    try:
        return act()
    except OSError as error:
        raise unwritable(out, error) from error
