"""Runs whose server is lost at an exchange, and goes on."""

from __future__ import annotations

from pathlib import Path

from fedmvc_client.app import app
from fedmvc_client.relay import registered_workers
from fedmvc_client.worker import SiteWorker
from fedmvc_server.local_grid import LocalGrid
from fedmvc_server.runner import RunResult, new_run_id, run


class Lost(RuntimeError):
    """The server's process ends here."""


class LosingGrid(LocalGrid):
    """A grid on which the server is lost in exchange number `at` (0 is hello).

    Parameters
    ----------
    at : int
    answered : bool
        Whether the sites get the exchange's requests, and only their replies are lost.
    """

    fault = Lost

    def lose(self, at: int, answered: bool) -> None:
        """Say where."""
        self._left, self._answered = at, answered

    def push_messages(self, messages):
        """Hand on requests, unless this is where the server is lost."""
        if self._left == 0 and not self._answered:
            raise self.fault()
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        """Hand on replies, unless this is where the server is lost."""
        if self._left == 0:
            raise self.fault()
        self._left -= 1
        return super().pull_messages(message_ids)


def play(
    plan,
    workers: dict[str, SiteWorker],
    out: Path,
    run_id: str,
    *,
    resume: bool = False,
    lost: tuple[int, bool] | None = None,
    observer=None,
    away=(),
) -> RunResult:
    """Run a plan, or go on with it, until the server is lost or the run is over."""
    with registered_workers(workers):
        # other node ids: sites are known by their names
        names = sorted(workers, reverse=resume)
        grid = LosingGrid(app, {name: {"site": name} for name in names})
        for name in away:
            grid.disconnect(name)
        grid.lose(*(lost or (-1, False)))
        return run(grid, plan, run_id, out=out, resume=resume, resumable=True, observer=observer)


def lose_and_resume(plan, workers, out, lost, *, between=None) -> RunResult:
    """Lose the server once and go on; ``between(workers)`` may return other workers."""
    run_id = new_run_id()
    first = play(plan, workers, out, run_id, lost=lost)
    assert (first.status, first.exit_code) == ("failed", 70), first.stop_reason
    if between is not None:
        workers = between(workers)
    return play(plan, workers, out, run_id, resume=True)
