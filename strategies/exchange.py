"""One bounded exchange with several nodes: a request each, then the replies or why there is none.

Every wait ends: a message lives exactly as long as the exchange, and the polling is ours, because
Flower's own polls every 3 s. The text of a node's error is never passed on, since Flower puts a
site's exception text into it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import Error, Message
from flwr.serverapp import Grid

from configs.errors import ConfigError, ProtocolError, QuorumLost
from strategies.records import from_record, to_record

__all__ = ["exchange", "wait_for_nodes"]

_SLOWEST_POLL = 5  # in units of poll_s, reached by steps of a tenth
_NODE_POLL = 0.25

# Error codes of Flower 1.42 (flwr.common.constant.ErrorCode).
_LOAD_FAILED, _MESSAGE_EXPIRED, _REPLY_EXPIRED, _NODE_GONE, _BAD_BUNDLE, _CRASHED = 1, 3, 4, 5, 7, 8


def exchange(
    grid: Grid,
    requests: Mapping[int, bytes],
    message_type: str,
    timeout_s: float,
    poll_s: float = 0.05,
    group_id: str = "",
) -> tuple[dict[int, bytes], dict[int, str]]:
    """Send each node its request and collect the replies until the deadline.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    requests : Mapping[int, bytes]
        One encoded request by node id.
    message_type : str
        ``train.<action>``.
    timeout_s : float
        Seconds for the whole exchange, above 0; also the messages' time to live.
    poll_s : float
        Shortest pause between two looks for replies.
    group_id : str
        Flower's group, for instance the round.

    Returns
    -------
    replies : dict[int, bytes]
        Encoded reply by node id, in the order of `requests`.
    failures : dict[int, str]
        Why a node gave no reply ("did not reply in 600 s"), in the order of `requests`. Every
        requested node is in exactly one of the two.

    Raises
    ------
    ConfigError
        If `timeout_s` is not positive.
    ProtocolError
        If a request is empty or too large.
    """
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s={timeout_s:g} must be above 0 s: raise quorum.timeout_s")
    deadline = time.monotonic() + timeout_s
    messages = {
        node_id: Message(
            to_record(body), node_id, message_type, ttl=float(timeout_s), group_id=group_id
        )
        for node_id, body in requests.items()
    }
    accepted = set(grid.push_messages(list(messages.values())))
    # The grid writes a message's id into it; what it refused has no id in the answer.
    waiting = {
        message.metadata.message_id: node_id
        for node_id, message in messages.items()
        if message.metadata.message_id in accepted
    }
    replies: dict[int, bytes] = {}
    failures = dict.fromkeys(messages.keys() - waiting.values(), "the SuperLink took no message")
    pause = poll_s
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            # Whose reply it is follows from our own message, not from what the reply says.
            node_id = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node_id is None:
                continue
            if reply.has_error():
                failures[node_id] = _reason(reply.error, timeout_s)
                continue
            try:
                replies[node_id] = from_record(reply.content)
            except ProtocolError as error:
                failures[node_id] = f"sent something unreadable ({error.public_message})"
        remaining = deadline - time.monotonic()
        if not waiting or remaining <= 0:
            break
        time.sleep(min(pause, remaining))
        pause = min(pause * 1.1, poll_s * _SLOWEST_POLL)
    failures.update(dict.fromkeys(waiting.values(), _late(timeout_s)))
    return (
        {node_id: replies[node_id] for node_id in requests if node_id in replies},
        {node_id: failures[node_id] for node_id in requests if node_id in failures},
    )


def wait_for_nodes(
    grid: Grid, minimum: int, timeout_s: float, poll_s: float = _NODE_POLL
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
            node.node_id: node.name for node in grid.get_nodes() if node.status in ("", "online")
        }
        if len(names) >= minimum:
            return dict(sorted(names.items(), key=lambda item: (item[1], item[0])))
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise QuorumLost(
                f"{len(names)} of at least {minimum} sites connected in {timeout_s:g} s: start "
                "the missing sites or lower quorum.min_sites"
            )
        time.sleep(min(poll_s, remaining))


def _reason(error: Error, timeout_s: float) -> str:
    if error.code in (_MESSAGE_EXPIRED, _REPLY_EXPIRED):
        return _late(timeout_s)
    if error.code == _NODE_GONE:
        return "its node is unavailable"
    if error.code in (_LOAD_FAILED, _BAD_BUNDLE):
        return "its ClientApp could not be loaded: install the same FedMVC version there"
    if error.code == _CRASHED:
        return "its ClientApp process ended without a reply"
    return "its ClientApp raised an error: look at the site's log"


def _late(timeout_s: float) -> str:
    return f"did not reply in {timeout_s:g} s"
