"""What a site's register says of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fedmvc_client.run_rules import Decision, PlanStatus

__all__ = ["PlanEntry", "entry_of"]


@dataclass(frozen=True)
class PlanEntry:
    """What the register says of one plan.

    Attributes
    ----------
    plan_id, method : str
    status : PlanStatus
    seen : str
        When it was first seen, UTC.
    approved_runs : int
        Runs that the last approval allows; 0 without one.
    runs_left : int
        How many of them have not begun; 0 where the approval has expired.
    expires : str or None
        When the approval ends, UTC.
    """

    plan_id: str
    method: str
    status: PlanStatus
    seen: str
    approved_runs: int
    runs_left: int
    expires: str | None


def entry_of(
    plan_id: str, method: str, seen: str, decision: Decision | None, now: datetime
) -> PlanEntry:
    """Say how a plan stands, given the last decision about it."""
    if decision is None or not decision.approved:
        status: PlanStatus = "seen" if decision is None else "rejected"
        return PlanEntry(plan_id, method, status, seen, 0, 0, None)
    status = decision.status(now)
    left = decision.runs - decision.used if status == "approved" else 0
    return PlanEntry(plan_id, method, status, seen, decision.runs, left, decision.expires)
