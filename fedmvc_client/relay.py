"""How a request reaches the site's worker: in this process, or over a unix socket.

The caller's half lives here; :mod:`fedmvc_client.socket_server` is the worker's half of the
socket. A relay moves opaque bytes and never looks inside them. Nothing in this module imports
data, torch or Flower, so that a ClientApp process starts fast and can do little.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from configs.errors import TransportError
from fedmvc_client.frames import (
    FrameStatus,
    peer_uid,
    receive_frame,
    send_frame,
)
from strategies.messages import MAX_BYTES

__all__ = [
    "InProcessRelay",
    "Relay",
    "SocketRelay",
    "Worker",
    "register_worker",
    "registered_workers",
    "resolve_relay",
    "simulation_folder",
    "simulation_socket",
    "unregister_worker",
]

#: Seconds between two tries to reach a worker that takes no more requests for now.
_RETRY_S = 0.05


class Worker(Protocol):
    """What answers the requests of one site."""

    @property
    def site(self) -> str:
        """Name of the site."""
        ...

    def handle(self, body: bytes) -> bytes:
        """Answer one encoded request with one encoded reply; never raise."""
        ...


class Relay(Protocol):
    """The way from a ClientApp to the worker of its site."""

    def ask(self, body: bytes, timeout: float) -> bytes:
        """Send one request and wait for its reply.

        Parameters
        ----------
        body : bytes
            An encoded request.
        timeout : float
            Seconds to wait for the whole reply.

        Returns
        -------
        bytes
            The encoded reply.

        Raises
        ------
        TransportError
            If no reply arrives in time, or the worker cannot be reached.
        """
        ...


class InProcessRelay:
    """Call a worker of this process, one request at a time.

    Parameters
    ----------
    worker : Worker
        The worker to call. It runs in the caller's thread, so `timeout` only bounds the wait
        for another caller to finish.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._busy = threading.Lock()

    def ask(self, body: bytes, timeout: float) -> bytes:
        """Answer through the worker's ``handle`` (see :meth:`Relay.ask`)."""
        if not self._busy.acquire(timeout=timeout):
            raise TransportError(
                f"the worker of this site was still busy after {timeout:g} s: "
                "raise quorum.timeout_s or send less work at once"
            )
        try:
            return self._worker.handle(body)
        finally:
            self._busy.release()


class SocketRelay:
    """Ask a worker that listens on a unix socket.

    Parameters
    ----------
    path : str or Path
        The worker's socket.
    expected_uid : int, optional
        Refuse to talk to a socket that another user serves; by default any user is accepted,
        because the socket's folder already says who may be there.
    max_bytes : int
        Largest request sent and largest reply accepted.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        expected_uid: int | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._path = Path(path)
        self._expected_uid = expected_uid
        self._max_bytes = max_bytes

    def ask(self, body: bytes, timeout: float) -> bytes:
        """Send the request as one frame and wait for the reply's (see :meth:`Relay.ask`)."""
        if len(body) > self._max_bytes:
            raise TransportError(
                f"a request has {len(body)} bytes; the worker's socket takes at most "
                f"{self._max_bytes}: use fewer starts (n_init) or clusters"
            )
        deadline = time.monotonic() + timeout
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            self._connect(connection, timeout, deadline)
            try:
                return self._converse(connection, body, deadline)
            except TimeoutError as error:
                raise TransportError(
                    f"the worker of this site did not reply in {timeout:g} s: "
                    "raise quorum.timeout_s or look at the worker's log",
                    local_detail=str(self._path),
                ) from error
            except OSError as error:
                raise TransportError(
                    "the worker of this site broke off before its reply: look at its log",
                    local_detail=f"{self._path}: {error}",
                ) from error

    def _connect(self, connection: socket.socket, timeout: float, deadline: float) -> None:
        connection.settimeout(timeout)
        while True:
            try:
                connection.connect(os.fspath(self._path))
                break
            except BlockingIOError as error:  # at once, where as many wait as may: it is busy
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TransportError(
                        f"the worker of this site took no request in {timeout:g} s: "
                        "raise quorum.timeout_s or look at the worker's log",
                        local_detail=str(self._path),
                    ) from error
                time.sleep(min(left, _RETRY_S))
            except OSError as error:
                raise TransportError(
                    "the worker of this site is not running or its socket is closed to this user: "
                    "start it with 'fedmvc-client worker'",
                    local_detail=f"{self._path}: {error}",
                ) from error
        if self._expected_uid is not None and peer_uid(connection) != self._expected_uid:
            raise TransportError(
                f"the worker's socket belongs to user {peer_uid(connection)}, "
                f"not to user {self._expected_uid}: remove it and start the worker again",
                local_detail=str(self._path),
            )

    def _converse(self, connection: socket.socket, body: bytes, deadline: float) -> bytes:
        # A server that refuses closes at once; its reason may already be waiting here.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_frame(connection, FrameStatus.MESSAGE, body, deadline)
        status, reply = receive_frame(connection, self._max_bytes, deadline)
        if status is FrameStatus.MESSAGE:
            return reply
        raise TransportError(status.sentence, local_detail=str(self._path))


_registered: dict[str, InProcessRelay] = {}


def register_worker(name: str, worker: Worker) -> None:
    """Make a worker of this process reachable under its site's name.

    Raises
    ------
    TransportError
        If the name is taken: two runs in one process need two names.
    """
    if name in _registered:
        raise TransportError(
            f"a worker for site '{name}' is already registered in this process: unregister it first"
        )
    _registered[name] = InProcessRelay(worker)


def unregister_worker(name: str) -> None:
    """Forget a worker of this process; a name that is not registered is ignored."""
    _registered.pop(name, None)


@contextlib.contextmanager
def registered_workers(workers: Mapping[str, Worker]) -> Iterator[None]:
    """Register several workers by site name for the length of a ``with`` block."""
    added: list[str] = []
    try:
        for name, worker in workers.items():
            register_worker(name, worker)
            added.append(name)
        yield
    finally:
        for name in added:
            unregister_worker(name)


def simulation_folder(run_id: int) -> Path:
    """Folder of the sockets that serve every site of one Ray simulation."""
    return Path(tempfile.gettempdir()) / f"fedmvc-{os.getuid()}" / str(run_id)


def simulation_socket(run_id: int, partition_id: int) -> Path:
    """Socket of one site of one Ray simulation."""
    return simulation_folder(run_id) / f"{partition_id}.sock"


def resolve_relay(node_config: Mapping[str, object], run_id: int) -> Relay:
    """Find the worker of the site that this ClientApp speaks for.

    Parameters
    ----------
    node_config : Mapping[str, object]
        The SuperNode's configuration. ``worker`` (deployment) names the worker's socket;
        ``site`` names a worker registered in this process; ``partition-id`` (Ray) is the index
        of a socket in :func:`simulation_folder`. The first that applies wins.
    run_id : int
        Flower's run id.

    Raises
    ------
    TransportError
        If none of the three applies.
    """
    if (path := node_config.get("worker")) is not None:
        return SocketRelay(str(path))
    site = node_config.get("site")
    if site is not None and str(site) in _registered:
        return _registered[str(site)]
    if (partition_id := node_config.get("partition-id")) is not None:
        path = simulation_socket(run_id, int(str(partition_id)))
        return SocketRelay(path, expected_uid=os.getuid())
    raise TransportError(
        "this node names no worker: start the SuperNode with "
        "--node-config 'worker=\"PATH OF THE SOCKET\"'"
    )
