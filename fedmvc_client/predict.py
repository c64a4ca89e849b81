"""Label new patients with a finished run's model, at the site."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

from configs.errors import ConfigError, DataRefused
from configs.profiles import HeatKernel
from configs.schema import DataSchema
from configs.site import Device, SiteConfig
from fedmvc_client.data import SiteData, load_site
from fedmvc_client.results import read_model
from fedmvc_client.solvers.fuzzifier import hard_labels
from fedmvc_client.solvers.heat_kernel import kernel_distances, memberships
from fedmvc_client.solvers.views import PreparedViews
from strategies.messages import ClusterModel

__all__ = ["Prediction", "predict", "predict_files"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Labels of new records.

    Attributes
    ----------
    ids : tuple of str
    labels : ndarray of shape (n,), int64
        -1 for a record without any observed cell.
    membership : ndarray of shape (n, c)
    distance : ndarray of shape (n,)
        Heat-kernel distance to the record's own cluster, 0 (on the centre) to 1; NaN where there
        is none.
    outside_bounds : ndarray of shape (n,), int64
        Cells outside the model's bounds: there the model extrapolates.
    """

    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    membership: Floats
    distance: Floats
    outside_bounds: NDArray[np.int64]


def predict(model: ClusterModel, data: SiteData, device: Device) -> Prediction:
    """Label a site's records.

    Raises
    ------
    DataRefused
        Where the schema of a view is not the model's, or no view of the model is there.
    """
    views: list[Floats | None] = []
    for name, columns, known in zip(model.views, model.columns, model.schema_hashes, strict=True):
        view = data.views.get(name)
        if view is not None and data.schema.schema_hash(name) != known:
            raise DataRefused(
                f"view '{name}' follows schema {data.schema.schema_hash(name)[:8]}, the model was "
                f"made with {known[:8]}: use the schema.toml of that run"
            )
        views.append(None if view is None else _chosen(view, name, columns, data.schema))
    if all(view is None for view in views):
        raise DataRefused(
            f"the data hold none of the model's views ({', '.join(model.views)}): name a file for "
            "one in site.toml"
        )
    prepared = PreparedViews(
        views,
        model.scaling,
        cast("HeatKernel", model.heat_kernel),
        cell_mass=(True,) * len(views),
        device=device.device,
        dtype=device.dtype,
    )
    centers = model.scaled_centers
    membership = memberships(
        prepared,
        centers,
        model.view_weights,
        bandwidth=model.bandwidth,
        holding_share=model.holding_share,
        fuzzifier=model.fuzzifier,
        view_exponent=model.view_exponent,
    )
    labels = hard_labels(membership, prepared.held)
    distances = kernel_distances(
        prepared,
        centers,
        model.view_weights,
        bandwidth=model.bandwidth,
        holding_share=model.holding_share,
        view_exponent=model.view_exponent,
    )
    return Prediction(
        data.ids,
        labels,
        membership,
        np.where(labels < 0, np.nan, distances[np.arange(len(labels)), labels]),
        _outside(model, views, len(data.ids)),
    )


def _chosen(view: Floats, name: str, columns: tuple[str, ...], schema: DataSchema) -> Floats:
    """Return the model's columns of a view: all, or those that an earlier run selected."""
    place = {feature.name: j for j, feature in enumerate(schema.features(name))}
    unknown = [column for column in columns if column not in place]
    if unknown:
        raise DataRefused(
            f"view '{name}' lacks {len(unknown)} of the model's {len(columns)} columns, for "
            f"instance '{unknown[0]}': use the schema.toml of that run"
        )
    return view.take([place[column] for column in columns], axis=1)


def _outside(model: ClusterModel, views: list[Floats | None], n_rows: int) -> NDArray[np.int64]:
    count = np.zeros(n_rows, dtype=np.int64)
    for view, bounds in zip(views, model.bounds, strict=True):
        if view is not None:
            count += ((view < bounds[:, 0]) | (view > bounds[:, 1])).sum(axis=1)
    return count


def predict_files(model_path: Path, data: Path, out: Path, site: Path) -> Prediction:
    """Label the records of a data folder and write them to a file.

    Parameters
    ----------
    model_path : Path
        ``model.json``; ``model.npz`` lies beside it.
    data : Path
        Folder with the view files that ``site.toml`` names; its own ``site.toml`` and
        ``schema.toml`` where it has them, else those of ``site``.
    out : Path
        ``.csv`` or ``.parquet``: id, label, u_1 .. u_c, distance, outside_bounds.
    site : Path
        The site's folder.

    Raises
    ------
    ConfigError, DataRefused
    """
    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out '{out.name}' ends in '{out.suffix}': use .csv or .parquet")
    model = read_model(model_path, model_path.with_name("model.npz"))
    home = data if (data / "site.toml").is_file() else site
    config = SiteConfig.load(home)
    schema = DataSchema.load((data if (data / "schema.toml").is_file() else site) / "schema.toml")
    found = predict(model, load_site(data, schema, config), config.device)
    _write(found, out)
    return found


def _write(found: Prediction, out: Path) -> None:
    columns: dict[str, object] = {"id": list(found.ids), "label": found.labels}
    for k in range(found.membership.shape[1]):
        columns[f"u_{k + 1}"] = found.membership[:, k]
    columns["distance"] = found.distance
    columns["outside_bounds"] = found.outside_bounds
    table = pa.table(columns)
    draft = out.with_name(f".{out.name}.part")
    try:
        if out.suffix == ".csv":
            csv.write_csv(table, draft)
        else:
            pq.write_table(table, draft)
        draft.replace(out)
    except OSError as error:
        raise ConfigError(
            f"'{out.name}' cannot be written: name another file with --out", local_detail=str(error)
        ) from error
    finally:
        draft.unlink(missing_ok=True)
