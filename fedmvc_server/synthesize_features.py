"""Write a synthetic federation with many columns of which few matter, gaps included."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from configs.errors import ConfigError
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_server.partitions import partition
from fedmvc_server.planted import PLANTED_SIZES, planted_views, without_cells
from fedmvc_server.site_keys import write_keys
from fedmvc_server.synthesize import new_folder, refuse_taken, site_names, write_csv

__all__ = ["FEATURES_SCHEMA", "synthesize_features"]

_VIEWS = (("laboratory", "lab"), ("imaging", "img"), ("proteins", "prt"))
#: Of every column: the largest magnitude of 20 draws of 2,000 patients was 15.1.
_BOUNDS = [-20.0, 20.0]

FEATURES_SCHEMA = DataSchema.parse(
    {
        "id": "patient_id",
        "views": [
            {
                "name": name,
                "columns": [
                    {"name": f"{prefix}_{number:02d}", "dtype": "float", "bounds": _BOUNDS}
                    for number in range(1, d + 1)
                ],
            }
            for (name, prefix), (d, _) in zip(_VIEWS, PLANTED_SIZES, strict=True)
        ],
    }
)


def synthesize_features(
    out: str | Path,
    *,
    sites: int = 3,
    n: int = 600,
    n_clusters: int = 5,
    missing: float = 0.1,
    seed: int = 0,
) -> list[str]:
    """Write hospitals whose columns hide 45 informative ones among 190.

    Each site folder holds ``site.toml``, ``schema.toml`` and one CSV a view (60 laboratory, 80
    imaging and 50 protein columns; see `planted_views`). With three sites or more the last one has
    no protein file at all. Beside them lie ``truth.csv`` (id, label) and ``informative.csv`` (view,
    column), which no run opens. All or nothing is written.

    Parameters
    ----------
    out : str or Path
        Folder to make; it must not exist or be empty.
    sites : int, default 3
        Number of sites; patients are dealt without regard to their class.
    n : int, default 600
        Number of patients over all sites.
    n_clusters : int, default 5
        Number of phenotypes.
    missing : float, default 0.1
        Share of the cells that are empty, 0 or more and below 1.
    seed : int, default 0
        Seed of data, gaps and row orders.

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
    if not 0.0 <= missing < 1.0:
        raise ConfigError(f"missing is {missing:g}: give a share of at least 0 and below 1.")
    planted = planted_views(n, seed, n_clusters=n_clusters)
    parts = partition("iid", planted.labels, sites, seed=seed)
    views = without_cells(planted.views, missing, seed + 1)
    names = site_names(sites)
    ids = np.array([f"{number:0{len(str(n))}d}" for number in range(1, n + 1)])
    rng = np.random.default_rng([seed, 2])
    with new_folder(out) as folder:
        for site, (name, rows) in enumerate(zip(names, parts, strict=True)):
            held = len(views) - (sites > 2 and site == sites - 1)
            order = rng.permutation(rows)
            _write_site(folder / name, name, [view[order] for view in views[:held]], ids[order])
        write_keys(folder, names)
        write_csv(folder / "truth.csv", {"id": ids, "label": planted.labels})
        _write_informative(folder / "informative.csv", planted.informative)
    return names


def _write_site(folder: Path, name: str, views: list[np.ndarray], ids: np.ndarray) -> None:
    folder.mkdir()
    schemas = FEATURES_SCHEMA.views[: len(views)]
    files = {view.name: f"{view.name}.csv" for view in schemas}
    SiteConfig.parse({"name": name, "data": files, "policy": {"approval": "auto"}}).dump(folder)
    FEATURES_SCHEMA.dump(folder / "schema.toml")
    for schema, values in zip(schemas, views, strict=True):
        columns = {FEATURES_SCHEMA.id: ids}
        columns |= {column.name: values[:, j] for j, column in enumerate(schema.columns)}
        write_csv(folder / files[schema.name], columns)


def _write_informative(path: Path, informative: np.ndarray) -> None:
    names = [(v.name, c.name) for v in FEATURES_SCHEMA.views for c in v.columns]
    chosen = np.array(names)[informative]
    write_csv(path, {"view": chosen[:, 0], "column": chosen[:, 1]})
