"""What all methods share: their sites, the checks of replies and the record of the rounds.

A method is written as a generator (`protocol`) that yields one :class:`Exchange` at a time and gets
the checked replies of the sites still in the run; `strategies.exchange_loop` asks and listens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from configs.errors import FedMVCError, ProtocolError
from configs.plan import RunPlan
from privacy.mechanisms import GaussianNoise
from strategies.exchange_loop import ExchangeLoop, Protocol
from strategies.journal import Heard, Journal, Waiting
from strategies.messages import FeatureSelection
from strategies.model import ClusterModel
from strategies.run_state import RoundRecord, RunState, Tally

__all__ = ["FederatedStrategy", "Protocol"]

log = logging.getLogger("fedmvc")


class FederatedStrategy(ExchangeLoop):
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
    journal : Journal, optional
        Where the exchanges are kept; one that holds some already is gone on with.
    watcher : callable, optional
        Called with whom the run is waiting for, whenever that changes.

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
    resumes : int
        How often the run was resumed before the exchange that is played now.
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

    def __init__(
        self,
        plan: RunPlan,
        run_id: str,
        *,
        observer: Callable[[RunState], None] | None = None,
        settle_s: float = 0.0,
        journal: Journal | None = None,
        watcher: Callable[[Waiting], None] | None = None,
    ) -> None:
        super().__init__(plan, run_id, settle_s=settle_s, journal=journal, watcher=watcher)
        self.metrics: dict[str, Any] = {}
        self._observer = observer
        self._shown = 0

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

    def take_back(self) -> None:
        """Take sites that were missing and are there again into the run, once a round is closed."""
        for site in self._back:
            self._admission.take_back(site, self.state.history[-1].round)

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

        The observer is called once the round's last exchange is kept.

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

    def _exchanged(self) -> None:
        """Show the rounds that are new."""
        if len(self.state.history) > self._shown:
            self._shown = len(self.state.history)
            if self._observer is not None:
                self._observer(self.state)

    def _for_the_journal(self, heard: Heard) -> Heard:
        """Keep an exchange as it was."""
        return heard
