"""What the Fed-MUFSHT benchmarks share: sets, orders of features, scores and Fano's bound."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.neighbors import kneighbors_graph
from threadpoolctl import threadpool_limits

from benchmarks.common import Dataset, Floats, Ints, load_as_stored, standardised
from benchmarks.tensor_paper import Score, laid_out, scored
from configs.plan import RunPlan
from fedmvc_client.estimators import MUFSHT
from fedmvc_client.solvers.feature_preparation import (
    document_frequencies,
    holds_counts,
    prepare_features,
    standardise,
    text_rows,
)
from fedmvc_client.solvers.tensor_learning import TensorLearning
from fedmvc_server.partitions import partition_iid
from fedmvc_server.runner import RunResult
from fedmvc_server.simulation import simulate
from strategies.feature_ranking import (
    communality_scores,
    laplacian_scores,
    order_by_scores,
    procrustes_align,
    rank_features,
    variance_scores,
)
from strategies.feature_selection import n_selected

#: Name to file, views of it in their order (None = all), and whether they are text.
SETS: dict[str, tuple[str, tuple[int, ...] | None, bool]] = {
    "digit4k": ("handwritten", (3, 1, 4, 2), False),
    "bbcsport": ("bbcsport", None, True),
    "orl": ("orl", None, False),
    "3sources": ("3sources", None, True),
    "coil20": ("coil20", None, False),
    "handwritten": ("handwritten", None, False),
}
N_SITES = 5
ROUNDS = 5
#: Nearest rows that the Laplacian score's graph joins.
NEIGHBOURS = 5


class Columns:
    """A set as k-means sees it once some of its columns are selected.

    Columns have mean 0 and variance 1; text is weighted by TF-IDF where it holds counts, and the
    rows of each view are scaled to unit length over the selected words.

    Parameters
    ----------
    dataset : Dataset
        Complete.
    text : bool
    """

    def __init__(self, dataset: Dataset, text: bool) -> None:
        self.dataset, self.text = dataset, text
        self.sizes = [view.shape[1] for view in dataset.views]
        self.n_features = sum(self.sizes)
        self.ready = (
            [text_rows(view, _frequencies(view)) for view in dataset.views]
            if text
            else np.split(standardised(dataset.views), np.cumsum(self.sizes)[:-1], axis=1)
        )

    @property
    def n_clusters(self) -> int:
        """Number of true classes."""
        return self.dataset.n_clusters

    def table(self, order: Ints, ratio: float) -> Floats:
        """Return the first columns of an order, all views side by side."""
        support = np.zeros(self.n_features, dtype=bool)
        support[order[: n_selected(ratio, self.n_features)]] = True
        parts = zip(self.ready, np.split(support, np.cumsum(self.sizes)[:-1]), strict=True)
        chosen = [view[:, part] for view, part in parts]
        return np.hstack([text_rows(part, None) for part in chosen] if self.text else chosen)

    def scores(self, order: Ints, ratio: float, runs: int) -> list[Score]:
        """Score k-means on the first columns of an order, one k-means++ start a run."""
        return kmeans_scores(self.table(order, ratio), self.dataset.labels, runs)

    @cached_property
    def baselines(self) -> dict[str, Ints]:
        """Orders by variance, Laplacian score and PCA communality.

        Variance is that of the stored cells, of text that of the weighted words. Communality is
        taken view by view; that of text is not divided by a word's variance, as Fed-MUFSHT scales
        text by view and not by word.
        """
        plain = self.ready if self.text else self.dataset.views
        variance = variance_scores(np.hstack(plain))
        shared = np.concatenate([communality_scores(v, self.n_clusters) for v in self.ready])
        found = {
            "variance": variance,
            "Laplacian score": laplacian_scores(np.hstack(self.ready), self._graph()),
            "PCA communality": shared * variance if self.text else shared,
        }
        return {name: order_by_scores(values) for name, values in found.items()}

    def _graph(self) -> sparse.csr_array:
        """Join every row with its nearest ones, all views side by side."""
        table = np.hstack(self.ready)
        graph = sparse.csr_array(kneighbors_graph(table, NEIGHBOURS, mode="connectivity"))
        return sparse.csr_array(graph.maximum(graph.T))


def _frequencies(view: Floats) -> tuple[Floats, int] | None:
    return document_frequencies(view) if holds_counts(view) else None


def load_columns(name: str, seed: int) -> Columns | None:
    """Load a set of `SETS` with its rows in a seeded random order; None where it is absent."""
    file, chosen, text = SETS[name]
    stored = load_as_stored(file)
    if stored is None:
        return None
    views = stored.views if chosen is None else [stored.views[v] for v in chosen]
    dataset = replace(stored, name=name, views=[laid_out(view) for view in views])
    return Columns(dataset.shuffled(seed), text)


def kmeans_scores(table: Floats, labels: Ints, runs: int) -> list[Score]:
    """Score k-means with one k-means++ start a run, seeds 0, 1, ..."""
    n_clusters = int(labels.max()) + 1
    with threadpool_limits(limits=1):
        found = [
            KMeans(n_clusters, n_init=1, random_state=seed).fit_predict(table)
            for seed in range(runs)
        ]
    return [scored(labels, labelling) for labelling in found]


def mean_score(runs: Sequence[Score]) -> Score:
    """Mean ACC and NMI."""
    return Score(*np.mean(runs, axis=0))


# -- orders by Fed-MUFSHT ------------------------------------------------------------------------


def one_site(columns: Columns) -> dict[str, Ints]:
    """Rank the columns on one machine: both rules on the weights of one fit."""
    model = MUFSHT(columns.n_clusters, text=columns.text, device="cpu")
    model.fit(columns.dataset.views)
    return {"gated pivot": model.ranking_, "row norm": order_by_scores(model.scores_)}


def iid_parts(labels: Ints, seed: int, n_sites: int = N_SITES) -> list[Ints]:
    """Deal the rows to sites without regard to the classes."""
    return partition_iid(labels, n_sites, np.random.default_rng(seed))


def federated_run(
    views: Sequence[Floats], parts: Iterable[Ints], n_clusters: int, **fields: Any
) -> RunResult:
    """Run method fed-mufsht in this process over parts of the rows.

    Raises
    ------
    RuntimeError
        Where the run did not complete.
    """
    logging.getLogger("fedmvc").setLevel(logging.ERROR)  # a run's warnings are in its result
    plan = RunPlan.parse({"method": "fed-mufsht", "n_clusters": n_clusters, **fields})
    sites = {f"site{i}": {"views": [v[rows] for v in views]} for i, rows in enumerate(parts)}
    result = simulate(plan, sites)
    if result.status != "completed":
        raise RuntimeError(f"the federated run {result.status}: {result.stop_reason}")
    return result


def federated_orders(result: RunResult) -> dict[str, Ints]:
    """Orders by a run's ranking and by the lengths of the rows of its weights."""
    selection = result.selection
    assert selection is not None
    return {"gated pivot": selection.ranking, "row norm": order_by_scores(selection.scores)}


