"""What both ends of a secure sum know before it, and what binds a request to its exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from configs.secure_terms import SecureTerms
from privacy.canonical import pack

__all__ = ["VERSION", "RunTerms", "is_survivor_set", "request_digest"]

#: Part of everything that is signed, hashed or bound into a key.
VERSION = "fedmvc secure sum 2"


@dataclass(frozen=True)
class RunTerms:
    """Everything that both ends know of a run with masked sums.

    Attributes
    ----------
    run_id, plan_id : str
    roster_hash : bytes
        Hash of the roster: which identity key each site has.
    terms : SecureTerms
        Participants and thresholds, from the plan.
    """

    run_id: str
    plan_id: str
    roster_hash: bytes
    terms: SecureTerms

    @property
    def names(self) -> tuple[str, ...]:
        """Participants in name order."""
        return self.terms.participants

    def others(self, name: str) -> tuple[str, ...]:
        """Participants but one, in name order."""
        return tuple(other for other in self.names if other != name)

    def share_index(self, name: str) -> int:
        """Return the index of a participant's shares: its place in name order, from 1."""
        return self.names.index(name) + 1

    def head(self, name: str) -> tuple[bytes | str | int, ...]:
        """Return what a site's key message says before its keys."""
        terms = self.terms
        return (
            VERSION,
            self.run_id,
            self.plan_id,
            self.roster_hash,
            name,
            terms.n_sites,
            terms.threshold,
            terms.tolerated_dropouts,
            terms.colluders,
            terms.exchanges,
        )


def is_survivor_set(run: RunTerms, names: Sequence[str]) -> bool:
    """Tell whether names are at least n - d participants, each once, in name order."""
    chosen = set(names)
    return (
        list(names) == [name for name in run.names if name in chosen]
        and len(names) >= run.terms.least_contributors
    )


def request_digest(
    run_id: str, plan_id: str, exchange: int, previous: Sequence[str], body: bytes
) -> bytes:
    """Hash a whole request; what is bound into the masks of its exchange.

    Parameters
    ----------
    run_id, plan_id : str
    exchange : int
        e.
    previous : sequence of str
        Survivors that were named last.
    body : bytes
        The rest of the request, the same bytes for all sites.

    Returns
    -------
    bytes
        32 bytes of SHA-256.
    """
    fields = pack(VERSION, "request", run_id, plan_id, exchange, pack(*previous), body)
    return hashlib.sha256(fields).digest()
