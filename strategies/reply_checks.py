"""What every reply must be, whatever the method: of this run, round and kind, from this site."""

from __future__ import annotations

from collections.abc import Collection

from configs.errors import ProtocolError
from strategies.messages import HelloReply, Message
from strategies.run_state import Exchange


def check_reply(run_id: str, pending: Exchange, message: Message) -> None:
    """Refuse a reply that does not answer the exchange.

    Raises
    ------
    ProtocolError
    """
    if not isinstance(message, pending.replies):
        raise ProtocolError("the reply is of another kind than was asked")
    if getattr(message, "run_id", None) != run_id:
        raise ProtocolError("the reply belongs to another run")
    if getattr(message, "round", pending.round) != pending.round:
        raise ProtocolError("the reply belongs to another round")


def check_hello(run_id: str, name: str, reply: Message, admitted: Collection[str]) -> None:
    """Refuse a hello of another run, or from a site that is not who it says.

    Parameters
    ----------
    run_id : str
    name : str
        The node's registered name, "" where it has none.
    reply : Message
    admitted : collection of str
        Names of the sites admitted before.

    Raises
    ------
    ProtocolError
    """
    if not isinstance(reply, HelloReply) or reply.run_id != run_id:
        raise ProtocolError("the reply to hello is of another kind or run")
    if name and reply.site != name:
        raise ProtocolError(
            f"the node is registered as '{name}' but its site calls itself '{reply.site}': write "
            f'name = "{name}" into its site.toml and start its worker and join again, or let the '
            "operator register its key under the other name"
        )
    if reply.site in admitted:
        raise ProtocolError(f"two nodes call themselves '{reply.site}'")


def naming(site: str, sentence: str) -> str:
    """Return a sentence that names the site."""
    return sentence if f"'{site}'" in sentence else f"site '{site}': {sentence}"
