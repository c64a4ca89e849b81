"""A site's columns in a clustering run on what an earlier run selected there, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from configs.errors import DataRefused
from configs.feature_choice import FeatureChoice
from configs.plan import RunPlan
from fedmvc_client.sources import Records, Source
from strategies.messages import ViewDescription

__all__ = ["describe_chosen", "load_chosen"]

#: Places of a view's chosen columns among all of its columns.
Places = Mapping[str, list[int]]


def describe_chosen(source: Source, plan: RunPlan) -> tuple[ViewDescription, ...]:
    """Describe the views that a plan uses at a site; all of them where ``features`` is empty.

    Parameters
    ----------
    source : Source
    plan : RunPlan

    Returns
    -------
    tuple of ViewDescription
        The chosen columns in their schema's order, under the hash of the whole view's schema; a
        view without a chosen column is left out.

    Raises
    ------
    DataRefused
        Where the site has no selection of the run that ``features`` names, or its schema is
        another one now.
    """
    choice = plan.feature_choice
    if choice is None:
        return source.describe()
    places = _places(source, choice)
    return tuple(
        _narrow(view, places[view.name]) for view in source.describe() if view.name in places
    )


def load_chosen(source: Source, plan: RunPlan) -> Records:
    """Read the records of a site with the columns that a plan uses.

    Returns
    -------
    Records
        All rows, also those that none of the chosen columns describes.

    Raises
    ------
    DataRefused
        As `describe_chosen`.
    """
    choice = plan.feature_choice
    if choice is None:
        return source.load()
    places = _places(source, choice)
    records = source.load()
    views = {
        name: view.take(places[name], axis=1)
        for name, view in records.views.items()
        if name in places
    }
    return replace(records, views=views)


def _places(source: Source, choice: FeatureChoice) -> Places:
    selection = source.selection(choice.run_id)
    if selection is None:
        raise DataRefused(
            f"site '{source.name}' has no selection of run {choice.run_id[:8]} in its results: "
            "take part in that run first"
        )
    selected = selection.selected(choice.ratio)
    described = {view.name: view.columns for view in source.describe()}
    places = {}
    for name, columns in selected.items():
        if not columns or name not in described:
            continue
        known = set(described[name])
        gone = [column for column in columns if column not in known]
        if gone:
            raise DataRefused(
                f"site '{source.name}': view '{name}' lacks {len(gone)} of the {len(columns)} "
                f"columns that run {choice.run_id[:8]} selected, for instance '{gone[0]}': use the "
                "schema.toml of that run, or select again"
            )
        chosen = set(columns)
        places[name] = [j for j, column in enumerate(described[name]) if column in chosen]
    held = {view.name for view in source.describe() if view.held}
    if not held & places.keys():
        raise DataRefused(
            f"site '{source.name}' holds 0 of the {sum(map(len, selected.values()))} columns that "
            f"run {choice.run_id[:8]} selected at {choice.ratio:g}: name a larger share in "
            "features or leave the run"
        )
    return places


def _narrow(view: ViewDescription, places: list[int]) -> ViewDescription:
    return replace(
        view,
        columns=tuple(view.columns[j] for j in places),
        units=tuple(view.units[j] for j in places),
        bounds=view.bounds[places],
        bounded=view.bounded[places],
    )
