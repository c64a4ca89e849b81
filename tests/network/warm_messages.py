"""Starts messages' processes warm and prints what became of them; no SuperNode is there."""

import json
import logging
import os
import signal
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

from fedmvc_client.executor import Warm, set_up_environment


def ended(started):
    deadline = time.monotonic() + 120
    while (code := started.exit_code()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return code


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr)
    set_up_environment(os.environ, "127.0.0.1")
    warm = Warm("/nowhere.sock")
    done = [warm.start(["--help"]) for _ in range(2)]
    codes = [ended(each) for each in done]
    server = Path("/proc") / str(forkserver._forkserver._forkserver_pid)
    endless = warm.start(["--insecure", "--token", "ab", "--runtime-api-address", "127.0.0.1:9"])
    warm._running.append(endless)
    os.kill(endless._process.pid, signal.SIGKILL)
    killed = ended(endless)
    warm.reconcile()
    report = {
        "codes": codes,
        "killed": killed,
        "pids": len({each._process.pid for each in [*done, endless]}),
        "left": len(warm._running),
        "threads": {
            "fork server": len(list((server / "task").iterdir())),
            "executor": threading.active_count(),
        },
        "imported": "flwr/" in (server / "maps").read_text()
        or "grpc" in (server / "maps").read_text(),
        "sockets": sum("socket:" in os.readlink(fd) for fd in (server / "fd").iterdir()),
    }
    print(json.dumps(report))
