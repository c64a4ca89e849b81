"""What a ``doctor`` finds: one line a check, each problem with its way out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from configs.endpoint import CertificateFacts, Reached, check_clock, read_certificate
from configs.errors import ConfigError, FedMVCError

__all__ = [
    "Finding",
    "as_dict",
    "as_lines",
    "describe_authority",
    "describe_certificate",
    "describe_clock",
    "disk",
    "examine",
    "worst",
]

_EXPIRES_SOON_DAYS = 30
_LEAST_FREE = 2**30


@dataclass(frozen=True)
class Finding:
    """One check and what it found.

    Parameters
    ----------
    check : str
        What was looked at.
    status : str
        "ok", "warning" (it works today) or "problem".
    finding : str
        One sentence; of a problem with its way out.
    code : int
        Exit code of a problem, else 0.
    """

    check: str
    status: Literal["ok", "warning", "problem"]
    finding: str
    code: int = 0


def examine(check: str, look: Callable[[], str | Finding]) -> Finding:
    """Make a finding of what `look` returns or of the error that it raises."""
    try:
        found = look()
    except FedMVCError as error:
        return Finding(check, "problem", error.public_message, error.code)
    return found if isinstance(found, Finding) else Finding(check, "ok", found)


def worst(findings: Iterable[Finding]) -> int:
    """Return the highest exit code of all problems; 0 where there is none."""
    return max((finding.code for finding in findings), default=0)


def as_lines(findings: Sequence[Finding]) -> str:
    """Write findings for people: a line each."""
    width = max(len(finding.check) for finding in findings)
    return "\n".join(
        f"{finding.status:7}  {finding.check:{width}}  {finding.finding}" for finding in findings
    )


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings for ``--json``."""
    code = worst(findings)
    return {"ok": code == 0, "exit_code": code, "checks": [asdict(each) for each in findings]}


def describe_certificate(facts: CertificateFacts, what: str, renew: str) -> Finding:
    """Say whom a certificate is for and how long; `what` names the check."""
    names = ", ".join(facts.names)
    until = f"{facts.not_after:%Y-%m-%d}"
    whom = f"for {names}, " if names else ""
    if facts.days_left < 0:
        return Finding(what, "problem", f"{whom}expired on {until}: {renew}", ConfigError.code)
    if facts.days_left < _EXPIRES_SOON_DAYS:
        left = f"{whom}ends on {until}, in {facts.days_left} days: {renew}"
        return Finding(what, "warning", left)
    return Finding(what, "ok", f"{whom}valid until {until} ({facts.days_left} days)")


def describe_authority(ca: Path, renew: str) -> Finding:
    """Say how long the CA certificate in file `ca` is valid.

    Raises
    ------
    ConfigError
        If it is missing or damaged.
    """
    what = "CA certificate"
    return describe_certificate(CertificateFacts.of(read_certificate(ca, what)), what, renew)


def describe_clock(reached: Reached, server: str) -> str | Finding:
    """Say how far this machine's clock is from the server's.

    Raises
    ------
    TransportError
        If it is so far that the server refuses what this machine signs.
    """
    if reached.ahead_s is None:
        return Finding("clock", "warning", "the server's answer carries no date to compare with")
    check_clock(reached.ahead_s, server)
    way = "ahead of" if reached.ahead_s > 0 else "behind"
    skew = f"{abs(reached.ahead_s):.0f} s {way} the server's"
    if abs(reached.ahead_s) > 2:
        return Finding("clock", "warning", f"{skew}: keep it by NTP")
    return skew


def disk(folder: Path) -> str | Finding:
    """Say how much room is left where `folder` is, or would be made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    said = f"{free / 2**30:.1f} GiB free"
    if free < _LEAST_FREE:
        return Finding(
            "disk",
            "problem",
            f"{said} where '{folder.name}' is, and a run needs 1 GiB: make room",
            ConfigError.code,
        )
    return said
