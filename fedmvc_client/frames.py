"""Frames on a worker's unix socket: a fixed header, then the bytes of one message."""

from __future__ import annotations

import enum
import socket
import struct
import time

from configs.errors import TransportError

__all__ = ["FrameStatus", "peer_uid", "receive_frame", "send_frame"]

_MAGIC = b"FMVC"
_HEADER = struct.Struct("!4sBQ")  # magic, status, length of what follows in bytes
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of a connection's other end
_CHUNK = 1 << 20


class FrameStatus(enum.IntEnum):
    """What a frame is: a message, or the reason why there is none."""

    MESSAGE = 0
    FORBIDDEN = 1
    TOO_LARGE = 2
    MALFORMED = 3
    FAILED = 4

    @property
    def sentence(self) -> str:
        """The reason as one sentence for a user."""
        return _SENTENCES[self]


_SENTENCES = {
    FrameStatus.MESSAGE: "the worker replied",
    FrameStatus.FORBIDDEN: (
        "the worker of this site does not take requests from this user: "
        "start fedmvc-client worker with --allow-uid and the user's number"
    ),
    FrameStatus.TOO_LARGE: (
        "the worker of this site refused a request above its size limit: "
        "use fewer starts (n_init) or clusters"
    ),
    FrameStatus.MALFORMED: (
        "the worker of this site could not read the request: "
        "install the same FedMVC version for the worker and the SuperNode"
    ),
    FrameStatus.FAILED: "the worker of this site failed: look at its log",
}


def send_frame(
    connection: socket.socket, status: FrameStatus, body: bytes, deadline: float
) -> None:
    """Send one frame before `deadline` (of ``time.monotonic``).

    Raises
    ------
    TimeoutError
        If the other side does not take it in time.
    OSError
        If the connection breaks.
    """
    connection.settimeout(_remaining(deadline))
    connection.sendall(_HEADER.pack(_MAGIC, status, len(body)))
    view = memoryview(body)
    for start in range(0, len(view), _CHUNK):
        connection.settimeout(_remaining(deadline))
        connection.sendall(view[start : start + _CHUNK])


def receive_frame(
    connection: socket.socket, max_bytes: int, deadline: float
) -> tuple[FrameStatus, bytes]:
    """Receive one frame before `deadline` (of ``time.monotonic``).

    Returns
    -------
    status : FrameStatus
        What the frame is; `TOO_LARGE` too when its announced length is above `max_bytes`, and
        `MALFORMED` when it is no frame. In both cases nothing of the body was read.
    body : bytes
        The body; empty unless the status is `MESSAGE`.

    Raises
    ------
    TimeoutError
        If the frame is not complete in time.
    ConnectionError
        If the other side closes before the frame is complete.
    """
    magic, code, length = _HEADER.unpack(_receive_exactly(connection, _HEADER.size, deadline))
    if magic != _MAGIC or code not in FrameStatus.__members__.values():
        return FrameStatus.MALFORMED, b""
    status = FrameStatus(code)
    if status is not FrameStatus.MESSAGE:
        return status, b""
    if length > max_bytes:
        return FrameStatus.TOO_LARGE, b""
    if length == 0:
        return FrameStatus.MALFORMED, b""
    return status, _receive_exactly(connection, length, deadline)


def peer_uid(connection: socket.socket) -> int:
    """User id of the process at the other end of a unix socket (Linux).

    Raises
    ------
    TransportError
        On a system that does not tell: a worker's socket needs Linux.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        raise TransportError(
            "this system does not say who is at the other end of a socket: "
            "run the worker on Linux or in a container"
        )
    _, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    )
    return int(uid)


def _receive_exactly(connection: socket.socket, n_bytes: int, deadline: float) -> bytes:
    # Grown as bytes arrive: an announced length alone reserves no memory.
    received = bytearray()
    while len(received) < n_bytes:
        connection.settimeout(_remaining(deadline))
        chunk = connection.recv(min(_CHUNK, n_bytes - len(received)))
        if not chunk:
            raise ConnectionError(f"closed after {len(received)} of {n_bytes} bytes")
        received += chunk
    return bytes(received)


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("deadline passed")
    return remaining
