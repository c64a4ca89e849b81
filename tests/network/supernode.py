"""Flower's SuperNode, with two waits shortened that it has no setting for.

As Flower 1.42 ships it, an idle SuperNode looks for messages every 3 s, and one that died is missed
after twice its heartbeat's interval of 30 s. Everything else is as ``flower-supernode`` has it.
"""

import importlib
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
    flower_supernode()


if __name__ == "__main__":
    main()
