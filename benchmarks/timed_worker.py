"""A site's worker that notes how long each request kept it: ``SITE SOCKET FILE``.

Part of `benchmarks.deployed_round`; FILE gets one line a request, its kind and the seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fedmvc_client.socket_server import serve_worker
from fedmvc_client.worker import SiteWorker, folder_worker
from strategies.messages import from_bytes


class TimedWorker:
    """Passes every request on and writes its seconds down."""

    def __init__(self, worker: SiteWorker, file: Path) -> None:
        self.site = worker.site
        self._worker, self._file = worker, file

    def handle(self, body: bytes) -> bytes:
        """Answer one request."""
        began = time.perf_counter()
        reply = self._worker.handle(body)
        seconds = time.perf_counter() - began
        with self._file.open("a", encoding="utf-8") as file:
            print(type(from_bytes(body)).__name__, f"{seconds:.6f}", file=file)
        return reply


if __name__ == "__main__":
    folder, socket, file = sys.argv[1:]
    serve_worker(TimedWorker(folder_worker(Path(folder)), Path(file)), socket)
