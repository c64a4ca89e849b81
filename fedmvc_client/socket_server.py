"""The worker's half of the unix socket: one request at a time, for known users only."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from configs.errors import InternalError, TransportError
from fedmvc_client.frames import (
    FrameStatus,
    peer_uid,
    receive_frame,
    send_frame,
)
from fedmvc_client.relay import Worker, simulation_folder
from fedmvc_client.throttle import Throttle
from strategies.messages import MAX_BYTES

__all__ = ["WorkerServer", "serve_sites", "serve_worker"]

_LOG = logging.getLogger(__name__)

_MAX_PATH = 100  # the system's limit is 108 bytes
_FOLDER_MODE = 0o750
_BACKLOG = 16
_SIGNAL_POLL = 0.1
#: Seconds that a request being computed gets when the service ends.
_GRACE = 10.0
#: Seconds between two looks for runs that nobody asks about any more.
_TIDY_EVERY = 3600.0


class WorkerServer:
    """Serve one worker on one unix socket.

    Parameters
    ----------
    worker : Worker
        What answers the requests.
    path : str or Path
        The socket, at most 100 bytes long. Its folder is made with mode 0750 where it does not
        exist; an existing one must belong to this user (or root) and keep others out.
    mode : int
        Permissions of the socket.
    allowed_uids : iterable of int
        Users that may ask, beside this process's own.
    max_bytes : int
        Largest request accepted.
    io_timeout : float
        Seconds a client may take to send a request or to take a reply.
    tidy_every : float
        Seconds after which a worker ends its abandoned runs, also where nobody asks it anything.

    Raises
    ------
    TransportError
        If the path is too long, the folder is open to others, or another worker listens there.
    """

    def __init__(
        self,
        worker: Worker,
        path: str | Path,
        *,
        mode: int = 0o660,
        allowed_uids: Iterable[int] = (),
        max_bytes: int = MAX_BYTES,
        io_timeout: float = 60.0,
        tidy_every: float = _TIDY_EVERY,
    ) -> None:
        self._worker = worker
        self._path = Path(path)
        self._allowed_uids = frozenset(allowed_uids) | {os.getuid()}
        self._max_bytes = max_bytes
        self._io_timeout = io_timeout
        self._throttle = Throttle()
        self._tidy_every = tidy_every
        self._wake_reader, self._wake_writer = socket.socketpair()
        try:
            self._listener = _listen(self._path, mode)
        except BaseException:
            self._wake_reader.close()
            self._wake_writer.close()
            raise
        self._inode = os.stat(self._path).st_ino

    def serve(self) -> None:
        """Answer requests until :meth:`stop`; then remove the socket.

        A request that is being answered when :meth:`stop` is called still gets its reply, where
        the process lives as long (see :func:`serve_worker`).
        """
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                selector.register(self._wake_reader, selectors.EVENT_READ)
                due = time.monotonic() + self._tidy_every
                while True:
                    patience = max(due - time.monotonic(), 0.0)
                    ready = {key.fileobj for key, _ in selector.select(patience)}
                    if self._wake_reader in ready:
                        return
                    if self._listener in ready:
                        connection, _ = self._listener.accept()
                        with connection:
                            self._answer(connection)
                    if time.monotonic() >= due:
                        self._tidy()
                        due = time.monotonic() + self._tidy_every
        finally:
            self.close()

    def stop(self) -> None:
        """Make :meth:`serve` return; safe from a signal handler and from another thread."""
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"x")

    def close(self) -> None:
        """Close and remove the socket; called by :meth:`serve` when it returns."""
        self._listener.close()
        self._wake_reader.close()
        self._wake_writer.close()
        self.remove()

    def remove(self) -> None:
        """Remove the socket's file; a request that is being answered goes on."""
        with contextlib.suppress(FileNotFoundError):
            # Only our own: another worker may have taken the path over since.
            if os.stat(self._path).st_ino == self._inode:
                self._path.unlink()

    def _answer(self, connection: socket.socket) -> None:
        site = self._worker.site
        uid = peer_uid(connection)
        try:
            if uid not in self._allowed_uids:
                self._warn("site %s: refused a request of user %d", site, uid)
                self._send(connection, FrameStatus.FORBIDDEN)
                return
            deadline = time.monotonic() + self._io_timeout
            status, body = receive_frame(connection, self._max_bytes, deadline)
            if status is not FrameStatus.MESSAGE:
                self._warn("site %s: refused a frame: %s", site, status.name)
                self._send(connection, status)
                return
            status, reply = self._handle(body)
            self._send(connection, status, reply)
        except OSError as error:  # includes TimeoutError
            self._warn("site %s: a client broke off: %s", site, error)

    def _warn(self, sentence: str, *values: object) -> None:
        """Log what a client did, unless clients fill the log."""
        if self._throttle.admit() is not None:
            _LOG.warning(sentence, *values)

    def _handle(self, body: bytes) -> tuple[FrameStatus, bytes]:
        try:
            return FrameStatus.MESSAGE, self._worker.handle(body)
        except Exception:
            _LOG.exception("site %s: the worker failed, which it never should", self._worker.site)
            return FrameStatus.FAILED, b""

    def _tidy(self) -> None:
        try:
            getattr(self._worker, "end_abandoned", lambda: None)()
        except Exception:  # it is tried again, and whoever asks is told
            _LOG.exception("site %s: abandoned runs could not be ended", self._worker.site)

    def _send(self, connection: socket.socket, status: FrameStatus, body: bytes = b"") -> None:
        send_frame(connection, status, body, time.monotonic() + self._io_timeout)


