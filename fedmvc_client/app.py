"""The ClientApp: forwards each message to the site's worker and its reply back.

Flower starts a process for every message, so this module stays small and quick to import: it
knows neither torch nor data. It answers a typed refusal to everything that goes wrong here.
"""

from __future__ import annotations

import logging

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from configs.errors import FedMVCError, InternalError
from fedmvc_client.relay import resolve_relay
from strategies.messages import Refusal, to_bytes
from strategies.records import from_record, to_record

__all__ = ["ACTIONS", "app", "forward"]

ACTIONS = (
    *("hello", "prepare", "seed", "link", "align", "survey", "scale"),
    *("round", "share", "refine", "finish"),
    *("keys", "shares", "ask", "sum", "unmask", "close"),
)
"""The actions of message types ``train.<action>`` that are forwarded."""

_LOG = logging.getLogger(__name__)

app = ClientApp()


def forward(message: Message, context: Context) -> Message:
    """Ask the site's worker and wrap its reply.

    Parameters
    ----------
    message : Message
        Content made by :func:`strategies.records.to_record`; its ttl bounds the wait.
    context : Context
        Its ``node_config`` says where the worker is (see
        :func:`fedmvc_client.relay.resolve_relay`).

    Returns
    -------
    Message
        The worker's reply, or a ``Refusal`` if it could not be asked. Never raises: Flower would
        send an exception's text to the server.
    """
    try:
        relay = resolve_relay(context.node_config, context.run_id)
        content = to_record(relay.ask(from_record(message.content), message.metadata.ttl))
    except FedMVCError as error:
        _LOG.error("%s %s", error.public_message, error.local_detail)
        content = to_record(to_bytes(Refusal(error.code, error.public_message)))
    except Exception:
        _LOG.exception("the ClientApp failed")
        content = to_record(
            to_bytes(Refusal(InternalError.code, "the ClientApp failed: look at the site's log"))
        )
    return Message(content, reply_to=message)


for _action in ACTIONS:
    app.train(_action)(forward)
