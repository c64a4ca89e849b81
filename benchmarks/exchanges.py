"""Exchanges that a run takes, with and without acceleration, and with ten starts in one batch.

An exchange is one message to every site and one back. Counted: the whole run, until J stays within
1e-4 of its end, until no row changes its label any more. A loose tolerance can stop a slow plain
iteration early, so both 1e-6 and a tighter one are shown, and both ends are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.common import Dataset, Floats, federated, load, print_table, skipped
from benchmarks.fixed_point import Problem, Trace
from configs.profiles import resolve_heat_kernel

NAMES = ("cardio", "iris", "heart", "cardiotocography", "handwritten")
PROFILES = ("paper", "robust")
TIGHT = 1e-10


def problems(names: Sequence[str]) -> tuple[list[tuple[Dataset, str, Problem]], list[str]]:
    """Prepare each set that is there under each profile; also name those that are not."""
    found, absent = [], []
    for name in names:
        dataset = load(name)
        if dataset is None:
            absent.append(name)
            continue
        columns = sum(view.shape[1] for view in dataset.views)
        for profile in PROFILES:
            settings = resolve_heat_kernel(profile, columns)
            problem = Problem(dataset.views, dataset.n_clusters, settings)
            found.append((dataset, profile, problem))
    return found, absent


def single(centers: Sequence[Floats], start: int) -> list[Floats]:
    """Take one start out of several."""
    return [center[start : start + 1] for center in centers]


def relative(first: Trace, second: Trace) -> float:
    """How far the first ends above the second."""
    return (first.end - second.end) / second.end


def _counts(values: Sequence[int]) -> str:
    return f"{np.mean(values):.1f} [{max(values)}]"


def acceleration(chosen: list[tuple[Dataset, str, Problem]], seeds: int, tol: float) -> None:
    """Print exchanges of single starts, plain and accelerated."""
    rows = []
    for dataset, profile, problem in chosen:
        plain, fast = [], []
        for seed in range(seeds):
            centers = problem.seeds(1, seed)
            plain.append(problem.run(centers, "none", tol=tol))
            fast.append(problem.run(centers, "anderson", tol=tol))
        ratio = sum(t.exchanges for t in fast) / sum(t.exchanges for t in plain)
        worse = [relative(f, p) for f, p in zip(fast, plain, strict=True)]
        rows.append(
            [
                f"{dataset.name}, {profile}",
                _counts([t.exchanges for t in plain]),
                _counts([t.exchanges for t in fast]),
                f"{ratio:.2f}",
                _counts([t.until_objective() for t in plain]),
                _counts([t.until_objective() for t in fast]),
                _counts([t.until_labels() for t in plain]),
                _counts([t.until_labels() for t in fast]),
                f"{max(worse):.0e}",
                f"{min(f.agreement(p) for f, p in zip(fast, plain, strict=True)):.4f}",
                f"{sum(t.converged for t in plain)}/{sum(t.converged for t in fast)}",
            ]
        )
    print_table(
        f"Exchanges at tol {tol:g}, {seeds} single starts, mean [largest]: plain -> accelerated",
        [
            "set, profile",
            "whole run",
            "accel.",
            "ratio",
            "J in 1e-4",
            "accel.",
            "labels",
            "accel.",
            "end above",
            "same labels",
            "converged",
        ],
        rows,
    )


def batches(chosen: list[tuple[Dataset, str, Problem]], seeds: int, starts: int = 10) -> None:
    """Print exchanges of ten starts in one batch beside the winner alone and ten separate runs."""
    rows = []
    for dataset, profile, problem in chosen:
        together, winners, slowest, apart, worse, evaluations = [], [], [], [], [], []
        for seed in range(seeds):
            centers = problem.seeds(starts, seed)
            alone = [
                problem.run(single(centers, r), "anderson", labels=False) for r in range(starts)
            ]
            winner = min(alone, key=lambda trace: trace.end)
            batch = problem.run(centers, "anderson", labels=False)
            together.append(batch.exchanges)
            winners.append(winner.exchanges)
            slowest.append(max(trace.exchanges for trace in alone))
            apart.append(sum(trace.exchanges for trace in alone))
            worse.append(relative(batch, winner))
            evaluations.append(int(batch.starts.sum()))
        rows.append(
            [
                f"{dataset.name}, {profile}",
                _counts(together),
                _counts(winners),
                f"{np.mean(apart) / starts:.1f}",
                _counts(slowest),
                f"{np.mean(apart):.0f}",
                f"{np.mean(evaluations) / np.mean(apart):.2f}",
                f"{max(worse):.0e}",
            ]
        )
    print_table(
        f"{starts} starts, accelerated, tol 1e-6, {seeds} seeds, mean [largest] exchanges",
        [
            "set, profile",
            "one batch",
            "winner alone",
            "mean alone",
            "slowest alone",
            f"{starts} runs",
            "starts carried",
            "end above",
        ],
        rows,
    )
    print(
        "winner alone: the start with the smallest J, run by itself; starts carried: evaluations "
        "of the batch over those of the separate runs (losing starts are dropped)."
    )


def over_sites(dataset: Dataset, profile: str, problem: Problem) -> None:
    """Print that a Flower run takes the exchanges counted above."""
    order = np.arange(dataset.labels.size)
    rows = []
    for mode in ("none", "anderson"):
        result, _ = federated(
            dataset,
            {"a": order},
            max_rounds=500,
            profile=profile,
            fedhk={"acceleration": mode},
        )
        trace = problem.run(
            problem.seeds(problem.settings.n_init, 0), mode, max_evaluations=500, labels=False
        )
        rows.append([mode, result.rounds, trace.exchanges])
    print_table(
        f"Check: rounds of a Flower run, one site, {dataset.name}, {profile} profile, five starts",
        ["acceleration", "rounds of the run", "exchanges counted here"],
        rows,
    )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer sets and seeds")
    quick = parser.parse_args().quick
    chosen, absent = problems(NAMES[:4] if quick else NAMES)
    print(
        "rows shuffled with seed 0; starts drawn with seeds 0, 1, ...; heart: missing cells filled"
    )
    print(
        "handwritten collapses under the paper profile (all memberships near 1/10): there "
        "its labels mean nothing"
    )
    skipped(absent)
    acceleration(chosen, 2 if quick else 5, 1e-6)
    acceleration(chosen, 2 if quick else 5, TIGHT)
    batches(chosen, 1 if quick else 3)
    over_sites(*chosen[2])


if __name__ == "__main__":
    main()
