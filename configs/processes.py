"""Long-lived child processes of a command: started, watched, and none of them left behind.

A command that has children runs in the foreground, in one thread. A child gets a session of its
own, so that Ctrl-C reaches the command alone, which then ends its children in its own order. Where
the command itself is killed, the kernel tells its children (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Self

from configs.errors import ConfigError, TransportError

__all__ = [
    "PASSPHRASE",
    "Child",
    "StopSignals",
    "direct_to",
    "end_all",
    "flower_environment",
    "go_direct",
    "only_one",
    "program",
]

PASSPHRASE = "FEDMVC_PASSPHRASE"
"""Environment variable that opens a site's locked identity key; no Flower process gets it."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_POLL_S = 0.05


class StopSignals:
    """SIGTERM and SIGINT as a flag that can be waited for; the earlier handlers come back after.

    Use it as a context manager, in the main thread.
    """

    def __init__(self) -> None:
        self.given = False
        self._earlier: dict[int, object] = {}

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._earlier[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._reader.close()
        self._writer.close()

    def wait(self, seconds: float, output: IO[bytes] | None = None) -> bool:
        """Wait for a signal or for something to read; return whether `output` can be read."""
        if self.given:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            if output is not None:
                selector.register(output, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(max(0.0, seconds))}
        return output in ready if output is not None else False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.given = True
        with contextlib.suppress(OSError):
            self._writer.send(b"x")


class Child:
    """One child process.

    Parameters
    ----------
    name : str
        What messages call it.
    command : sequence of str
        Program and arguments.
    environment : mapping of str to str
        Its whole environment.
    folder : Path
        Its working folder.
    read : bool
        Keep its output for `lines`.
    log : Path, optional
        Append its output to this file. Without either it goes to this command's standard error.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        read: bool = False,
        log: Path | None = None,
    ) -> None:
        self.name = name
        with contextlib.ExitStack() as opened:
            output: IO[bytes] | int = subprocess.PIPE
            if log is not None:
                output = opened.enter_context(log.open("ab"))
            elif not read:
                output = sys.stderr.fileno()
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                bufsize=0,  # what is buffered, no selector sees
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent(os.getpid()),  # this thread is the only one
            )
        self.started = time.monotonic()
        self._rest = b""

    @property
    def pid(self) -> int:
        """Process id, and the id of its process group."""
        return self._process.pid

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process, as `subprocess` has it."""
        return self._process

    @property
    def output(self) -> IO[bytes]:
        """The pipe that it writes to, for `StopSignals.wait`; only where it is read."""
        assert self._process.stdout is not None
        return self._process.stdout

    def lines(self) -> list[bytes] | None:
        """Return the lines that it has written since, waiting for some; None at the end."""
        read = os.read(self.output.fileno(), 65_536)
        if not read:
            last, self._rest = self._rest, b""
            return [last] if last else None
        *whole, self._rest = (self._rest + read).split(b"\n")
        return whole

    def ended(self) -> int | None:
        """Exit status as `subprocess` gives it, negative for a signal; None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Send SIGTERM to the process alone: what it started, it ends itself."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def clear_away(self) -> None:
        """Kill what is left of it and of what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def end_all(children: Sequence[Child], seconds: float) -> None:
    """End children: SIGTERM to all, and after `seconds` at most SIGKILL to what is left."""
    for child in children:
        child.ask_to_end()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(child.ended() is None for child in children):
        time.sleep(_POLL_S)
    for child in children:
        child.clear_away()


@contextlib.contextmanager
def only_one(path: Path, sentence: str) -> Iterator[None]:
    """Hold a lock file for as long as this command runs; the kernel frees it however it ends.

    Raises
    ------
    ConfigError
        If the file cannot be made or locked.
    TransportError
        If another process holds it: `sentence`, in which ``{pid}`` is that process.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise ConfigError(
            f"folder '{path.parent.name}' cannot be written ({error.strerror}): give this user "
            "the right to",
            local_detail=str(path),
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise TransportError(sentence.format(pid=file.read(20).strip() or "unknown")) from None
        except OSError as error:
            raise ConfigError(
                f"folder '{path.parent.name}' takes no lock ({error.strerror}): put it on a disk "
                "of this machine",
                local_detail=str(path),
            ) from None
        with contextlib.suppress(OSError):  # the lock counts, also where the disk is full
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), b"%d\n" % os.getpid())
        yield


def go_direct(hosts: Sequence[str] = ()) -> None:
    """Let this process, too, reach `hosts` and its own machine without a proxy."""
    os.environ.update(direct_to(os.environ, hosts))


def direct_to(environment: Mapping[str, str], hosts: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables by which neither this machine nor `hosts` are asked through a proxy.

    Parameters
    ----------
    environment : mapping of str to str
        Its own exceptions, if any, come first.
    hosts : sequence of str
        Without ports, an IPv6 address without brackets.
    """
    known = environment.get("NO_PROXY", environment.get("no_proxy", ""))
    direct = [*filter(None, known.split(",")), "127.0.0.1", "localhost", "::1", *hosts]
    return dict.fromkeys(
        ("NO_PROXY", "no_proxy"), ",".join(dict.fromkeys(host.strip() for host in direct))
    )


def flower_environment(home: Path, direct: Sequence[str] = ()) -> dict[str, str]:
    """Return this environment as Flower's processes get it: without `PASSPHRASE`.

    Parameters
    ----------
    home : Path
        ``FLWR_HOME``.
    direct : sequence of str
        Hosts that are never reached through a proxy, beside this machine: Flower asks its own
        parts on it over HTTP too.
    """
    path = [str(Path(sys.executable).parent), *filter(None, [os.environ.get("PATH")])]
    return {
        **{name: value for name, value in os.environ.items() if name != PASSPHRASE},
        "PATH": os.pathsep.join(path),  # Flower starts its parts by name
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        **direct_to(os.environ, direct),
        "PYTHONUNBUFFERED": "1",
    }


def program(name: str) -> str:
    """Return the path of a program that is installed beside this Python.

    Raises
    ------
    ConfigError
        If it is not there.
    """
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise ConfigError(
            f"'{name}' is not installed beside this Python: install fedmvc again, with flwr 1.42",
            local_detail=str(path),
        )
    return str(path)


def _end_with_parent(parent: int):  # type: ignore[no-untyped-def]
    def ask_the_kernel() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:  # it was killed before the kernel was asked
                os._exit(0)

    return ask_the_kernel
