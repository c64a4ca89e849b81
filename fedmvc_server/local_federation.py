"""A server and its sites on this machine's loopback interface, from the product's own commands.

What an operator and hospitals would start on hosts of their own: kits, ``fedmvc-server start``, and
for each site ``fedmvc-client worker``, ``executor`` and ``join``, over TLS and with node keys.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from configs.endpoint import reach
from configs.errors import TransportError, error_for_code
from configs.federation import FederationConfig
from configs.process_tree import kill_left, kill_tree, tree
from configs.processes import (
    PASSPHRASE,
    Child,
    StopSignals,
    end_all,
    flower_environment,
    program,
)
from configs.site import Keys, SiteConfig
from configs.tables import parse_table
from fedmvc_server.control import look
from fedmvc_server.provision import provision
from fedmvc_server.registration import Registry
from fedmvc_server.site_folders import refuse_namesakes, site_folders
from fedmvc_server.synthesize import refuse_taken

__all__ = ["LOOPBACK", "LocalFederation", "free_port"]

log = logging.getLogger("fedmvc")

LOOPBACK = "127.0.0.1"
#: Seconds for a step of the start: the SuperLink, the workers, all sites online.
START_S = 120.0
#: Seconds that processes get to end: the sites', then the server's.
END_S = 10.0
_LOOK_S = 0.3
_PORTS = range(20_000, 32_768)
_ERROR = "error: "


class LocalFederation:
    """A server and its sites on this machine's loopback interface.

    A site's worker serves its folder in `data` itself: what a run leaves at a site (``results``,
    ``plans``, ``state``) is there afterwards, as with ``simulate``, and nothing else in it changes.
    A ``join`` has the start kit, with a copy of the site's ``site.toml``. For the main thread: the
    kernel ends the processes with the thread that started them.

    Parameters
    ----------
    folder : Path
        For kits, logs and Flower's own files (``kits``, ``logs``, ``flower``); made, and must not
        exist or be empty. It stays when all has stopped.
    data : Path
        Site folders, as ``fedmvc-server synthesize`` writes them.
    port : int, optional
        The SuperLink's; by default a free one.
    fast : bool
        Shorter waits and warm executors (``--fast-poll``, ``--warm``).
    server_for : mapping of str to str
        ``HOST:PORT`` that the ``join`` of a site uses in place of the SuperLink's own.

    Attributes
    ----------
    names : tuple of str
        The sites, in name order.
    address : str
        ``HOST:PORT`` of the SuperLink.
    kit, ca : Path
        The server's kit, and the CA certificate in it.

    Raises
    ------
    ConfigError
        If `folder` is taken, or `data` holds no site or one that cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        data: Path,
        *,
        port: int | None = None,
        fast: bool = False,
        server_for: Mapping[str, str] | None = None,
    ) -> None:
        refuse_taken(folder)
        self.folder = folder.absolute()
        sites = [(SiteConfig.load(each).name, each.absolute()) for each in site_folders(data)]
        refuse_namesakes([name for name, _ in sites])
        self._data = dict(sorted(sites))
        self.names = tuple(self._data)
        self.fast = fast
        port = port or free_port()
        self.address = f"{LOOPBACK}:{port}"
        fields = {
            "name": "local",
            "server": {"addresses": [LOOPBACK], "port": port},
            "sites": [{"name": name} for name in self.names],
        }
        self._federation = parse_table(FederationConfig, fields, "the federation of these sites")
        self.kits = self.folder / "kits"
        self.kit = self.kits / "server"
        self.ca = self.kit / "ca.crt"
        self._server_for = dict(server_for or {})
        self._runtimes = {name: f"{LOOPBACK}:{free_port()}" for name in self.names}
        self._sockets: Path | None = None
        self._children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """What was started and not killed: ``server``; ``worker-``, ``executor-``, ``join-SITE``.

        A copy: `spawn` and `kill` change what it shows.
        """
        return {name: child.process for name, child in self._children.items()}

    def start(self) -> None:
        """Make the kits, start everything, and return when every site is online.

        Raises
        ------
        FedMVCError
            What a process ended with, in its own sentence and with its exit code; `TransportError`
            where one does not come up in time. Nothing runs any more then.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self._provision()
        # Short, because a socket's path has at most 100 bytes.
        self._sockets = Path(tempfile.mkdtemp(prefix="fedmvc-"))
        self.spawn("server")
        for name in self.names:
            self.spawn(f"worker-{name}")
        self._await(self._answers, "the SuperLink")
        for name in self.names:
            self.spawn(f"executor-{name}")
        registry = Registry(self.kit, self.address)
        for name in self.names:
            registry.register(name)
            self.spawn(f"join-{name}")
        sockets = [self._socket(name) for name in self.names]
        self._await(lambda: all(path.is_socket() for path in sockets), "one of the sites' workers")
        self._await(lambda: self.online() == set(self.names), "one of the sites' SuperNodes")

    def online(self) -> set[str]:
        """Ask the SuperLink which sites are online.

        Raises
        ------
        TransportError
            If it does not answer.
        """
        nodes = look(self.address, self.ca).nodes
        return {node.name for node in nodes if node.status == "online"}

    def _answers(self) -> bool:
        """Say whether the SuperLink is up, and it is ours: another may listen at its port."""
        try:
            reach(self.address, self.ca, timeout_s=1.0, direct=True)
        except TransportError:
            return False
        return True

    def spawn(self, name: str) -> None:
        """Start one of the processes (again); its output is appended to its log.

        Parameters
        ----------
        name : str
            As in `processes`. One that is there already is killed first.
        """
        if name in self._children:
            self.kill(name)
        home = self.folder / "flower" / name
        for folder in (home, self.folder / "logs"):
            folder.mkdir(parents=True, exist_ok=True)
        environment = flower_environment(home)
        if name.startswith("worker-") and PASSPHRASE in os.environ:
            environment[PASSPHRASE] = os.environ[PASSPHRASE]
        # the sites share this machine's cores: threads that wait for each other would cost most
        share = max(1, (os.cpu_count() or 1) // len(self.names))
        environment.setdefault("OMP_NUM_THREADS", str(share))
        self._children[name] = Child(
            name, self._command(name), environment, self.folder, log=self._log(name)
        )

    def kill(self, name: str) -> None:
        """Kill one of the processes with everything that it started, by SIGKILL."""
        child = self._children.pop(name)
        kill_tree(child.pid)
        child.clear_away()

    def log(self, name: str) -> str:
        """Return what a process has written so far; "" where it was never started."""
        path = self._log(name)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """End all processes and what they started: the sites sign off, then the server ends.

        Ctrl-C and SIGTERM meanwhile change nothing.
        """
        with StopSignals():
            left = [each for child in self._children.values() for each in tree(child.pid)]
            server = self._children.pop("server", None)
            end_all(list(self._children.values()), END_S)
            self._children.clear()
            if server is not None:
                end_all([server], END_S)
            kill_left(left)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None

    def _provision(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        provision(self._federation, self.kits)
        for name, folder in self._data.items():
            config = SiteConfig.load(folder)
            config.model_copy(update={"keys": Keys()}).dump(self.kits / name)

    def _command(self, name: str) -> list[str]:
        if name == "server":
            return [program("fedmvc-server"), "start", "--kit", str(self.kit)]
        role, _, site = name.partition("-")
        fast = ["--fast-poll"] if self.fast else []
        at = ["--socket", str(self._socket(site))]
        if role == "worker":
            options = [*at, "--site", str(self._data[site])]
        elif role == "executor":
            options = [*at, "--runtime", self._runtimes[site], *fast]
            options += ["--warm"] if self.fast else []
        else:
            options = [*at, "--runtime", self._runtimes[site], *fast]
            options += ["--site", str(self.kits / site)]
            options += ["--server", self._server_for.get(site, self.address)]
        return [program("fedmvc-client"), role, *options]

    def _socket(self, site: str) -> Path:
        assert self._sockets is not None  # made by `start`
        return self._sockets / f"{self.names.index(site)}.sock"

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            for name, child in self._children.items():
                status = child.ended()
                if status is not None:
                    raise self._fallen(name, status)
            if time.monotonic() > deadline:
                raise TransportError(
                    f"{what} did not come up in {START_S:g} s: the logs say why",
                    local_detail=str(self.folder / "logs"),
                )
            time.sleep(_LOOK_S)

    def _fallen(self, name: str, status: int) -> Exception:
        """Say what ended a process: its own sentence where it left one."""
        said = [line for line in self.log(name).splitlines() if line.startswith(_ERROR)]
        kind = error_for_code(status) if said else TransportError
        sentence = (
            said[-1].removeprefix(_ERROR)
            if said
            else f"'{name}' ended with exit status {status} before the federation was up: its log "
            "says why"
        )
        return kind(sentence, local_detail=str(self._log(name)))


def free_port() -> int:
    """Return a loopback port that was free a moment ago.

    It is below those that systems give to outgoing connections (from 32768), one of which could
    have it before a server is up.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        return port
