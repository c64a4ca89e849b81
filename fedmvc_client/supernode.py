"""``python -m fedmvc_client.supernode``: Flower's SuperNode without three of its standstills.

After an answer that Flower 1.42 does not retry (HTTP 500, say) ``flower-supernode`` returns from
its loop, but a thread of its runtime API keeps the process alive: connected to nothing, and with
nothing that would start it anew. Here the process ends then, and ``fedmvc-client join`` starts it
again.

The loop sends replies only after it has received a message. Where a message was received whose run
was ended meanwhile (a server that was lost, and resumed), its reply is one too many, and from then
on each reply waits for the next message: always one too late. Here a reply that lies there is sent
when no message came.

The loop reads a run's settings out of its bundle, and ends where it cannot (no zip, no TOML): the
message is lost, and nobody at the site hears of it. Here such a message goes on without settings,
which nothing of ours reads, to its own process, which refuses the bundle and reports it. Nothing
else differs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from fedmvc_client.bundle import check_bundle

__all__ = ["LOOP", "LOST", "PULL", "SETTINGS", "main", "outlive_bundles", "send_late_replies"]

#: Exit status of a SuperNode that returned from its loop.
LOST = 75
LOOP = "flwr.supernode.start_client_internal"
"""The module of Flower with the loop."""
PULL = "_pull_and_store_message"
"""What the loop calls for a message: returns its run, or None, upon which nothing is sent."""
SETTINGS = "get_fused_config_from_fab"
"""What it calls then for a new run's settings: the bundle's, with the run's own over them."""


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


def outlive_bundles() -> None:
    """Let Flower's loop live on where a bundle is refused or cannot be read; for this process."""
    loop: Any = import_module(LOOP)
    read = getattr(loop, SETTINGS)

    def check_and_read(fab: bytes, run: Any) -> dict[str, Any]:
        try:
            check_bundle(fab)  # first: Flower would unpack any size
            settings: dict[str, Any] = read(fab, run)
        except Exception:  # whatever a stranger sent; the message's process refuses and reports it
            return {}
        return settings

    setattr(loop, SETTINGS, check_and_read)


def main() -> None:
    """Run ``flower-supernode`` with this process's arguments."""
    from flwr.supernode.cli import flower_supernode

    send_late_replies()
    outlive_bundles()
    sys.argv[0] = "flower-supernode"  # how its help and its messages call it
    flower_supernode()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST)


if __name__ == "__main__":
    main()
