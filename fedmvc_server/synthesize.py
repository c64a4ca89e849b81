"""Write a synthetic data set as site folders, the way hospitals would hold it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from configs.errors import ConfigError
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_server.cardio import cardio_views
from fedmvc_server.partitions import partition as deal
from fedmvc_server.site_keys import write_keys

__all__ = [
    "CARDIO_SCHEMA",
    "new_folder",
    "refuse_taken",
    "site_names",
    "synthesize_cardio",
    "write_csv",
]

# Bounds hold every point that the generator draws short of a seven-sigma jitter.
CARDIO_SCHEMA = DataSchema.parse(
    {
        "id": "patient_id",
        "views": [
            {
                "name": "ecg",
                "columns": [
                    {"name": "ecg_x", "dtype": "float", "bounds": [-1.0, 11.0]},
                    {"name": "ecg_y", "dtype": "float", "bounds": [-1.0, 11.0]},
                ],
            },
            {
                "name": "imaging",
                "columns": [
                    {"name": "imaging_x", "dtype": "float", "bounds": [-9.0, 10.0]},
                    {"name": "imaging_y", "dtype": "float", "bounds": [-10.0, 9.0]},
                ],
            },
        ],
    }
)

_HOSPITALS = (
    "st-anna",
    "charite-nord",
    "riverside",
    "san-marco",
    "lakeview",
    "sankt-olav",
    "mercy",
    "hopital-sud",
    "northgate",
    "santa-lucia",
    "elmwood",
    "kaiserin",
)


def site_names(sites: int) -> list[str]:
    """Return that many distinct hospital-like site names."""
    further = (f"hospital-{number}" for number in range(len(_HOSPITALS) + 1, sites + 1))
    return [*_HOSPITALS[:sites], *further]


def synthesize_cardio(
    out: str | Path,
    *,
    sites: int = 2,
    n: int = 10_000,
    partition: str = "paper",
    alpha: float = 0.3,
    seed: int = 0,
) -> list[str]:
    """Write the cardio set as site folders.

    Each site folder holds ``site.toml``, ``schema.toml``, ``ecg.csv`` and ``imaging.csv``, the rows
    of the two files in different orders, an identity key and the roster of all sites' keys.
    ``truth.csv`` (id, label) lies beside the site folders; no run opens it. All or nothing is
    written.

    Parameters
    ----------
    out : str or Path
        Folder to make; it must not exist or be empty.
    sites : int, default 2
        Number of sites.
    n : int, default 10000
        Number of patients over all sites.
    partition : {"paper", "iid", "dirichlet", "missing", "stratified"}, default "paper"
        How patients are dealt to the sites; see `fedmvc_server.partitions`.
    alpha : float, default 0.3
        Concentration of the Dirichlet partition.
    seed : int, default 0
        Seed of data, partition and row orders.

    Returns
    -------
    list of str
        The sites' names.

    Raises
    ------
    ConfigError
        If the folder is taken or cannot be written, or an argument is out of range.
    """
    out = Path(out)
    refuse_taken(out)
    views, labels = cardio_views(n, seed)
    parts = deal(partition, labels, sites, alpha=alpha, seed=seed)
    names = site_names(sites)
    ids = np.array([f"{number:0{len(str(n))}d}" for number in range(1, n + 1)])
    rng = np.random.default_rng([seed, 1])
    with new_folder(out) as folder:
        for name, rows in zip(names, parts, strict=True):
            _write_site(folder / name, name, [view[rows] for view in views], ids[rows], rng)
        write_keys(folder, names)
        write_csv(folder / "truth.csv", {"id": ids, "label": labels})
    return names


def refuse_taken(out: Path) -> None:
    """Refuse a folder to make that exists and is not empty.

    Raises
    ------
    ConfigError
    """
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise _cannot_write(out, error) from None
    if taken:
        raise ConfigError(
            f"'{out.name}' already exists and is not an empty folder: name another folder or "
            "remove it first.",
            local_detail=str(out),
        )


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder that becomes `out` where the block ends well, and vanishes where it does not.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    staging = out.parent / f".{out.name}-{uuid.uuid4().hex}"  # a sibling: rename is then atomic
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
        yield staging
        staging.rename(out)
    except OSError as error:
        raise _cannot_write(out, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # gone already where all went well


def _cannot_write(out: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"folder '{out.name}' cannot be written: {error.strerror}.", local_detail=str(out)
    )


def _write_site(
    folder: Path, name: str, views: list[np.ndarray], ids: np.ndarray, rng: np.random.Generator
) -> None:
    folder.mkdir()
    files = {view.name: f"{view.name}.csv" for view in CARDIO_SCHEMA.views}
    SiteConfig.parse({"name": name, "data": files, "policy": {"approval": "auto"}}).dump(folder)
    CARDIO_SCHEMA.dump(folder / "schema.toml")
    for schema, values in zip(CARDIO_SCHEMA.views, views, strict=True):
        order = rng.permutation(ids.size)
        columns = {CARDIO_SCHEMA.id: ids[order]}
        for j, column in enumerate(schema.columns):
            columns[column.name] = values[order, j]
        write_csv(folder / files[schema.name], columns)


def write_csv(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns as CSV; a missing number (NaN) becomes an empty cell."""
    arrays = {name: pa.array(column, from_pandas=True) for name, column in columns.items()}
    csv.write_csv(pa.table(arrays), path)
