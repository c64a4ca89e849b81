"""What the sites of a FedHK-MVFC run agree on before round 1: views, columns, who shares what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused
from configs.plan import RunPlan
from strategies.messages import (
    ClusterModel,
    FinishReply,
    HelloReply,
    SeedReply,
    ViewDescription,
)
from strategies.preparation import Preparation, pooled_seeds
from strategies.statistics import Floats


@dataclass(frozen=True)
class AgreedViews:
    """Views held by at least one site, in the order of the first schema that names them."""

    names: tuple[str, ...]
    descriptions: tuple[ViewDescription, ...]
    held: dict[str, NDArray[np.bool_]]

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns d_h of each view."""
        return tuple(len(d.columns) for d in self.descriptions)

    @property
    def n_columns(self) -> int:
        """Columns over all views, D."""
        return sum(self.dims)

    def bounds(self, low: tuple[Floats, ...], high: tuple[Floats, ...]) -> tuple[Floats, ...]:
        """Return declared bounds (d_h, 2) of each view, the pooled range where none was."""
        return tuple(
            np.where(d.bounded[:, None], d.bounds, np.stack([a, b], axis=1))
            for d, a, b in zip(self.descriptions, low, high, strict=True)
        )


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

    def metrics(self, model: ClusterModel, replies: Mapping[str, FinishReply]) -> dict[str, Any]:
        """Return what the sites' final sums say of the model (Eqs. 65-70)."""
        settings, found = self.preparation.settings, replies.values()
        n_rows = np.array([r.n_rows for r in found], dtype=np.float64)
        dispersion = np.sum([r.dispersion for r in found], axis=0) / self.preparation.holding_share
        coefficient = n_rows @ np.array([r.partition_coefficient for r in found]) / n_rows.sum()
        sizes = np.sum([r.n_rows * r.mean_membership for r in found], axis=0)
        return {
            "objective": float((model.view_weights**settings.view_exponent * dispersion).sum()),
            "partition_coefficient": float(coefficient),
            "expected_cluster_sizes": sizes.tolist(),
            "rows": int(n_rows.sum()),
            "rows_by_site": self.site_rows,
            "statistics": {
                name: {"mean": m.mean.tolist(), "variance": m.variance.tolist()}
                for name, m in zip(self.views.names, self.preparation.moments, strict=True)
            },
        }


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


def _wording(view: ViewDescription) -> tuple[object, ...]:
    """Return what two descriptions of the same view must have in common."""
    bounds = np.where(view.bounded[:, None], view.bounds, 0.0)
    return (view.schema_hash, view.columns, view.units, view.bounded.tobytes(), bounds.tobytes())


def _declared(hello: Mapping[str, HelloReply]) -> dict[str, tuple[str, ViewDescription]]:
    """Return the description of each held view that most sites give, with the first of them.

    Views stand in schema order; of descriptions that equally many sites give the first counts.
    """
    order = list(dict.fromkeys(v.name for site in sorted(hello) for v in hello[site].views))
    given: dict[str, list[tuple[str, ViewDescription]]] = {name: [] for name in order}
    for site in sorted(hello):
        for view in hello[site].views:
            if view.held:
                given[view.name].append((site, view))
    chosen = {}
    for name, descriptions in given.items():
        wordings = [_wording(view) for _, view in descriptions]
        if wordings:
            chosen[name] = descriptions[wordings.index(max(wordings, key=wordings.count))]
    return chosen


def schema_conflicts(hello: Mapping[str, HelloReply]) -> dict[str, DataRefused]:
    """Sites that describe a view they hold in another way than most of those that hold it."""
    declared = _declared(hello)
    conflicts: dict[str, DataRefused] = {}
    for site in sorted(hello):
        for view in hello[site].views:
            if not view.held:
                continue
            reference, other = declared[view.name]
            if _wording(view) != _wording(other):
                conflicts[site] = DataRefused(
                    f"site '{site}' describes view '{view.name}' differently from site "
                    f"'{reference}' ({_difference(site, view, reference, other)}): both need the "
                    "same schema.toml"
                )
                break
    return conflicts


def _difference(site: str, view: ViewDescription, other_site: str, other: ViewDescription) -> str:
    """Name the first column that is not described alike."""
    for name in view.columns:
        if name not in other.columns:
            return f"only '{site}' has column '{name}'"
    for name in other.columns:
        if name not in view.columns:
            return f"only '{other_site}' has column '{name}'"
    for j, (name, expected) in enumerate(zip(view.columns, other.columns, strict=True)):
        if name != expected:
            return f"column {j + 1} is '{name}' here and '{expected}' there"
        if view.units[j] != other.units[j]:
            return f"column '{name}' has unit '{view.units[j]}' here and '{other.units[j]}' there"
        here, there = _bounds(view, j), _bounds(other, j)
        if here != there:
            return f"column '{name}' has {here} here and {there} there"
    return (
        f"the dtype or levels of a column: hash {view.schema_hash[:8]} here and "
        f"{other.schema_hash[:8]} there"
    )


def _bounds(view: ViewDescription, j: int) -> str:
    if not view.bounded[j]:
        return "no bounds"
    return f"bounds [{float(view.bounds[j, 0])!r}, {float(view.bounds[j, 1])!r}]"


def agree_on_views(hello: Mapping[str, HelloReply]) -> AgreedViews:
    """Put the sites' views side by side.

    Raises
    ------
    DataRefused
        Where nothing ties the views together: no chain of sites that share a view (section 5.1.4 of
        the paper, each hospital a different single view).
    """
    declared = _declared(hello)
    names = tuple(declared)
    if not names:
        raise DataRefused("no site of the run holds a view: give at least one site's view a file")
    held = {
        site: np.array(
            [any(v.name == name and v.held for v in reply.views) for name in names], dtype=bool
        )
        for site, reply in hello.items()
    }
    together = _group(held, len(names))
    if len(together) > 1:
        parts = " and ".join(
            "[" + ", ".join(sorted(names[h] for h in group)) + "]" for group in together
        )
        raise DataRefused(
            f"the sites share no view between {parts}, so nothing ties these groups together: give "
            "at least one site views of both, or use the vertical method on shared patients"
        )
    return AgreedViews(names, tuple(view for _, view in declared.values()), held)


def _group(held: Mapping[str, NDArray[np.bool_]], n_views: int) -> list[set[int]]:
    """Return the groups of views that sites connect."""
    groups: list[set[int]] = [{h} for h in range(n_views)]
    for mask in held.values():
        views = set(np.flatnonzero(mask).tolist())
        if not views:
            continue
        touching = [g for g in groups if g & views]
        groups = [g for g in groups if not g & views] + [set().union(*touching)]
    return groups
