"""The table of `make drills`: what must happen on a bad day, and what a run of the drills saw.

Nothing here knows pytest; `tests/conftest.py` tells a `DrillTable` which tests ran and how.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["ROWS", "DrillTable", "Row"]

WIDTH = 128
"""Characters of a printed line."""
_REFUSED = "refused with one sentence that names the cause, exit code 7"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Parameters
    ----------
    name : str
        By which a test names it: ``@pytest.mark.drill(name)``.
    event, must : str
        What happens, and what must follow.
    """

    name: str
    event: str
    must: str


ROWS = (
    Row(
        "supernode-killed",
        "SuperNode killed mid-round",
        "run goes on per quorum; site is back within 90 s without human help",
    ),
    Row(
        "client-killed",
        "client process killed by the kernel",
        "named in the log within 90 s, others unaffected",
    ),
    Row(
        "superlink-5s",
        "SuperLink killed, back in 5 s",
        "run continues or resumes; same model hash as an undisturbed run",
    ),
    Row(
        "server-executor",
        "the server's executor killed, and the ServerApp with it",
        "`run` ends with a sentence that names `resume`; same model hash",
    ),
    Row(
        "server-120s",
        "SuperLink and ServerApp killed, back after 120 s",
        "`resume` continues from the last full round; same model hash",
    ),
    Row(
        "noise-resumed",
        "the same with masked, noisy sums",
        "each site's ledger == distinct releases sent: nothing is paid twice; set-up is repeated "
        "with fresh keys",
    ),
    Row(
        "disk-full",
        "server disk full while writing artefacts",
        "clear error (exit code 2), earlier artefacts whole; `resume` ends with the same hash",
    ),
    Row("expired-certificate", "expired certificate", _REFUSED),
    Row("wrong-ca", "wrong CA", _REFUSED),
    Row("unknown-key", "unknown node key", _REFUSED),
    Row("revoked", "site revoked", _REFUSED),
    Row("clock", "clock 10 min off, either way", _REFUSED),
    Row("partition", "partition of one site for one round", "run goes on per quorum, site rejoins"),
    Row(
        "hostile-message",
        "malformed or hostile message from a site",
        "site dropped by name, run goes on",
    ),
    Row("second-join", "second `join` with the same key", "refused with the reason, exit code 7"),
    Row(
        "bundle-with-code",
        "bundle with code",
        "refused at every site before anything of it is used, with an audit line",
    ),
    Row(
        "code-in-executor",
        "code run inside the executor",
        "reaches no data, no key, no network; typed refusals only",
    ),
    Row(
        "proxy",
        "FedHK run through the proxy of compose.yaml",
        "run completes; control and runtime paths get 403 or 404",
    ),
)


@dataclass
class _Outcome:
    """What became of a row's tests: "passed", "failed" or "skipped", why, and what was seen."""

    results: dict[str, str] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def verdict(self) -> str:
        found = set(self.results.values())
        if "failed" in found:
            return "FAILED"
        return "held" if found == {"passed"} else "not run"

    def words(self) -> str:
        if self.verdict() == "not run":
            return "; ".join(dict.fromkeys(self.reasons)) or "no test of it was run"
        said = dict.fromkeys(sentence for each in self.seen.values() for sentence in each)
        number = len(self.results)
        return "; ".join(said) or f"{number} test{'s' if number > 1 else ''}"


class DrillTable:
    """Collects what became of the tests of each row.

    A row held where all its tests passed; a test that was skipped leaves it "not run", with the
    reason, since something that must be shown was not.

    Parameters
    ----------
    rows : iterable of Row
    """

    def __init__(self, rows: Iterable[Row] = ROWS) -> None:
        self.rows = {row.name: row for row in rows}
        self._outcomes = {name: _Outcome() for name in self.rows}

    def expect(self, test: str, names: Iterable[str]) -> None:
        """Note that a test is going to be run for rows.

        Raises
        ------
        ValueError
            Where there is no such row.
        """
        for name in names:
            if name not in self.rows:
                raise ValueError(f"{test} is marked for drill '{name}', which is no row of ROWS")
            self._outcomes[name].results[test] = "not run"

    def note(self, test: str, outcome: str, *, reason: str = "", seen: Iterable[str] = ()) -> None:
        """Note what became of a test: "passed", "failed" or "skipped"; a failure stays one."""
        for each in self._outcomes.values():
            if test not in each.results:
                continue
            if each.results[test] != "failed":
                each.results[test] = outcome
            if reason:
                each.reasons.append(reason)
            each.seen[test] = list(seen)

    @property
    def begun(self) -> bool:
        """Whether a test of any row was to be run."""
        return any(each.results for each in self._outcomes.values())

    def verdicts(self) -> Mapping[str, str]:
        """Return "held", "FAILED" or "not run" by row."""
        return {name: each.verdict() for name, each in self._outcomes.items()}

    def complete(self) -> bool:
        """Say whether every row held."""
        return set(self.verdicts().values()) == {"held"}

    def text(self, *, whole: bool) -> str:
        """Return the table as printed.

        Parameters
        ----------
        whole : bool
            Also the rows of which no test was to be run.
        """
        table = Table(box=box.ASCII2, show_lines=True)
        for title, share in (("event", 28), ("must happen", 34), ("seen", 42), ("", 8)):
            table.add_column(title, ratio=share, overflow="fold")
        for name, row in self.rows.items():
            outcome = self._outcomes[name]
            if whole or outcome.results:
                table.add_row(row.event, row.must, outcome.words(), outcome.verdict())
        page = io.StringIO()
        Console(file=page, width=WIDTH, color_system=None, markup=False, emoji=False).print(table)
        return "\n".join(line.rstrip() for line in page.getvalue().splitlines())
