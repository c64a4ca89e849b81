"""A finished run in a few lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedmvc_server.noise_control import NoiseControl
from fedmvc_server.runner import RunResult
from strategies.feature_selection import FeatureSelection
from strategies.model import ClusterModel

__all__ = ["noise_summary", "summary"]

#: Coordinates of a centre shown for each view, and clusters shown.
_SHOWN = 6
_CLUSTERS_SHOWN = 20
#: Columns of a selection that are named.
_COLUMNS_SHOWN = 8


def summary(result: RunResult, out: Path, scores: dict[str, Any]) -> str:
    """Say what a run found, what it cost, and where its results are.

    Parameters
    ----------
    result : RunResult
    out : Path
        The results folder.
    scores : dict
        By method: accuracy, NMI and ARI against a truth file; empty where none was given.
    """
    # why a run did not complete is the error's sentence, on standard error
    why = f": {result.stop_reason}" if result.status == "completed" else ""
    lines = [f"{result.status} after {result.rounds} rounds, {result.wall_s:.1f} s{why}"]
    if result.model is not None:
        lines += _of_model(result, result.model)
    elif result.selection is not None:
        lines += _of_selection(result, result.selection)
    elif "cluster_sizes" in result.metrics:
        lines += _of_labels(result)
    lines += _of_privacy(result.certificate)
    for method, score in scores.items():
        values = f"NMI {score['nmi']:.4f}, ARI {score['ari']:.4f}"
        lines.append(f"{method}: accuracy {score['accuracy']:.4f}, {values}")
    labels_left = result.model is None and result.selection is None
    left = "tokens and labels, no measurement" if labels_left else "no row"
    lines.append(
        f"bytes        {result.bytes_up:,} up, {result.bytes_down:,} down; {left} left a site"
    )
    for site, reason in result.dropped.items():
        lines.append(f"site '{site}' is not in the result: it {reason}")
    lines.extend(f"warning: {sentence}" for sentence in result.warnings)
    lines.append(f"results: {out}")
    return "\n".join(lines)


def _of_model(result: RunResult, model: ClusterModel) -> list[str]:
    """Say what a run's model is: weights, sizes, centres; with noise nobody counted patients."""
    metrics, lines = result.metrics, []
    if metrics:
        rows = ", ".join(f"{site} {n}" for site, n in metrics["rows_by_site"].items())
        lines.append(f"patients     {metrics['rows']} ({rows or 'all sites together'})")
    weights = ", ".join(
        f"{view} {weight:.3f}" for view, weight in zip(model.views, model.view_weights, strict=True)
    )
    lines.append(f"view weights {weights}")
    if metrics:
        lines.append(f"objective J  {metrics['objective']:.8g}")
    n_clusters = model.centers[0].shape[0]
    sizes = metrics.get("expected_cluster_sizes", [None] * n_clusters)
    for k, size in enumerate(sizes[:_CLUSTERS_SHOWN]):
        centers = "; ".join(
            f"{view} ({_shortened(center[k])})"
            for view, center in zip(model.views, model.centers, strict=True)
        )
        expected = "" if size is None else f"expected size {size:.0f}, "
        lines.append(f"cluster {k}    {expected}centre {centers}")
    if len(sizes) > _CLUSTERS_SHOWN:
        lines.append(f"and {len(sizes) - _CLUSTERS_SHOWN} clusters more: see model.npz")
    if metrics:
        lines.append(
            f"partition    coefficient {metrics['partition_coefficient']:.3f} "
            "(1 = crisp memberships, 1/c = no structure)"
        )
    return lines


def _of_privacy(certificate: dict[str, Any]) -> list[str]:
    """Say what a run guarantees, where it guarantees something."""
    parts = []
    if certificate.get("threshold") is not None:
        parts.append("the server saw sums over sites only")
    if certificate.get("epsilon") is not None:
        alone = certificate["epsilon_if_others_collude"]
        parts.append(
            f"epsilon {certificate['epsilon']:.3f} at delta {certificate['delta']:g} for "
            f"{certificate['unit'].split(';')[0]}, {alone:.3f} if all other sites collude"
        )
    return [f"privacy      {'; '.join(parts)}"] if parts else []


