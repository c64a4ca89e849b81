"""What code that slipped into an executor would try: ``python slipped_in.py UID JSON``.

It becomes user UID, tries everything that JSON names, and prints one JSON object of what it got.
"""

import contextlib
import json
import os
import pickle
import socket
import struct
import sys
from pathlib import Path

import numpy as np

from configs.plan import RunPlan
from fedmvc_client.relay import SocketRelay
from strategies.messages import (
    BundleRefused,
    HelloRequest,
    PrepareRequest,
    from_bytes,
    to_bytes,
)

RUN_ID = "0a1b2c3d-0000-4000-8000-000000000000"
HEADER = struct.Struct("!4sBQ")


def become(uid):
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def look(path):
    """Read a file, or list a folder; return what it gave or the error's name."""
    try:
        found = Path(path)
        return "listed" if found.is_dir() and list(found.iterdir()) else found.read_bytes().hex()
    except OSError as error:
        return type(error).__name__


def connect(port):
    try:
        with socket.socket() as connection:
            connection.settimeout(3)
            connection.connect(("127.0.0.1", port))
            return "connected"
    except OSError as error:
        return type(error).__name__


def raw(path, frame):
    """Send bytes as they are; return the status of the reply, None where there is none."""
    received = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(path)
        with contextlib.suppress(OSError):
            connection.sendall(frame)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                received += chunk
    return HEADER.unpack(received[: HEADER.size])[1] if received else None


def ask(path, body):
    return repr(from_bytes(SocketRelay(path).ask(body, 60.0)))


def main():
    uid, given = int(sys.argv[1]), json.loads(sys.argv[2])
    become(uid)
    path, plan = given["socket"], RunPlan.parse(given["plan"])
    hello = HelloRequest(RUN_ID, plan.plan_id, plan.canonical())
    columns = np.array([2, 2])
    found = {
        "files": {name: look(name) for name in given["files"]},
        "control": look(given["control"]),
        "network": connect(given["port"]),
        "garbage": raw(path, b"GET / HTTP/1.1\r\n\r\n"),
        "too large": raw(path, HEADER.pack(b"FMVC", 0, 2**40) + b"x" * 1000),
        "cut short": raw(path, HEADER.pack(b"FMVC", 0, 100) + b"x"),
        "asked": [
            ask(path, to_bytes(hello)),
            ask(path, to_bytes(PrepareRequest(RUN_ID, plan.plan_id, ("ecg", "imaging"), columns))),
            ask(path, pickle.dumps({"read": "/etc/passwd"})),
            ask(path, to_bytes(BundleRefused("0f" * 32, 4, "a made-up report"))),
        ],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
