"""Flower's SuperNode, with waits shortened that it has no setting for.

As Flower 1.42 ships it, an idle SuperNode looks for messages every 3 s, and one that died is missed
after twice its heartbeat's interval of 30 s. With FORKING=1 its SuperExec is the one that forks
(`tests.network.superexec`). Everything else is as ``flower-supernode`` has it.
"""

import importlib
import os
import subprocess
import sys
import time
from types import SimpleNamespace

from flwr.common import constant

IDLE_S = 1.0
HEARTBEAT_S = constant.HEARTBEAT_MIN_INTERVAL  # the shortest that a SuperLink takes


def main():
    """Run ``flower-supernode`` with the arguments of this process."""
    constant.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_S  # before the modules that take it over
    from flwr.supernode.cli import flower_supernode

    loop = importlib.import_module("flwr.supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, IDLE_S)))
    if os.environ.get("FORKING") == "1":
        loop.subprocess = SimpleNamespace(Popen=start_forking)
    flower_supernode()


def start_forking(command):
    """Start the SuperExec that forks in place of Flower's."""
    assert command[0] == "flower-superexec"
    return subprocess.Popen([sys.executable, "-m", "tests.network.superexec", *command[1:]])


if __name__ == "__main__":
    main()
