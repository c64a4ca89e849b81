"""A line between two machines that can be cut: forwards TCP connections to an address."""

import contextlib
import socket
import threading

from tests.network.federation import free_port


class Forwarder:
    """Forwards connections to `target` (HOST:PORT) while the line is whole.

    Attributes
    ----------
    address : str
        Where it listens.
    """

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._whole = threading.Event()
        self._whole.set()
        self._lock = threading.Lock()
        self._open = set()
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)  # it may be waiting for a connection
        self._listener.close()

    def cut(self):
        """Cut every connection, and let none through until `mend`."""
        self._whole.clear()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self):
        """Let connections through again."""
        self._whole.set()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near):
        with near, contextlib.suppress(OSError):
            if not self._whole.is_set():
                return
            with socket.create_connection(self._target, 10) as far:
                far.settimeout(None)
                with self._lock:
                    if not self._whole.is_set():
                        return
                    self._open |= {near, far}
                try:
                    back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                    back.start()
                    _copy(near, far)
                    back.join()
                finally:
                    with self._lock:
                        self._open -= {near, far}


def _copy(source, target):
    """Copy until either end closes, then close both."""
    with contextlib.suppress(OSError):
        while piece := source.recv(65_536):
            target.sendall(piece)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
