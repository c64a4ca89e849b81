"""What is fixed before round 1 of a FedHK-MVFC run, and the model and figures that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.plan import RunPlan
from strategies.agreed_views import AgreedViews
from strategies.messages import ClusterModel, FinishReply, SeedReply
from strategies.preparation import Preparation, pooled_seeds
from strategies.statistics import Floats
from strategies.unit_sums import FinalFigures


@dataclass(frozen=True)
class Setup:
    """Everything fixed before round 1: views, scaling, bandwidth (s,), centres (R, c, d_h)."""

    views: AgreedViews
    preparation: Preparation
    bandwidth: Floats
    centers: tuple[Floats, ...]
    site_rows: dict[str, int]

    def model(self, centers: Sequence[Floats], view_weights: Floats, plan_id: str) -> ClusterModel:
        """Make the published model from scaled centres (c, d_h) and view weights (s,)."""
        preparation, views = self.preparation, self.views
        return ClusterModel(
            centers=tuple(
                sc.offset + sc.scale * a for a, sc in zip(centers, preparation.scaling, strict=True)
            ),
            view_weights=view_weights,
            scaling=preparation.scaling,
            bandwidth=self.bandwidth,
            holding_share=preparation.holding_share,
            heat_kernel=preparation.settings.heat_kernel,
            scaling_kind=preparation.settings.scaling,
            fuzzifier=preparation.settings.fuzzifier,
            view_exponent=preparation.settings.view_exponent,
            views=views.names,
            columns=tuple(d.columns for d in views.descriptions),
            bounds=views.bounds(
                tuple(m.minimum for m in preparation.moments),
                tuple(m.maximum for m in preparation.moments),
            ),
            schema_hashes=tuple(d.schema_hash for d in views.descriptions),
            plan_id=plan_id,
        )

    def metrics(self, model: ClusterModel, figures: FinalFigures) -> dict[str, Any]:
        """Return what sums over records say of the model (Eqs. 65-70)."""
        settings = self.preparation.settings
        dispersion = figures.dispersion / self.preparation.holding_share
        return {
            "objective": float((model.view_weights**settings.view_exponent * dispersion).sum()),
            "partition_coefficient": figures.coefficient / max(figures.n_rows, 1),
            "expected_cluster_sizes": figures.sizes.tolist(),
            "rows": figures.n_rows,
            "rows_by_site": self.site_rows,
            "statistics": {
                name: {"mean": m.mean.tolist(), "variance": m.variance.tolist()}
                for name, m in zip(self.views.names, self.preparation.moments, strict=True)
            },
        }


def final_figures(replies: Sequence[FinishReply]) -> FinalFigures:
    """Add up what the sites found of the final model."""
    n_rows = np.array([r.n_rows for r in replies], dtype=np.float64)
    return FinalFigures(
        int(n_rows.sum()),
        np.sum([r.n_rows * r.mean_membership for r in replies], axis=0),
        np.sum([r.dispersion for r in replies], axis=0),
        float(n_rows @ np.array([r.partition_coefficient for r in replies])),
    )


def starting_centers(
    plan: RunPlan, preparation: Preparation, views: AgreedViews, replies: Mapping[str, SeedReply]
) -> tuple[tuple[Floats, ...], int]:
    """Make the starting centres that the plan's ``fedhk.init`` stands for.

    Returns
    -------
    centers : tuple of ndarray of shape (R, c, d_h)
    unseeded : int
        Starts for which no site gave a centre: they were drawn as for "box".
    """
    init, n_clusters, seed = plan.fedhk.init, plan.n_clusters, plan.seed
    if init != "kmeans":
        return preparation.data_free_seeds(init, n_clusters, seed), 0
    names = sorted(replies)
    counts = [replies[n].counts for n in names]
    centers = pooled_seeds(
        [replies[n].centers for n in names],
        counts,
        np.stack([views.held[n] for n in names]),
        preparation.spread,
        preparation.mean,
        n_clusters,
        seed,
        preparation.box,
    )
    seeded = np.any([(c > 0).any(axis=1) for c in counts], axis=0)
    return centers, int((~seeded).sum())
