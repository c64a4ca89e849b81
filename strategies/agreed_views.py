"""What the sites of a horizontal run agree on before round 1: views, columns, who holds which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused
from strategies.messages import HelloReply, ViewDescription
from strategies.statistics import Floats

__all__ = ["AgreedViews", "agree_on_views", "schema_conflicts"]


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
