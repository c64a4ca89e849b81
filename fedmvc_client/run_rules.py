"""Which runs a site lets begin: approved ones, or as many a month as its policy allows unasked."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from sqlite3 import Connection
from typing import Literal

from configs.errors import PolicyRefused, ProtocolError
from configs.plan import RunPlan
from configs.site import Policy
from configs.values import counted

__all__ = [
    "AUTO",
    "SCHEMA",
    "Decision",
    "PlanStatus",
    "RunRules",
    "decision_on",
    "has_exact_sums",
    "participants_of",
    "utc_text",
]

PlanStatus = Literal["seen", "approved", "used up", "expired", "rejected"]

#: Decision of a run that policy.approval = "auto" let through.
AUTO = 0
#: Over so many days the runs without an approval of their own are counted.
_MONTH_DAYS = 30
#: Mechanisms under which an opened sum holds no noise that anything is guaranteed about.
_EXACT = ("none", "paper")
#: Tables of decisions and runs.
SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (number INTEGER PRIMARY KEY AUTOINCREMENT,
    plan_id TEXT NOT NULL, approved INTEGER NOT NULL, runs INTEGER NOT NULL, at TEXT NOT NULL,
    expires TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (run_id TEXT PRIMARY KEY, plan_id TEXT NOT NULL,
    at TEXT NOT NULL, decision INTEGER NOT NULL, cohort TEXT NOT NULL, participants TEXT NOT NULL,
    exact_sums INTEGER NOT NULL, finished INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS decisions_on ON decisions (plan_id, number);
CREATE INDEX IF NOT EXISTS runs_of ON runs (decision)
"""


@dataclass(frozen=True)
class Decision:
    """The last word on a plan.

    Attributes
    ----------
    number : int
    approved : bool
        False where it was rejected.
    runs, used : int
        Runs that it allows, and how many of them have begun.
    expires : str
        When it ends, UTC.
    """

    number: int
    approved: bool
    runs: int
    used: int
    expires: str

    def status(self, now: datetime) -> PlanStatus:
        """Say what the decision is worth now."""
        if not self.approved:
            return "rejected"
        if self.used >= self.runs:
            return "used up"
        return "expired" if self.expires <= utc_text(now) else "approved"


