"""Planted features found by Fed-MUFSHT, on one machine and over five sites, with missing cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.common import Floats, Ints, print_table, spread
from benchmarks.mufsht_sets import N_SITES, federated_orders, federated_run, iid_parts
from fedmvc_client.estimators import MUFSHT
from fedmvc_server.planted import PlantedViews, planted_views, without_cells
from strategies.feature_ranking import order_by_scores

N_CLUSTERS = 5
#: Seeds of the draws, and shares of the cells that are taken out.
SEEDS = tuple(range(5))
SHARES = (0.0, 0.3, 0.5)
RANDOM_DRAWS = 20
ONE, MANY = "one machine", f"{N_SITES} sites"
#: Precision that has to be reached, by place, rule and share of missing cells.
GOALS: Mapping[tuple[str, str, float], float] = {
    (ONE, "gated pivot", 0.0): 0.95,
    (MANY, "gated pivot", 0.0): 0.95,
    (ONE, "gated pivot", 0.3): 0.92,
    (ONE, "gated pivot", 0.5): 0.83,
    (ONE, "row norm", 0.5): 0.93,
}
#: Place and rule to the precision of each draw.
Found = dict[tuple[str, str], list[float]]


def precision(order: Ints, informative: np.ndarray) -> float:
    """Share of informative features among as many first ones as there are."""
    return float(informative[order[: int(informative.sum())]].mean())


def planted_orders(drawn: PlantedViews, share: float, seed: int) -> dict[tuple[str, str], Ints]:
    """Rank the features of a draw with a share of its cells missing, at both places."""
    views: Sequence[Floats] = without_cells(drawn.views, share, seed + 99) if share else drawn.views
    model = MUFSHT(N_CLUSTERS, device="cpu").fit(views)
    alone = {"gated pivot": model.ranking_, "row norm": order_by_scores(model.scores_)}
    parts = iid_parts(drawn.labels, seed)
    together = federated_orders(federated_run(views, parts, N_CLUSTERS, seed=seed))
    return {
        (place, rule): order
        for place, orders in ((ONE, alone), (MANY, together))
        for rule, order in orders.items()
    }


def planted_precision(share: float, seeds: Sequence[int] = SEEDS) -> Found:
    """Measure the precision of every place and rule, and that of an order at random."""
    found: Found = {}
    for seed in seeds:
        drawn = planted_views(seed=seed, n_clusters=N_CLUSTERS)
        for key, order in planted_orders(drawn, share, seed).items():
            found.setdefault(key, []).append(precision(order, drawn.informative))
        rng = np.random.default_rng([seed, 1])  # not the stream that dealt the features
        at_random = [
            precision(rng.permutation(drawn.informative.size), drawn.informative)
            for _ in range(RANDOM_DRAWS)
        ]
        found.setdefault(("", "random order"), []).append(float(np.mean(at_random)))
        found.setdefault(("", "base rate"), []).append(float(drawn.informative.mean()))
    return found


def print_planted(seeds: Sequence[int] = SEEDS) -> None:
    """Print the table and its goals."""
    tables = {share: planted_precision(share, seeds) for share in SHARES}
    rows, goals = [], []
    for place, rule in tables[0.0]:
        row = [rule if not place else f"{rule}, {place}"]
        for share, table in tables.items():
            values = table[place, rule]
            row.append(spread(values, 3))
            least = GOALS.get((place, rule, share))
            if least is not None:
                mean = float(np.mean(values))
                mark = "met" if mean >= least else "MISSED"
                goals.append([row[0], f"{share:.0%}", f">= {least:.2f}", f"{mean:.3f}", mark])
        rows.append(row)
    title = (
        f"Planted features: precision at m (45 of 190 are informative), mean (sd) of {len(seeds)} "
        f"draws, seeds {seeds[0]} to {seeds[-1]}, 400 rows.\nBoth rules divide a row of W by the "
        "root of the observed share. Share of missing cells:"
    )
    print_table(title, ["", *(f"{share:.0%}" for share in SHARES)], rows)
    print_table("Goals", ["", "missing", "goal", "reached", ""], goals)
