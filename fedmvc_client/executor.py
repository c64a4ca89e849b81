"""A site's executor: Flower's SuperExec, which starts our process for each message and no other.

Whatever kind of task a server makes up, `fedmvc_client.clientapp` is what is started. The executor
knows the SuperNode's Runtime API and the worker's socket; it has neither data nor keys, and imports
neither torch nor data.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import MutableMapping
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from configs.connection import parse_address
from configs.flower_version import check_flower
from configs.ports import listens
from configs.processes import PASSPHRASE, direct_to

if TYPE_CHECKING:
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

__all__ = ["FAST_POLL_S", "Cold", "Launcher", "Warm", "run_executor", "set_up_environment"]

FAST_POLL_S = 0.05
"""Seconds between two looks for a task with ``--fast-poll``; Flower's own is 1."""

log = logging.getLogger("fedmvc.site")

_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"


class _Started(Protocol):
    """A process of a message, with the exit code that it left."""

    def exit_code(self) -> int | None: ...


class Launcher:
    """What Flower calls an executor: starts a process a task.

    Parameters
    ----------
    socket : str
        The worker's.
    """

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._running: list[_Started] = []

    def start(self, arguments: list[str]) -> _Started:
        """Start the process of one message with Flower's arguments."""
        raise NotImplementedError

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of one task; never installs what a bundle asks for."""
        from flwr.supercore.superexec.executor.types import LaunchResult

        arguments = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
        if spec.insecure:
            arguments.append("--insecure")
        if spec.parent_pid is not None:
            arguments += ["--parent-pid", str(spec.parent_pid)]
        self._running.append(self.start(arguments))
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Take leave of processes that ended; called between two looks for tasks."""
        ended = {each: each.exit_code() for each in self._running}
        self._running = [each for each, code in ended.items() if code is None]
        for code in ended.values():
            if code is not None and code < 0:
                log.error(
                    "the process of a message was ended by %s: the server hears of it when Flower "
                    "misses its heartbeat, within about a minute and a half",
                    signal.Signals(-code).name,
                )

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], **_: object
    ) -> tuple[set[TaskType], set[str]]:
        """Take every kind of task: the process refuses what it does not run, and says so."""
        return supported_task_types, set()

    def wait_for_capacity(self, *_: object, **__: object) -> None:
        """Return at once."""

    def close(self) -> None:
        """Leave running processes to their end, as Flower does."""


class _Spawned:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def exit_code(self) -> int | None:
        return self._process.poll()


class Cold(Launcher):
    """Starts Python anew for each message, as Flower does."""

    module = "fedmvc_client.clientapp"

    def start(self, arguments: list[str]) -> _Started:
        """Start Python; the current folder is not on its ``sys.path``."""
        command = [sys.executable, "-P", "-m", self.module, self.socket, *arguments]
        return _Spawned(subprocess.Popen(command))


class _Forked:
    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        self._process = process

    def exit_code(self) -> int | None:
        return self._process.exitcode


class Warm(Launcher):
    """Forks each message's process from one that has imported everything and run nothing.

    That one is `multiprocessing`'s fork server: it has a single thread and no connection, so a copy
    of it is whole; what a message does ends with its copy.
    """

    def __init__(self, socket: str) -> None:
        super().__init__(socket)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["__main__", "fedmvc_client.clientapp"])
        forkserver.ensure_running()

    def start(self, arguments: list[str]) -> _Started:
        """Fork."""
        # daemon: told to end, not waited for, when the executor ends
        process = self._context.Process(
            target=_run_forked, args=(self.socket, arguments), daemon=True
        )
        process.start()
        return _Forked(process)


def _run_forked(socket: str, arguments: list[str]) -> None:
    from fedmvc_client.clientapp import run

    run(socket, arguments)


def run_executor(
    runtime: str, socket: Path, *, warm: bool = False, fast_poll: bool = False
) -> None:
    """Run messages until a signal ends this process, as Flower's SuperExec.

    Parameters
    ----------
    runtime : str
        ``HOST:PORT`` of the SuperNode's Runtime API.
    socket : Path
        The worker's socket.
    warm : bool, default False
        Fork each message's process instead of starting Python anew.
    fast_poll : bool, default False
        Look for tasks every `FAST_POLL_S` seconds.

    Raises
    ------
    ConfigError
        If the address is none.
    ProtocolError
        If Flower is another version.
    SystemExit
        At the end, with 0 after a signal.
    """
    host, port = parse_address(
        runtime, "the Runtime API's address", "127.0.0.1:9094, where the SuperNode listens"
    )
    check_flower()
    set_up_environment(os.environ, host, fast_poll=fast_poll)
    launcher = (Warm if warm else Cold)(str(socket.absolute()))
    # After the environment: Flower reads some of it when it is imported.
    from flwr.supercore.cli import flower_superexec

    flower: Any = import_module("flwr.supercore.superexec.run_superexec")
    flower.get_executor = lambda *_, **__: launcher
    sys.argv = ["flower-superexec", "--insecure", "--runtime-api-address", runtime]
    logging.getLogger("flwr").propagate = False  # it has a console of its own
    if listens(host, port):
        log.info("the executor asks for messages at %s", runtime)
    else:
        log.warning(
            "no SuperNode answers at %s: start 'fedmvc-client join' with this --runtime; waiting "
            "(Flower says below when it tries again)",
            runtime,
        )
    flower_superexec()


def set_up_environment(
    environment: MutableMapping[str, str], host: str, *, fast_poll: bool = False
) -> None:
    """Keep Flower from reporting its use, looking for updates, installing what a bundle depends on.

    A proxy is not asked for `host`, numpy starts no threads, and no passphrase is passed on.

    Parameters
    ----------
    environment : mutable mapping
        Changed in place; everything that is started later inherits it.
    host : str
        The Runtime API's.
    fast_poll : bool, default False
        Also set the task poll, where nobody has.
    """
    environment.pop(PASSPHRASE, None)  # the worker's alone
    environment.update(direct_to(environment, [host]))
    environment["FLWR_TELEMETRY_ENABLED"] = "0"
    environment["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    # It computes nothing; a process that is forked must not have numpy's threads.
    environment["OMP_NUM_THREADS"] = environment["OPENBLAS_NUM_THREADS"] = "1"
    if fast_poll:
        environment.setdefault(_POLL, str(FAST_POLL_S))
