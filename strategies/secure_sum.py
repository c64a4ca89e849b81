"""Sums over the sites of a protected run: masked ones in two exchanges, noisy ones in one.

A strategy yields from a :class:`SumCollector` wherever it needs a sum and never sees a site's own
vector. A masked sum takes the vectors first and then, from the sites whose vectors came, the shares
that open the sum of exactly those (see `privacy.secagg`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError, ProtocolError, QuorumLost
from configs.secure_terms import SecureTerms
from privacy.fixed_point import FixedPoint
from privacy.secagg import KeyRelay, RunTerms, SecureSumServer, request_digest
from strategies.base import FederatedStrategy
from strategies.gathering import gather, gather_all
from strategies.messages import (
    AskRequest,
    CloseReply,
    CloseRequest,
    HelloReply,
    Message,
    SumReply,
    SumRequest,
    UnmaskReply,
    UnmaskRequest,
    as_array,
    to_bytes,
)
from strategies.protected_messages import body_of
from strategies.run_state import Exchange
from strategies.secure_setup import set_up, set_up_again
from strategies.statistics import Floats

__all__ = ["SumCollector", "Total"]

Replies = dict[str, Any]
Exchanges = Generator[Exchange, Replies, Replies]

#: A restarted site may be refused its key for 60 s, and must still find the question.
_LEAST_UNMASK_S = 120.0


@dataclass(frozen=True)
class Total:
    """One opened sum: its numbers (k,) and the sites in it."""

    vector: Floats
    sites: tuple[str, ...]


class SumCollector:
    """Collects the sums of one protected run.

    Parameters
    ----------
    strategy : FederatedStrategy
        Its plan is protected; its sites were admitted.
    hello : dict of str to HelloReply
    codec : FixedPoint
        The grid that all sites round to.

    Attributes
    ----------
    exchanges : int
        Sums asked for so far, failed ones included.

    Raises
    ------
    ConfigError
        Where the sites are not the plan's participants, or hold different rosters.
    """

    def __init__(
        self,
        strategy: FederatedStrategy,
        hello: dict[str, HelloReply],
        codec: FixedPoint,
    ) -> None:
        self.exchanges = 0
        self._strategy = strategy
        self._codec = codec
        self._server: SecureSumServer | None = None
        terms = strategy.plan.secure_terms()
        if terms is not None:
            roster = _common_roster(terms, hello)
            self._server = SecureSumServer(RunTerms(*strategy.ids, roster, terms))
        self._delivered: set[str] = set()
        self._resumes = 0

    def set_up(self) -> Generator[Exchange, Replies, None]:
        """Exchange keys and shares; nothing where sums are not masked."""
        if self._server is not None:
            self._resumes = self._strategy.resumes
            yield from set_up(self._strategy, self._server.setup)

    def sum(
        self, requests: Sequence[Message], n_numbers: int, round_: int = 0
    ) -> Generator[Exchange, Replies, Total]:
        """Ask all sites for one vector and return its sum.

        Parameters
        ----------
        requests : sequence of Message
            The method's requests, the same for all sites: all but the last are adopted, the last
            one is answered.
        n_numbers : int
            Length of the vector.
        round_ : int

        Raises
        ------
        QuorumLost
            Where too few sites answer, or the exchanges are used up.
        """
        self.exchanges += 1
        bodies = tuple(as_array(to_bytes(request)) for request in requests)
        if self._server is None:
            return (yield from self._clear_sum(bodies, n_numbers, round_))
        return (yield from self._masked_sum(self._server, bodies, n_numbers, round_))

    def ask(
        self,
        requests: Sequence[Message],
        kind: type[Any],
        check: Callable[[Any], None],
        round_: int,
    ) -> Exchanges:
        """Ask all sites for a reply that the method gives in the clear, and return all of them.

        Parameters
        ----------
        requests : sequence of Message
            As for `sum`.
        kind : type
            Of the replies.
        check : callable
            Raises ProtocolError where a reply does not fit.
        round_ : int

        Raises
        ------
        QuorumLost
            Where a site does not answer.
        """
        strategy, replies = self._strategy, Replies()
        bodies = tuple(as_array(to_bytes(request)) for request in requests)
        question = AskRequest(*strategy.ids, bodies)

        def take(site: str, reply: Any) -> None:
            check(reply)
            replies[site] = reply

        yield from gather_all(strategy, "ask", question, kind, take, round_)
        return replies

    def close(self, request: Message | None, round_: int) -> Exchanges:
        """End the run at the sites: they label their records, or only let go where it failed."""
        body = as_array(b"" if request is None else to_bytes(request))
        strategy = self._strategy
        exchange, survivors = (0, ()) if self._server is None else self._server.named
        closing = CloseRequest(*strategy.ids, exchange, survivors, body)
        replies = yield Exchange(
            "close",
            dict.fromkeys(strategy.sites, closing),
            (CloseReply,),
            round_,
            lenient=self._server is not None or request is None,
            ends=request is None,
        )
        for site, absence in strategy.absences.items():
            strategy.warn(f"site '{site}' did not close the run: it {absence.reason}")
        return replies

    # -- one sum -----------------------------------------------------------------------------

    def _renewed(self, server: SecureSumServer) -> Generator[Exchange, Replies, None]:
        """Put fresh keys in force for this sum and all later ones, once after each resume.

        It takes all participants: where one was not in the last sum, the keys there are stay in
        force, of which none was used for this sum, and a later one tries again.
        """
        resumes, previous = self._strategy.resumes, server.previous
        stale = resumes > self._resumes and self.exchanges > server.setup.first
        if stale and previous in ((), server.run.names):
            fresh = KeyRelay(server.run, self.exchanges)
            if (yield from set_up_again(self._strategy, fresh)):
                server.renew(fresh)
                self._delivered, self._resumes = set(), resumes

    def _requests(self, bodies: Sequence[NDArray[np.uint8]], sites: Sequence[str]) -> Replies:
        """One request a site: the same but for the envelopes that only it can open."""
        requests = {}
        for site in sites:
            envelopes: dict[str, bytes] = {}
            if self._server is not None and site not in self._delivered:
                envelopes = self._server.setup.envelopes_for(site)
            requests[site] = SumRequest(
                *self._strategy.ids,
                self.exchanges,
                () if self._server is None else self._server.previous,
                tuple(bodies),
                tuple(envelopes),
                tuple(as_array(e) for e in envelopes.values()),
            )
        return requests

    def _clear_sum(
        self, bodies: Sequence[NDArray[np.uint8]], n_numbers: int, round_: int
    ) -> Generator[Exchange, Replies, Total]:
        strategy, number = self._strategy, self.exchanges
        replies = yield Exchange("sum", self._requests(bodies, strategy.sites), (SumReply,), round_)
        replies = strategy.checked(replies, lambda site, r: _check_vector(r, number, n_numbers))
        total = np.zeros(n_numbers, dtype=np.uint64)
        for site in sorted(replies):
            total += replies[site].vector
        return Total(self._codec.decode(total), tuple(sorted(replies)))

    def _masked_sum(
        self,
        server: SecureSumServer,
        bodies: Sequence[NDArray[np.uint8]],
        n_numbers: int,
        round_: int,
    ) -> Generator[Exchange, Replies, Total]:
        number, ids = self.exchanges, self._strategy.ids
        terms = server.run.terms
        if number > terms.exchanges:
            raise QuorumLost(
                f"all {terms.exchanges} exchanges that the sites made keys for are used up: raise "
                "privacy.spare_exchanges and start another run"
            )
        yield from self._renewed(server)
        digest = request_digest(*ids, number, server.previous, body_of(bodies))
        server.begin(number, digest, n_numbers)

        def take(site: str, reply: SumReply) -> None:
            _check_vector(reply, number, n_numbers)
            server.take_upload(site, reply.vector)
            self._delivered.add(site)

        patience = self._strategy.plan.quorum.timeout_s
        yield from gather(
            self._strategy,
            "sum",
            lambda sites: self._requests(bodies, sites),
            SumReply,
            take,
            sites=terms.participants,
            enough=terms.least_contributors,
            patience_s=patience,
            round_=round_,
        )
        survivors = server.survivors()
        question = UnmaskRequest(*ids, number, survivors)
        yield from gather(
            self._strategy,
            "unmask",
            lambda sites: dict.fromkeys(sites, question),
            UnmaskReply,
            lambda site, reply: server.take_answer(site, reply.answer.tobytes()),
            sites=survivors,
            enough=terms.threshold,
            patience_s=max(patience, _LEAST_UNMASK_S),
            round_=round_,
        )
        total = server.open()
        missing = [site for site in terms.participants if site not in survivors]
        if missing:
            self._strategy.warn(
                f"the sum of round {round_} is without {', '.join(repr(s) for s in missing)}"
            )
        return Total(self._codec.decode(total), survivors)


def _common_roster(terms: SecureTerms, hello: dict[str, HelloReply]) -> bytes:
    """Return the hash of the roster that all participants hold."""
    missing = [site for site in terms.participants if site not in hello]
    if missing:
        raise ConfigError(
            f"privacy.participants lists site '{missing[0]}', which is not in the run: start it, "
            "or make a plan without it"
        )
    hashes = {site: hello[site].roster for site in terms.participants}
    first = terms.participants[0]
    for site, found in hashes.items():
        if found != hashes[first]:
            raise ConfigError(
                f"sites '{first}' and '{site}' hold different rosters ({hashes[first][:12]} and "
                f"{found[:12]}): give all sites the operator's latest roster"
            )
    return bytes.fromhex(hashes[first])


def _check_vector(reply: SumReply, exchange: int, n_numbers: int) -> None:
    if reply.exchange != exchange:
        raise ProtocolError(f"it answers exchange {reply.exchange}, asked was {exchange}")
    if reply.vector.shape != (n_numbers,) or reply.vector.dtype != np.uint64:
        raise ProtocolError(
            f"its sums have shape {reply.vector.shape}, expected {n_numbers} ring elements"
        )
