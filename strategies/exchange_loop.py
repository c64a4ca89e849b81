"""The loop of bounded exchanges: ask, listen, keep what came back, go on; or go on with a journal.

This module turns the exchanges of a method's generator into Flower messages and back; who takes
part is settled in `strategies.admission`, what must be remembered in `strategies.journal`.
"""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from configs.errors import ConfigError, FedMVCError, ProtocolError, QuorumLost
from configs.plan import RunPlan
from strategies.admission import Admission, absence_of
from strategies.exchange import POLL_S, Failure, collect, wait_for_nodes
from strategies.journal import RESUMED, Heard, Journal, Waiting, answers, fingerprint
from strategies.messages import HelloReply, HelloRequest, Message, Refusal, from_bytes, to_bytes
from strategies.records import from_record, to_record
from strategies.reply_checks import check_reply
from strategies.run_state import Absence, Exchange, RunState, Tally

__all__ = ["ExchangeLoop", "Protocol"]

log = logging.getLogger("fedmvc")

Protocol = Generator[Exchange, dict[str, Any], None]

#: Seconds for the last look for sites that have not come back.
_MOMENT = 0.1


class ExchangeLoop(Strategy):
    """A Flower strategy that plays the exchanges of a generator (see `FederatedStrategy`)."""

    poll_s: float = POLL_S
    clock: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(
        self,
        plan: RunPlan,
        run_id: str,
        *,
        settle_s: float,
        journal: Journal | None,
        watcher: Callable[[Waiting], None] | None,
    ) -> None:
        self.plan = plan
        self.state = RunState(run_id)
        self.absences: dict[str, Absence] = {}
        self._admission = Admission(plan.quorum, self.state)
        self._settle_s = settle_s
        self._journal = journal
        self._watcher = watcher
        self._pending: Exchange | None = None
        self._running: Protocol | None = None
        self._back: tuple[str, ...] = ()
        self.resumes = 0
        self._tally = Tally()

    @abc.abstractmethod
    def protocol(self, hello: dict[str, HelloReply]) -> Protocol:
        """Yield the exchanges of the method; ``hello`` holds the sites that were admitted."""

    @abc.abstractmethod
    def model_arrays(self) -> ArrayRecord:
        """Return the final model's arrays, empty before there is one."""

    @abc.abstractmethod
    def _exchanged(self) -> None:
        """Do what is to be done once an exchange is kept."""

    @abc.abstractmethod
    def _for_the_journal(self, heard: Heard) -> Heard:
        """Return what is kept of an exchange; the protocol must be led by it to the same."""

    # -- Flower's interface ------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the protocol to its end, from where the journal stands.

        Rounds and waits come from the plan; Flower's own arguments are accepted for its signature
        and have no effect.

        Raises
        ------
        FedMVCError
            The first refusal at admission, or `QuorumLost` later; it names the site.
        ConfigError
            Where the journal is none of this run, or an exchange cannot be kept.
        """
        self.summary()
        recorded = [] if self._journal is None else list(self._journal.recorded())
        admitted = None if recorded else self._admit(grid)
        before: dict[str, HelloReply] = {}
        if admitted is None:
            before = self._admission.admitted_before(recorded[0])
            self._count(recorded[0])
        self._running = self.protocol(before if admitted is None else admitted)
        self._pending = next(self._running, None)
        if admitted is None:
            self._replay(recorded)
            if self._pending is not None:
                self._readmit(grid, before)
        else:
            self._write_down(self._admission.outcome(admitted))
        while self._pending is not None:
            try:
                heard = self._ask(grid, self._pending)
            except FedMVCError as error:  # the method may have sites to tell before the run ends
                assert self._running is not None
                self._pending = self._running.throw(error)
                self._forget_what_is_over()
            else:
                self._write_down(heard)
                self._exchanged()
        return Result(arrays=self.model_arrays())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[FlowerMessage]:
        """Turn the pending exchange into one Flower message a site."""
        return [] if self._pending is None else self._messages(self._bodies(self._pending))

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and hand them to the protocol, in name order."""
        if self._pending is None or self._running is None:
            return None, None
        heard = self._heard(self._pending, {}, replies, {}, 0.0)
        return None, MetricRecord({"sites": self._hear(heard)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[FlowerMessage]:
        """Return nothing: the objective of the round is the evaluation."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> MetricRecord | None:
        """Return nothing (see `configure_evaluate`)."""
        return None

    # -- one exchange ------------------------------------------------------------------------

    def _ask(self, grid: Grid, exchange: Exchange) -> Heard:
        """Ask the sites of an exchange and hand what they say to the protocol."""
        began = time.perf_counter()
        self._admission.look_again(grid)
        away = {s: why for s, why in self._admission.away.items() if s in exchange.requests}
        bodies = self._bodies(exchange)
        watch = self._watching(exchange.action, exchange.round, self._admission.names, away)
        replies, failures = collect(
            grid, self._messages(bodies), self._patience, self.poll_s, watch=watch
        )
        names, seconds = self._admission.names, time.perf_counter() - began
        missing = {site: Failure(why, missing=True) for site, why in away.items()}
        missing |= {names[node]: failure for node, failure in failures.items()}
        heard = self._heard(exchange, bodies, replies, missing, seconds)
        if exchange.open:
            heard = replace(heard, back=self._admission.returned(grid))
        self._hear(heard)
        return heard

    def _bodies(self, exchange: Exchange) -> dict[str, bytes]:
        """Return the bytes of each request to a site that is there, in name order."""
        there = self._admission.nodes.keys() - self._admission.away.keys()
        return {s: to_bytes(r) for s, r in sorted(exchange.requests.items()) if s in there}

    def _messages(self, bodies: Mapping[str, bytes]) -> list[FlowerMessage]:
        exchange, nodes = self._pending, self._admission.nodes
        assert exchange is not None
        kind, group = f"train.{exchange.action}", str(exchange.round)
        return [
            FlowerMessage(to_record(b), nodes[s], kind, ttl=self._patience, group_id=group)
            for s, b in bodies.items()
        ]

    @property
    def _patience(self) -> float:
        """Seconds for the pending exchange."""
        own = None if self._pending is None else self._pending.timeout_s
        return self.plan.quorum.timeout_s if own is None else own

    def _heard(
        self,
        exchange: Exchange,
        bodies: Mapping[str, bytes],
        replies: Iterable[FlowerMessage],
        failures: Mapping[str, Failure],
        seconds: float,
    ) -> Heard:
        """Put what came back under the sites' names."""
        names, read = self._admission.names, dict[str, bytes]()
        unreadable: dict[str, str] = {}
        for reply in replies:
            site = names.get(reply.metadata.src_node_id)
            if site is None:
                continue
            try:
                read[site] = from_record(reply.content)
            except ProtocolError as error:
                unreadable[site] = error.public_message
        return Heard(
            exchange.action,
            exchange.round,
            {site: fingerprint(body) for site, body in bodies.items()},
            read,
            unreadable,
            failures,
            sum(map(len, read.values())),
            sum(map(len, bodies.values())),
            seconds,
        )

    def _hear(self, heard: Heard) -> int:
        """Check what came back and hand it to the protocol; return how many replies fit."""
        pending, accepted = self._pending, dict[str, Any]()
        assert pending is not None
        self._count(heard)
        self.absences = {}
        for site, failure in heard.failures.items():
            if pending.lenient:
                self.absences[site] = Absence(failure.reason)
                continue
            if failure.missing:
                self._admission.miss(site, failure.reason, pending)
            else:
                self._admission.drop(site, failure.reason)
        for site, sentence in heard.unreadable.items():
            self._misfit(pending, site, sentence)
        for site, body in heard.bodies.items():
            self._take(pending, site, body, accepted)
        self._back = heard.back
        if not pending.lenient:
            self._admission.require_quorum()
        self._pending = self._step(dict(sorted(accepted.items())))
        return len(accepted)

    def _count(self, heard: Heard) -> None:
        """Count bytes and seconds; what has no round, such as a set-up, belongs to none."""
        for tally in (self.state.total, self._tally) if heard.round else (self.state.total,):
            tally.bytes_up += heard.bytes_up
            tally.bytes_down += heard.bytes_down
            tally.seconds += heard.seconds

    def _take(
        self, pending: Exchange, site: str, body: bytes, accepted: dict[str, Message]
    ) -> None:
        """Decode one reply into ``accepted``; else drop its site, or note that it is absent."""
        try:
            message = from_bytes(body)
            if isinstance(message, Refusal):
                if pending.lenient:
                    self.absences[site] = absence_of(site, message)
                else:
                    self._admission.take_refusal(site, message, pending)
                return
            check_reply(self.state.run_id, pending, message)
        except ProtocolError as error:
            self._misfit(pending, site, error.public_message)
        else:
            accepted[site] = message

    def _misfit(self, pending: Exchange, site: str, sentence: str) -> None:
        reason = f"sent a reply that does not fit: {sentence}"
        if pending.lenient:
            self.absences[site] = Absence(reason, ProtocolError(f"site '{site}' {reason}"))
        else:
            self._admission.drop(site, reason)

    def _step(self, replies: dict[str, Any]) -> Exchange | None:
        try:
            return None if self._running is None else self._running.send(replies)
        except StopIteration:
            return None

    # -- who takes part ----------------------------------------------------------------------

    def _admit(self, grid: Grid) -> dict[str, HelloReply]:
        """Ask every connected node who it is and whether it takes part."""
        quorum, terms = self.plan.quorum, self.plan.secure_terms()
        wanted = () if terms is None else terms.participants
        registered = wait_for_nodes(grid, quorum.min_sites, quorum.timeout_s, wanted=wanted)
        if self._settle_s > 0:
            self.sleep(self._settle_s)
            registered = wait_for_nodes(grid, quorum.min_sites, quorum.timeout_s, wanted=wanted)
        replies, failures = self._hello(grid, registered)
        return self._admission.admit(registered, replies, failures, self._decode)

    def _hello(
        self, grid: Grid, registered: Mapping[int, str]
    ) -> tuple[list[FlowerMessage], dict[int, Failure]]:
        request = HelloRequest(self.state.run_id, self.plan.plan_id, self.plan.canonical())
        body, patience = to_bytes(request), self.plan.quorum.timeout_s
        messages = [
            FlowerMessage(to_record(body), node, "train.hello", ttl=patience, group_id="hello")
            for node in registered
        ]
        self._count(Heard("hello", bytes_down=len(body) * len(messages)))
        names = {node: name or f"node {node}" for node, name in registered.items()}
        watch = self._watching("hello", 0, names, ())
        return collect(grid, messages, patience, self.poll_s, watch=watch)

    def _decode(self, reply: FlowerMessage) -> Message:
        body = from_record(reply.content)
        self._count(Heard("hello", bytes_up=len(body)))
        return from_bytes(body)

    # -- what outlives this process ----------------------------------------------------------

    def _write_down(self, heard: Heard) -> None:
        """Write down what came back, before anything else is asked."""
        self._forget_what_is_over()
        if self._journal is not None:
            self._journal.append(self._for_the_journal(heard))

    def _forget_what_is_over(self) -> None:
        if self._journal is not None and self._pending is not None and self._pending.ends:
            self._journal.discard()
            self._journal = None

    def _replay(self, recorded: Sequence[Heard]) -> None:
        """Bring the protocol to where the journal ends; nothing is sent."""
        self.sleep = lambda seconds: None
        for number, heard in enumerate(recorded[1:], 2):
            if heard == RESUMED:
                self.resumes += 1
                continue
            try:
                fits = self._pending is not None and answers(heard, self._pending)
                if fits:
                    self._hear(heard)
            except FedMVCError as error:
                log.debug("%s", error)
                fits = False
            if not fits:
                raise ConfigError(
                    f"the checkpoint of run {self.state.run_id[:8]} leads elsewhere at exchange "
                    f"{number} of {len(recorded)}: resume it where and with what it began, or "
                    "start another run"
                )
        del self.sleep
        if self._journal is not None:
            self._journal.resumed(len(self.state.history))
            self._journal.append(RESUMED)
        self.resumes += 1
        self._exchanged()
        log.info("run %s goes on after round %d", self.state.run_id, len(self.state.history))

    def _readmit(self, grid: Grid, before: Mapping[str, HelloReply]) -> None:
        """Find the sites of an interrupted run again; node ids may be others."""
        sites, patience = self.state.sites, self.plan.quorum.timeout_s
        try:
            registered = wait_for_nodes(grid, len(sites), patience, wanted=sites)
        except QuorumLost:
            registered = wait_for_nodes(grid, 1, _MOMENT, wanted=sites)
        replies, _ = self._hello(grid, registered)
        self._admission.find_again(registered, replies, self._decode, before)

    def _watching(
        self, action: str, round_: int, names: Mapping[int, str], away: Collection[str]
    ) -> Callable[[Collection[int]], None] | None:
        """Return what tells the watcher for whom the exchange is waiting."""
        if self._watcher is None:
            return None
        watcher, asked = self._watcher, [*names.values(), *away]

        def watch(nodes: Collection[int]) -> None:
            waiting = [names[node] for node in nodes]
            watcher(Waiting(action, round_, tuple(sorted(set(asked))), tuple(sorted(waiting))))

        return watch
