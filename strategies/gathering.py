"""Asking sites until enough have answered: those that are away are asked again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from configs.errors import FedMVCError, ProtocolError, QuorumLost
from strategies.base import FederatedStrategy
from strategies.messages import Message
from strategies.run_state import Exchange

__all__ = ["ask_s", "gather", "gather_all"]

log = logging.getLogger("fedmvc")

Replies = dict[str, Any]
Take = Callable[[str, Any], None]

#: Pause before sites that did not answer are asked again.
_PAUSE_S = 2.0
#: Seconds that a site is given for an answer at least, where there are as many.
_LEAST_S = 30.0


def ask_s(left_s: float) -> float:
    """Return for how long to wait for one answer, of what is left: half of it, where it is long.

    A request that was lost with a SuperNode that is back by now is known to nobody: only asking
    again brings an answer. A site that is merely slow gives the answer that it kept.
    """
    return round(max(left_s / 2 if left_s > 2 * _LEAST_S else left_s, 1.0), 1)


def gather(
    strategy: FederatedStrategy,
    action: str,
    requests: Callable[[Sequence[str]], Mapping[str, Message]],
    kind: type[Any],
    take: Take,
    *,
    sites: Sequence[str],
    enough: int,
    patience_s: float,
    round_: int = 0,
) -> Generator[Exchange, Replies, None]:
    """Ask sites, and those that are away again, until enough have answered.

    Parameters
    ----------
    strategy : FederatedStrategy
    action : str
    requests : callable
        From the sites that are asked to a request for each.
    kind : type
        Of the replies.
    take : callable
        Takes a site's reply; raises ProtocolError where it does not fit.
    sites : sequence of str
    enough : int
        Answers that are needed.
    patience_s : float
        Seconds for all of it.
    round_ : int

    Raises
    ------
    QuorumLost
        Where too few have answered when the time is over, or can no longer. It names the others.
    FedMVCError
        Before round 1, where a site's refusal is why: that refusal.
    """
    began = strategy.clock()
    deadline = began + patience_s
    waiting, answered = list(sites), 0
    lost: dict[str, str] = {}
    refusals: dict[str, FedMVCError] = {}
    while True:
        asking = ask_s(deadline - strategy.clock())
        replies = yield Exchange(
            action, requests(waiting), (kind,), round_, lenient=True, timeout_s=asking
        )
        absences = dict(strategy.absences)
        for site, reply in replies.items():
            try:
                take(site, reply)
            except ProtocolError as error:
                lost[site] = f"sent a reply that does not fit: {error.public_message}"
            else:
                answered += 1
                lost.pop(site, None)
        for site, absence in absences.items():
            log.warning("site '%s' is missing from %s: it %s", site, action, absence.reason)
            lost[site] = absence.reason
            if absence.refusal is not None:
                refusals[site] = absence.refusal
        if answered >= enough:
            return
        waiting = [site for site in absences if site not in refusals]
        hopeless = answered + len(waiting) < enough
        if hopeless and refusals and round_ == 0:
            raise refusals[min(refusals)]
        if hopeless or strategy.clock() + _PAUSE_S >= deadline:
            why = "; ".join(f"'{site}' {reason}" for site, reason in sorted(lost.items()))
            asked_s = strategy.clock() - began
            raise QuorumLost(
                f"{answered} of {len(sites)} sites answered {action} of round {round_} and "
                f"{enough} are needed (privacy.tolerated_dropouts; asked for {asked_s:.0f} s): "
                f"{why}"
            )
        strategy.sleep(_PAUSE_S)


def gather_all(
    strategy: FederatedStrategy,
    action: str,
    request: Message,
    kind: type[Any],
    take: Take,
    round_: int = 0,
) -> Generator[Exchange, Replies, None]:
    """Ask all sites of a run the same, until all have answered (see `gather`)."""
    sites = strategy.sites
    yield from gather(
        strategy,
        action,
        lambda left: dict.fromkeys(left, request),
        kind,
        take,
        sites=sites,
        enough=len(sites),
        patience_s=strategy.plan.quorum.timeout_s,
        round_=round_,
    )
