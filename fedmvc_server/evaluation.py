"""Scores against a truth file, beside pooled k-means. For simulations only: it sees every label."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from configs.errors import DataRefused

__all__ = ["accuracy", "pooled_kmeans", "read_truth", "score"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def accuracy(truth: Labels, labels: Labels) -> float:
    """Share of records in the cluster matched to their class (Eq. 116, Hungarian matching)."""
    labels = np.where(labels < 0, labels.max() + 1, labels)  # unlabelled: a group of their own
    size = int(max(truth.max(), labels.max())) + 1
    table = np.zeros((size, size))
    np.add.at(table, (truth, labels), 1)
    rows, columns = linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / truth.shape[0])


def score(truth: Labels, labels: Labels) -> dict[str, float]:
    """Accuracy (Eq. 116), NMI (Eq. 117) and ARI (Eq. 118)."""
    return {
        "accuracy": accuracy(truth, labels),
        "nmi": float(normalized_mutual_info_score(truth, labels)),
        "ari": float(adjusted_rand_score(truth, labels)),
    }


def pooled_kmeans(
    views: Sequence[Floats], n_clusters: int, seed: int, *, scaled: bool = True
) -> Labels:
    """Labels of k-means (10 starts) on all rows and columns side by side.

    Columns are standardised unless ``scaled`` is False. Missing cells take their column's mean.
    """
    columns = []
    for view in views:
        observed = np.isfinite(view)
        count = np.maximum(observed.sum(axis=0), 1)
        centred = np.where(observed, view, 0.0)
        mean = centred.sum(axis=0) / count
        residual = np.where(observed, view - mean, 0.0)
        if not scaled:
            columns.append(residual)
            continue
        spread = np.sqrt((residual**2).sum(axis=0) / count)
        columns.append(residual / np.where(spread > 0, spread, 1.0))
    table = np.concatenate(columns, axis=1)
    model = KMeans(n_clusters, n_init=10, random_state=seed % 2**32).fit(table)
    return np.asarray(model.labels_, dtype=np.int64)


def read_truth(path: Path) -> dict[str, int]:
    """Read a truth file: a CSV with columns ``id`` and ``label``; labels are numbered in order.

    Raises
    ------
    DataRefused
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(row["id"], row["label"]) for row in csv.DictReader(file)]
        if not rows or any(not label for _, label in rows):
            raise ValueError("no row, or a row without a label")
        if len({record for record, _ in rows}) != len(rows):
            raise ValueError("an id stands there twice")
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise DataRefused(
            f"'{path.name}' is not a readable truth file: give a CSV (commas, UTF-8) with "
            "columns id and label, every id once and with a label",
            local_detail=f"{path}: {error}",
        ) from error
    numbers = {label: i for i, label in enumerate(sorted({label for _, label in rows}))}
    return {record: numbers[label] for record, label in rows}


def match_truth(truth: Mapping[str, int], ids: Sequence[str], name: str) -> Labels:
    """Return the labels of some records.

    Raises
    ------
    DataRefused
        Where records are not in the truth file.
    """
    if len(set(ids)) != len(ids):
        raise DataRefused(
            f"{len(ids) - len(set(ids))} ids of the run occur at more than one site: '{name}' "
            "cannot tell them apart; give every patient an id of its own"
        )
    lacking = sum(record not in truth for record in ids)
    if lacking:
        raise DataRefused(
            f"'{name}' lacks {lacking} of the run's {len(ids)} records: give this data's truth"
        )
    return np.array([truth[record] for record in ids], dtype=np.int64)
