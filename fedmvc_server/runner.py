"""One run on any Flower grid: strategy, artefacts, outcome."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from flwr.serverapp import Grid

from configs.errors import (
    INTERRUPTED,
    FedMVCError,
    InternalError,
    QuorumLost,
    TransportError,
)
from configs.plan import RunPlan
from fedmvc_server.artefacts import (
    Unwritable,
    prepare_folder,
    versions,
    write_model,
    write_result,
    write_rounds,
    write_selection,
)
from fedmvc_server.checkpoint import Checkpoint
from fedmvc_server.progress_file import ProgressFile
from privacy.certificate import certificate
from strategies.base import FederatedStrategy
from strategies.exchange import POLL_S
from strategies.feature_selection import FeatureSelection
from strategies.fed_mufsht import FedMUFSHTStrategy
from strategies.fedhk_mvfc import FedHKStrategy
from strategies.model import ClusterModel
from strategies.run_state import RunState, as_rows
from strategies.tensor_fmvc import TensorStrategy

__all__ = ["RunResult", "new_run_id", "run"]

log = logging.getLogger("fedmvc")

Observer = Callable[[RunState], None]
#: The server half of each method.
_STRATEGIES: dict[str, type[FederatedStrategy]] = {
    "fedhk-mvfc": FedHKStrategy,
    "tensor-fmvc": TensorStrategy,
    "fed-mufsht": FedMUFSHTStrategy,
}


@dataclass
class RunResult:
    """Outcome of a run.

    Attributes
    ----------
    status : str
        "completed", "failed" (refused before round 1, or a defect), or "stopped" (lost its quorum).
    exit_code : int
        0 or the error's code.
    stop_reason : str
        One sentence.
    run_id, plan_id : str
    rounds : int
    model : ClusterModel or None
        None too where the method makes none: a vertical run has labels only.
    selection : FeatureSelection or None
        The features ranked by name, after a completed fed-mufsht run.
    certificate : dict
    history : list of dict
        ``{round, objective, view_weights, site_weights, bytes_up, bytes_down, seconds, sites}``.
    bytes_up, bytes_down : int
        Encoded messages of the whole run, set-up and finish included.
    resumed : list of dict
        ``{at, after_round}`` of each time that the run went on after an interruption.
    site_results : dict
        By site name: ``labels``, ``membership``, ``personal_model``, after a vertical run
        ``vote_labels`` and ``view_labels``, after a selection ``selection``. Filled where this
        process runs the sites too.
    """

    status: str
    exit_code: int
    stop_reason: str
    run_id: str
    plan_id: str
    rounds: int
    model: ClusterModel | None
    certificate: dict[str, Any]
    history: list[dict[str, Any]]
    bytes_up: int
    bytes_down: int
    wall_s: float
    sites: list[str]
    dropped: dict[str, str]
    warnings: list[str]
    metrics: dict[str, Any]
    selection: FeatureSelection | None = None
    resumed: list[dict[str, Any]] = field(default_factory=list)
    site_results: dict[str, Any] = field(default_factory=dict)


def new_run_id() -> str:
    """Return a fresh run id (UUID)."""
    return str(uuid.uuid4())


def run(
    grid: Grid,
    plan: RunPlan,
    run_id: str,
    *,
    out: Path | None = None,
    observer: Observer | None = None,
    settle_s: float = 0.0,
    poll_s: float = POLL_S,
    bounds: str | None = None,
    resumable: bool = False,
    resume: bool = False,
    flower_run_id: str | None = None,
) -> RunResult:
    """Run a plan to its end and write what it leaves.

    Parameters
    ----------
    grid : Grid
    plan : RunPlan
    run_id : str
    out : Path, optional
        Results folder; ``rounds.csv`` grows during the run, ``result.json`` is written last.
    observer : callable, optional
        Called with the state after each round.
    settle_s : float
        Seconds to wait for more sites than the quorum needs.
    poll_s : float
        Seconds between two looks for replies, at first.
    bounds : str, optional
        Where the columns' bounds come from, for the certificate.
    resumable : bool
        Keep a checkpoint in `out` while the run goes on, and say there for whom it waits.
    resume : bool
        Go on with the run whose checkpoint is in `out`.
    flower_run_id : str, optional
        For ``run.json``.

    Returns
    -------
    RunResult
        Also where the run failed: status, exit code and sentence say how.

    Raises
    ------
    ConfigError
        Where `out` cannot be used, or has nothing to go on with.
    """
    checkpoint: Checkpoint | None = None
    if out is not None and resume:
        checkpoint = Checkpoint.reopen(out, plan, run_id, flower_run_id)
    elif out is not None:
        prepare_folder(out)
        if resumable:
            checkpoint = Checkpoint.begin(out, plan, run_id, flower_run_id)
    try:
        return _run(grid, plan, run_id, out, observer, settle_s, poll_s, bounds, checkpoint)
    finally:
        if checkpoint is not None:
            checkpoint.close()


def _run(
    grid: Grid,
    plan: RunPlan,
    run_id: str,
    out: Path | None,
    observer: Observer | None,
    settle_s: float,
    poll_s: float,
    bounds: str | None,
    checkpoint: Checkpoint | None,
) -> RunResult:
    began = time.perf_counter()

    def watch(state: RunState) -> None:
        if out is not None:
            write_rounds(out, state.history)
        if observer is not None:
            observer(state)

    progress = None if out is None or checkpoint is None else ProgressFile(out, run_id)
    strategy = _STRATEGIES[plan.method](
        plan, run_id, observer=watch, settle_s=settle_s, journal=checkpoint, watcher=progress
    )
    strategy.poll_s = poll_s
    status, code, reason = "completed", 0, "the plan ran to its end"
    try:
        strategy.start(grid)
    except FedMVCError as error:
        stopped = isinstance(error, QuorumLost) and bool(strategy.state.history)
        status, code = "stopped" if stopped else "failed", error.code
        reason = error.public_message
        log.debug("%s", error.local_detail)
        refused = not (strategy.state.history or isinstance(error, Unwritable))
        if refused and checkpoint is not None and not checkpoint.recorded():
            checkpoint.discard()
    except httpx.HTTPError as error:  # Flower's grid has tried again for a while
        status, code = "stopped" if strategy.state.history else "failed", TransportError.code
        reason = "the SuperLink does not answer any more: start it, then 'fedmvc-server resume'"
        log.debug("%s", error)
    except KeyboardInterrupt:
        status, code, reason = "stopped", INTERRUPTED, "interrupted at the keyboard"
    except Exception:
        log.exception("run %s failed", run_id)
        status, code = "failed", InternalError.code
        reason = "an internal error: the log above has it; please report it"
    wall_s = time.perf_counter() - began
    if checkpoint is not None:
        wall_s += checkpoint.seconds_before
    result = _outcome(strategy, status, code, reason, wall_s, bounds)
    if checkpoint is not None:
        result.resumed = list(checkpoint.run.resumed)
        if checkpoint.given_up:
            result.warnings.append("the run's checkpoint grew too large and was removed")
    if progress is not None:
        progress.close()
    if out is not None:
        _write_or_say(out, plan, result)
        if checkpoint is not None and result.status == "completed":
            checkpoint.discard()
    return result


def _write_or_say(out: Path, plan: RunPlan, result: RunResult) -> None:
    """Write what the run leaves; where the folder is full, let the result say so, and the log."""
    try:
        _write(out, plan, result)
    except Unwritable as error:
        log.error("%s", error.public_message)
        if result.status == "completed":
            result.status, result.exit_code = "failed", error.code
            result.stop_reason = error.public_message
        with contextlib.suppress(Unwritable):
            _write_result(out, plan, result)


def _outcome(
    strategy: FederatedStrategy,
    status: str,
    code: int,
    reason: str,
    wall_s: float,
    bounds: str | None,
) -> RunResult:
    state = strategy.state
    return RunResult(
        status=status,
        exit_code=code,
        stop_reason=reason,
        run_id=state.run_id,
        plan_id=strategy.plan.plan_id,
        rounds=len(state.history),
        model=strategy.model if status == "completed" else None,
        certificate=certificate(strategy.plan, state.sites, bounds, strategy.noise),
        history=as_rows(state.history),
        bytes_up=state.total.bytes_up,
        bytes_down=state.total.bytes_down,
        wall_s=wall_s,
        sites=list(state.sites),
        dropped=dict(state.dropped),
        warnings=list(state.warnings),
        metrics=strategy.metrics,
        selection=strategy.selection if status == "completed" else None,
    )


def _write(out: Path, plan: RunPlan, result: RunResult) -> None:
    if result.model is not None:
        write_model(out, result.model)
    if result.selection is not None:
        write_selection(out, result.selection)
    _write_result(out, plan, result)


def _write_result(out: Path, plan: RunPlan, result: RunResult) -> None:
    write_result(
        out,
        {
            "status": result.status,
            "exit_code": result.exit_code,
            "stop_reason": result.stop_reason,
            "run_id": result.run_id,
            "plan": plan.fields(),
            "plan_id": result.plan_id,
            "versions": versions(),
            "sites": result.sites,
            "dropped": result.dropped,
            "rounds": result.rounds,
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "wall_s": result.wall_s,
            "metrics": {
                **result.metrics,
                "model_sha256": None if result.model is None else result.model.sha256(),
            },
            "certificate": result.certificate,
            "warnings": result.warnings,
            "resumed": result.resumed,
        },
    )
