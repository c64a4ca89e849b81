"""What the audit log notes of plans and runs, and the site's register should know too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from sqlite3 import Connection

from privacy.audit import AuditEntry

__all__ = ["first_missing"]

#: Run of which the register knows nothing: no plan, not finished.
_UNKNOWN = ("", 0)


def first_missing(connection: Connection, entries: Iterable[AuditEntry]) -> str | None:
    """Name the first decision or run that the audit log notes and the register does not.

    The register may know more: it is written first, and a process may die in between.

    Parameters
    ----------
    connection : sqlite3.Connection
        To the register, inside a transaction.
    entries : iterable of AuditEntry
        All lines of the log, checked.
    """
    runs = {
        run_id: (plan_id, finished)
        for run_id, plan_id, finished in connection.execute(
            "SELECT run_id, plan_id, finished FROM runs"
        )
    }
    decisions = Counter(
        (plan_id, runs_, expires if runs_ else "")
        for plan_id, runs_, expires in connection.execute(
            "SELECT plan_id, CASE WHEN approved THEN runs ELSE 0 END, expires FROM decisions"
        )
    )
    for entry in entries:
        facts = entry.facts
        run_id, plan_id = str(facts.get("run_id", "")), str(facts.get("plan_id", ""))
        kept_plan, finished = runs.get(run_id, _UNKNOWN)
        if entry.event == "run begun" and kept_plan != plan_id:
            return f"that run {run_id[:8]} began"
        if entry.event == "run finished" and not finished:
            return f"that run {run_id[:8]} is over"
        if entry.event in ("plan approved", "plan rejected"):
            decision = plan_id, facts.get("runs", 0), facts.get("expires", "")
            decisions[decision] -= 1
            if decisions[decision] < 0:
                return f"a decision on plan {plan_id[:12]}"
    return None
