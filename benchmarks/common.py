"""What the benchmark scripts share: data, scores, baselines and tables; prints nothing by itself.

Real data is read from the folder in the environment variable ``FEDMVC_DATA``, else from
``../shared/data`` beside the repository; a set that is not there is skipped by name.
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.metrics import (
    adjusted_rand_score,
    calinski_harabasz_score,
    normalized_mutual_info_score,
    silhouette_score,
)

from configs.plan import RunPlan
from fedmvc_server.cardio import cardio_views
from fedmvc_server.simulation import RunResult, simulate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HEART_SITES = ("cleveland", "hungarian", "switzerland", "va")
#: In the source's order, without ``ca`` and ``thal``, which three of the four sites hardly fill.
HEART_VIEWS = (
    ("age", "sex", "cp"),
    ("trestbps", "chol", "fbs"),
    ("restecg", "thalach", "exang", "oldpeak", "slope"),
)
#: Columns where 0 stands for a missing value.
HEART_HIDDEN = ("trestbps", "chol")


@dataclass(frozen=True)
class Dataset:
    """A multi-view set with true classes.

    ``views`` are (n, d_h), NaN = missing; ``labels`` (n,) are 0..c-1; ``sites`` (n,) numbers the
    real site of each row (all 0 where the source names none).
    """

    name: str
    views: list[Floats]
    labels: Ints
    sites: Ints

    @property
    def n_clusters(self) -> int:
        """Number of true classes."""
        return int(self.labels.max()) + 1

    def rows(self, index: Ints) -> list[Floats]:
        """Return the views of some rows."""
        return [view[index] for view in self.views]

    def shuffled(self, seed: int) -> Dataset:
        """Return the set with its rows in a seeded random order."""
        order = np.random.default_rng(seed).permutation(self.labels.size)
        return replace(
            self, views=self.rows(order), labels=self.labels[order], sites=self.sites[order]
        )


def data_folder() -> Path | None:
    """Folder of the real data, None where there is none."""
    named = os.environ.get("FEDMVC_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


def load(name: str, seed: int = 0) -> Dataset | None:
    """Load a set with shuffled rows; None where its file is absent.

    Parameters
    ----------
    name : str
        "cardio" (synthetic, 10,000 rows drawn with ``seed``), "iris" (views {1, 3} and {2, 4}),
        "heart" (zeros kept, missing cells filled with the pooled median), "heart-missing" (hidden
        zeros and missing cells left missing), or the name of an npz file with dense views.
    seed : int
        Of the draw and of the order of the rows.
    """
    if name == "cardio":
        views, labels = cardio_views(10_000, seed)
        return Dataset(name, views, labels, np.zeros_like(labels)).shuffled(seed)
    if name == "iris":
        table, classes = load_iris(return_X_y=True)
        labels = np.asarray(classes, dtype=np.int64)
        views = [table[:, [0, 2]], table[:, [1, 3]]]
        return Dataset(name, views, labels, np.zeros_like(labels)).shuffled(seed)
    folder = data_folder()
    if folder is None:
        return None
    if name.startswith("heart"):
        source = folder / "heart_disease"
        return _heart(source, name).shuffled(seed) if source.is_dir() else None
    stored = load_as_stored(name)
    return None if stored is None else stored.shuffled(seed)


def load_as_stored(name: str) -> Dataset | None:
    """Load an npz file of `data_folder` with its rows in the file's order; None where it is absent.

    A view that is stored in parts becomes a CSR array.
    """
    folder = data_folder()
    path = None if folder is None else folder / f"{name}.npz"
    if path is None or not path.is_file():
        return None
    views: list[Any] = []
    with np.load(path, allow_pickle=False) as file:
        while True:
            key = f"view_{len(views)}"
            if key in file.files:
                views.append(file[key].astype(np.float64))
            elif f"{key}_data" in file.files:
                data, indices, indptr, shape = (
                    file[f"{key}_{part}"] for part in ("data", "indices", "indptr", "shape")
                )
                parts = (data.astype(np.float64), indices, indptr)
                views.append(sparse.csr_array(parts, shape=tuple(shape)))
            else:
                break
        labels = file["labels"].astype(np.int64)
    return Dataset(name, views, labels, np.zeros_like(labels))


def _heart(folder: Path, name: str) -> Dataset:
    """Heart disease of four hospitals as three views; class 1 is any disease (num > 0)."""
    tables, sites = [], []
    for number, site in enumerate(HEART_SITES):
        with (folder / f"{site}.csv").open(newline="") as file:
            header, *rows = csv.reader(file)
        tables.append([[np.nan if cell == "?" else float(cell) for cell in row] for row in rows])
        sites += [number] * len(rows)
    columns = {column: j for j, column in enumerate(header)}
    table = np.array([row for part in tables for row in part])
    labels = (table[:, columns["num"]] > 0).astype(np.int64)
    if name == "heart-missing":
        for column in HEART_HIDDEN:
            cells = table[:, columns[column]]
            cells[cells == 0] = np.nan
    else:
        table = np.where(np.isnan(table), np.nanmedian(table, axis=0), table)
    views = [table[:, [columns[column] for column in view]] for view in HEART_VIEWS]
    return Dataset(name, views, labels, np.array(sites, dtype=np.int64))


def skipped(names: Iterable[str]) -> None:
    """Say in one line which sets are absent."""
    absent = sorted(names)
    if absent:
        print(
            f"skipped, no data: {', '.join(absent)} (set FEDMVC_DATA to the folder that holds them)"
        )


# -- federated runs ------------------------------------------------------------------------------


def federated(dataset: Dataset, parts: Mapping[str, Ints], **fields: Any) -> tuple[RunResult, Ints]:
    """Run a plan in this process over parts of a set.

    Parameters
    ----------
    dataset : Dataset
    parts : mapping of site name to row numbers
        Every row at one site.
    **fields
        Of the plan; ``method`` and ``n_clusters`` are set unless given.

    Returns
    -------
    result : RunResult
    labels : ndarray of shape (n,)
        What the sites found, in the set's order.

    Raises
    ------
    RuntimeError
        Where the run did not complete.
    """
    logging.getLogger("fedmvc").setLevel(logging.ERROR)  # a run's warnings are in its result
    plan = RunPlan.parse({"method": "fedhk-mvfc", "n_clusters": dataset.n_clusters, **fields})
    result = simulate(plan, {site: {"views": dataset.rows(rows)} for site, rows in parts.items()})
    if result.status != "completed":
        raise RuntimeError(f"the run on {dataset.name} {result.status}: {result.stop_reason}")
    labels = np.full(dataset.labels.size, -1, dtype=np.int64)
    for site, rows in parts.items():
        labels[rows] = result.site_results[site].labels
    return result, labels


def heart_parts(dataset: Dataset) -> dict[str, Ints]:
    """Rows of each hospital of the heart disease set."""
    return {site: np.flatnonzero(dataset.sites == i) for i, site in enumerate(HEART_SITES)}


# -- scores --------------------------------------------------------------------------------------


def accuracy(labels: Ints, found: Ints) -> float:
    """Share of rows in the right cluster under the best one-to-one matching (Hungarian method)."""
    counts = np.zeros((int(labels.max()) + 1, int(found.max()) + 1), dtype=np.int64)
    np.add.at(counts, (labels, found), 1)
    return float(counts[linear_sum_assignment(-counts)].sum() / labels.size)


def same_labels(first: Ints, second: Ints) -> float:
    """Share of rows that two labelings agree on, clusters matched."""
    return accuracy(first, second)


def consensus(views: Sequence[Floats], found: Ints, seed: int = 0) -> float:
    """View consensus (Eq. 121): mean NMI between labels and those of k-means on one view alone."""
    n_clusters = int(found.max()) + 1
    return float(
        np.mean(
            [
                normalized_mutual_info_score(found, kmeans([view], n_clusters, seed))
                for view in views
            ]
        )
    )


def scores(views: Sequence[Floats], labels: Ints, found: Ints, seed: int = 0) -> dict[str, float]:
    """ACC, NMI and ARI against the truth; silhouette, Calinski-Harabasz (Eqs. 119-120), consensus.

    Silhouette and Calinski-Harabasz are those of the standardised views side by side, the
    silhouette on at most 2,000 rows.
    """
    table = standardised(views)
    several = np.unique(found).size > 1
    return {
        "ACC": accuracy(labels, found),
        "NMI": float(normalized_mutual_info_score(labels, found)),
        "ARI": float(adjusted_rand_score(labels, found)),
        "silhouette": float(
            silhouette_score(table, found, sample_size=min(2000, labels.size), random_state=0)
        )
        if several
        else float("nan"),
        "CH": float(calinski_harabasz_score(table, found)) if several else float("nan"),
        "consensus": consensus(views, found, seed),
    }


# -- baselines -----------------------------------------------------------------------------------


def standardised(views: Sequence[Floats], per_view: bool = False) -> Floats:
    """Put the views side by side, each column of mean 0 and variance 1, missing cells 0.

    With ``per_view`` each view is divided by the root of its number of columns.
    """
    blocks = []
    for view in views:
        spread = np.nanstd(view, axis=0)
        block = (view - np.nanmean(view, axis=0)) / np.where(spread > 0, spread, 1.0)
        block = np.where(np.isnan(block), 0.0, block)
        blocks.append(block / np.sqrt(view.shape[1]) if per_view else block)
    return np.concatenate(blocks, axis=1)


def kmeans(views: Sequence[Floats], n_clusters: int, seed: int, *, per_view: bool = False) -> Ints:
    """Labels of k-means (10 starts) on the standardised views side by side."""
    model = KMeans(n_clusters, n_init=10, random_state=seed)
    return np.asarray(model.fit_predict(standardised(views, per_view)), dtype=np.int64)


def fuzzy_c_means(
    views: Sequence[Floats],
    n_clusters: int,
    seed: int,
    *,
    fuzzifier: float = 2.0,
    n_init: int = 5,
    max_iter: int = 300,
    tol: float = 1e-6,
) -> Ints:
    """Labels of plain fuzzy c-means on the standardised views side by side."""
    table = standardised(views)
    rng = np.random.default_rng(seed)
    best, best_value = np.zeros(table.shape[0], dtype=np.int64), np.inf
    for _ in range(n_init):
        first = KMeans(n_clusters, n_init=1, max_iter=1, random_state=int(rng.integers(2**31)))
        centers = first.fit(table).cluster_centers_
        previous = np.inf
        for _ in range(max_iter):
            squared = (
                (table**2).sum(axis=1)[:, None] - 2 * table @ centers.T + (centers**2).sum(axis=1)
            )
            logits = -np.log(np.maximum(squared, 1e-15)) / (fuzzifier - 1.0)
            membership = np.exp(logits - logits.max(axis=1, keepdims=True))
            membership /= membership.sum(axis=1, keepdims=True)
            powers = membership**fuzzifier
            value = float((powers * squared).sum())
            centers = powers.T @ table / powers.sum(axis=0)[:, None]
            if abs(previous - value) <= tol * value:
                break
            previous = value
        if value < best_value:
            best, best_value = membership.argmax(axis=1), value
    return best


# -- printing ------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean and standard deviation as text."""
    return f"{np.mean(values):.{digits}f} ({np.std(values):.{digits}f})"


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as aligned text, numbers to four places."""
    text = [[_cell(value) for value in row] for row in [header, *rows]]
    widths = [max(len(row[j]) for row in text) for j in range(len(header))]
    print(f"\n{title}")
    for i, row in enumerate(text):
        cells = [
            cell.ljust(width) if j == 0 else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if i == 0:
            print("  ".join("-" * width for width in widths))


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
