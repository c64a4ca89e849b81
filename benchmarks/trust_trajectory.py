"""What a curious server can rebuild from the sums of a run: records without noise, none with it.

The server of a masked run keeps what it may see anyway: the centres and view weights that it asked
about, and the opened sums over all sites. It then looks for records that would have given the same
sums in all rounds, by least squares from many starts. Exact sums of a small cohort give them away
(compare arXiv 2511.07073); the control shows that the attack works.

Run with ``python -m benchmarks.trust_trajectory``; exits 1 where the line does not hold.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, linear_sum_assignment

from benchmarks.dp_reference import Model, record_terms
from benchmarks.trust_rows import Row, print_rows
from configs.plan import RunPlan
from configs.schema import DataSchema
from fedmvc_server.simulation import simulate
from strategies.messages import RoundRequest
from strategies.secure_sum import SumCollector

Floats = NDArray[np.float64]

#: A record counts as rebuilt where all its values, in [0, 1], are found this closely.
CLOSE = 1e-3
_SITES, _DIMS, _CLUSTERS, _ROUNDS = 3, (2, 2), 3, 8


@dataclass(frozen=True)
class Trajectory:
    """What the server saw: the model of each round, and the sums that came back."""

    models: list[Model]
    sums: list[Floats]


def records(n_rows: int, seed: int) -> list[Floats]:
    """Draw the records of all sites, in [0, 1]: one (n, d_h) array a view."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.05, 0.95, (n_rows, d)) for d in _DIMS]


def observed(views: list[Floats], epsilon: float | None) -> Trajectory:
    """Run the records as masked sums over three sites, and keep what the server sees."""
    names = [f"site-{i}" for i in range(_SITES)]
    parts = np.array_split(np.arange(views[0].shape[0]), _SITES)
    sites = {
        name: {"views": [v[rows] for v in views]} for name, rows in zip(names, parts, strict=True)
    }
    noise = {} if epsilon is None else {"mechanism": "gaussian", "epsilon": epsilon}
    plan = RunPlan.parse(
        {
            "method": "fedhk-mvfc",
            "n_clusters": _CLUSTERS,
            "max_rounds": _ROUNDS,
            "tol": 0.0,
            "fedhk": {"heat_kernel": "one", "n_init": 1, "acceleration": "none"},
            "privacy": {
                "secure_aggregation": True,
                "participants": names,
                "max_rows": 100,
                **noise,
            },
        }
    )
    seen = Trajectory([], [])
    with _recorded(seen):
        result = simulate(plan, sites, schema=_unit_schema())
    assert result.status == "completed", result.stop_reason
    return seen


@contextmanager
def _recorded(seen: Trajectory) -> Iterator[None]:
    """Keep every round's request and opened sum."""
    honest = SumCollector.sum

    def sum_(self: SumCollector, requests: Any, *rest: Any) -> Generator[Any, Any, Any]:
        total = yield from honest(self, requests, *rest)
        request = requests[-1]
        if isinstance(request, RoundRequest):
            centers, weights = [a[0] for a in request.centers], request.view_weights[0]
            seen.models.append(Model(centers, weights, "one", 2.0, 5.0))
            seen.sums.append(total.vector)
        return total

    with mock.patch.object(SumCollector, "sum", sum_):
        yield


def _unit_schema() -> DataSchema:
    column = {"dtype": "float", "bounds": (0.0, 1.0)}
    views = [
        {"name": f"v{h}", "columns": [{"name": f"x{j}", **column} for j in range(d)]}
        for h, d in enumerate(_DIMS)
    ]
    return DataSchema.parse({"id": "id", "views": views})


def rebuilt(seen: Trajectory, n_rows: int, starts: int, seed: int) -> Floats:
    """Look for records (n, D) that would have given the sums of all rounds."""
    ends = np.cumsum(_DIMS)[:-1]
    target = np.concatenate(seen.sums)

    def misfit(flat: Floats) -> Floats:
        views = np.split(flat.reshape(n_rows, sum(_DIMS)), ends, axis=1)
        given = [record_terms(views, model).sum(axis=0) for model in seen.models]
        return np.asarray(np.concatenate(given) - target)

    rng = np.random.default_rng(seed)
    best: Any = None
    for _ in range(starts):
        found = least_squares(
            misfit, rng.uniform(0.05, 0.95, n_rows * sum(_DIMS)), bounds=(0.0, 1.0), max_nfev=60
        )
        if best is None or found.cost < best.cost:
            best = found
        if best.cost < 1e-16:
            break
    return np.asarray(best.x.reshape(n_rows, sum(_DIMS)))


def rows_found(views: list[Floats], guess: Floats) -> int:
    """Count the records that a guess holds, each matched to one guessed row."""
    truth = np.concatenate(views, axis=1)
    apart = np.abs(truth[:, None] - guess[None]).max(axis=2)
    pairs = linear_sum_assignment(apart > CLOSE)
    return int((apart[pairs] <= CLOSE).sum())


def trajectory_row(
    *, n_rows: int = 6, cohorts: int = 5, starts: int = 20, epsilon: float = 8.0
) -> Row:
    """Attack cohorts of few records, without noise and with that of a generous epsilon."""
    found = {None: 0, epsilon: 0}
    for seed in range(cohorts):
        views = records(n_rows, seed)
        for choice in found:
            guess = rebuilt(observed(views, choice), n_rows, starts, seed)
            found[choice] += rows_found(views, guess)
    total = cohorts * n_rows
    return Row(
        f"records rebuilt from the sums of {_ROUNDS} rounds, {cohorts} cohorts of {n_rows}",
        f"{found[None]} of {total} without noise, {found[epsilon]} with epsilon {epsilon:g}",
        "more than 0 without noise (the attack works), 0 with it",
        found[None] > 0 and found[epsilon] == 0,
    )


def main() -> int:
    """Print the figures; return the number that do not hold."""
    return print_rows("trajectory attack", [trajectory_row])


if __name__ == "__main__":
    raise SystemExit(main())
