"""Who takes part in a run: sites admitted at hello, refused before round 1, dropped later.

Every refusal and every drop names its site; the run ends where too few sites are left, or where
the plan does not go on without one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Message as FlowerMessage

from configs.errors import FedMVCError, ProtocolError, QuorumLost, TransportError, error_for_code
from configs.plan_tables import QuorumOptions
from strategies.exchange import Failure
from strategies.messages import HelloReply, Message, Refusal
from strategies.reply_checks import check_hello, naming
from strategies.run_state import Absence, RunState

log = logging.getLogger("fedmvc")


class Admission:
    """The sites of one run and the reasons why others are not, or no longer, among them.

    Parameters
    ----------
    quorum : QuorumOptions
    state : RunState
        Its ``sites`` and ``dropped`` are kept here.

    Attributes
    ----------
    nodes : dict[str, int]
        Flower's node of each site in the run.
    """

    def __init__(self, quorum: QuorumOptions, state: RunState) -> None:
        self.nodes: dict[str, int] = {}
        self._quorum = quorum
        self._state = state
        self._first_refusal: FedMVCError | None = None

    @property
    def names(self) -> dict[int, str]:
        """The sites in the run by Flower's node."""
        return {node: site for site, node in self.nodes.items()}

    def admit(
        self,
        registered: Mapping[int, str],
        replies: Iterable[FlowerMessage],
        failures: Mapping[int, Failure],
        decode: Callable[[FlowerMessage], Message],
    ) -> dict[str, HelloReply]:
        """Settle from the answers to hello who takes part.

        Parameters
        ----------
        registered : mapping of int to str
            The registered name of each node asked, "" where it has none.
        replies : iterable of FlowerMessage
        failures : mapping of int to Failure
            Nodes that gave no reply.
        decode : callable
            From a reply to what it holds.

        Returns
        -------
        dict[str, HelloReply]
            By site, in name order.

        Raises
        ------
        FedMVCError
            The first refusal, where the plan stops without a site or too few are left.
        QuorumLost
            Where too few are left and none refused.
        """
        for node, failure in failures.items():
            site = registered[node] or f"node {node}"
            error = QuorumLost(f"site '{site}' {failure.reason}")
            self._turn_away(site, error, failure.reason)
        admitted: dict[str, HelloReply] = {}
        for reply in replies:
            self._admit_one(registered[reply.metadata.src_node_id], reply, decode, admitted)
        self.require_quorum()
        self._state.sites = sorted(admitted)
        return {site: admitted[site] for site in self._state.sites}

    def refuse(self, site: str, error: FedMVCError) -> None:
        """Refuse an admitted site for its data or schema before round 1.

        Raises
        ------
        FedMVCError
            ``error`` itself, unless ``quorum.on_missing`` is "continue".
        """
        if self._quorum.on_missing == "stop":
            raise error
        self._first_refusal = self._first_refusal or error
        self.drop(site, f"was refused: {error.public_message}")
        self.require_quorum()

    def take_refusal(self, site: str, refusal: Refusal, round_: int) -> None:
        """Before round 1 a site's refusal may end the run; later the site is dropped."""
        if round_ == 0:
            self.refuse(site, error_for_code(refusal.code)(naming(site, refusal.message)))
        else:
            self.drop(site, f"refused: {refusal.message}")
            if refusal.code == TransportError.code:  # its worker is gone: nobody answers there
                self.stop_without(site)

    def drop(self, site: str, reason: str) -> None:
        """Take a site out of the run, by name."""
        if site not in self.nodes:
            return
        log.warning("site '%s' is out of the run: it %s", site, reason)
        del self.nodes[site]
        self._state.sites.remove(site)
        self._state.dropped[site] = reason

    def stop_without(self, site: str) -> None:
        """End the run for a site that was dropped, where the plan does not go on without it.

        Raises
        ------
        QuorumLost
        """
        if self._quorum.on_missing == "stop":
            raise QuorumLost(
                f"site '{site}' {self._state.dropped[site]}; quorum.on_missing is 'stop': bring "
                "the site back or set it to 'continue'"
            )

    def require_quorum(self) -> None:
        """Raise where too few sites are left; before round 1 as the first refusal.

        Raises
        ------
        FedMVCError
        """
        needed = self._quorum.min_sites
        if len(self.nodes) >= max(needed, 1):
            return
        short = f"{len(self.nodes)} sites are left, quorum.min_sites is {needed}"
        if self._first_refusal is not None and not self._state.history:
            raise type(self._first_refusal)(f"{self._first_refusal.public_message}; {short}")
        lost = "; ".join(f"'{s}' {why}" for s, why in self._state.dropped.items())
        raise QuorumLost(f"{short}: {lost}")

    def _admit_one(
        self,
        name: str,
        reply: FlowerMessage,
        decode: Callable[[FlowerMessage], Message],
        admitted: dict[str, HelloReply],
    ) -> None:
        node = reply.metadata.src_node_id
        site = name or f"node {node}"
        try:
            message = decode(reply)
            if not isinstance(message, Refusal):
                check_hello(self._state.run_id, name, message, admitted)
        except ProtocolError as error:
            reason = f"sent a reply that does not fit: {error.public_message}"
            self._turn_away(site, ProtocolError(naming(site, error.public_message)), reason)
            return
        if isinstance(message, Refusal):
            refusal = error_for_code(message.code)(naming(site, message.message))
            self._turn_away(site, refusal, f"refused: {message.message}")
        elif isinstance(message, HelloReply):
            admitted[message.site] = message
            self.nodes[message.site] = node

    def _turn_away(self, site: str, error: FedMVCError, reason: str) -> None:
        """Name the site; end the run unless the plan goes on without it."""
        self._state.dropped[site] = reason
        self._first_refusal = self._first_refusal or error
        if self._quorum.on_missing == "stop":
            raise error
        log.warning("site '%s' is not in the run: it %s", site, reason)


def absence_of(site: str, refusal: Refusal) -> Absence:
    """Say why a site that refused is missing; one whose worker is away may be asked again."""
    error = error_for_code(refusal.code)(naming(site, refusal.message))
    away = refusal.code == TransportError.code
    return Absence(f"refused: {refusal.message}", None if away else error)
