"""``python -m fedmvc_client.supernode``: Flower's SuperNode without two of its standstills.

After an answer that Flower 1.42 does not retry (HTTP 500, say) ``flower-supernode`` returns from
its loop, but a thread of its runtime API keeps the process alive: connected to nothing, and with
nothing that would start it anew. Here the process ends then, and ``fedmvc-client join`` starts it
again.

The loop sends replies only after it has received a message. Where a message was received whose run
was ended meanwhile (a server that was lost, and resumed), its reply is one too many, and from then
on each reply waits for the next message: always one too late. Here a reply that lies there is sent
when no message came. Nothing else differs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

__all__ = ["LOOP", "LOST", "PULL", "main", "send_late_replies"]

#: Exit status of a SuperNode that returned from its loop.
LOST = 75
LOOP = "flwr.supernode.start_client_internal"
"""The module of Flower with the loop."""
PULL = "_pull_and_store_message"
"""What the loop calls for a message: returns its run, or None, upon which nothing is sent."""


def send_late_replies() -> None:
    """Let Flower's loop also send replies when no message came; for this process."""
    loop: Any = import_module(LOOP)
    pull = getattr(loop, PULL)

    def pull_or_send(*, state: Any, **others: Any) -> int | None:
        run_id: int | None = pull(state=state, **others)
        return _run_of_reply(state) if run_id is None else run_id

    setattr(loop, PULL, pull_or_send)


def _run_of_reply(state: Any) -> int | None:
    """Return the run of a reply that waits to be sent; None where there is none."""
    with state.lock_msg_store:
        for entry in state.msg_store.values():
            metadata = entry.message.metadata
            if metadata.reply_to_message_id and not entry.is_retrieved:
                return int(metadata.run_id)
    return None


def main() -> None:
    """Run ``flower-supernode`` with this process's arguments."""
    from flwr.supernode.cli import flower_supernode

    send_late_replies()
    sys.argv[0] = "flower-supernode"  # how its help and its messages call it
    flower_supernode()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST)


if __name__ == "__main__":
    main()
