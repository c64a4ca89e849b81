"""Kill a site at any moment, and let processes race for its budget.

Processes are forked, so nothing here loads what starts threads. `benchmarks.trust_ledger` prints
the figures.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sqlite3
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

from configs.errors import BudgetExceeded, PolicyRefused, ProtocolError
from configs.plan import RunPlan
from configs.site import Policy, SiteConfig
from fedmvc_client.books import verify_audit, verify_ledger
from fedmvc_client.safe import FolderSafe, Safe
from privacy.accountant import epsilon_of_rho
from privacy.ledger import Cost

PLAN = RunPlan.parse({"method": "fedhk-mvfc", "n_clusters": 3})
POLICY = Policy(epsilon_budget=2.0)
SITE = SiteConfig(name="west", data={"ecg": "ecg.csv"}, policy=POLICY)
RELEASES = 3
COST = Cost("gaussian", RELEASES, 0.01, 0.02, 3.0, 1.0, 0.0)
RUN, OTHER = "a" * 32, "b" * 32


#: A killed process loses nothing that it wrote, so memory does as well as a disk, and faster.
_MEMORY = Path("/dev/shm")


def site_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed at the end of a ``with`` block."""
    return tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)


def open_books(folder: Path) -> Safe:
    """Open the books of a site's folder, as a worker does when it starts."""
    return FolderSafe(folder, SITE)


#: What a process does in a site's folder, given a way to tell what cannot be taken back.
Life = Callable[[Path, Callable[[str], None]], None]


def live(folder: Path, tell: Callable[[str], None]) -> None:
    """Take part in a run, or go on with it after a crash; tell what can no longer be taken back."""
    books = open_books(folder)
    books.register.see(PLAN)
    if books.register.list()[0].status == "seen":
        books.register.approve(PLAN.plan_id)
    try:
        books.register.begin(RUN, PLAN, POLICY)
    except ProtocolError:
        return  # its last act was booked before it died
    tell("begun")
    books.ledger.reserve(RUN, PLAN.plan_id, COST)
    for exchange in range(RELEASES if RUN in books.ledger.open_runs() else 0):
        request = hashlib.sha256(bytes([exchange])).digest()
        try:
            reply = books.ledger.spend(RUN, exchange, request)
        except BudgetExceeded:
            break  # a crash after a payment used up a release
        if reply is None:
            tell("noise drawn")
            reply = os.urandom(8).hex().encode()  # noise is never drawn the same twice
            books.ledger.answered(RUN, exchange, reply)
        tell(f"sent {exchange} {reply.decode()}")
    books.ledger.give_back(RUN)
    books.register.finished(RUN)


# -- children that die -----------------------------------------------------------------------


