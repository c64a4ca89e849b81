"""Who takes part in a run: sites admitted at hello, refused before round 1, dropped later.

Every refusal and every drop names its site; the run ends where too few sites are left, or where
the plan does not go on without one. A site that was only missing is asked again later.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from configs.errors import (
    ConfigError,
    FedMVCError,
    ProtocolError,
    QuorumLost,
    TransportError,
    error_for_code,
)
from configs.plan_tables import QuorumOptions
from strategies.exchange import Failure
from strategies.journal import Heard
from strategies.messages import HelloReply, Message, Refusal, from_bytes, to_bytes
from strategies.reply_checks import check_hello, naming
from strategies.run_state import Absence, Exchange, RunState

log = logging.getLogger("fedmvc")

#: Why a site is away that has said nothing since.
_NOT_BACK = "has not come back since the run was interrupted"


@dataclass
class Missing:
    """A site that was not there in round ``since`` and is left alone for ``rests`` exchanges."""

    since: int
    rests: int


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
    away : dict[str, str]
        Sites in the run whose node is not known since it was interrupted, and why.
    """

    def __init__(self, quorum: QuorumOptions, state: RunState) -> None:
        self.nodes: dict[str, int] = {}
        self.away: dict[str, str] = {}
        self._quorum = quorum
        self._state = state
        self._first_refusal: FedMVCError | None = None
        self._missing: dict[str, Missing] = {}
        self._misses: Counter[str] = Counter()
        self._found: dict[str, int] = {}

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
            The first refusal, where the plan stops without a site or too few are left; it also
            names the other sites that are not in the run.
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
        self._require_all()
        self.require_quorum()
        self._state.sites = sorted(admitted)
        return {site: admitted[site] for site in self._state.sites}

    # -- after an interruption ---------------------------------------------------------------

    def outcome(self, admitted: Mapping[str, HelloReply]) -> Heard:
        """Return what `admitted_before` needs of an admission."""
        return Heard(
            "hello",
            bodies={site: to_bytes(reply) for site, reply in admitted.items()},
            unreadable=dict(self._state.dropped),
            bytes_up=self._state.total.bytes_up,
            bytes_down=self._state.total.bytes_down,
        )

    def admitted_before(self, heard: Heard) -> dict[str, HelloReply]:
        """Settle who takes part as it was settled when the run began; their nodes are not known.

        Raises
        ------
        ConfigError
            Where that was no admission.
        """
        replies = {site: from_bytes(body) for site, body in sorted(heard.bodies.items())}
        hello = {s: reply for s, reply in replies.items() if isinstance(reply, HelloReply)}
        if heard.action != "hello" or len(hello) != len(replies):
            raise ConfigError(
                f"the checkpoint of run {self._state.run_id[:8]} does not begin with its sites: "
                "start another run"
            )
        self._state.sites = sorted(hello)
        self._state.dropped.update(heard.unreadable)
        self.nodes = {site: -1 - i for i, site in enumerate(self._state.sites)}
        self.away = dict.fromkeys(self._state.sites, _NOT_BACK)
        return hello

    def find_again(
        self,
        registered: Mapping[int, str],
        replies: Iterable[FlowerMessage],
        decode: Callable[[FlowerMessage], Message],
        before: Mapping[str, HelloReply],
    ) -> None:
        """Settle from the answers to another hello where the sites of the run are now.

        Parameters
        ----------
        registered, replies, decode
            See `admit`.
        before : mapping of str to HelloReply
            What they said when the run began: they must say the same.
        """
        found: set[str] = set()
        for reply in replies:
            node = reply.metadata.src_node_id
            name = registered[node]
            try:
                message = decode(reply)
                if isinstance(message, Refusal):
                    self._still_away(name, f"refused: {message.message}")
                    continue
                check_hello(self._state.run_id, name, message, found)
            except ProtocolError as error:
                self._still_away(name, f"sent a reply that does not fit: {error.public_message}")
                continue
            if not isinstance(message, HelloReply) or message.site not in self.away:
                continue
            found.add(message.site)
            if to_bytes(message) != to_bytes(before[message.site]):
                self._still_away(message.site, "came back with other views, roster or version")
                continue
            self.nodes[message.site] = node
            del self.away[message.site]
        for site, reason in self.away.items():
            log.warning("site '%s' is away: it %s", site, reason)

    def look_again(self, grid: Grid) -> None:
        """Find sites that have not come back yet, by their nodes' registered names."""
        if _NOT_BACK not in self.away.values():
            return
        for node in grid.get_nodes():
            if node.status in ("", "online") and self.away.get(node.name) == _NOT_BACK:
                self.nodes[node.name] = node.node_id
                del self.away[node.name]

    def _still_away(self, site: str, reason: str) -> None:
        if site in self.away:
            self.away[site] = reason

    # -- refusals ----------------------------------------------------------------------------

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

    def take_refusal(self, site: str, refusal: Refusal, exchange: Exchange) -> None:
        """Before round 1 a site's refusal may end the run; later the site is dropped."""
        if exchange.round == 0:
            self.refuse(site, error_for_code(refusal.code)(naming(site, refusal.message)))
        elif refusal.code == TransportError.code:  # its worker is gone: nobody answers there
            self.miss(site, f"refused: {refusal.message}", exchange)
        else:
            self.drop(site, f"refused: {refusal.message}")

    def drop(self, site: str, reason: str) -> None:
        """Take a site out of the run, by name."""
        if site not in self.nodes:
            return
        log.warning("site '%s' is out of the run: it %s", site, reason)
        del self.nodes[site]
        self.away.pop(site, None)
        self._state.sites.remove(site)
        self._state.dropped[site] = reason

    def miss(self, site: str, reason: str, exchange: Exchange) -> None:
        """Take a site out of the run that was not there, for now where the exchange is open.

        Raises
        ------
        QuorumLost
            Where the plan does not go on without it.
        """
        self.drop(site, reason)
        self.stop_without(site)
        if exchange.open:
            self._misses[site] += 1
            self._missing[site] = Missing(exchange.round, 2 ** (self._misses[site] - 1))

    def returned(self, grid: Grid) -> tuple[str, ...]:
        """Return which missing sites are to be asked again: their nodes are online.

        Called once an exchange. A site sits out one exchange, twice as many each time: one that
        is online and does not answer would cost its whole patience every time.
        """
        if not self._missing:
            return ()
        for missing in self._missing.values():
            missing.rests -= 1
        self._found = {
            node.name: node.node_id
            for node in grid.get_nodes()
            if node.status in ("", "online") and node.name in self._missing
        }
        return tuple(s for s in sorted(self._found) if self._missing[s].rests <= 0)

    def take_back(self, site: str, round_: int) -> None:
        """Take a missing site into the run again, after a round; its node may not be known yet."""
        since = self._missing.pop(site).since
        self.nodes[site] = self._found.pop(site, min([0, *self.nodes.values()]) - 1)
        if self.nodes[site] < 0:
            self.away[site] = _NOT_BACK
        self._state.sites = sorted([*self._state.sites, site])
        reason = self._state.dropped.pop(site)
        missed = f"round {since}" if since == round_ else f"rounds {since} to {round_}"
        sentence = f"site '{site}' was missing from {missed}: it {reason}"
        self._state.warnings.append(sentence)
        log.warning("%s; it is asked again", sentence)

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
        """Name a site that does not take part; what ends the run is said by its end."""
        self._state.dropped[site] = reason
        if self._first_refusal is None:
            self._first_refusal = error
            if self._quorum.on_missing == "stop":
                return
        log.warning("site '%s' is not in the run: it %s", site, reason)

    def _require_all(self) -> None:
        """End the run for sites that were turned away, unless the plan goes on without them.

        Raises
        ------
        FedMVCError
        """
        error = self._first_refusal
        if error is None or self._quorum.on_missing != "stop":
            return
        others = [f"'{site}'" for site in self._state.dropped][1:]
        more = f"; nor in the run: {', '.join(others)} (the log says why)" if others else ""
        raise type(error)(f"{error.public_message}{more}", local_detail=error.local_detail)


def absence_of(site: str, refusal: Refusal) -> Absence:
    """Say why a site that refused is missing; one whose worker is away may be asked again."""
    error = error_for_code(refusal.code)(naming(site, refusal.message))
    away = refusal.code == TransportError.code
    return Absence(f"refused: {refusal.message}", None if away else error)
