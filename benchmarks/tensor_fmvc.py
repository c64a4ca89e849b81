"""TensorFMVC on real data, in the file's order and shuffled; the paper's figures beside it.

Files sorted by class flatter a method that transforms along the rows or sweeps them in turn: the
same method on shuffled rows shows what is left. Every figure is a mean over runs with its standard
deviation, in percent. Choices that use the true labels are named: they are upper bounds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np
from sklearn.cluster import KMeans

from benchmarks.common import (
    Dataset,
    Ints,
    accuracy,
    load_as_stored,
    print_table,
    same_labels,
    skipped,
    spread,
)
from benchmarks.tensor_paper import (
    Case,
    PaperSites,
    Runs,
    best_point,
    euclidean_site,
    laid_out,
    mean_acc,
    paper_grid,
    scored,
)
from fedmvc_client.estimators import TensorFMVC
from fedmvc_client.solvers.preprocessing import prepare_rows

SETS = ("sonar", "yale_faces", "3sources", "bbcsport", "orl_faces", "handwritten")
#: ACC and NMI that the paper prints (its Tables 1 to 3); its ORL and Yale views are others.
PRINTED: dict[str, dict[str, tuple[float, float]]] = {
    "TensorFMVC": {
        "sonar": (98.56, 89.16),
        "yale_faces": (79.39, 78.48),
        "3sources": (72.19, 66.18),
        "bbcsport": (86.94, 68.71),
        "orl_faces": (99.75, 99.77),
    },
    "case 1": {"sonar": (52.88, 0.22), "yale_faces": (61.21, 61.78), "orl_faces": (77.25, 87.31)},
    "case 2": {"sonar": (76.44, 21.11), "yale_faces": (46.67, 51.97), "orl_faces": (92.25, 94.09)},
    "case 3": {"sonar": (62.50, 4.79), "yale_faces": (36.97, 43.87), "orl_faces": (63.25, 80.14)},
}
#: Accuracy that profile "plus" has to reach on shuffled rows.
GOALS = {"3sources": 0.73, "bbcsport": 0.96, "handwritten": 0.94, "orl_faces": 0.73}
#: What a permutation of the rows may change, and noise score above labels at random.
ORDER_LIMIT, NOISE_LIMIT = 0.02, 0.03
LAMBDAS, EXPONENTS = (0.1, 1.0, 5.0, 10.0, 50.0, 100.0), (5.0, 7.0)
#: A smaller grid where a point takes seconds.
EXPONENTS_OF = {"handwritten": (5.0,)}
FILE_SEEDS = 3
FOOTNOTE = """\
* picked by the true labels: an upper bound. Rows are shuffled unless a line says file order.
Paper profile: orientation 'sample', rows swept in turn, Z in float64, p 0.9, omega 0.01, lambda
0.1, 1, 5, 10, 50, 100, r 5 and 7 (handwritten: r 5 only, to save time), three seeds in file order.
Best of grid: by mean ACC over its runs. The paper's ORL and Yale have other views of the same
faces."""
NOISE_DRAWS = 5
#: Lambda and r within the ranges that the paper recommends.
NOISE_POINT = (10.0, 5.0)


# -- profile "plus" and the baselines ------------------------------------------------------------


def plus(case: Case) -> TensorFMVC:
    """Fit profile "plus" at its defaults."""
    dataset, seed = case
    return TensorFMVC(dataset.n_clusters, random_state=seed, device="cpu").fit(dataset.views)


def side_by_side(case: Case) -> Ints:
    """Labels of k-means (10 starts) on the views side by side, scaled as the sites scale them."""
    dataset, seed = case
    blocks = []
    for view in dataset.views:
        prepared = prepare_rows(view, dataset.n_clusters, "auto", "the view")
        blocks.append(laid_out(prepared.values)[np.argsort(prepared.rows)])
    model = KMeans(dataset.n_clusters, n_init=10, random_state=seed)
    return np.asarray(model.fit_predict(np.hstack(blocks)), dtype=np.int64)


def plus_and_baselines(cases: Iterable[Case]) -> dict[str, Runs]:
    """Score "plus", the aligned vote of its starts, its best start and k-means."""
    found: dict[str, Runs] = {"plus": [], "vote": [], "view": [], "k-means": []}
    for case in cases:
        truth = case[0].labels
        model = plus(case)
        starts = [scored(truth, labels) for labels in model.start_labels_]
        found["plus"].append(scored(truth, model.labels_))
        found["vote"].append(scored(truth, model.vote_labels_))
        found["view"].append(max(starts, key=lambda score: score.acc))
        found["k-means"].append(scored(truth, side_by_side(case)))
    return found


def permutation(dataset: Dataset, shuffles: int) -> tuple[Runs, Runs, float]:
    """Run "plus" in file order and shuffled, with the same seeds; also the share of equal labels.

    The order is the only difference: a seed's own effect is in both.
    """
    given, moved, equal = [], [], []
    for seed in range(shuffles):
        order = np.random.default_rng(seed).permutation(dataset.labels.size)
        in_order = plus((dataset, seed)).labels_
        permuted = plus((dataset.shuffled(seed), seed)).labels_
        given.append(scored(dataset.labels, in_order))
        moved.append(scored(dataset.labels[order], permuted))
        equal.append(same_labels(in_order[order], permuted))
    return given, moved, min(equal)


def noise_scores(dataset: Dataset, draws: int) -> dict[str, list[float]]:
    """Accuracy on Gaussian noise of the set's shapes against blocks of the row index.

    "plus", and profile "paper" at `NOISE_POINT`, each beside labels at random in clusters of the
    same sizes.
    """
    n_rows, n_clusters = dataset.labels.size, dataset.n_clusters
    blocks = np.arange(n_rows) * n_clusters // n_rows
    found: dict[str, list[float]] = {}
    for draw in range(draws):
        rng = np.random.default_rng([2024, draw])
        views = [rng.standard_normal((n_rows, view.shape[1])) for view in dataset.views]
        case = (Dataset("noise", views, blocks, np.zeros_like(blocks)), draw)
        labelings = {
            "plus": plus(case).labels_,
            "paper": PaperSites(case).run(NOISE_POINT).labels,
        }
        for name, labels in labelings.items():
            at_random = [accuracy(blocks, rng.permutation(labels)) for _ in range(20)]
            found.setdefault(name, []).append(accuracy(blocks, labels))
            found.setdefault(f"{name}, random", []).append(float(np.mean(at_random)))
    return found


# -- printing ------------------------------------------------------------------------------------


def measured(dataset: Dataset, shuffles: int) -> dict[str, Runs]:
    """Measure the rows of the table for one set."""
    points = list(product(LAMBDAS, EXPONENTS_OF.get(dataset.name, EXPONENTS)))
    cases = [(dataset.shuffled(seed), seed) for seed in range(shuffles)]
    begin = time.perf_counter()
    in_order, _ = paper_grid([(dataset, seed) for seed in range(FILE_SEEDS)], points)
    moved, case_1 = paper_grid(cases, points)
    euclidean, case_3 = paper_grid(cases, points, euclidean_site)
    point, other, third = best_point(in_order), best_point(moved), best_point(euclidean)
    all_runs = [run for runs in in_order.values() for run in runs]
    rest = plus_and_baselines(cases)
    print(
        f"{dataset.name}: best lambda, r in file order {point[0]:g}, {point[1]:g}; shuffled "
        f"{other[0]:g}, {other[1]:g}; case 2 {third[0]:g}, {third[1]:g}; {len(points)} points, "
        f"{time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    return {
        "paper profile, file order, best of grid *": in_order[point],
        "  its best single run *": [max(all_runs, key=lambda run: run.acc)],
        "paper profile, shuffled, the same point": moved[point],
        "paper profile, shuffled, best of grid *": moved[other],
        "plus": rest["plus"],
        "aligned vote of plus's starts": rest["vote"],
        "best single view *": rest["view"],
        "k-means on the views side by side": rest["k-means"],
        "case 1: no tensor term": case_1,
        "case 2: Euclidean, best of grid *": euclidean[third],
        "case 3: both": case_3,
    }


def print_scores(tables: Mapping[str, Mapping[str, Runs]]) -> None:
    """Print ACC and NMI of all sets, the paper's figures among them."""
    names = list(tables)
    for index, metric in enumerate(("ACC", "NMI")):

        def printed(case: str, index: int = index) -> list[str]:
            figures = [PRINTED[case].get(name) for name in names]
            return [f"{figure[index]:.1f}" if figure else "-" for figure in figures]

        rows: list[list[str]] = [["the paper's figure", *printed("TensorFMVC")]]
        for row in next(iter(tables.values())):
            values = [
                [100 * (run.acc if metric == "ACC" else run.nmi) for run in table[row]]
                for table in tables.values()
            ]
            rows.append([row, *(spread(v, 1) if len(v) > 1 else f"{v[0]:.1f}" for v in values)])
            if row.startswith("case"):
                rows.append(["  the paper's figure", *printed(row[:6])])
        print_table(f"{metric} in percent, mean (sd)", ["", *names], rows)
    print(FOOTNOTE)


