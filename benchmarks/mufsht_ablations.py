"""Fed-MUFSHT's ablations I to VI, and what the swarm HC-THRO is worth beside a plain start.

The paper's loop (profile "paper": HC-THRO over the weights, then tensor learning, in turns; row
norms at ratio .4) loses one part at a time:

I    tensor learning only, from a random start
II   HC-THRO only, its weights are ranked as they are
III  THRO in place of HC-THRO
IV   HC-THRO without competitive learning (Eq. 4)
V    HC-THRO without cognitive mapping (Eq. 5)
VI   over five sites, plain weighted means in place of weights by NMI. The parts are of equal size,
     so weights by rows are the uniform ones: one row stands for both.

Beside them: the SVD start (no search, the same objective), the default profile "gated", columns at
random and all columns. F is the objective at the end: lower is better, and comparable only between
rows with the same tau and mu on the same rows of data (the gated profile has others; that of five
sites is a mean of five smaller problems). That of II is mostly the consensus term, which a search
before any sweep does not see; the second table is fair to it. Sweeps are those of tensor learning
until F settles, the loop's included; a search costs 40 iterations of 30 horses on top, over sites
20 in each round. ACC and NMI: k-means on the selected columns.
Everything is a mean (sd) over seeds: of the planted draw, the order of rows, swarm and partition.

The second table rates weights by what the search minimises (F over the weights with the best
embeddings for each, without consensus): what 40 iterations gain, and what one sweep does.

  python -m benchmarks.mufsht_ablations            both sets (about seven minutes on one core)
  python -m benchmarks.mufsht_ablations --quick    planted data only, two seeds
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.common import Dataset, Ints, print_table, skipped, spread
from benchmarks.mufsht_sets import (
    PRINTED,
    Columns,
    Printed,
    fano_note,
    federated_run,
    iid_parts,
    load_columns,
    mean_score,
)
from configs.mufsht_profiles import Variant, resolve_mufsht
from fedmvc_client.estimators import MUFSHT
from fedmvc_client.solvers.feature_preparation import standardise
from fedmvc_client.solvers.feature_search import ITERATIONS, ROUNDS, SCALE
from fedmvc_client.solvers.tensor_learning import TensorLearning
from fedmvc_client.solvers.thro import THRO
from fedmvc_client.solvers.thro_fitness import FreeEmbeddingFitness, fold, unfold
from fedmvc_server.planted import planted_views
from strategies.feature_rounds import initial_weights

RATIO, RUNS = 0.4, 10
SEEDS, FEDERATED_SEEDS = 5, 3
#: Enough for every row to settle: tau = 1 makes slow progress.
MAX_SWEEPS = 200
#: Options of the estimator by row of the table.
ALONE: Mapping[str, dict[str, Any]] = {
    "full: HC-THRO and tensor learning": {"profile": "paper"},
    "I: tensor learning, random start": {"profile": "paper", "stages": "tensor"},
    "II: HC-THRO only": {"profile": "paper", "stages": "search"},
    "III: THRO and tensor learning": {"profile": "paper", "hcl": False, "acm": False},
    "IV: no competitive learning": {"profile": "paper", "hcl": False},
    "V: no cognitive mapping": {"profile": "paper", "acm": False},
    "SVD start, no search": {"profile": "paper", "search": "off"},
    "gated profile (default)": {},
}
#: Options of the plan by row of the table.
SITES: Mapping[str, dict[str, Any]] = {
    "full, 5 sites, weights by NMI": {"profile": "paper"},
    "VI: full, 5 sites, uniform = by rows": {"profile": "paper", "weighting": "uniform"},
    "gated, 5 sites, weights by NMI": {},
    "gated, 5 sites, uniform = by rows": {"weighting": "uniform"},
}
#: Rows whose F has the same meaning; the first is what the others are compared with.
LOOP = list(ALONE)[:6]
FULL, RANDOM_START, SEARCH_ONLY = LOOP[:3]
SVD_START = "SVD start, no search"
SWARMS: Mapping[str, Variant] = {
    "HC-THRO": "hc-thro",
    "THRO": "thro",
    "no competitive learning": "no-hcl",
    "no cognitive mapping": "no-acm",
}
AT_RANDOM, EVERY = "columns at random", "all columns"
#: Table 4 of the paper on Digit4k: ACC and NMI by ablation.
TABLE_4 = {
    "full": PRINTED["digit4k"][1:3],
    "I": (72.39, 41.14),
    "II": (71.81, 40.08),
    "III": (73.51, 43.12),
    "IV": (72.96, 42.74),
    "V": (71.26, 41.33),
    "VI": (73.19, 42.53),
}


class Ablation(NamedTuple):
    """One row and seed: F (nan where there is none), sweeps, seconds, ACC and NMI in percent."""

    f: float
    sweeps: float
    seconds: float
    acc: float
    nmi: float


#: Row to one entry a seed.
Table = dict[str, list[Ablation]]


def planted_columns(seed: int) -> Columns:
    """Draw a planted set."""
    drawn = planted_views(seed=seed)
    empty = np.zeros_like(drawn.labels)
    return Columns(Dataset("planted", drawn.views, drawn.labels, empty), text=False)


def clustered(columns: Columns, order: Ints, ratio: float = RATIO) -> tuple[float, float]:
    """Mean ACC and NMI of k-means on the first columns of an order, in percent."""
    acc, nmi = mean_score(columns.scores(order, ratio, RUNS))
    return 100 * acc, 100 * nmi


def alone(columns: Columns, options: Mapping[str, Any], seed: int) -> Ablation:
    """Run one ablation on one machine."""
    begin = time.perf_counter()
    model = MUFSHT(
        columns.n_clusters, **options, max_iter=MAX_SWEEPS, random_state=seed, device="cpu"
    )
    model.fit(columns.dataset.views)
    seconds = time.perf_counter() - begin
    sweeps = 0 if model.stages == "search" else model.n_iter_
    f = model.objective_history_[-1]
    return Ablation(f, sweeps, seconds, *clustered(columns, model.ranking_))


def over_sites(columns: Columns, options: Mapping[str, Any], seed: int) -> Ablation:
    """Run one ablation over five sites."""
    options = dict(options)
    fields = {"profile": options.pop("profile")} if "profile" in options else {}
    parts = iid_parts(columns.dataset.labels, seed)
    begin = time.perf_counter()
    result = federated_run(
        columns.dataset.views, parts, columns.n_clusters, **fields, seed=seed, mufsht=options
    )
    seconds = time.perf_counter() - begin
    assert result.selection is not None
    sweeps = result.rounds * result.metrics["settings"]["local_sweeps"]
    return Ablation(
        result.metrics["objective"],
        sweeps,
        seconds,
        *clustered(columns, result.selection.ranking),
    )


def measured(draws: Sequence[Columns], federated: int) -> Table:
    """Run every row on every draw, the federated ones on the first few."""
    table: Table = {}
    none = float("nan")
    for seed, columns in enumerate(draws):
        for name, options in ALONE.items():
            table.setdefault(name, []).append(alone(columns, options, seed))
        order = np.random.default_rng(seed).permutation(columns.n_features)
        for name, ratio in ((AT_RANDOM, RATIO), (EVERY, 1.0)):
            found = Ablation(none, none, none, *clustered(columns, order, ratio))
            table.setdefault(name, []).append(found)
        for name, options in SITES.items() if seed < federated else ():
            table.setdefault(name, []).append(over_sites(columns, options, seed))
    return table


# -- what the search gains -------------------------------------------------------------------------


def search_gain(columns: Columns, seed: int) -> dict[str, float]:
    """Rate weights of dense views by the fitness of the search: before, after, and by sweeps."""
    settings = resolve_mufsht("paper", tau=0.0)
    values = [standardise(view)[0].values for view in columns.dataset.views]
    model = TensorLearning(values, None, columns.n_clusters, **settings.learning)
    problem = model.problem()
    fitness = FreeEmbeddingFitness(
        problem.views,
        view_weights=problem.view_weights,
        laplacians=problem.laplacians,
        lam=problem.lam,
        beta=problem.beta,
    )
    n_dims = columns.n_features * columns.n_clusters

    def rated(position: torch.Tensor) -> float:
        return float(fitness(position[None]))

    def swept(position: torch.Tensor, sweeps: int) -> float:
        model.start_from([w.numpy() for w in unfold(position, columns.sizes)])
        for _ in range(sweeps):
            model.sweep()
        return rated(fold([torch.from_numpy(w) for w in model.weights]))

    found = {"all weights 0": rated(torch.zeros(n_dims, dtype=torch.float64))}
    best = {}
    for name, variant in SWARMS.items():
        swarm = THRO(
            n_dims,
            variant=variant,
            iterations=ROUNDS * ITERATIONS,
            scale=SCALE,
            random_state=seed,
        )
        result = swarm.run(fitness)
        found.setdefault("best of 30 at random", result.history[0])
        found[f"{name}, {ROUNDS * ITERATIONS} iterations"] = result.fitness
        best[name] = result.position
    drawn = torch.from_numpy(initial_weights(columns.n_features, columns.n_clusters, seed))
    found["HC-THRO, then one sweep"] = swept(best["HC-THRO"], 1)
    found["HC-THRO, then ten sweeps"] = swept(best["HC-THRO"], 10)
    found["random weights, one sweep"] = swept(drawn.flatten(), 1)
    found["random weights, ten sweeps"] = swept(drawn.flatten(), 10)
    model.start_svd()
    found["SVD start, no sweep"] = rated(fold([torch.from_numpy(w) for w in model.weights]))
    return found


def print_gain(name: str, draws: Sequence[Columns]) -> None:
    """Print the second table."""
    found = [search_gain(columns, seed) for seed, columns in enumerate(draws)]
    rows = [[row, spread([values[row] for values in found])] for row in found[0]]
    print_table(
        f"{name}: fitness of the search (lower is better), mean (sd) of {len(draws)} seeds",
        ["", "fitness"],
        rows,
    )


# -- what it says ----------------------------------------------------------------------------------


def column(table: Table, row: str, field: str) -> np.ndarray:
    """One figure of a row, over the seeds."""
    return np.array([getattr(entry, field) for entry in table[row]])


def gap(table: Table, row: str, other: str, field: str) -> str:
    """Mean difference of two rows over the same seeds, with its standard deviation."""
    n = min(len(table[row]), len(table[other]))
    difference = column(table, row, field)[:n] - column(table, other, field)[:n]
    return f"{difference.mean():+.4f} ({difference.std():.4f})"


def verdict(table: Table) -> list[str]:
    """Say in sentences what the table shows of HC-THRO, from its figures alone."""
    spans = {name: column(table, name, "acc") for name in LOOP if name != SEARCH_ONLY}
    means = [float(values.mean()) for values in spans.values()]
    noise = float(np.mean([values.std() for values in spans.values()]))
    costs = [float(column(table, name, "seconds").mean()) for name in (FULL, SVD_START)]
    wins = int((column(table, FULL, "f") < column(table, SVD_START, "f")).sum())
    full, full_uniform, gated, gated_uniform = SITES
    of_full = gap(table, full, full_uniform, "acc")
    of_gated = gap(table, gated, gated_uniform, "acc")
    return [
        f"F of the full loop less that of a random start (I): {gap(table, FULL, RANDOM_START, 'f')}"
        f"; less that of the SVD start: {gap(table, FULL, SVD_START, 'f')}. Below 0 the search "
        f"pays; it does against the SVD start in {wins} of {len(table[FULL])} seeds, at "
        f"{costs[0] / costs[1]:.0f} times the seconds.",
        f"HC-THRO alone (II): ACC less that of columns at random "
        f"{gap(table, SEARCH_ONLY, AT_RANDOM, 'acc')}.",
        f"Mean ACC of the full loop, I, III, IV and V spans {max(means) - min(means):.1f} points; "
        f"the sd of one row over seeds is {noise:.1f} points.",
        f"ACC of the full loop less the gated profile's: "
        f"{gap(table, FULL, 'gated profile (default)', 'acc')}.",
        f"Weights by NMI less uniform ones over 5 sites, ACC: full {of_full}, gated {of_gated}.",
    ]


def print_ablations(name: str, table: Table) -> None:
    """Print the table of one set and what it shows."""
    rows = []
    for row, entries in table.items():
        cells = [row]
        for field, digits in (("f", 4), ("sweeps", 0), ("seconds", 2), ("acc", 1), ("nmi", 1)):
            values = column(table, row, field)
            cells.append("" if np.isnan(values).any() else spread(values.tolist(), digits))
        rows.append([*cells, len(entries)])
    print_table(
        f"{name}: ratio {RATIO}, {RUNS} k-means runs, mean (sd) over seeds 0, 1, ...",
        ["", "F", "sweeps", "seconds", "ACC", "NMI", "seeds"],
        rows,
    )
    for sentence in verdict(table):
        print(f"- {sentence}")


def print_paper() -> None:
    """Print the paper's ablations of Digit4k beside Fano's bound."""
    rows = []
    for name, (acc, nmi) in TABLE_4.items():
        printed = Printed(name, acc, nmi, (0.1,) * 10, "10 equal classes")
        rows.append([name, f"{acc:.2f}", f"{nmi:.2f}", fano_note(printed)])
    print_table("The paper's Table 4 on Digit4k", ["", "ACC", "NMI", "by Fano"], rows)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", nargs="+", choices=("planted", "digit4k"), default=None, help="sets"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the rows on one machine")
    parser.add_argument(
        "--federated-seeds", type=int, default=FEDERATED_SEEDS, help="of the rows over sites"
    )
    parser.add_argument("--quick", action="store_true", help="planted data, few seeds")
    given = parser.parse_args()
    seeds, federated = (2, 1) if given.quick else (given.seeds, given.federated_seeds)
    names = given.data or (("planted",) if given.quick else ("planted", "digit4k"))
    print(f"load of this machine (1, 5, 15 min): {os.getloadavg()}, {os.cpu_count()} cores")
    for name in names:
        load = planted_columns if name == "planted" else lambda s: load_columns("digit4k", s)
        draws = [columns for columns in map(load, range(seeds)) if columns is not None]
        if not draws:
            skipped([name])
            continue
        print_ablations(name, measured(draws, federated))
        print_gain(name, draws)
    print_paper()


if __name__ == "__main__":
    main()