class RunRules:
    """The rules of one site, asked inside a transaction on its register.

    Parameters
    ----------
    site : str
        The site's name, for messages.
    separate : collection of str
        Cohorts that share no patient with the site's own, by its signed statement.
    """

    def __init__(self, site: str, separate: Collection[str]) -> None:
        self._site = site
        self._separate = frozenset(separate)

    def allowing(
        self,
        connection: Connection,
        run_id: str | None,
        plan: RunPlan,
        policy: Policy,
        now: datetime,
    ) -> int | None:
        """Return the number of the decision that lets a run begin; None where it goes on.

        Parameters
        ----------
        connection : sqlite3.Connection
            Inside a transaction.
        run_id : str or None
            None where it is not known yet.
        plan : RunPlan
        policy : Policy
        now : datetime

        Raises
        ------
        PolicyRefused
            If nothing allows the run.
        ProtocolError
            If the run id is that of another plan's run, or of one that is over.
        """
        self.refuse_rejected(connection, plan.plan_id)
        decision = decision_on(connection, plan.plan_id)
        status = "seen" if decision is None else decision.status(now)
        if run_id is not None and self._resumes(connection, run_id, plan):
            return None
        if decision is not None and status == "approved":
            return decision.number
        if policy.approval == "required":
            self._refuse_unapproved(plan, decision, status)
        since = utc_text(now - timedelta(days=_MONTH_DAYS))
        (begun,) = connection.execute(
            "SELECT count(*) FROM runs WHERE decision = ? AND at > ?", (AUTO, since)
        ).fetchone()
        if begun >= policy.auto_runs_a_month:
            raise PolicyRefused(
                f"site '{self._site}' began {counted(begun, 'run')} without an approval of their "
                f"own in {_MONTH_DAYS} days; policy.auto_runs_a_month is "
                f"{policy.auto_runs_a_month}: let the site run fedmvc-client plans approve "
                f"{plan.plan_id[:12]}, or raise it"
            )
        sentence = self.differing(connection, plan)
        if sentence is not None:
            raise PolicyRefused(
                f"{sentence}: use the same participants or noise, or let the site run "
                f"fedmvc-client plans approve {plan.plan_id[:12]}"
            )
        return AUTO

    def refuse_rejected(self, connection: Connection, plan_id: str) -> None:
        """Refuse a plan whose last decision rejects it.

        Raises
        ------
        PolicyRefused
        """
        last = connection.execute(
            "SELECT approved FROM decisions WHERE plan_id = ? ORDER BY number DESC LIMIT 1",
            (plan_id,),
        ).fetchone()
        if last is not None and not last[0]:
            raise PolicyRefused(
                f"site '{self._site}' has rejected plan {plan_id[:12]}: change the plan, or let "
                f"the site run fedmvc-client plans approve {plan_id[:12]}"
            )

    def _refuse_unapproved(
        self, plan: RunPlan, decision: Decision | None, status: PlanStatus
    ) -> None:
        short = plan.plan_id[:12]
        way_out = (
            f"run fedmvc-client plans approve {short} at the site, or set policy.approval = 'auto' "
            "in its site.toml"
        )
        lack = f"no approval of plan {short} is there"
        if decision is not None and status == "used up":
            lack = f"of {counted(decision.runs, 'approved run')} of plan {short} none is left"
        elif decision is not None:
            lack = f"the approval of plan {short} ended on {decision.expires[:10]}"
        raise PolicyRefused(
            f"site '{self._site}' wants every plan approved (policy.approval = 'required') and "
            f"{lack}: {way_out}"
        )

    def _resumes(self, connection: Connection, run_id: str, plan: RunPlan) -> bool:
        """Say whether a run has begun before and may go on."""
        known = connection.execute(
            "SELECT plan_id, finished FROM runs WHERE run_id = ?", (run_id,)
        ).fetchone()
        if known is None:
            return False
        plan_id, finished = known
        if plan_id != plan.plan_id:
            raise ProtocolError(
                f"site '{self._site}': run {run_id[:8]} belongs to plan {plan_id[:12]}, not "
                f"{plan.plan_id[:12]}: start another run"
            )
        if finished:
            raise ProtocolError(
                f"site '{self._site}': run {run_id[:8]} is over here: start another run"
            )
        return True

    def differing(self, connection: Connection, plan: RunPlan) -> str | None:
        """Say where a plan's sums and those of an earlier run together show a single site's."""
        if not has_exact_sums(plan):
            return None
        for run_id, cohort in connection.execute(
            "SELECT run_id, cohort FROM runs WHERE exact_sums AND participants != ? "
            "ORDER BY at, rowid",
            (participants_of(plan),),
        ).fetchall():
            if cohort not in self._separate:
                return (
                    f"site '{self._site}' took part in run {run_id[:8]} with other participants "
                    "and without noise, and two such sums of the same patients together can show "
                    "a single site's"
                )
        return None


def utc_text(now: datetime | None) -> str:
    """Write a time so that later times are greater texts."""
    return (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")


def participants_of(plan: RunPlan) -> str:
    """Write a plan's participants as the register keeps them."""
    return json.dumps(sorted(plan.privacy.participants))


def has_exact_sums(plan: RunPlan) -> bool:
    """Say whether the server sees sums over all participants, and these without noise."""
    return plan.privacy.secure_aggregation and plan.privacy.mechanism in _EXACT


def decision_on(connection: Connection, plan_id: str) -> Decision | None:
    """Return the last decision about a plan; None where there is none."""
    found = connection.execute(
        "SELECT number, approved, runs, (SELECT count(*) FROM runs WHERE decision = number), "
        "expires FROM decisions WHERE plan_id = ? ORDER BY number DESC LIMIT 1",
        (plan_id,),
    ).fetchone()
    return None if found is None else Decision(found[0], bool(found[1]), *found[2:])
