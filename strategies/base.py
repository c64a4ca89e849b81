"""What all strategies share: the loop of bounded exchanges, reply checks, byte counts.

A method is written as a generator (`protocol`) that yields one :class:`Exchange` at a time and gets
the checked replies of the sites still in the run. This module turns exchanges into Flower messages
and back and keeps the record of the rounds; who takes part is settled in `strategies.admission`.
"""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from configs.errors import FedMVCError, ProtocolError
from configs.plan import RunPlan
from privacy.mechanisms import GaussianNoise
from strategies.admission import Admission, absence_of
from strategies.exchange import POLL_S, Failure, collect, wait_for_nodes
from strategies.messages import (
    FeatureSelection,
    HelloReply,
    HelloRequest,
    Message,
    Refusal,
    from_bytes,
    to_bytes,
)
from strategies.model import ClusterModel
from strategies.records import from_record, to_record
from strategies.reply_checks import check_reply
from strategies.run_state import Absence, Exchange, RoundRecord, RunState, Tally

log = logging.getLogger("fedmvc")

Protocol = Generator[Exchange, dict[str, Any], None]


class FederatedStrategy(Strategy):
    """A Flower strategy driven by a generator of exchanges.

    Parameters
    ----------
    plan : RunPlan
    run_id : str
        Ours, not Flower's; every message is bound to it.
    observer : callable, optional
        Called with the :class:`RunState` after each round.
    settle_s : float, default 0
        After ``quorum.min_sites`` nodes are there, wait this long for more of them.

    Attributes
    ----------
    model : ClusterModel or None
        The final model, where the method makes one.
    selection : FeatureSelection or None
        The features ranked by name, where the method ranks them.
    noise : GaussianNoise or None
        What the sites of a noisy run add to each of their sums.
    metrics : dict
        What the method measured of its result.
    absences : dict[str, Absence]
        Sites without a fitting reply to the last exchange, where that was lenient.
    poll_s : float
        Seconds between two looks for replies, at first.
    clock, sleep : callable
        Seconds that only grow, and how to let some pass: between two looks for sites.
    """

    model: ClusterModel | None = None
    selection: FeatureSelection | None = None
    noise: GaussianNoise | None = None
    poll_s: float = POLL_S
    clock: Callable[[], float] = staticmethod(time.monotonic)
    sleep: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(
        self,
        plan: RunPlan,
        run_id: str,
        *,
        observer: Callable[[RunState], None] | None = None,
        settle_s: float = 0.0,
    ) -> None:
        self.plan = plan
        self.state = RunState(run_id)
        self._admission = Admission(plan.quorum, self.state)
        self.metrics: dict[str, Any] = {}
        self._observer = observer
        self._settle_s = settle_s
        self._pending: Exchange | None = None
        self._running: Protocol | None = None
        self._tally = Tally()
        self.absences: dict[str, Absence] = {}

    @abc.abstractmethod
    def protocol(self, hello: dict[str, HelloReply]) -> Protocol:
        """Yield the exchanges of the method; ``hello`` holds the sites that were admitted."""

    @abc.abstractmethod
    def model_arrays(self) -> ArrayRecord:
        """Return the final model's arrays, empty before there is one."""

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
        """Run the protocol to its end.

        Rounds and waits come from the plan; Flower's own arguments are accepted for its signature
        and have no effect.

        Raises
        ------
        FedMVCError
            The first refusal at admission, or `QuorumLost` later; it names the site.
        """
        self.summary()
        self._running = self.protocol(self._admit(grid))
        self._pending = next(self._running, None)
        while self._pending is not None:
            try:
                self._ask(grid, self._pending)
            except FedMVCError as error:  # the method may have sites to tell before the run ends
                self._pending = self._running.throw(error)
        return Result(arrays=self.model_arrays())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[FlowerMessage]:
        """Turn the pending exchange into one Flower message a site."""
        if self._pending is None:
            return []
        nodes = self._admission.nodes
        return [
            self._message(request, nodes[site], self._pending.action, str(server_round))
            for site, request in sorted(self._pending.requests.items())
            if site in nodes
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and hand them to the protocol, in name order."""
        if self._pending is None or self._running is None:
            return None, None
        names = self._admission.names
        accepted: dict[str, Any] = {}
        for reply in replies:
            site = names.get(reply.metadata.src_node_id)
            if site is not None:
                self._take(self._pending, site, reply, accepted)
        if not self._pending.lenient:
            self._admission.require_quorum()
        self._pending = self._step(dict(sorted(accepted.items())))
        return None, MetricRecord({"sites": len(accepted)})

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

    def summary(self) -> None:
        """Log what is about to run."""
        log.info(
            "run %s: %s, plan %s, at most %d rounds, at least %d sites",
            self.state.run_id,
            self.plan.method,
            self.plan.plan_id[:12],
            self.plan.max_rounds,
            self.plan.quorum.min_sites,
        )

    # -- for the methods ---------------------------------------------------------------------

    @property
    def sites(self) -> list[str]:
        """Sites still in the run, in name order."""
        return list(self.state.sites)

    @property
    def ids(self) -> tuple[str, str]:
        """Run id and plan id, the first fields of every request."""
        return self.state.run_id, self.plan.plan_id

    def drop(self, site: str, reason: str) -> None:
        """Take a site out of the run, by name."""
        self._admission.drop(site, reason)

    def stop_without(self, site: str) -> None:
        """End the run for a site that was dropped, where the plan does not go on without it.

        Raises
        ------
        QuorumLost
        """
        self._admission.stop_without(site)

    def refuse(self, site: str, error: FedMVCError) -> None:
        """Refuse an admitted site for its data or schema before round 1.

        Raises
        ------
        FedMVCError
            ``error`` itself, unless ``quorum.on_missing`` is "continue".
        """
        self._admission.refuse(site, error)

    def checked(self, replies: dict[str, Any], check: Callable[[str, Any], None]) -> dict[str, Any]:
        """Keep the replies that pass ``check``; drop the others' sites by name.

        Raises
        ------
        QuorumLost
            Where fewer than ``quorum.min_sites`` are left.
        """
        kept = {}
        for site, reply in replies.items():
            try:
                check(site, reply)
            except ProtocolError as error:
                self.drop(site, f"sent a reply that does not fit: {error.public_message}")
            else:
                kept[site] = reply
        self._admission.require_quorum()
        return kept

    def warn(self, sentence: str) -> None:
        """Keep a warning for the result and log it."""
        if sentence not in self.state.warnings:
            self.state.warnings.append(sentence)
            log.warning("%s", sentence)

    def record_round(
        self,
        number: int,
        objective: float,
        view_weights: list[float],
        site_weights: dict[str, float],
        sites: Sequence[str] | None = None,
    ) -> None:
        """Close a round: its bytes and seconds are those since the last one.

        ``sites`` are those in the round's sum; by default all that are in the run.
        """
        tally, self._tally = self._tally, Tally()
        self.state.history.append(
            RoundRecord(
                number,
                objective,
                view_weights,
                site_weights,
                tally.bytes_up,
                tally.bytes_down,
                tally.seconds,
                self.sites if sites is None else list(sites),
            )
        )
        if self._observer is not None:
            self._observer(self.state)

    def start_rounds(self) -> None:
        """Set the round's counters to zero: set-up is over."""
        self._tally = Tally()

    # -- inside ------------------------------------------------------------------------------

    def _message(self, request: Message, node: int, action: str, group: str) -> FlowerMessage:
        body = to_bytes(request)
        for tally in (self.state.total, self._tally):
            tally.bytes_down += len(body)
        ttl = self._patience
        return FlowerMessage(to_record(body), node, f"train.{action}", ttl=ttl, group_id=group)

    @property
    def _patience(self) -> float:
        """Seconds for the pending exchange."""
        own = None if self._pending is None else self._pending.timeout_s
        return self.plan.quorum.timeout_s if own is None else own

    def _decode(self, reply: FlowerMessage) -> Message:
        body = from_record(reply.content)
        for tally in (self.state.total, self._tally):
            tally.bytes_up += len(body)
        return from_bytes(body)

    def _step(self, replies: dict[str, Any]) -> Exchange | None:
        try:
            return None if self._running is None else self._running.send(replies)
        except StopIteration:
            return None

    def _ask(self, grid: Grid, exchange: Exchange) -> None:
        began = time.perf_counter()
        messages = list(self.configure_train(exchange.round, ArrayRecord(), ConfigRecord(), grid))
        replies, failures = collect(grid, messages, self._patience, self.poll_s)
        elapsed = time.perf_counter() - began
        self.state.total.seconds += elapsed
        self._tally.seconds += elapsed
        self.absences = {}
        self._note_failures(failures)
        self.aggregate_train(exchange.round, replies)

    def _note_failures(self, failures: Mapping[int, Failure]) -> None:
        names = self._admission.names
        for node, failure in failures.items():
            site = names[node]
            if self._pending is not None and self._pending.lenient:
                self.absences[site] = Absence(failure.reason)
                continue
            self.drop(site, failure.reason)
            if failure.missing:
                self.stop_without(site)

    def _take(
        self, pending: Exchange, site: str, reply: FlowerMessage, accepted: dict[str, Any]
    ) -> None:
        """Decode one reply into ``accepted``; else drop its site, or note that it is absent."""
        try:
            message = self._decode(reply)
            if isinstance(message, Refusal):
                if pending.lenient:
                    self.absences[site] = absence_of(site, message)
                else:
                    self._admission.take_refusal(site, message, pending.round)
                return
            check_reply(self.state.run_id, pending, message)
        except ProtocolError as error:
            reason = f"sent a reply that does not fit: {error.public_message}"
            if pending.lenient:
                self.absences[site] = Absence(reason, ProtocolError(f"site '{site}' {reason}"))
            else:
                self.drop(site, reason)
        else:
            accepted[site] = message

    def _admit(self, grid: Grid) -> dict[str, HelloReply]:
        """Ask every connected node who it is and whether it takes part."""
        quorum, terms = self.plan.quorum, self.plan.secure_terms()
        wait = partial(
            wait_for_nodes,
            grid,
            quorum.min_sites,
            quorum.timeout_s,
            wanted=() if terms is None else terms.participants,
        )
        registered = wait()
        if self._settle_s > 0:
            self.sleep(self._settle_s)
            registered = wait()
        request = HelloRequest(self.state.run_id, self.plan.plan_id, self.plan.canonical())
        messages = [self._message(request, node, "hello", "hello") for node in registered]
        replies, failures = collect(grid, messages, quorum.timeout_s, self.poll_s)
        return self._admission.admit(registered, replies, failures, self._decode)
