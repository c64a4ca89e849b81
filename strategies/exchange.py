"""One bounded exchange with several nodes: a request each, then the replies or why there is none.

Every wait ends: a message lives exactly as long as the exchange, and the polling is ours, because
Flower's own polls every 3 s. The text of a node's error is never passed on, since Flower puts a
site's exception text into it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from flwr.app import Error, Message
from flwr.serverapp import Grid

from configs.errors import ConfigError, QuorumLost

__all__ = ["POLL_S", "Failure", "collect", "wait_for_nodes"]

POLL_S = 0.05
"""Seconds between two looks for replies, at first; later up to five times as many."""

_SLOWEST_POLL = 5  # in units of poll_s, reached by steps of a tenth
_NODE_POLL = 0.25

# Error codes of Flower 1.42 (flwr.common.constant.ErrorCode).
_LOAD_FAILED, _MESSAGE_EXPIRED, _REPLY_EXPIRED, _NODE_GONE, _BAD_BUNDLE, _CRASHED = 1, 3, 4, 5, 7, 8


@dataclass(frozen=True)
class Failure:
    """Why a node gave no reply; ``missing`` where it was not there or too late."""

    reason: str
    missing: bool


def collect(
    grid: Grid,
    messages: Sequence[Message],
    timeout_s: float,
    poll_s: float = POLL_S,
    *,
    watch: Callable[[Collection[int]], None] | None = None,
) -> tuple[list[Message], dict[int, Failure]]:
    """Push messages and pull their replies until the deadline.

    Parameters
    ----------
    grid : Grid
    messages : sequence of Message
        One a node; their time to live should be ``timeout_s``.
    timeout_s : float
        Seconds for the whole exchange, above 0.
    poll_s : float
        Shortest pause between two looks for replies.

    Returns
    -------
    replies : list of Message
        In the order of ``messages``.
    failures : dict[int, Failure]
        By node id; every node asked is in exactly one of the two.

    Raises
    ------
    ConfigError
        If `timeout_s` is not positive.
    """
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s={timeout_s:g} must be above 0 s: raise quorum.timeout_s")
    deadline = time.monotonic() + timeout_s
    accepted = set(grid.push_messages(list(messages)))
    # The grid writes a message's id into it; what it refused has no id in the answer.
    waiting = {
        message.metadata.message_id: message.metadata.dst_node_id
        for message in messages
        if message.metadata.message_id in accepted
    }
    nodes = [message.metadata.dst_node_id for message in messages]
    replies: dict[int, Message] = {}
    failures = {
        node_id: Failure("was given no message by the SuperLink", missing=True)
        for node_id in nodes
        if node_id not in waiting.values()
    }
    pause = poll_s
    while waiting:
        if watch is not None:
            watch(waiting.values())
        for reply in grid.pull_messages(list(waiting)):
            # Whose reply it is follows from our own message, not from what the reply says;
            # from here on the reply says so too.
            node_id = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node_id is None:
                continue
            if reply.has_error():
                failures[node_id] = _failure(reply.error, timeout_s)
            else:
                reply.metadata.__dict__["_src_node_id"] = node_id
                replies[node_id] = reply
        remaining = deadline - time.monotonic()
        if not waiting or remaining <= 0:
            break
        time.sleep(min(pause, remaining))
        pause = min(pause * 1.1, poll_s * _SLOWEST_POLL)
    failures.update(dict.fromkeys(waiting.values(), _late(timeout_s)))
    return [replies[n] for n in nodes if n in replies], failures


def wait_for_nodes(
    grid: Grid,
    minimum: int,
    timeout_s: float,
    poll_s: float = _NODE_POLL,
    *,
    wanted: Collection[str] = (),
) -> dict[int, str]:
    """Wait until enough nodes are connected.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    minimum : int
        Number of nodes to wait for.
    timeout_s : float
        Seconds to wait.
    poll_s : float
        Pause between two looks.
    wanted : collection of str
        Where given, nodes registered under other names neither count nor are returned.

    Returns
    -------
    dict[int, str]
        The registered name by node id, in the order of (name, id); "" where a node has none,
        which only an unauthenticated federation or a simulation allows.

    Raises
    ------
    QuorumLost
        If fewer than `minimum` nodes are connected when the time is over.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        names = {
            node.node_id: node.name
            for node in grid.get_nodes()
            if node.status in ("", "online") and (not wanted or node.name in ("", *wanted))
        }
        if len(names) >= minimum:
            return dict(sorted(names.items(), key=lambda item: (item[1], item[0])))
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            missing = sorted(set(wanted) - set(names.values()))
            way_out = (
                f"start {', '.join(missing)}, or change privacy.participants"
                if missing
                else "start the missing sites or lower quorum.min_sites"
            )
            raise QuorumLost(
                f"{len(names)} of at least {minimum} sites connected in {timeout_s:g} s: {way_out}"
            )
        time.sleep(min(poll_s, remaining))


def _failure(error: Error, timeout_s: float) -> Failure:
    if error.code in (_MESSAGE_EXPIRED, _REPLY_EXPIRED):
        return _late(timeout_s)
    if error.code == _NODE_GONE:
        return Failure("is unavailable: its node stopped answering", missing=True)
    if error.code in (_LOAD_FAILED, _BAD_BUNDLE):
        return Failure(
            "could not load its ClientApp: install the same FedMVC version there, and see its log",
            missing=False,
        )
    if error.code == _CRASHED:
        return Failure("lost its ClientApp process before a reply", missing=False)
    return Failure("raised an error in its ClientApp: look at the site's log", missing=False)


def _late(timeout_s: float) -> Failure:
    return Failure(f"did not reply in {timeout_s:g} s", missing=True)
