"""``python -m fedmvc_client.supernode``: Flower's SuperNode, which ends when it has lost its work.

After an answer that Flower 1.42 does not retry (HTTP 500, say) ``flower-supernode`` returns from
its loop, but a thread of its runtime API keeps the process alive: connected to nothing, and with
nothing that would start it anew. Here the process ends then, and ``fedmvc-client join`` starts it
again. Nothing else differs.
"""

from __future__ import annotations

import os
import sys

__all__ = ["LOST", "main"]

#: Exit status of a SuperNode that returned from its loop.
LOST = 75


def main() -> None:
    """Run ``flower-supernode`` with this process's arguments."""
    from flwr.supernode.cli import flower_supernode

    sys.argv[0] = "flower-supernode"  # how its help and its messages call it
    flower_supernode()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST)


if __name__ == "__main__":
    main()
