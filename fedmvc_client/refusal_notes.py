"""What a stranger can make a site write, so many a day of each kind: refusals and new plans."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime

from configs.errors import FedMVCError
from fedmvc_client.faults import Declined
from privacy.audit import AuditLog, Fact
from strategies.messages import HelloRequest

__all__ = ["MOST_A_DAY", "RefusalNotes"]

#: New plans of a day that are kept, and refusals of one kind of request with one code.
MOST_A_DAY = 50
#: Characters of a run id and of a sentence that the log takes: a request may name anything.
_LONGEST_RUN_ID, _LONGEST_SENTENCE = 64, 1000


class RefusalNotes:
    """Notes refusals and lets new plans in: the first of a day one by one, the others by number.

    A sentence may repeat what the request named, so that equal ones would not be equal; kinds of
    requests and codes are few, and a flood of one kind hides no other. The count begins anew with
    the process, and its result is noted with the first refusal of a later day.

    Parameters
    ----------
    audit : AuditLog
    """

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._lock = threading.Lock()
        self._day = ""
        self._seen: Counter[tuple[str, str, int]] = Counter()

    def note(self, request: object, error: FedMVCError, now: datetime | None = None) -> bool:
        """Note what was refused, or only count it.

        Parameters
        ----------
        request : Message or None
            None where it could not be read.
        error : FedMVCError
        now : datetime, optional
            With its time zone; the clock's time by default.

        Returns
        -------
        bool
            False where it was only counted.

        Raises
        ------
        FedMVCError
            Where the log cannot be written.
        """
        kind = "" if request is None else type(request).__name__
        why: dict[str, Fact] = {}
        if isinstance(error, Declined):
            why["reason"] = error.reason[:_LONGEST_SENTENCE]
        return self._note(
            "request refused",
            kind,
            error.code,
            now,
            run_id=str(getattr(request, "run_id", ""))[:_LONGEST_RUN_ID],
            request=kind,
            sentence=error.public_message[:_LONGEST_SENTENCE],
            **why,
        )

    def note_bundle(
        self, sha256: str, code: int, sentence: str, now: datetime | None = None
    ) -> None:
        """Note a bundle that the executor did not run, or only count it (see `note`)."""
        line = " ".join(sentence[:_LONGEST_SENTENCE].split())
        self._note("bundle refused", "bundle", code, now, sha256=sha256, sentence=line)

    def takes_plan(self, now: datetime | None = None) -> bool:
        """Count a plan that the site has not seen before; False where it had too many today."""
        return self._counts_singly("new plans", HelloRequest.__name__, 0, now)

    def _note(self, event: str, kind: str, code: int, now: datetime | None, **facts: Fact) -> bool:
        singly = self._counts_singly("refusals", kind, code, now)
        if singly:
            self._audit.write(event, code=code, **facts)
        return singly

    def _counts_singly(self, what: str, kind: str, code: int, now: datetime | None) -> bool:
        """Count one; whether it is among the first of its day and kind."""
        day = (now or datetime.now(UTC)).astimezone(UTC).date().isoformat()
        with self._lock:
            if day != self._day:
                self._note_left_out()
                self._day, self._seen = day, Counter()
            self._seen[what, kind, code] += 1
            number = self._seen[what, kind, code]
        if number == MOST_A_DAY + 1:
            self._audit.write(f"{what} only counted", request=kind, code=code, day=day)
        return number <= MOST_A_DAY

    def _note_left_out(self) -> None:
        for (what, kind, code), number in sorted(self._seen.items()):
            if number > MOST_A_DAY:
                self._audit.write(
                    f"{what} counted",
                    request=kind,
                    code=code,
                    day=self._day,
                    not_noted=number - MOST_A_DAY,
                )
