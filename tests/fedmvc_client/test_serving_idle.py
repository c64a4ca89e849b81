"""What the serving loop of a worker does where nobody asks it anything."""

import threading
import time

from fedmvc_client.relay import SocketRelay
from fedmvc_client.socket_server import WorkerServer


class Tidying:
    site = "st-anna"

    def __init__(self):
        self.tidied = []

    def handle(self, body):
        return body

    def end_abandoned(self):
        self.tidied.append(time.monotonic())
        if len(self.tidied) == 1:
            raise RuntimeError("the books cannot be used")


def test_an_idle_worker_ends_its_abandoned_runs_again_and_again(tmp_path):
    worker = Tidying()
    (tmp_path / "run").mkdir(mode=0o750)
    server = WorkerServer(worker, tmp_path / "run" / "w.sock", tidy_every=0.05)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while len(worker.tidied) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert SocketRelay(tmp_path / "run" / "w.sock").ask(b"hello", 5.0) == b"hello"
    finally:
        server.stop()
        thread.join(10)
    assert len(worker.tidied) >= 3
    assert all(b - a >= 0.05 for a, b in zip(worker.tidied, worker.tidied[1:], strict=False))
