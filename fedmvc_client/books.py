"""A site's books, held against each other, and opened only to be looked at.

The ledger and the audit log name each other's heads; of the register the audit log notes every
decision and every run. So none of the three can be put back from a copy alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from configs.errors import ConfigError
from fedmvc_client.approvals import Register
from fedmvc_client.safe import FolderSafe, MemorySafe, Safe
from privacy.ledger import LEDGER_HEAD, Ledger

__all__ = [
    "AUDIT_HEAD",
    "LookedAtSafe",
    "certified_heads",
    "verify_audit",
    "verify_books",
    "verify_ledger",
]

#: Key under which a certificate carries the audit log's head, beside `LEDGER_HEAD`.
AUDIT_HEAD = "audit_head"
_CERTIFICATE = "certificate.json"


class LookedAtSafe(FolderSafe):
    """A site's folder in which reading makes no file: what is not there is empty."""

    def _has(self, name: str) -> bool:
        return self.state is not None and (self.state / name).exists()

    @cached_property
    def register(self) -> Register:
        """Plans seen, decisions and runs."""
        if self._has("register.db"):
            return super().register
        return MemorySafe(self.site, self.policy).register

    @cached_property
    def ledger(self) -> Ledger:
        """What every noisy release cost, and what is left."""
        if self._has("ledger.db"):
            return super().ledger
        return MemorySafe(self.site, self.policy).ledger


def verify_ledger(safe: Safe, heads: Iterable[str] = ()) -> None:
    """Check the ledger by itself, against the audit log and against certificates.

    Parameters
    ----------
    safe : Safe
    heads : iterable of str
        Ledger heads from certificates.

    Raises
    ------
    PolicyRefused
        Where one of the two was edited or lacks what the other vouches for.
    """
    safe.ledger.verify([*heads, *_noted_heads(safe)])


def verify_audit(safe: Safe, heads: Iterable[str] = ()) -> None:
    """Check the audit log by itself, against ledger, register and certificates.

    Parameters
    ----------
    safe : Safe
    heads : iterable of str
        Heads of the audit log from certificates.

    Raises
    ------
    PolicyRefused
        Where one of them was edited or lacks what another vouches for.
    """
    vouched = safe.ledger.audit_heads() if _has_ledger(safe) else ()
    safe.audit.verify([*heads, *vouched])
    safe.register.verify(safe.audit.entries())


def verify_books(safe: Safe) -> None:
    """Check ledger, audit log and register by themselves, against each other and the results.

    Raises
    ------
    ConfigError
        If a certificate in ``results`` cannot be read.
    PolicyRefused
        Where one of them was edited or lacks what another or a certificate vouches for.
    """
    folder = safe.folder
    if _has_ledger(safe):
        verify_ledger(safe, () if folder is None else certified_heads(folder, LEDGER_HEAD))
    verify_audit(safe, () if folder is None else certified_heads(folder, AUDIT_HEAD))


def _noted_heads(safe: Safe) -> list[str]:
    """Return the ledger's heads that the audit log notes."""
    noted = (entry.facts.get(LEDGER_HEAD) for entry in safe.audit.entries())
    return [str(head) for head in noted if head is not None]


def _has_ledger(safe: Safe) -> bool:
    """Say whether there is, or was, a ledger: a site that never paid for anything has none."""
    there = safe.state is None or (safe.state / "ledger.db").exists()
    certified = safe.folder is not None and certified_heads(safe.folder, LEDGER_HEAD)
    return there or bool(_noted_heads(safe)) or bool(certified)


def certified_heads(folder: Path, key: str, others: Sequence[Path] = ()) -> list[str]:
    """Collect what the certificates of a site's runs say of one of its books.

    Parameters
    ----------
    folder : Path
        The site's folder, with ``results/RUN_ID/certificate.json``.
    key : str
        `LEDGER_HEAD` or `AUDIT_HEAD`.
    others : sequence of Path
        Certificates kept elsewhere.

    Raises
    ------
    ConfigError
        If a certificate cannot be read.
    """
    heads = []
    for path in [*sorted((folder / "results").glob(f"*/{_CERTIFICATE}")), *others]:
        try:
            fields: dict[str, Any] = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"certificate '{path.name}' cannot be read: give {_CERTIFICATE} of a run as the "
                "site wrote it",
                local_detail=f"{path}: {error}",
            ) from None
        if fields.get(key):
            heads.append(str(fields[key]))
    return heads