# -- what an average of weights loses ------------------------------------------------------------


class Averaged(NamedTuple):
    """What a plain loop of averages ends with."""

    kept: list[float]  # length of the mean over the mean of the lengths, after each round
    order: Ints  # by gated pivot


def plain_average(
    columns: Columns,
    parts: Sequence[Ints],
    seed: int,
    *,
    common_start: bool,
    aligned: bool,
    rounds: int = ROUNDS,
    sweeps: int = 8,
) -> Averaged:
    """Average the sites' weights in a loop, for dense views: Eq. 18 with equal parts, no messages.

    Parameters
    ----------
    columns : Columns
    parts : sequence of ndarray
        Rows of each site.
    seed : int
        Of the random starts.
    common_start : bool
        All sites start at the same weights, or each at its own.
    aligned : bool
        Every site turns its weights onto the last average first.
    rounds, sweeps : int
    """
    views = columns.dataset.views
    scalings = [standardise(view)[1] for view in views]  # pooled, as the run's secure sums make it
    splits = np.cumsum(columns.sizes)[:-1]

    def drawn(key: Sequence[int]) -> Floats:
        shape = (columns.n_features, columns.n_clusters)
        return np.random.default_rng(key).standard_normal(shape) / np.sqrt(shape[0])

    models = [
        TensorLearning(
            [prepare_features(v[rows], s).values for v, s in zip(views, scalings, strict=True)],
            None,
            columns.n_clusters,
        )
        for rows in parts
    ]
    reference = drawn([seed])
    starts = [reference if common_start else drawn([seed, 1 + i]) for i in range(len(parts))]
    kept = []
    for _ in range(rounds):
        own = []
        for model, start in zip(models, starts, strict=True):
            model.start_from(np.split(start, splits))
            model.descend(sweeps, 0.0)
            weights = np.concatenate(model.weights)
            own.append(procrustes_align([weights], [reference])[0] if aligned else weights)
        reference = np.mean(own, axis=0)
        kept.append(float(np.linalg.norm(reference) / np.mean([np.linalg.norm(w) for w in own])))
        starts = [(reference + w) / 2 for w in own]
    order = rank_features(np.split(reference, splits), columns.dataset.labels.size)
    return Averaged(kept, order)


