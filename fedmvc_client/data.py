"""A site's data: one file a view, bound by column name, joined on the id, checked and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from configs.errors import DataRefused
from configs.schema import DataSchema, ViewSchema
from configs.site import SiteConfig
from fedmvc_client.tabular import ViewTable, read_view

__all__ = ["DataReport", "SiteData", "load_site"]


@dataclass(frozen=True)
class DataReport:
    """What was counted while reading; it stays at the site.

    Attributes
    ----------
    rows : int
        Number of records, over all views.
    missing : mapping of view to mapping of column to int
        Missing cells (missing tokens and non-finite numbers) among the records the view's file has.
    outside_bounds : mapping of view to mapping of column to int
        Observed cells outside the declared bounds, for each column that has some. They are kept.
    lacking_view : mapping of view to int
        Records that the view's file does not have, or without any observed cell.
    """

    rows: int
    missing: Mapping[str, Mapping[str, int]]
    outside_bounds: Mapping[str, Mapping[str, int]]
    lacking_view: Mapping[str, int]


@dataclass(frozen=True)
class SiteData:
    """A site's records.

    Attributes
    ----------
    ids : tuple of str
        Record ids, sorted; row i of every view belongs to ``ids[i]``.
    views : mapping of str to ndarray of shape (n, d_h), float64
        The views that the site has, in schema order; NaN = missing. A record that a view's file
        does not have is a row of NaN.
    schema : DataSchema
        The schema that the columns follow.
    report : DataReport
        Counts.
    """

    ids: tuple[str, ...]
    views: Mapping[str, np.ndarray]
    schema: DataSchema
    report: DataReport


def load_site(site_dir: Path, schema: DataSchema, config: SiteConfig) -> SiteData:
    """Read a site's files.

    Columns are bound by name and rows are sorted by id, so files with shuffled columns or rows
    give bit-identical arrays.

    Parameters
    ----------
    site_dir : Path
        The site's folder; file names in `config` are relative to it.
    schema : DataSchema
        The agreed views. The site may hold a subset of them.
    config : SiteConfig
        Which file holds which view, and how CSV files are written.

    Returns
    -------
    SiteData
        Ids, arrays and counts.

    Raises
    ------
    DataRefused
        If a view is not in the schema or its file does not fit it; the message names the view, the
        column and the way out, and no value, id or path.
    """
    unknown = [name for name in config.data if name not in schema.view_names]
    if unknown:
        raise DataRefused(
            f"site '{config.name}': [data] names view '{unknown[0]}', which the schema does not "
            f"have; its views: {', '.join(schema.view_names)}."
        )
    held = [view for view in schema.views if view.name in config.data]
    tables = {
        view.name: read_view(
            Path(site_dir) / config.data[view.name], config.name, view, schema.id, config.dialect
        )
        for view in held
    }
    ids = sorted(set().union(*(table.ids for table in tables.values())))
    row_of = {record: row for row, record in enumerate(ids)}
    views = {view.name: _array(tables[view.name], view, row_of) for view in held}
    return SiteData(
        ids=tuple(ids),
        views=views,
        schema=schema,
        report=DataReport(
            rows=len(ids),
            missing={view.name: _missing(tables[view.name]) for view in held},
            outside_bounds={view.name: _outside(tables[view.name], view) for view in held},
            lacking_view={
                name: int(np.isnan(array).all(axis=1).sum()) for name, array in views.items()
            },
        ),
    )


def _array(table: ViewTable, view: ViewSchema, row_of: Mapping[str, int]) -> np.ndarray:
    rows = np.array([row_of[record] for record in table.ids])
    array = np.full((len(row_of), len(view.features())), np.nan)
    position = 0
    for column in view.columns:
        cells = table.columns[column.name]
        if column.dtype == "category":
            indicators = cells[:, None] == np.arange(len(column.levels))
            block = np.where(np.isnan(cells)[:, None], np.nan, indicators)
        else:
            block = cells[:, None]
        array[rows, position : position + block.shape[1]] = block
        position += block.shape[1]
    return array


def _missing(table: ViewTable) -> dict[str, int]:
    return {name: int(np.isnan(cells).sum()) for name, cells in table.columns.items()}


def _outside(table: ViewTable, view: ViewSchema) -> dict[str, int]:
    counts = {}
    for column in view.columns:
        if column.bounds is not None:
            low, high = column.bounds
            cells = table.columns[column.name]
            counts[column.name] = int(((cells < low) | (cells > high)).sum())
    return counts
