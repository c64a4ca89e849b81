"""Scores of a finished simulation beside its baselines. Only a simulation sees every label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.plan import RunPlan
from fedmvc_server.evaluation import match_truth, pooled_kmeans, read_truth, score
from fedmvc_server.runner import RunResult
from privacy.alignment import normalise_id

__all__ = ["Scores", "horizontal_scores", "pooled_views", "read_truth_by_rule", "vertical_scores"]

Scores = dict[str, dict[str, float]]


def horizontal_scores(
    plan: RunPlan,
    records: Mapping[str, Any],
    columns: Mapping[str, Sequence[str]],
    result: RunResult,
    truth: Path,
) -> Scores:
    """Score the sites' labels side by side, beside k-means on the pooled rows.

    Parameters
    ----------
    plan : RunPlan
    records : mapping
        Ids and views of each site, by name, with all columns.
    columns : mapping
        Names of each view's columns.
    result : RunResult
    truth : Path

    Returns
    -------
    dict
        After a run on selected columns k-means has two entries: on these and on all columns.

    Raises
    ------
    DataRefused
        Where the truth file cannot be read or lacks records of the run.
    """
    known = read_truth(truth)
    names = sorted(records)
    ids = [record for name in names for record in result.site_results[name].ids]
    expected = match_truth(known, ids, truth.name)
    labels = np.concatenate([result.site_results[name].labels for name in names])
    model = result.model
    used: dict[str, Sequence[str]] = {}
    if model is not None:
        used = dict(zip(model.views, model.columns, strict=True))
    baselines = {"k-means on pooled rows": used}
    if plan.features:
        held = {view for name in names for view in records[name].views}
        baselines = {
            "k-means on pooled rows, selected columns": used,
            "k-means on pooled rows, all columns": {v: c for v, c in columns.items() if v in held},
        }
    scores = {f"{plan.method} ({plan.fedhk.aggregation})": score(expected, labels)}
    for words, wanted in baselines.items():
        views = pooled_views([records[name] for name in names], columns, wanted)
        scores[words] = score(expected, pooled_kmeans(views, plan.n_clusters, plan.seed))
    return scores


def pooled_views(
    records: Sequence[Any],
    columns: Mapping[str, Sequence[str]],
    wanted: Mapping[str, Sequence[str]],
) -> list[NDArray[np.float64]]:
    """Rows of all sites side by side, wanted columns only, NaN where a site lacks a view."""
    blocks = []
    for view, names in wanted.items():
        place = {column: j for j, column in enumerate(columns[view])}
        places = [place[name] for name in names]
        blocks.append(
            np.concatenate(
                [
                    r.views[view].take(places, axis=1)
                    if view in r.views
                    else np.full((len(r.ids), len(places)), np.nan)
                    for r in records
                ]
            )
        )
    return blocks


def read_truth_by_rule(truth: Path, rule: str) -> dict[str, int]:
    """Read a truth file (see `read_truth`) with ids as a vertical run compares them."""
    return {normalise_id(record, rule): label for record, label in read_truth(truth).items()}


def vertical_scores(
    plan: RunPlan, records: Mapping[str, Any], result: RunResult, truth: Path, rule: str
) -> Scores:
    """Score the shared records' labels beside the aligned vote and each site alone.

    Parameters are those of `horizontal_scores` and the schema's ``id_rule``.
    """
    known = read_truth_by_rule(truth, rule)
    names = sorted(records)
    scores: Scores = {}
    first = result.site_results[names[0]]
    shared = first.labels >= 0
    expected = match_truth(known, _chosen(first.ids, shared, rule), truth.name)
    scores[f"{plan.method} ({plan.tensor_settings().profile})"] = score(
        expected, first.labels[shared]
    )
    scores["aligned vote, no tensor term"] = score(expected, first.vote_labels[shared])
    for name in names:
        own = result.site_results[name]
        held = own.view_labels >= 0
        scores[f"site '{name}' alone"] = score(
            match_truth(known, _chosen(own.ids, held, rule), truth.name), own.view_labels[held]
        )
    views = _side_by_side([records[name] for name in names], _chosen(first.ids, shared, rule), rule)
    scores["k-means on the views side by side"] = score(
        expected, pooled_kmeans(views, plan.n_clusters, plan.seed)
    )
    return scores


def _chosen(ids: Sequence[str], mask: NDArray[np.bool_], rule: str) -> list[str]:
    return [normalise_id(record, rule) for record, chosen in zip(ids, mask, strict=True) if chosen]


def _side_by_side(
    records: Sequence[Any], ids: Sequence[str], rule: str
) -> list[NDArray[np.float64]]:
    """Return each view's rows in the order of ``ids``."""
    blocks: list[NDArray[np.float64]] = []
    for site in records:
        row_of = {normalise_id(record, rule): i for i, record in enumerate(site.ids)}
        blocks.extend(view[[row_of[record] for record in ids]] for view in site.views.values())
    return blocks
