"""What label privacy costs TensorFMVC in accuracy, and how little of a patient it hides.

Each site's labels go out by k-ary randomised response; epsilon is split over the lists of labels
that a site sends, one at the start and one a round. The result is the accuracy of the final labels
at the sites. The last line changes one row of one view and counts the labels of the others that
come out otherwise: why this is not privacy of a patient.

Run with ``python -m benchmarks.label_privacy [SEEDS]``; about two minutes of one core.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Ints, accuracy, load_as_stored, print_table
from configs.tensor_profiles import resolve_tensor
from fedmvc_client.solvers.tensor_site import TensorSite
from fedmvc_server.simulation import simulate

Floats = NDArray[np.float64]

EPSILONS = (1.0, 4.0, 8.0, math.inf)
ROUNDS = (0, 1, 3)
N_CLUSTERS, SITES = 4, ("anna", "mercy", "north")


def blurred_views(n: int, seed: int) -> tuple[list[Floats], Ints]:
    """Draw three views (n, 4) of four groups, each view alone a little blurred, and the groups."""
    rng = np.random.default_rng([7, seed])
    truth = rng.integers(N_CLUSTERS, size=n)
    views = []
    for _ in SITES:
        # corners of a square in the plane, and two columns of noise
        centers = 4.0 * np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float64)
        columns = rng.standard_normal((n, 4))
        columns[:, :2] += centers[truth]
        views.append(columns)
    return views, truth


def private_accuracy(
    views: Sequence[Floats], truth: Ints, epsilon: float, rounds: int, seed: int = 0
) -> float:
    """Return the accuracy of one run; ``epsilon = inf`` is the same run with honest labels."""
    logging.getLogger("fedmvc").setLevel(logging.ERROR)  # a run's warnings are in its result
    private = {"mechanism": "randomised-response", "epsilon": min(epsilon, 1000.0)}
    plan = {
        "method": "tensor-fmvc",
        "n_clusters": int(truth.max()) + 1,
        "max_rounds": rounds,
        "seed": seed,
        "tensor": {"link_cost": 1},
        "privacy": private,
    }
    names = [f"site-{m}" for m in range(len(views))]
    result = simulate(plan, {s: {"views": [v]} for s, v in zip(names, views, strict=True)})
    if result.status != "completed":
        raise RuntimeError(f"the run {result.status}: {result.stop_reason}")
    return accuracy(truth, result.site_results[names[0]].labels)


def labels_moved_by_one_row(n: int = 1000) -> int:
    """Make one row of a view of two overlapping groups an outlier; count the other rows' changes.

    Columns are scaled by their extremes, so the others move together, and clusters are numbered by
    what they hold: the labels that would be sent.
    """
    rng = np.random.default_rng(3)
    truth = rng.integers(2, size=n)
    view = rng.normal(size=(n, 4)) + rng.normal(size=(2, 4))[truth]
    changed = view.copy()
    changed[0] = 50 * view.max(axis=0)
    first, second = (
        TensorSite(v, resolve_tensor("plus"), 2, seed=3, position=0, device="cpu").start()[0]
        for v in (view, changed)
    )
    return int((first[1:] != second[1:]).sum())


def table(views: Sequence[Sequence[Floats]], truths: Sequence[Ints]) -> list[list[str]]:
    """Return a row for each epsilon: mean accuracy over the draws for each number of rounds."""
    rows = []
    for epsilon in EPSILONS:
        means = [
            np.mean(
                [
                    private_accuracy(v, t, epsilon, rounds, seed)
                    for seed, (v, t) in enumerate(zip(views, truths, strict=True))
                ]
            )
            for rounds in ROUNDS
        ]
        rows.append([f"{epsilon:g}", *(f"{mean:.3f}" for mean in means)])
    return rows


def main() -> None:
    """Measure and print."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    header = ["epsilon", *(f"lists: {1 + rounds}" for rounds in ROUNDS)]
    drawn = [blurred_views(1000, seed) for seed in range(seeds)]
    print_table(
        f"three blurred views, 1,000 rows, {N_CLUSTERS} clusters, {seeds} draws: accuracy",
        header,
        table([v for v, _ in drawn], [t for _, t in drawn]),
    )
    stored = load_as_stored("handwritten")
    if stored is not None:
        moved = [stored.shuffled(seed) for seed in range(2)]
        print_table(
            "handwritten, six views, 2,000 rows, 10 clusters, 2 shuffles: accuracy",
            header,
            table([s.views for s in moved], [s.labels for s in moved]),
        )
    print(f"one changed row moves {labels_moved_by_one_row()} of 999 other labels of its view")


if __name__ == "__main__":
    main()
