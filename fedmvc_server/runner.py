"""One run on any Flower grid: strategy, artefacts, outcome."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from configs.errors import INTERRUPTED, FedMVCError, InternalError, QuorumLost
from configs.plan import RunPlan
from fedmvc_server.artefacts import (
    prepare_folder,
    versions,
    write_model,
    write_result,
    write_rounds,
    write_selection,
)
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

    Returns
    -------
    RunResult
        Also where the run failed: status, exit code and sentence say how.
    """
    began = time.perf_counter()
    if out is not None:
        prepare_folder(out)

    def watch(state: RunState) -> None:
        if out is not None:
            write_rounds(out, state.history)
        if observer is not None:
            observer(state)

    strategy = _STRATEGIES[plan.method](plan, run_id, observer=watch, settle_s=settle_s)
    strategy.poll_s = poll_s
    status, code, reason = "completed", 0, "the plan ran to its end"
    try:
        strategy.start(grid)
    except FedMVCError as error:
        stopped = isinstance(error, QuorumLost) and bool(strategy.state.history)
        status, code = "stopped" if stopped else "failed", error.code
        reason = error.public_message
        log.debug("%s", error.local_detail)
    except KeyboardInterrupt:
        status, code, reason = "stopped", INTERRUPTED, "interrupted at the keyboard"
    except Exception:
        log.exception("run %s failed", run_id)
        status, code = "failed", InternalError.code
        reason = "an internal error: the log above has it; please report it"
    result = _outcome(strategy, status, code, reason, time.perf_counter() - began, bounds)
    if out is not None:
        _write(out, plan, result)
    return result


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
        },
    )
