"""The site's register: plans it has seen, what its staff decided, and the runs these allowed.

An approval names the hash of one plan, a number of runs and a last day. A run uses one of them up
when it begins; going on with it after an interruption is free, and an edited plan is another plan.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from configs.errors import ConfigError, PolicyRefused
from configs.plan import RunPlan
from configs.site import Policy
from configs.values import check_whole
from fedmvc_client.plan_entries import PlanEntry, entry_of
from fedmvc_client.register_check import first_missing
from fedmvc_client.run_rules import (
    AUTO,
    SCHEMA,
    RunRules,
    decision_on,
    has_exact_sums,
    participants_of,
    utc_text,
)
from privacy.audit import AuditEntry, AuditLog
from privacy.database import Database
from privacy.key_files import replace_file

__all__ = ["Register"]

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS plans (plan_id TEXT PRIMARY KEY, method TEXT NOT NULL,
    seen TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS endings (run_id TEXT PRIMARY KEY, request BLOB NOT NULL,
    reply BLOB NOT NULL);
{SCHEMA}
"""


class Register:
    """Plans, decisions and runs of one site, in SQLite; durable before a call returns.

    What is decided or begins is written here first and then noted in the audit log, so a register
    that knows less than the log was put back from a copy (`verify`).

    Parameters
    ----------
    folder : Path or None
        The site's folder: the register is ``state/register.db`` in it, and ``plans`` holds a copy
        of every plan seen. None keeps both in memory.
    site : str
        The site's name, for messages.
    audit : AuditLog, optional
        Where plans seen, decisions and runs are logged.
    separate : collection of str, optional
        Cohorts that share no patient with the site's own, by its signed statement.

    Raises
    ------
    ConfigError
        If the files cannot be used.
    """

    def __init__(
        self,
        folder: Path | None,
        site: str,
        audit: AuditLog | None = None,
        separate: Collection[str] = (),
    ) -> None:
        self._site = site
        self._audit = audit or AuditLog(None)
        self._rules = RunRules(site, separate)
        self._plans = None if folder is None else folder / "plans"
        self._copies: dict[str, str] = {}  # where there is no folder
        path = None if folder is None else folder / "state" / "register.db"
        self._database = Database(path, _SCHEMA, f"register of site '{site}'")

    # -- plans -------------------------------------------------------------------------------

    def knows(self, plan_id: str) -> bool:
        """Whether a plan was seen."""
        with self._database.transaction() as connection:
            found = connection.execute("SELECT 1 FROM plans WHERE plan_id = ?", (plan_id,))
            return found.fetchone() is not None

    def see(self, plan: RunPlan, now: datetime | None = None) -> bool:
        """Keep a plan that was shown to the site.

        Returns
        -------
        bool
            Whether it is new here.

        Raises
        ------
        ConfigError
            If the files cannot be used.
        """
        self._keep(plan)
        with self._database.transaction() as connection:
            new = connection.execute(
                "INSERT OR IGNORE INTO plans VALUES (?, ?, ?)",
                (plan.plan_id, plan.method, utc_text(now)),
            ).rowcount
            if new:
                self._audit.write("plan seen", plan_id=plan.plan_id, method=plan.method)
        return bool(new)

    def find(self, text: str) -> str:
        """Return the id of the plan seen whose id begins with ``text``.

        Raises
        ------
        ConfigError
            If there is none, or more than one.
        """
        with self._database.transaction() as connection:
            known = [plan_id for (plan_id,) in connection.execute("SELECT plan_id FROM plans")]
        found = [plan_id for plan_id in known if text and plan_id.startswith(text.lower())]
        if len(found) != 1:
            which = "no plan" if not found else f"{len(found)} plans"
            raise ConfigError(
                f"site '{self._site}' has seen {which} whose id begins with '{text[:64]}': see "
                "`fedmvc-client plans list`, or name the plan's file"
            )
        return found[0]

    def load(self, plan_id: str) -> RunPlan:
        """Return a plan seen.

        Raises
        ------
        ConfigError
            If its copy is missing or was changed.
        """
        fault = f"copy of plan {plan_id[:12]} in the site's folder plans"
        try:
            text = self._copies[plan_id] if self._plans is None else self._path(plan_id).read_text()
            plan = RunPlan.parse(json.loads(text), source=fault)
        except (OSError, KeyError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{fault} cannot be read: name the plan's file instead", local_detail=str(error)
            ) from None
        if plan.plan_id != plan_id:
            raise ConfigError(f"{fault} was changed: name the plan's file instead")
        return plan

    def list(self, now: datetime | None = None) -> tuple[PlanEntry, ...]:
        """Return all plans seen, oldest first, with what was decided about each."""
        now = now or datetime.now(UTC)
        with self._database.transaction() as connection:
            return tuple(
                entry_of(plan_id, method, seen, decision_on(connection, plan_id), now)
                for plan_id, method, seen in connection.execute(
                    "SELECT plan_id, method, seen FROM plans ORDER BY seen, rowid"
                ).fetchall()
            )

    # -- decisions ---------------------------------------------------------------------------

    def approve(
        self, plan_id: str, runs: int = 1, days: int = 30, now: datetime | None = None
    ) -> PlanEntry:
        """Allow runs of a plan; what was decided about it before no longer counts.

        Parameters
        ----------
        plan_id : str
            A plan seen.
        runs : int, default 1
            How many may begin from now on.
        days : int, default 30
            For how long.

        Raises
        ------
        ConfigError
            If the plan was never seen or a number is below 1.
        """
        check_whole("runs", runs, 1)
        check_whole("days", days, 1)
        now = now or datetime.now(UTC)
        try:
            expires = now + timedelta(days=days)
        except OverflowError:
            raise ConfigError(f"days is {days}: give a number of days below a million") from None
        self._decide(plan_id, runs, now, expires)
        return self._one(plan_id, now)

    def reject(self, plan_id: str, now: datetime | None = None) -> PlanEntry:
        """Allow no run of a plan, not even going on with one, whatever the policy says.

        Raises
        ------
        ConfigError
            If the plan was never seen.
        """
        now = now or datetime.now(UTC)
        self._decide(plan_id, 0, now, now)
        return self._one(plan_id, now)

    # -- runs --------------------------------------------------------------------------------

    def begin(
        self, run_id: str, plan: RunPlan, policy: Policy, now: datetime | None = None
    ) -> None:
        """Let a run begin, or go on, and use up what allowed it; in one transaction.

        Parameters
        ----------
        run_id : str
        plan : RunPlan
        policy : Policy
        now : datetime, optional
            With its time zone; the clock's time by default.

        Raises
        ------
        PolicyRefused
            If nothing allows it: no approval, or one that is used up, expired or withdrawn; too
            many runs of a month; or the sums of other participants than an earlier run's.
        ProtocolError
            If the run id is that of another plan's run, or of one that is over.
        """
        now = now or datetime.now(UTC)
        with self._database.transaction() as connection:
            decision = self._rules.allowing(connection, run_id, plan, policy, now)
            if decision is not None:
                connection.execute(
                    "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                    (
                        run_id,
                        plan.plan_id,
                        utc_text(now),
                        decision,
                        policy.cohort,
                        participants_of(plan),
                        has_exact_sums(plan),
                    ),
                )
            (by,) = connection.execute(
                "SELECT decision FROM runs WHERE run_id = ?", (run_id,)
            ).fetchone()
        # a run that goes on may have been stopped before it was noted
        if decision is not None or not self._noted_as_begun(run_id):
            allowed = "auto" if by == AUTO else "approved"
            self._audit.write("run begun", run_id=run_id, plan_id=plan.plan_id, allowed=allowed)

    def _noted_as_begun(self, run_id: str) -> bool:
        return any(
            entry.event == "run begun" and entry.facts.get("run_id") == run_id
            for entry in self._audit.entries()
        )

    def would_begin(
        self,
        plan: RunPlan,
        policy: Policy,
        run_id: str | None = None,
        now: datetime | None = None,
    ) -> None:
        """Refuse what `begin` would refuse, and use nothing up.

        Parameters
        ----------
        plan, policy, now
            As in `begin`.
        run_id : str, optional
            Where it is known.

        Raises
        ------
        PolicyRefused, ProtocolError
            As `begin`.
        """
        with self._database.transaction() as connection:
            self._rules.allowing(connection, run_id, plan, policy, now or datetime.now(UTC))

    def finished(self, run_id: str) -> None:
        """Note that a run is over at this site: its id is refused from now on."""
        with self._database.transaction() as connection:
            ended = connection.execute(
                "UPDATE runs SET finished = 1 WHERE run_id = ? AND NOT finished", (run_id,)
            ).rowcount
        if ended:
            self._audit.write("run finished", run_id=run_id)

    def refuse_rejected(self, plan_id: str) -> None:
        """Refuse what a run under way asks for where its plan has been rejected since.

        Raises
        ------
        PolicyRefused
        """
        with self._database.transaction() as connection:
            self._rules.refuse_rejected(connection, plan_id)

    def ends(self, run_id: str, request: bytes, reply: bytes) -> None:
        """Keep the reply to a run's last request (by its SHA-256), before its results are."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO endings VALUES (?, ?, ?)", (run_id, request, reply)
            )

    def ending(self, run_id: str) -> tuple[str, bytes, bytes] | None:
        """Return a run's plan id, its last request's SHA-256 and the reply, where it is kept."""
        with self._database.transaction() as connection:
            found = connection.execute(
                "SELECT plan_id, request, reply FROM endings JOIN runs USING (run_id) "
                "WHERE run_id = ?",
                (run_id,),
            ).fetchone()
        return None if found is None else (str(found[0]), bytes(found[1]), bytes(found[2]))

    def differing_sums(self, plan: RunPlan) -> str | None:
        """Say where a plan's sums and those of an earlier run together show a single site's.

        Returns
        -------
        str or None
            A sentence; None where the plan's sums are noisy, or no earlier run had others.
        """
        with self._database.transaction() as connection:
            return self._rules.differing(connection, plan)

    # -- against the audit log ---------------------------------------------------------------

    def verify(self, entries: Iterable[AuditEntry]) -> None:
        """Check that the register knows of all decisions and runs that the audit log notes.

        Parameters
        ----------
        entries : iterable of AuditEntry
            All lines of the log, checked.

        Raises
        ------
        PolicyRefused
            Where it knows of less: it was put back from a copy, edited or removed.
        """
        with self._database.transaction() as connection:
            missing = first_missing(connection, entries)
        if missing is not None:
            raise PolicyRefused(
                f"register of site '{self._site}' was altered (the audit log notes {missing} and "
                "it does not): take part in no run, find out who changed it, and restore the state "
                "folder as it was last written"
            )

    # -- inside ------------------------------------------------------------------------------

    def _path(self, plan_id: str) -> Path:
        assert self._plans is not None
        return self._plans / f"{plan_id}.json"

    def _keep(self, plan: RunPlan) -> None:
        if self._plans is None:
            self._copies[plan.plan_id] = plan.canonical()
        elif not self._path(plan.plan_id).exists():
            replace_file(self._path(plan.plan_id), plan.canonical().encode(), "copy of a plan")

    def _one(self, plan_id: str, now: datetime) -> PlanEntry:
        return next(entry for entry in self.list(now) if entry.plan_id == plan_id)

    def _decide(self, plan_id: str, runs: int, now: datetime, expires: datetime) -> None:
        plan_id = self.find(plan_id)
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO decisions (plan_id, approved, runs, at, expires) "
                "VALUES (?, ?, ?, ?, ?)",
                (plan_id, runs > 0, runs, utc_text(now), utc_text(expires)),
            )
        if runs:
            self._audit.write(
                "plan approved", plan_id=plan_id, runs=runs, expires=utc_text(expires)
            )
        else:
            self._audit.write("plan rejected", plan_id=plan_id)