def serve_worker(
    worker: Worker | Mapping[str, Worker],
    path: str | Path,
    *,
    mode: int = 0o660,
    allowed_uids: Iterable[int] = (),
    max_bytes: int = MAX_BYTES,
    ready: Callable[[], None] | None = None,
    stop: threading.Event | None = None,
    grace: float = _GRACE,
) -> bool:
    """Serve one worker, or several side by side, until SIGTERM, SIGINT or `stop`.

    Parameters
    ----------
    worker : Worker or Mapping[str, Worker]
        One worker, or workers by the name of their socket.
    path : str or Path
        The socket of the one worker; for several the folder, where each listens on
        ``NAME.sock``. Each socket is served by its own thread, one request at a time.
    mode, allowed_uids, max_bytes
        As for :class:`WorkerServer`.
    ready : callable, optional
        Called once, when every socket listens.
    stop : threading.Event, optional
        Ends the service when set. Signals are only handled in the main thread.
    grace : float
        Seconds that the requests being answered then may still take together.

    Returns
    -------
    bool
        True where every request got its reply; False where one was still computing when `grace`
        was over: its thread is left behind, and the process should exit without waiting for it.

    Raises
    ------
    TransportError
        If a socket cannot be opened.
    """
    stop = threading.Event() if stop is None else stop
    workers = (
        {Path(path) / f"{name}.sock": each for name, each in worker.items()}
        if isinstance(worker, Mapping)
        else {Path(path): worker}
    )
    servers: list[WorkerServer] = []
    threads: list[threading.Thread] = []
    with _collected_signals() as signals:
        try:
            for socket_path, each in workers.items():
                servers.append(
                    WorkerServer(
                        each,
                        socket_path,
                        mode=mode,
                        allowed_uids=allowed_uids,
                        max_bytes=max_bytes,
                    )
                )
            for server in servers:
                thread = threading.Thread(target=_serve_or_stop, args=(server, stop), daemon=True)
                thread.start()
                threads.append(thread)
            if ready is not None:
                ready()
            while not signals and not stop.wait(_SIGNAL_POLL):
                pass
        finally:
            for server in servers:
                server.stop()
            deadline = time.monotonic() + grace
            for thread in threads:
                thread.join(max(deadline - time.monotonic(), 0.0))
            for server, thread in zip(servers, threads, strict=False):
                if thread.is_alive():
                    server.remove()
            for server in servers[len(threads) :]:
                server.close()
    return not any(thread.is_alive() for thread in threads)


def serve_sites(
    make_workers: Callable[[], Mapping[int, Worker]],
    run_id: int,
    ready: Callable[[], None],
    stop: threading.Event,
) -> None:
    """Serve every site of one Ray simulation from this process.

    Parameters
    ----------
    make_workers : callable
        Builds the workers by partition id.
    run_id : int
        Flower's run id.
    ready : callable
        Called once, when every socket listens.
    stop : threading.Event
        Ends the service when set.
    """
    # Before any site's thread: while one first imports pyarrow, scikit-learn finds it half loaded
    # in another's sys.modules and fails.
    import_module("fedmvc_client.results")
    folder = simulation_folder(run_id)
    workers = {str(partition_id): worker for partition_id, worker in make_workers().items()}
    # The parent is shared by this user's simulations and lies in the system's temporary folder.
    _check_folder(folder.parent)
    try:
        serve_worker(workers, folder, mode=0o600, ready=ready, stop=stop)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _serve_or_stop(server: WorkerServer, stop: threading.Event) -> None:
    try:
        server.serve()
    finally:
        stop.set()


@contextlib.contextmanager
def _collected_signals() -> Iterator[list[int]]:
    # The handler only appends: setting an Event that this thread waits for could deadlock.
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = {
        each: signal.signal(each, lambda number, _: received.append(number))
        for each in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield received
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _listen(path: Path, mode: int) -> socket.socket:
    length = len(os.fsencode(path))
    if length > _MAX_PATH:
        raise TransportError(
            f"the path of the worker's socket has {length} bytes; at most {_MAX_PATH} are "
            "possible: choose a shorter folder",
            local_detail=str(path),
        )
    _check_folder(path.parent)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        os.chmod(path, mode)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise TransportError(
            "the worker's socket cannot be opened: check the folder's permissions and that no "
            "other worker serves this site",
            local_detail=f"{path}: {error}",
        ) from error
    return listener


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise TransportError(
            "the folder of the worker's socket cannot be made: check its permissions",
            local_detail=f"{folder}: {error}",
        ) from error
    if found.st_uid not in (0, os.getuid()):
        raise TransportError(
            f"the folder of the worker's socket belongs to user {found.st_uid}, not to user "
            f"{os.getuid()}: choose a folder of this user",
            local_detail=str(folder),
        )
    permissions = stat.S_IMODE(found.st_mode)
    if permissions & 0o027:
        raise TransportError(
            f"the folder of the worker's socket has mode {permissions:04o}; at most "
            f"{_FOLDER_MODE:04o} keeps others out: run chmod {_FOLDER_MODE:o} on it",
            local_detail=str(folder),
        )


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise TransportError(
            "the path of the worker's socket is taken by something that is not a socket: "
            "remove it or choose another path",
            local_detail=str(path),
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # somebody listens, and as many wait as may
        except OSError as error:
            raise InternalError(
                "the worker's socket cannot be examined: remove it and start the worker again",
                local_detail=f"{path}: {error}",
            ) from error
    raise TransportError(
        "another worker already serves this site's socket: stop it first",
        local_detail=str(path),
    )
