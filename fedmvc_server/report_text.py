"""A finished run in a few lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedmvc_server.runner import RunResult

__all__ = ["summary"]

#: Coordinates of a centre shown for each view, and clusters shown.
_SHOWN = 6
_CLUSTERS_SHOWN = 20


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
    metrics = result.metrics
    if result.model is not None and metrics:
        rows = ", ".join(f"{site} {n}" for site, n in metrics["rows_by_site"].items())
        lines.append(f"patients     {metrics['rows']} ({rows})")
        weights = ", ".join(
            f"{view} {weight:.3f}"
            for view, weight in zip(result.model.views, result.model.view_weights, strict=True)
        )
        lines.append(f"view weights {weights}")
        lines.append(f"objective J  {metrics['objective']:.8g}")
        sizes = metrics["expected_cluster_sizes"]
        for k, size in enumerate(sizes[:_CLUSTERS_SHOWN]):
            centers = "; ".join(
                f"{view} ({_shortened(center[k])})"
                for view, center in zip(result.model.views, result.model.centers, strict=True)
            )
            lines.append(f"cluster {k}    expected size {size:.0f}, centre {centers}")
        if len(sizes) > _CLUSTERS_SHOWN:
            lines.append(f"and {len(sizes) - _CLUSTERS_SHOWN} clusters more: see model.npz")
        lines.append(
            f"partition    coefficient {metrics['partition_coefficient']:.3f} "
            "(1 = crisp memberships, 1/c = no structure)"
        )
    for method, score in scores.items():
        values = f"NMI {score['nmi']:.4f}, ARI {score['ari']:.4f}"
        lines.append(f"{method}: accuracy {score['accuracy']:.4f}, {values}")
    lines.append(
        f"bytes        {result.bytes_up:,} up, {result.bytes_down:,} down; no row left a site"
    )
    for site, reason in result.dropped.items():
        lines.append(f"site '{site}' is not in the result: it {reason}")
    lines.extend(f"warning: {sentence}" for sentence in result.warnings)
    lines.append(f"results: {out}")
    return "\n".join(lines)


def _shortened(values: Iterable[float]) -> str:
    shown = [f"{x:.4g}" for x in values]
    return ", ".join([*shown[:_SHOWN], "..."] if len(shown) > _SHOWN else shown)
