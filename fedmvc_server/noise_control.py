"""The honesty check of a vertical plan: its result must not depend on the order of the rows.

Two questions, asked of the very pipeline that a run uses. On Gaussian noise: do the labels score
better against blocks of the row index than labels at random do? On noise and on real data: does a
permutation of the rows change the result?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError, DataRefused, error_for_code
from configs.plan import RunPlan
from configs.tensor_profiles import SAMPLE_ORDER_WARNING
from fedmvc_server.evaluation import accuracy, match_truth, score
from fedmvc_server.scores import read_truth_by_rule
from fedmvc_server.simulation import id_rule_of, shared_rows, simulate

__all__ = ["NoiseControl", "noise_control"]

#: Rows, columns and sites of the noise where no data are given.
DEFAULT_ROWS, DEFAULT_COLUMNS, DEFAULT_SITES = 600, 20, 3
#: Most rows of noise: more change nothing but the time it takes.
MOST_ROWS = 2000
#: Draws of noise, and of labels at random beside each.
DRAWS, RANDOM_DRAWS = 5, 200
#: Points of accuracy that noise may score above labels at random.
NOISE_LIMIT = 0.03
#: Share of the rows whose label a permutation may change.
ORDER_LIMIT = 0.02

Labels = NDArray[np.int64]
Views = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class NoiseControl:
    """What the check found.

    Attributes
    ----------
    passed : bool
    noise : dict
        ``rows``, ``columns`` by site, ``draws``; ``accuracy`` against index blocks,
        ``random_accuracy`` of labels at random in clusters of the same sizes, ``excess``, all
        means over the draws; ``order_agreement`` of the first draw's labels in two orders;
        ``limit`` of the excess, ``order_limit``, ``passed``.
    permutation : dict or None
        Real data only: ``rows``, ``agreement`` of the two orders' labels (matched one to one),
        ``limit`` of its distance from 1, ``passed``, and with truth ``given_order`` and
        ``permuted`` scores, which differ by no more than the labels do.
    warnings : list of str
        What a reader of the plan's results on these data should know.
    """

    passed: bool
    noise: dict[str, Any]
    permutation: dict[str, Any] | None
    warnings: list[str]


def noise_control(
    plan: RunPlan,
    data: Path | None = None,
    *,
    truth: Path | None = None,
    progress: Callable[[str], None] = lambda sentence: None,
) -> NoiseControl:
    """Check a vertical plan on noise and, where data are given, on a permutation of them.

    Parameters
    ----------
    plan : RunPlan
    data : Path, optional
        Folder of site folders, as for a simulation.
    truth : Path, optional
        CSV of id,label: score both orders against it too.
    progress : callable, optional
        Called with a sentence before each run.

    Returns
    -------
    NoiseControl

    Raises
    ------
    ConfigError
        Where the plan is of another method.
    FedMVCError
        Where a run of the check is refused.
    """
    if plan.method != "tensor-fmvc":
        raise ConfigError(
            f"noise-control checks vertical plans and method is '{plan.method}': only "
            "'tensor-fmvc' can depend on the order of rows"
        )
    views: Views | None = None
    ids: list[str] = []
    if data is not None:
        ids, views = shared_rows(data)
    known: Labels | None = None
    if data is not None and truth is not None:
        known = match_truth(read_truth_by_rule(truth, id_rule_of(data)), ids, truth.name)
    columns = (
        {site: view.shape[1] for site, view in views.items()}
        if views is not None
        else {f"site-{m}": DEFAULT_COLUMNS for m in range(DEFAULT_SITES)}
    )
    n_rows = DEFAULT_ROWS if views is None else min(len(ids), MOST_ROWS)
    runs = _Runs(plan)
    noise = _on_noise(_Runs(_without_floors(plan)), n_rows, columns, progress)
    permutation = None
    if views is not None:
        permutation = _on_permutation(runs, ids, views, known, progress)
    passed = noise["passed"] and (permutation is None or permutation["passed"])
    if plan.tensor_settings().orientation == "sample":
        runs.warn([SAMPLE_ORDER_WARNING])
    return NoiseControl(bool(passed), noise, permutation, runs.warnings)


@dataclass
class _Runs:
    """Runs of a plan over arrays, whose rows stay in the order given."""

    plan: RunPlan
    warnings: list[str] = field(default_factory=list)

    def labels(self, views: Views) -> Labels:
        """Return the labels of one run."""
        result = simulate(self.plan, {site: {"views": [view]} for site, view in views.items()})
        if result.status != "completed":
            raise error_for_code(result.exit_code)(result.stop_reason)
        self.warn(result.warnings)
        return np.asarray(next(iter(result.site_results.values())).labels)

    def warn(self, sentences: Sequence[str]) -> None:
        """Keep sentences that are new."""
        self.warnings += [w for w in sentences if w not in self.warnings]

    def permuted(self, views: Views) -> Labels:
        """Return the labels of a run over the rows in another order, put back in this one."""
        n_rows = len(next(iter(views.values())))
        order = np.random.default_rng(self.plan.seed).permutation(n_rows)
        labels = np.empty(n_rows, dtype=np.int64)
        labels[order] = self.labels({site: view[order] for site, view in views.items()})
        return labels


def _on_noise(
    runs: _Runs, n_rows: int, columns: Mapping[str, int], progress: Callable[[str], None]
) -> dict[str, Any]:
    blocks = np.arange(n_rows) * runs.plan.n_clusters // n_rows
    found, expected = [], []
    agreement = 1.0
    for draw in range(DRAWS):
        progress(f"noise {draw + 1} of {DRAWS}: {n_rows} rows, {len(columns)} sites")
        rng = np.random.default_rng([runs.plan.seed, draw])
        views = {site: rng.standard_normal((n_rows, d)) for site, d in columns.items()}
        labels = runs.labels(views)
        found.append(accuracy(blocks, labels))
        at_random = [accuracy(blocks, rng.permutation(labels)) for _ in range(RANDOM_DRAWS)]
        expected.append(float(np.mean(at_random)))
        if draw == 0:
            progress("the same noise permuted")
            agreement = _agreement(labels, runs.permuted(views))
    excess = float(np.mean(found) - np.mean(expected))
    return {
        "rows": n_rows,
        "columns": dict(columns),
        "draws": DRAWS,
        "accuracy": float(np.mean(found)),
        "random_accuracy": float(np.mean(expected)),
        "excess": excess,
        "limit": NOISE_LIMIT,
        "order_agreement": agreement,
        "order_limit": ORDER_LIMIT,
        "passed": excess <= NOISE_LIMIT and 1.0 - agreement <= ORDER_LIMIT,
    }


def _without_floors(plan: RunPlan) -> RunPlan:
    """Return the plan for any number of sites and rows: those of the noise are not the plan's."""
    fields = plan.fields()
    tensor = {**fields["tensor"], "min_overlap": 1}
    return RunPlan.parse({**fields, "quorum": {}, "tensor": tensor})


def _on_permutation(
    runs: _Runs,
    ids: Sequence[str],
    views: Views,
    known: Labels | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    progress(f"the {len(ids)} shared rows in order of their ids")
    given = runs.labels(views)
    progress("the same rows permuted")
    permuted = runs.permuted(views)
    agreement = _agreement(given, permuted)
    found: dict[str, Any] = {"rows": len(ids), "agreement": agreement}
    if known is not None:
        found["given_order"], found["permuted"] = score(known, given), score(known, permuted)
    return {**found, "limit": ORDER_LIMIT, "passed": bool(1.0 - agreement <= ORDER_LIMIT)}


def _agreement(given: Labels, permuted: Labels) -> float:
    both = (given >= 0) & (permuted >= 0)
    if not both.any():
        raise DataRefused(f"none of the {given.size} shared rows has a label in both orders")
    return accuracy(given[both], permuted[both])
