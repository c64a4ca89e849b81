"""What leaves a site in a run: paid before chance is drawn, kept for repeats, noted, closed."""

from __future__ import annotations

import hashlib

from fedmvc_client.safe import Safe
from privacy.audit import Fact

__all__ = ["PaidReleases"]


class PaidReleases:
    """The releases of one run, in the site's books.

    Parameters
    ----------
    safe : Safe
    run_id : str
    """

    def __init__(self, safe: Safe, run_id: str) -> None:
        self._safe = safe
        self._run_id = run_id

    def pay(self, exchange: int, digest: bytes, *, unsent: bool = False) -> bytes | None:
        """Pay for a release; return what was sent, at no cost, where this very request came before.

        Parameters
        ----------
        exchange : int
        digest : bytes
            SHA-256 of the whole request.
        unsent : bool, default False
            See `privacy.ledger.Ledger.spend`.

        Raises
        ------
        BudgetExceeded
            Where all releases of the run are paid.
        """
        return self._safe.ledger.spend(self._run_id, exchange, digest, unsent=unsent)

    def sent(
        self,
        exchange: int,
        digest: bytes,
        reply: bytes,
        numbers: int,
        *,
        paid: bool = True,
        **facts: Fact,
    ) -> None:
        """Keep a reply that was paid, durable before it leaves, and note that it does.

        Parameters
        ----------
        exchange : int
        digest : bytes
        reply : bytes
        numbers : int
            How many numbers it holds.
        paid : bool, default True
            False for exact sums behind masks, which no budget counts.
        **facts
            What else the audit log is to note.
        """
        if paid:
            self._safe.ledger.answered(self._run_id, exchange, reply)
        self._safe.audit.write(
            "release sent",
            run_id=self._run_id,
            exchange=exchange,
            numbers=numbers,
            request=digest.hex(),
            reply=hashlib.sha256(reply).hexdigest(),
            **facts,
        )

    def close(self, last_exchange: int, *, with_result: bool = True) -> None:
        """End the run: releases that nobody asked for are given back."""
        self._safe.ledger.give_back(self._run_id)
        self._safe.audit.write(
            "run closed", run_id=self._run_id, exchanges=last_exchange, with_result=with_result
        )
