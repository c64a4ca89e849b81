import os
import threading
import time

import pytest

from fedmvc_client.socket_server import WorkerServer


class EchoWorker:
    """Answers what it was asked, behind its own name."""

    def __init__(self, site="st-anna", delay=0.0):
        self.site = site
        self.delay = delay
        self.running = 0
        self.most_running = 0

    def handle(self, body):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        time.sleep(self.delay)
        self.running -= 1
        return self.site.encode() + b":" + body


class RaisingWorker:
    site = "st-anna"

    def handle(self, body):
        raise RuntimeError("patient 4711 weighs 82 kg")


@pytest.fixture
def folder(tmp_path):
    """Make a folder fit for a worker's socket."""
    path = tmp_path / "run"
    path.mkdir(mode=0o750)
    os.chmod(path, 0o750)
    return path


@pytest.fixture
def serve(folder):
    """Serve a worker on a socket in a thread; stopped when the test ends."""
    running = []

    def start(worker, **settings):
        server = WorkerServer(worker, folder / "worker.sock", **settings)
        thread = threading.Thread(target=server.serve)
        thread.start()
        running.append((server, thread))
        return folder / "worker.sock"

    yield start
    for server, thread in running:
        server.stop()
        thread.join(5)
        assert not thread.is_alive()


@pytest.fixture
def echo_worker():
    return EchoWorker


@pytest.fixture
def raising_worker():
    return RaisingWorker
