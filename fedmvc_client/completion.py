"""Fill the missing cells of a site's records by what a Fed-MUFSHT run learned, at the site."""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from configs.errors import ConfigError, DataRefused
from configs.mufsht_profiles import resolve_mufsht
from configs.schema import DataSchema
from configs.site import Dialect, SiteConfig
from fedmvc_client.data import SiteData, load_site
from fedmvc_client.results import read_selection
from fedmvc_client.solvers.feature_preparation import check_range
from fedmvc_client.solvers.feature_site import FeatureSite
from fedmvc_client.tabular import PARQUET_SUFFIXES
from strategies.messages import FeatureSelection

__all__ = ["Completion", "impute", "impute_files"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Completion:
    """Records without most of their gaps.

    Attributes
    ----------
    ids : tuple of str
    views : mapping of str to ndarray of shape (n, d_v)
        NaN where a cell stayed missing.
    imputed, left : mapping of str to int
        Cells of each view that were filled, and that stayed missing.
    """

    ids: tuple[str, ...]
    views: Mapping[str, Floats]
    imputed: Mapping[str, int]
    left: Mapping[str, int]


def impute(
    selection: FeatureSelection,
    views: Mapping[str, Floats],
    *,
    device: str = "auto",
    name: str = "the data",
) -> dict[str, Floats]:
    """Predict missing cells from a record's other cells by a run's weights.

    Embeddings are fitted to the observed cells from the published weights on; ``W Z`` is the
    prediction (Eq. 13, resolved). Penalties and sweeps are those of profile "gated".

    Parameters
    ----------
    selection : FeatureSelection
    views : mapping of str to ndarray of shape (n, d_v), float64
        Views of the selection, some or all, with its columns; the same records, at least k of them;
        NaN = missing.
    device : str, default "auto"
    name : str, default "the data"
        How a sentence calls the records.

    Returns
    -------
    dict of str to ndarray of shape (n, d_v)
        The views given. Observed cells are unchanged. Columns without any observed cell stay NaN,
        and so do records without one.

    Raises
    ------
    ConfigError
        Where the selection is of text.
    DataRefused
        Where there are fewer records than k, no view of the selection, or other columns.
    """
    if selection.text:
        raise ConfigError(
            "the selection is of text, whose missing documents are not imputed: give one of a run "
            "with mufsht.text = false"
        )
    given = [view for view in selection.views if view in views]
    if not given:
        raise DataRefused(
            f"{name} has 0 of the selection's {len(selection.views)} views "
            f"({', '.join(selection.views)}): name a file for one in site.toml"
        )
    n_rows = len(views[given[0]])
    rows = []
    for view, size in zip(selection.views, selection.sizes, strict=True):
        table = np.asarray(views.get(view, np.full((n_rows, size), np.nan)), dtype=np.float64)
        if table.shape != (n_rows, size):
            raise DataRefused(
                f"view '{view}' of {name} has shape {table.shape}, the selection needs "
                f"{(n_rows, size)}: give its columns, and the same rows in every view"
            )
        check_range(table, f"view '{view}' of {name}")
        rows.append(table)
    site = FeatureSite(
        rows,
        selection.scaling,
        resolve_mufsht(),
        selection.weights.shape[1],
        seed=0,
        device=device,
        name=name,
    )
    site.settle(selection.weights)
    return {view: site.completed(v) for v, view in enumerate(selection.views) if view in given}


def impute_files(description: Path, data: Path, out: Path, site: Path) -> Completion:
    """Fill the gaps of a data folder's files and write them to another folder.

    Parameters
    ----------
    description : Path
        ``selection.json``; ``selection.npz`` lies beside it.
    data : Path
        Folder with the view files that ``site.toml`` names; its own ``site.toml`` and
        ``schema.toml`` where it has them, else those of ``site``.
    out : Path
        Folder to make: one file a view under the name and in the format of its original, all
        records of the folder sorted by id.
    site : Path
        The site's folder.

    Raises
    ------
    ConfigError, DataRefused
    """
    if out.exists():
        raise ConfigError(f"--out '{out.name}' exists already: name a folder that does not")
    selection = read_selection(description, description.with_name("selection.npz"))
    home = data if (data / "site.toml").is_file() else site
    config = SiteConfig.load(home)
    schema = DataSchema.load((data if (data / "schema.toml").is_file() else site) / "schema.toml")
    loaded = load_site(data, schema, config)
    before = _views_of(selection, loaded)
    after = impute(selection, before, device=config.device.device, name=f"site '{config.name}'")
    _write(loaded, after, config, out)
    left = {view: int(np.isnan(cells).sum()) for view, cells in after.items()}
    imputed = {view: int(np.isnan(before[view]).sum()) - left[view] for view in after}
    return Completion(loaded.ids, after, imputed, left)


def _views_of(selection: FeatureSelection, data: SiteData) -> dict[str, Floats]:
    """Return the data's views that the selection has, with its columns."""
    found = {}
    for view, columns in zip(selection.views, selection.columns, strict=True):
        if view not in data.views:
            continue
        own = _names(data.schema, view)
        if own != list(columns):
            strange = len(set(own) ^ set(columns))
            raise DataRefused(
                f"view '{view}' and the selection differ in {strange} column names or in their "
                "order: use the schema.toml of that run"
            )
        other = [c.name for c in data.schema.view(view).columns if c.dtype != "float"]
        if other:
            raise DataRefused(
                f"view '{view}' has {len(other)} columns that are not of dtype 'float' (first "
                f"'{other[0]}') and impute fills numbers only: leave the view out of [data]"
            )
        found[view] = data.views[view]
    return found


def _names(schema: DataSchema, view: str) -> list[str]:
    return [feature.name for feature in schema.features(view)]


# -- files -----------------------------------------------------------------------------------------


def _write(data: SiteData, views: Mapping[str, Floats], config: SiteConfig, out: Path) -> None:
    """Write all files beside the folder first: an interrupted write leaves nothing."""
    files = {view: Path(config.data[view]).name for view in views}
    if len(set(files.values())) < len(files):
        raise ConfigError(
            f"{len(files)} views have files of {len(set(files.values()))} different names in "
            "[data]: give each a name of its own"
        )
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".writing-") as name:
            draft = Path(name) / "imputed"
            draft.mkdir(mode=0o750)  # of patients: not for every user of the machine
            for view, cells in views.items():
                header = [data.schema.id, *_names(data.schema, view)]
                if Path(files[view]).suffix.lower() in PARQUET_SUFFIXES:
                    columns = [list(data.ids), *cells.T]
                    table = pa.table(dict(zip(header, columns, strict=True)))
                    pq.write_table(table, draft / files[view])
                else:
                    _write_csv(draft / files[view], config.dialect, header, data.ids, cells)
            draft.rename(out)
    except OSError as error:
        raise ConfigError(
            f"'{out.name}' cannot be written: name another folder with --out",
            local_detail=str(error),
        ) from error


def _write_csv(
    path: Path, dialect: Dialect, header: Sequence[str], ids: Iterable[str], cells: Floats
) -> None:
    """Write a view as ``[dialect]`` says; a missing cell is empty, or the first missing token."""
    blank = "" if "" in dialect.missing else next(iter(dialect.missing), "")
    with path.open("w", newline="", encoding=dialect.encoding) as file:
        writer = csv.writer(file, delimiter=dialect.delimiter, lineterminator="\n")
        writer.writerow(header)
        for record, row in zip(ids, cells.tolist(), strict=True):
            texts = (
                repr(number).removesuffix(".0").replace(".", dialect.decimal)
                if math.isfinite(number)
                else blank
                for number in row
            )
            writer.writerow([record, *texts])
