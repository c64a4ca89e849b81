"""What releases cost and what a budget still covers: sums of losses, converted once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from configs.errors import BudgetExceeded

__all__ = ["Budget", "BudgetStatus", "Cost", "Loss"]


@dataclass(frozen=True)
class Cost:
    """What one release of a run costs, and how many there are.

    Attributes
    ----------
    mechanism : str
        Name of the mechanism.
    releases : int
        Releases of the run.
    rho : float
        Zero-concentrated privacy loss of one release under the certificate's assumption.
    rho_if_others_collude : float
        The same where all other participants work with the server.
    sigma, sensitivity : float
        Of one release; 0 where the mechanism has none.
    delta : float
        Probability that one release is not covered by its rho: the mechanism's own tail.
    """

    mechanism: str
    releases: int
    rho: float
    rho_if_others_collude: float
    sigma: float
    sensitivity: float
    delta: float

    def __post_init__(self) -> None:
        numbers = (self.rho, self.rho_if_others_collude, self.sigma, self.sensitivity, self.delta)
        # written so that NaN fails too: it would pass every later comparison with the budget
        if self.releases < 1 or not all(0.0 <= number < math.inf for number in numbers):
            raise ValueError(f"no cost of a release: {self}")

    @classmethod
    def of_pure(cls, mechanism: str, releases: int, epsilon: float) -> Cost:
        """Return the cost of releases with pure epsilon each.

        An epsilon-DP mechanism is epsilon^2 / 2 zero-concentrated (Bun and Steinke, TCC 2016,
        Proposition 1.4), whatever the other participants do.
        """
        rho = epsilon**2 / 2
        return cls(mechanism, releases, rho, rho, 0.0, 0.0, 0.0)

    @property
    def pure(self) -> float:
        """Epsilon of one release that needs no delta; 0 for a release with noise."""
        return math.sqrt(2.0 * self.rho) if self.sigma == 0.0 else 0.0


@dataclass(frozen=True)
class Loss:
    """Sums over many releases, see `Cost`; ``pure`` and ``pure_rho`` over those that are pure."""

    rho: float
    rho_if_others_collude: float
    delta: float
    pure: float = 0.0
    pure_rho: float = 0.0

    @classmethod
    def of(cls, counted: Iterable[tuple[Cost, int]]) -> Loss:
        """Add up costs, each of so many releases."""
        pairs = list(counted)
        return cls(
            math.fsum(cost.rho * count for cost, count in pairs),
            math.fsum(cost.rho_if_others_collude * count for cost, count in pairs),
            math.fsum(cost.delta * count for cost, count in pairs),
            math.fsum(cost.pure * count for cost, count in pairs),
            math.fsum(cost.rho * count for cost, count in pairs if cost.pure),
        )

    @property
    def if_others_collude(self) -> Loss:
        """The same where all other participants of all runs work with the server."""
        return replace(self, rho=self.rho_if_others_collude)

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            self.rho + other.rho,
            self.rho_if_others_collude + other.rho_if_others_collude,
            self.delta + other.delta,
            self.pure + other.pure,
            self.pure_rho + other.pure_rho,
        )


@dataclass(frozen=True)
class BudgetStatus:
    """How a budget stands; epsilons are at ``delta_budget``, infinite where that is used up.

    Attributes
    ----------
    cohort : str
        Whom the budget belongs to; "" is the site's one budget.
    epsilon_budget, delta_budget : float
    spent : float
        Epsilon of all that was paid or forfeited.
    reserved : float
        By how much running runs raise it if they use all that they reserved.
    left : float
        What is left of the budget, 0 or more.
    rho_spent, rho_reserved : float
        The same as sums of zero-concentrated losses.
    if_others_collude : float
        Epsilon of spent and reserved where all other participants of all runs work with the server.
    """

    cohort: str
    epsilon_budget: float
    delta_budget: float
    spent: float
    reserved: float
    left: float
    rho_spent: float
    rho_reserved: float
    if_others_collude: float


@dataclass(frozen=True)
class Budget:
    """The budget of one cohort.

    Losses add: releases i with zero-concentrated loss rho_i, each of which holds but for a tail of
    probability delta_i, are together (epsilon, delta)-DP with epsilon = ``epsilon_of_rho(sum
    rho_i, delta - sum delta_i)``: the tails are taken off the budget's delta, and what is left of
    it pays for the conversion. Pure epsilons may be added up after it instead, which is less where
    they are few and large.

    Attributes
    ----------
    cohort : str
    epsilon, delta : float
        Most that all releases together may cost.
    """

    cohort: str
    epsilon: float
    delta: float

    def epsilon_of(self, loss: Loss) -> float:
        """Convert a loss; infinite where its tails leave nothing of delta."""
        from privacy.accountant import epsilon_of_rho  # loads scipy

        delta = self.delta - loss.delta
        if delta <= 0.0:
            return math.inf if loss.delta > 0.0 or loss.rho > loss.pure_rho else loss.pure
        noisy = max(loss.rho - loss.pure_rho, 0.0)
        apart = loss.pure + (epsilon_of_rho(noisy, delta) if noisy > 0.0 else 0.0)
        return min(apart, epsilon_of_rho(loss.rho, delta)) if loss.rho > 0.0 else 0.0

    def status(self, spent: Loss, both: Loss) -> BudgetStatus:
        """Say how the budget stands.

        Parameters
        ----------
        spent : Loss
            Of what was paid or forfeited.
        both : Loss
            The same with what is reserved.
        """
        epsilon_spent, epsilon_both = self.epsilon_of(spent), self.epsilon_of(both)
        return BudgetStatus(
            cohort=self.cohort,
            epsilon_budget=self.epsilon,
            delta_budget=self.delta,
            spent=epsilon_spent,
            reserved=epsilon_both - epsilon_spent if math.isfinite(epsilon_spent) else 0.0,
            left=max(self.epsilon - epsilon_both, 0.0),
            rho_spent=spent.rho,
            rho_reserved=both.rho - spent.rho,
            if_others_collude=self.epsilon_of(both.if_others_collude),
        )

    def refuse_dear(self, site: str, what: str, status: BudgetStatus, after: Loss) -> None:
        """Refuse a run after which more would be spent and reserved than the budget holds.

        Parameters
        ----------
        site, what : str
            For the message; what: ``"run 4d3f9a02"``.
        status : BudgetStatus
            Before the run.
        after : Loss
            All that is spent, reserved and asked.

        Raises
        ------
        BudgetExceeded
            With what is spent, reserved, asked and left, and the way out.
        """
        epsilon = self.epsilon_of(after)
        if epsilon <= self.epsilon:
            return
        owner = f"cohort '{self.cohort}'" if self.cohort else "its patients"
        budget = (
            f"site '{site}': the privacy budget of {owner} (epsilon {self.epsilon:g} at delta "
            f"{self.delta:g}) does not cover {what}"
        )
        if not math.isfinite(epsilon):
            raise BudgetExceeded(
                f"{budget}: the tails of its mechanisms alone have delta {after.delta:.3g}; let "
                "the site raise policy.delta_budget"
            )
        raise BudgetExceeded(
            f"{budget}: spent {status.spent:.4g}, reserved {status.reserved:.4g}, asked "
            f"{epsilon - status.spent - status.reserved:.4g}, left {status.left:.4g}; lower "
            "privacy.epsilon in the plan, or let the site raise policy.epsilon_budget"
        )