def _of_labels(result: RunResult) -> list[str]:
    """Say what a vertical run found: sizes, and how far the sites and their vote agree with it."""
    metrics = result.metrics
    lists = ", ".join(f"{site} {n}" for site, n in metrics["rows_by_site"].items())
    vote = metrics["aligned_vote"]
    drawn = result.certificate.get("mechanism") == "randomised-response"
    own = "its own labels as drawn agree" if drawn else "its own clustering agrees"
    lines = [f"patients     {metrics['rows']} that all sites hold (lists: {lists})"]
    for site, view in metrics["views"].items():
        lines.append(
            f"site '{site}': view {view}, weight {metrics['view_weights'][site]:.3f} "
            f"({metrics['vote_shares'][site]:.1%} of the vote), {own} on "
            f"{metrics['agreement'][site]:.1%} of its rows "
            f"(NMI {metrics['agreement_nmi'][site]:.3f})"
        )
    sizes = metrics["cluster_sizes"][:_CLUSTERS_SHOWN]
    more = len(metrics["cluster_sizes"]) - len(sizes)
    lines.append(
        f"cluster sizes {', '.join(map(str, sizes))}{f' and {more} clusters more' if more else ''}"
    )
    lines.append(f"aligned vote without the tensor term: agrees on {vote['agreement']:.1%} of rows")
    if metrics["rows_without_label"]:
        lines.append(f"{metrics['rows_without_label']} rows have no data at any site and no label")
    return lines


def _of_selection(result: RunResult, selection: FeatureSelection) -> list[str]:
    """Say what a selection found: how many columns of each view, the first of them, the sites.

    With noise there is no count of patients, no view weight and no agreement.
    """
    metrics = result.metrics
    lines = []
    if "rows" in metrics:
        # a site that left in a round was counted before round 1
        when = " before round 1; at the end" if result.dropped else " at"
        lines.append(f"patients     {metrics['rows']}{when} {len(result.sites)} sites")
    m = sum(metrics["selected"].values())
    lines.append(
        f"selected     {m} of {len(selection.ranking)} columns (ratio {selection.ratio:g})"
    )
    view_weights = metrics.get("view_weights", {})
    for view, found in metrics["selected"].items():
        weight = f", weight {view_weights[view]:.3f}" if view in view_weights else ""
        lines.append(f"view {view}: {found} of {metrics['features'][view]} columns{weight}")
    first = [row for _, row in zip(range(min(m, _COLUMNS_SHOWN)), selection.rows(), strict=False)]
    named = ", ".join(f"{row['view']}.{row['column']} {row['score']:.3f}" for row in first)
    lines.append(f"first        {named}{', ...' if m > len(first) else ''}")
    for site, weight in metrics["weights"].items():
        quality = metrics.get("quality", {}).get(site)
        own = "" if quality is None else f"its own clusterings agree to NMI {quality:.3f}, "
        lines.append(f"site '{site}': {own}weight {weight:.3f}")
    if "kept" in metrics:
        lines.append(
            f"agreement    the mean keeps {metrics['kept']:.3f} of the norm of the sites' weights "
            "(1 = they agree)"
        )
    return lines


def noise_summary(found: NoiseControl, out: Path) -> str:
    """Say what a noise control found, in a few lines."""
    noise, permutation = found.noise, found.permutation
    lines = [
        f"noise        {noise['rows']} rows, {noise['draws']} draws: accuracy "
        f"{noise['accuracy']:.3f} against blocks of the row index, labels at random "
        f"{noise['random_accuracy']:.3f} (at most {noise['limit']:.2f} above); in two orders "
        f"labels agree on {noise['order_agreement']:.1%}: {_verdict(noise['passed'])}"
    ]
    if permutation is not None:
        scored = ""
        if "permuted" in permutation:
            scored = (
                f", accuracy {permutation['given_order']['accuracy']:.4f} and "
                f"{permutation['permuted']['accuracy']:.4f}"
            )
        lines.append(
            f"permutation  {permutation['rows']} rows in two orders: labels agree on "
            f"{permutation['agreement']:.1%} (at least {1 - permutation['limit']:.0%}){scored}: "
            f"{_verdict(permutation['passed'])}"
        )
    lines.extend(f"warning: {sentence}" for sentence in found.warnings)
    lines.append(f"results: {out}")
    return "\n".join(lines)


def _verdict(passed: bool) -> str:
    return "passed" if passed else "FAILED"


def _shortened(values: Iterable[float]) -> str:
    shown = [f"{x:.4g}" for x in values]
    return ", ".join([*shown[:_SHOWN], "..."] if len(shown) > _SHOWN else shown)
