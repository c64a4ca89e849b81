"""Scores of a simulated selection: k-means on the selected columns, beside what it must beat."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

from configs.plan import RunPlan
from fedmvc_server.evaluation import match_truth, pooled_kmeans, read_truth, score
from fedmvc_server.runner import RunResult
from fedmvc_server.scores import Scores, pooled_views
from strategies.feature_ranking import order_by_scores, random_scores, variance_scores

__all__ = ["selection_scores"]

Floats = NDArray[np.float64]

#: Random selections whose scores are averaged.
_DRAWS = 5


def selection_scores(
    plan: RunPlan, records: Mapping[str, Any], result: RunResult, truth: Path
) -> Scores:
    """Score k-means on the pooled rows by which columns it is given.

    Parameters
    ----------
    plan : RunPlan
    records : mapping
        Ids and views of each site, by name.
    result : RunResult
        With a selection.
    truth : Path

    Returns
    -------
    dict
        The selected columns; all of them; as many by their variance; as many at random, the mean of
        5 draws. Text is weighted by TF-IDF and its rows scaled to unit length over the columns.

    Raises
    ------
    DataRefused
        Where the truth file cannot be read or lacks records of the run.
    """
    selection = result.selection
    if selection is None:
        return {}
    known = read_truth(truth)
    names = sorted(records)
    ids = [record for name in names for record in records[name].ids]
    expected = match_truth(known, ids, truth.name)
    columns = dict(zip(selection.views, selection.columns, strict=True))
    views = pooled_views([records[name] for name in names], columns, columns)
    if selection.text:
        views = [
            _weighted(view, counted > 0)
            for view, counted in zip(views, selection.documents, strict=True)
        ]

    def rated(support: NDArray[np.bool_]) -> dict[str, float]:
        parts = selection.by_view(support)
        chosen = [view[:, part] for view, part in zip(views, parts, strict=True) if part.any()]
        if selection.text:
            chosen = [_unit_rows(view) for view in chosen]
        return score(
            expected, pooled_kmeans(chosen, plan.n_clusters, plan.seed, scaled=not selection.text)
        )

    support = selection.support()
    variances = np.concatenate([variance_scores(view) for view in views])
    m = int(support.sum())
    draws = [
        rated(_first(order_by_scores(random_scores(len(support), plan.seed + i)), m))
        for i in range(_DRAWS)
    ]
    return {
        f"k-means on the {m} selected columns ({plan.method}, {selection.rank})": rated(support),
        f"k-means on all columns ({len(support)})": rated(np.ones_like(support)),
        f"k-means on the {m} columns of largest variance": rated(
            _first(order_by_scores(variances), m)
        ),
        f"k-means on {m} random columns, mean of {_DRAWS}": {
            key: float(np.mean([draw[key] for draw in draws])) for key in draws[0]
        },
    }


def _first(order: NDArray[np.int64], m: int) -> NDArray[np.bool_]:
    support = np.zeros(len(order), dtype=bool)
    support[order[:m]] = True
    return support


def _weighted(view: Floats, counts: bool) -> Floats:
    """Return documents (n, d) as unit rows, counts by TF-IDF; a missing document stays NaN."""
    held = ~np.isnan(view).all(axis=1)
    out = np.full_like(view, np.nan)
    documents = view[held]
    if counts:
        out[held] = TfidfTransformer().fit_transform(documents).toarray()
    else:
        out[held] = normalize(documents)
    return out


def _unit_rows(view: Floats) -> Floats:
    held = ~np.isnan(view).all(axis=1)
    out = view.copy()
    out[held] = normalize(view[held])
    return out
