"""One exchange of plain bytes: what the transport tests ask with."""

from flwr.app import Message

from strategies.exchange import collect
from strategies.records import from_record, to_record


def exchange(grid, requests, message_type, timeout_s, poll_s=0.05, group_id=""):
    """Send each node its bytes; return (replies by node id, reasons by node id)."""
    messages = [
        Message(to_record(body), node_id, message_type, ttl=float(timeout_s), group_id=group_id)
        for node_id, body in requests.items()
    ]
    replies, failures = collect(grid, messages, timeout_s, poll_s)
    return (
        {reply.metadata.src_node_id: from_record(reply.content) for reply in replies},
        {node_id: failure.reason for node_id, failure in failures.items()},
    )