def print_permutation(sets: Sequence[Dataset], shuffles: int) -> None:
    """Print what a permutation of the rows changes in "plus"."""
    rows = []
    for dataset in sets:
        if dataset.name not in GOALS:
            continue
        given, moved, equal = permutation(dataset, shuffles)
        change = abs(mean_acc(given) - mean_acc(moved))
        largest = max(abs(a.acc - b.acc) for a, b in zip(given, moved, strict=True))
        rows.append(
            [
                dataset.name,
                spread([100 * run.acc for run in given], 1),
                spread([100 * run.acc for run in moved], 1),
                f"{100 * change:.2f}",
                f"{100 * largest:.2f}",
                f"{100 * equal:.1f}",
                "met" if change <= ORDER_LIMIT else "MISSED",
            ]
        )
    if rows:
        print_table(
            f"plus in file order and shuffled, the same {shuffles} seeds; goal: within 2 points",
            ["", "file order", "shuffled", "|change|", "largest", "% equal labels", "goal"],
            rows,
        )


def print_noise(sets: Sequence[Dataset], draws: int) -> None:
    """Print the noise control."""
    rows = []
    for dataset in sets:
        found = noise_scores(dataset, draws)
        excess = float(np.mean(found["plus"]) - np.mean(found["plus, random"]))
        rows.append(
            [
                f"{dataset.name}: {dataset.labels.size}, {dataset.n_clusters}",
                *(spread([100 * x for x in values], 1) for values in found.values()),
                f"{100 * excess:+.1f}",
                "met" if excess <= NOISE_LIMIT else "MISSED",
            ]
        )
    print_table(
        f"ACC on Gaussian noise of the sets' shapes against index blocks, {draws} draws, the paper "
        "profile at lambda 10, r 5;\ngoal: plus within 3 points of random labels",
        ["shape of (rows, clusters)", "plus", "random", "paper", "random", "plus +-", "goal"],
        rows,
    )