# -- what cannot be ------------------------------------------------------------------------------


def fano_floor(accuracy: float, shares: Sequence[float]) -> float:
    """Least NMI that labels of an accuracy can have (Fano's inequality).

    With error e, c classes of entropy H(Y) and at most c clusters the labels share at least
    ``H(Y) - H(e) - e ln(c - 1)`` with the classes, and their own entropy is at most ln c. For
    balanced classes that is ``(ln c - H(e) - e ln(c - 1)) / ln c``, whatever the NMI divides by;
    else it is the bound for the arithmetic mean. It is convex in e, so it holds for means of runs.

    Parameters
    ----------
    accuracy : float
        In (0, 1].
    shares : sequence of float
        Share of each class, adding up to 1.

    Returns
    -------
    float
        In [0, 1].
    """
    c, error = len(shares), 1.0 - accuracy
    parts = np.asarray([p for p in shares if p > 0])
    entropy = float(-(parts * np.log(parts)).sum())
    doubt = -sum(p * np.log(p) for p in (error, accuracy) if p > 0)
    lost = doubt + (error * np.log(c - 1) if c > 2 else 0.0)
    return max(0.0, 2.0 * (entropy - lost) / (entropy + np.log(c)))


def class_shares(labels: Ints) -> Floats:
    """Share of each class."""
    return np.bincount(labels) / labels.size


class Printed(NamedTuple):
    """A figure of the paper, in percent."""

    name: str
    acc: float
    nmi: float
    shares: Sequence[float]  # classes that the figure is checked against
    classes: str


def fano_note(printed: Printed) -> str:
    """Say whether a printed pair of ACC and NMI can be."""
    floor = 100 * fano_floor(printed.acc / 100, printed.shares)
    if printed.nmi < floor:
        return f"CANNOT HOLD: ACC {printed.acc:.2f} needs NMI >= {floor:.1f} ({printed.classes})"
    return f"can hold: NMI >= {floor:.1f} ({printed.classes})"


#: Classes of BBCSport in their order, over 544 rows.
_BBCSPORT = tuple(n / 544 for n in (62, 104, 193, 124, 61))
#: Table 4, "Proposed": ratio .4 and five clients, by the benchmark's name of the set.
PRINTED: Mapping[str, Printed] = {
    "digit4k": Printed("Digit4k", 77.65, 46.64, (0.1,) * 10, "10 equal classes"),
    "coil20": Printed("COIL20", 91.57, 97.15, (0.05,) * 20, "20 equal classes"),
    "bbcsport": Printed("BBCSport", 74.55, 47.12, _BBCSPORT, "BBCSport's 5 classes"),
    "orl": Printed("ORL_mtv, other views", 60.73, 85.28, (0.025,) * 40, "40 equal classes"),
    "handwritten": Printed("HandWritten", 78.18, 46.43, (0.1,) * 10, "10 equal classes"),
}
