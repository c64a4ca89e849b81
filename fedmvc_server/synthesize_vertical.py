"""Write a synthetic vertical federation: hospitals with different views of the same patients."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from configs.errors import ConfigError
from configs.schema import DataSchema, ViewSchema
from configs.site import SiteConfig
from fedmvc_server.cardio import gaussian_views
from fedmvc_server.synthesize import new_folder, refuse_taken, site_names, write_csv
from privacy.alignment import make_linkage_key

__all__ = ["VerticalSet", "synthesize_vertical", "vertical_schema"]

#: Views of the first hospitals: name, and columns as (name, unit, least, greatest).
_VIEWS: tuple[tuple[str, tuple[tuple[str, str, float, float], ...]], ...] = (
    (
        "ecg",
        (
            ("heart_rate", "1/min", 20.0, 240.0),
            ("pr", "ms", 60.0, 400.0),
            ("qrs", "ms", 40.0, 240.0),
            ("qtc", "ms", 250.0, 700.0),
        ),
    ),
    (
        "imaging",
        (
            ("ejection_fraction", "%", 5.0, 90.0),
            ("end_diastolic_volume", "mL", 30.0, 400.0),
            ("wall_thickness", "mm", 3.0, 30.0),
            ("strain", "%", -40.0, 5.0),
        ),
    ),
    (
        "laboratory",
        (
            ("crp", "mg/L", 0.0, 300.0),
            ("creatinine", "µmol/L", 20.0, 900.0),
            ("potassium", "mmol/L", 2.0, 8.0),
            ("hba1c", "mmol/mol", 15.0, 150.0),
            ("nt_probnp", "ng/L", 0.0, 35000.0),
        ),
    ),
    (
        "spirometry",
        (("fev1", "L", 0.2, 8.0), ("fvc", "L", 0.3, 9.0), ("pef", "L/s", 0.5, 15.0)),
    ),
    (
        "wearable",
        (("steps", "1/d", 0.0, 40000.0), ("sleep", "h", 0.0, 20.0), ("rmssd", "ms", 0.0, 250.0)),
    ),
)
_OTHER_COLUMNS = (("a", "", 0.0, 100.0), ("b", "", 0.0, 100.0), ("c", "", 0.0, 100.0))

#: Least distance of two clusters in standard deviations, hospital by hospital and round again; the
#: last hospital's view is weak.
_SEPARATIONS = (4.0, 3.5, 3.0)
_WEAK = 1.5
#: One record in so many has no measurement.
_EMPTY_EVERY = 50


@dataclass(frozen=True)
class VerticalSet:
    """What was written.

    Attributes
    ----------
    views : dict of str to str
        The view that each site holds.
    n_shared : int
        Patients on every site's list.
    """

    views: dict[str, str]
    n_shared: int


def vertical_schema(sites: int) -> DataSchema:
    """Return the schema of that many hospitals: one view each, the same file at all of them."""
    further = [(f"device-{number}", _OTHER_COLUMNS) for number in range(len(_VIEWS) + 1, sites + 1)]
    return DataSchema.parse(
        {
            "id": "patient_id",
            "views": [
                {
                    "name": name,
                    "columns": [
                        {"name": column, "dtype": "float", "unit": unit, "bounds": [low, high]}
                        for column, unit, low, high in columns
                    ],
                }
                for name, columns in [*_VIEWS[:sites], *further]
            ],
        }
    )


def synthesize_vertical(
    out: str | Path,
    *,
    sites: int = 3,
    n: int = 1000,
    n_clusters: int = 4,
    overlap: float = 0.9,
    seed: int = 0,
) -> VerticalSet:
    """Write hospitals with one view each of mostly the same patients.

    Each site folder holds ``site.toml``, ``schema.toml``, one CSV and ``state/linkage.key``, which
    is the same at all sites. The lists are in different orders, ids have leading zeros, and one
    record in 50 has no measurement. Patients that are not on every list are on one or, with more
    than two sites, on two. ``truth.csv`` (id, label) lies beside the site folders; no run opens it.
    All or nothing is written, and the same call writes the same bytes, the key aside.

    Parameters
    ----------
    out : str or Path
        Folder to make; it must not exist or be empty.
    sites : int, default 3
        Number of sites, at least 2.
    n : int, default 1000
        Number of patients on each site's list.
    n_clusters : int, default 4
        Number of phenotypes. The views tell them apart unequally well, the last one badly.
    overlap : float, default 0.9
        Share of each list that is on every list, above 0 and at most 1.
    seed : int, default 0
        Seed of data, lists and row orders.

    Returns
    -------
    VerticalSet

    Raises
    ------
    ConfigError
        If the folder is taken or cannot be written, or an argument is out of range.
    """
    out = Path(out)
    refuse_taken(out)
    if sites < 2:
        raise ConfigError(f"sites is {sites}: a vertical federation needs 2 or more.")
    if not 0.0 < overlap <= 1.0:
        raise ConfigError(f"overlap is {overlap:g}: give a share above 0 and at most 1.")
    n_shared = round(overlap * n)
    if n_shared < n_clusters:
        raise ConfigError(
            f"{n} patients a site with overlap {overlap:g} share {n_shared}, too few for "
            f"{n_clusters} clusters: give more patients or a larger overlap."
        )
    schema, names = vertical_schema(sites), site_names(sites)
    lists, total = _lists(sites, n, n_shared)
    views, labels = gaussian_views(
        total,
        seed,
        n_clusters=n_clusters,
        dims=[len(view.columns) for view in schema.views],
        separation=_SEPARATIONS[0],
    )
    rng = np.random.default_rng([seed, 1])
    ids = np.array([f"{number:0{len(str(total)) + 1}d}" for number in rng.permutation(total) + 1])
    by_id = np.argsort(ids)
    with new_folder(out) as folder:
        key = folder / "linkage.key"
        make_linkage_key(key)
        for site, (name, view, rows) in enumerate(zip(names, schema.views, lists, strict=True)):
            separation = _SEPARATIONS[site % len(_SEPARATIONS)] if site < sites - 1 else _WEAK
            values = _measured(views[site], separation, view, rng)
            order = rng.permutation(rows)
            cells = values[order]
            cells[rng.permutation(n)[: -(-n // _EMPTY_EVERY)]] = np.nan
            columns = {schema.id: ids[order]}
            columns |= {c.name: cells[:, j] for j, c in enumerate(view.columns)}
            _write_site(folder / name, name, schema, view.name, columns, key)
        key.unlink()
        write_csv(folder / "truth.csv", {"id": ids[by_id], "label": labels[by_id]})
    return VerticalSet(dict(zip(names, schema.view_names, strict=True)), n_shared)


def _lists(sites: int, n: int, n_shared: int) -> tuple[list[np.ndarray], int]:
    """Return each site's patients as numbers below the total, and the total.

    Of a list's patients that are not on every list a quarter each is also on the next site's and on
    the one before's.
    """
    own = n - n_shared
    paired = own // 4 if sites > 2 else 0
    sizes = [n_shared, *[paired] * sites, *[own - 2 * paired if sites > 2 else own] * sites]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    pairs, alone = parts[1 : sites + 1], parts[sites + 1 :]
    lists = [
        np.concatenate([parts[0], pairs[site], pairs[site - 1], alone[site]])
        for site in range(sites)
    ]
    return lists, sum(sizes)


def _measured(
    values: np.ndarray, separation: float, view: ViewSchema, rng: np.random.Generator
) -> np.ndarray:
    """Blur standard values to a smaller separation and spread them over the columns' bounds."""
    blur = np.sqrt((_SEPARATIONS[0] / separation) ** 2 - 1.0)
    values = values + blur * rng.standard_normal(values.shape)
    low, high = (np.array(side) for side in zip(*_bounds(view), strict=True))
    reach = 1.05 * np.abs(values).max(axis=0)
    return np.round(low + (high - low) * (0.5 + values / (2.0 * reach)), 3)


def _bounds(view: ViewSchema) -> Sequence[tuple[float, float]]:
    return [column.bounds for column in view.columns if column.bounds is not None]


#: Synthetic patients give their consent.
_POLICY = {"approval": "auto", "share_labels": True}


def _write_site(
    folder: Path,
    name: str,
    schema: DataSchema,
    view: str,
    columns: dict[str, np.ndarray],
    key: Path,
) -> None:
    (folder / "state").mkdir(parents=True)
    config = SiteConfig.parse({"name": name, "data": {view: f"{view}.csv"}, "policy": _POLICY})
    config.dump(folder)
    schema.dump(folder / "schema.toml")
    write_csv(folder / config.data[view], columns)
    shutil.copy(key, folder / config.keys.linkage)  # with its mode