def print_goals(tables: Mapping[str, Mapping[str, Runs]]) -> None:
    """Print what was asked for and what was reached."""
    rows = []
    for name, least in GOALS.items():
        if name in tables:
            acc = mean_acc(tables[name]["plus"])
            mark = "met" if acc >= least else "MISSED"
            rows.append([f"plus on {name}", f">= {100 * least:.0f}", f"{100 * acc:.1f}", mark])
    for name in ("sonar", "yale_faces"):
        if name in tables:
            table = tables[name]
            best = mean_acc(table["  its best single run *"])
            fallen = mean_acc(table["paper profile, shuffled, the same point"])
            reached = f"{100 * best:.1f}, shuffled {100 * fallen:.1f}"
            mark = "met" if best > 0.75 else "not here"
            rows.append([f"paper profile on {name}, one of both", "> 75", reached, mark])
    print_table("Goals, ACC in percent", ["", "goal", "reached", ""], rows)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", nargs="+", metavar="NAME", default=None, help=", ".join(SETS))
    parser.add_argument("--shuffles", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="sonar and 3sources, two shuffles")
    arguments = parser.parse_args()
    shuffles = 2 if arguments.quick else arguments.shuffles
    names = arguments.data or (("sonar", "3sources") if arguments.quick else SETS)
    sets = {name: load_as_stored(name) for name in names}
    skipped(name for name, dataset in sets.items() if dataset is None)
    present = [dataset for dataset in sets.values() if dataset is not None]
    if not present:
        return
    print(f"{shuffles} shuffles; load of this machine {os.getloadavg()}, {os.cpu_count()} cores")
    tables = {dataset.name: measured(dataset, shuffles) for dataset in present}
    print_scores(tables)
    print_permutation(present, shuffles)
    print_noise(present, 2 if arguments.quick else NOISE_DRAWS)
    print_goals(tables)


if __name__ == "__main__":
    main()