class _Fuse:
    """Kills this very process at its n-th point where something is written."""

    def __init__(self, at: int) -> None:
        self.left = at

    def burn(self, half: Callable[[], object] | None = None) -> None:
        """Pass a point, or die there; ``half`` does half of what the point is about first."""
        self.left -= 1
        if self.left == 0:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _burning(fuse: _Fuse) -> Iterator[None]:
    """Burn the fuse before every SQL statement and every call that changes a file."""
    connect, write = sqlite3.connect, os.write

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda statement: fuse.burn())
        return connection

    def torn(handle: int, body: bytes) -> int:
        fuse.burn()
        fuse.burn(lambda: write(handle, body[: len(body) // 2]))
        return write(handle, body)

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def burning(*arguments: Any, **options: Any) -> Any:
            fuse.burn()
            return call(*arguments, **options)

        return burning

    changing = ("fsync", "ftruncate", "link", "replace")
    calls: dict[str, Any] = {name: before(getattr(os, name)) for name in changing}
    with (
        mock.patch.object(sqlite3, "connect", traced),
        mock.patch.multiple(os, **calls, write=torn),
    ):
        yield


def _in_child(
    work: Callable[[Callable[[str], None]], None], kill_after: float | None = None
) -> tuple[list[str], int]:
    """Do work in a forked process, perhaps killed after so many seconds.

    Returns
    -------
    told : list of str
        What it told.
    code : int
        How it ended; -9 where it was killed.
    """
    epsilon_of_rho(COST.rho, POLICY.delta_budget)  # loads scipy here, not in every child
    reading, writing = os.pipe()
    write = os.write

    def tell(text: str) -> None:
        write(writing, f"{text}\n".encode())

    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            work(tell)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with open(reading, encoding="utf-8") as pipe:
        told = pipe.read().splitlines()
    return told, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@dataclass
class Crashes:
    """What came of many crashes; all but their number should be 0."""

    crashes: int = 0
    under_counted: int = 0
    overspent: int = 0
    false_alarms: int = 0
    changed_replies: int = 0
    second_runs: int = 0
    stuck: int = 0

    @property
    def passed(self) -> bool:
        """Whether something was tried and nothing went wrong."""
        numbers = [getattr(self, field.name) for field in fields(self)]
        return self.crashes > 0 and sum(numbers) == self.crashes


def _judge(folder: Path, told: list[str], counts: Crashes, *, over: bool) -> None:
    """Compare what a site's books say with what was told before it died."""
    books = open_books(folder)
    try:
        verify_ledger(books)
        verify_audit(books)
    except PolicyRefused:
        counts.false_alarms += 1
        return
    status = books.ledger.status()
    drawn = told.count("noise drawn")
    counts.under_counted += status.rho_spent + 1e-12 < drawn * COST.rho
    counts.overspent += status.rho_spent + status.rho_reserved > RELEASES * COST.rho + 1e-12
    sent = {line for line in told if line.startswith("sent")}
    counts.changed_replies += len(sent) > len({line.split()[1] for line in sent})
    if over or "begun" in told:
        try:
            books.register.would_begin(PLAN, POLICY, OTHER)
            counts.second_runs += 1
        except PolicyRefused:
            pass
    if over:
        counts.stuck += bool(books.ledger.open_runs())


def _crash_and_go_on(
    counts: Crashes, life: Life, *, at: int | None = None, after: float | None = None
) -> bool:
    """Let a site die, restart it, and judge its books after both; False if it did not die.

    Parameters
    ----------
    counts : Crashes
        What is added to.
    life : callable
        What the site does, before and after.
    at : int, optional
        Write point to die at.
    after : float, optional
        Seconds to die after.
    """
    with site_folder() as name:
        folder = Path(name)

        def die(tell: Callable[[str], None]) -> None:
            with nullcontext() if at is None else _burning(_Fuse(at)):
                life(folder, tell)

        told, code = _in_child(die, after)
        if code == 0:
            return False
        assert code == -signal.SIGKILL, code
        counts.crashes += 1
        _judge(folder, told, counts, over=False)
        again, code = _in_child(lambda tell: life(folder, tell))
        counts.stuck += code != 0
        _judge(folder, told + again, counts, over=code == 0)
        return True


def kill_at_points(every: int = 1, life: Life = live) -> Crashes:
    """Kill a site at every ``every``-th point of a run where something is written."""
    counts, at = Crashes(), 1
    while _crash_and_go_on(counts, life, at=at):
        at += every
    return counts


def kill_at_random(kills: int, seed: int = 0) -> Crashes:
    """Kill a site after random times, so that writes inside SQLite are hit too."""
    draw, counts = random.Random(seed), Crashes()
    began = time.monotonic()
    with site_folder() as name:
        _in_child(lambda tell: live(Path(name), tell))
    whole = time.monotonic() - began
    for _ in range(20 * kills):  # some are over before they are killed
        if counts.crashes < kills:
            _crash_and_go_on(counts, live, after=draw.uniform(0.0, whole))
    return counts


# -- processes that race ---------------------------------------------------------------------


@dataclass(frozen=True)
class Race:
    """What processes got that asked for one budget, and for one run's releases, at once."""

    runs_that_fit: int
    runs_reserved: int
    epsilon: float
    releases_paid: int

    @property
    def passed(self) -> bool:
        """Whether they got as much as there was, and no more."""
        return (
            self.runs_reserved == self.runs_that_fit
            and self.epsilon <= POLICY.epsilon_budget
            and self.releases_paid == RELEASES
        )


def race(processes: int, tries: int = 25) -> Race:
    """Let processes reserve runs of one budget, and spend one run's releases, at once."""
    fitting = 0
    while (
        epsilon_of_rho((fitting + 1) * RELEASES * COST.rho, POLICY.delta_budget)
        <= POLICY.epsilon_budget
    ):
        fitting += 1
    with site_folder() as name:
        folder = Path(name)
        open_books(folder).ledger.reserve("shared", "plan", COST)

        def reserve(me: int) -> Iterator[str]:
            ledger = open_books(folder).ledger
            for number in range(tries):
                try:
                    ledger.reserve(f"{me} {number}", "plan", COST)
                    yield "reserved"
                except BudgetExceeded:
                    return

        def spend(me: int) -> Iterator[str]:
            ledger = open_books(folder).ledger
            for exchange in range(RELEASES):
                try:
                    ledger.spend("shared", exchange, hashlib.sha256(bytes([me])).digest())
                    yield "spent"
                except BudgetExceeded:
                    return

        spent = _racing(spend, processes)
        reserved = _racing(reserve, processes) + 1
        books = open_books(folder)
        verify_ledger(books)
        verify_audit(books)
        status = books.ledger.status()
    return Race(fitting, reserved, status.spent + status.reserved, spent)


def _racing(work: Callable[[int], Iterator[str]], processes: int) -> int:
    """Run work in processes that begin at one moment; count what they tell."""
    start_reading, start_writing = os.pipe()
    reading, writing = os.pipe()
    children = []
    for me in range(processes):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.read(start_reading, 1)
                for _ in work(me):
                    os.write(writing, b".")
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.close(writing)
    os.write(start_writing, b"!" * processes)
    with open(reading, "rb") as pipe:
        told = len(pipe.read())
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * processes, codes
    os.close(start_reading)
    os.close(start_writing)
    return told
