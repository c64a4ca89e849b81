"""The model a FedHK-MVFC run ends with: what is published, what ``predict`` reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import get_args

import numpy as np

from configs.profiles import HeatKernel
from strategies.statistics import Floats, ViewScaling


@dataclass(frozen=True)
class ClusterModel:
    """Cluster centres, view weights and the scaling that a new record needs.

    Parameters
    ----------
    centers : tuple of ndarray of shape (c, d_h)
        Cluster centres in data units.
    view_weights : ndarray of shape (s,)
        On the simplex.
    scaling : tuple of ViewScaling
        Pooled scaling of each view.
    bandwidth : ndarray of shape (s,)
        beta_h of the heat kernel.
    holding_share : ndarray of shape (s,)
        pi_h, the share of training records that hold view h, in (0, 1].
    heat_kernel, scaling_kind : str
        "minmax" | "absdev" | "one" and "minmax" | "standard" | "none".
    fuzzifier, view_exponent : float
        m > 1 and alpha > 1.
    views : tuple of str
    columns : tuple of tuple of str
        Column names by view, in the order of the centres' columns.
    bounds : tuple of ndarray of shape (d_h, 2)
        Declared bounds of each column; the pooled range where none was declared.
    schema_hashes : tuple of str
    plan_id : str
    """

    centers: tuple[Floats, ...]
    view_weights: Floats
    scaling: tuple[ViewScaling, ...]
    bandwidth: Floats
    holding_share: Floats
    heat_kernel: str
    scaling_kind: str
    fuzzifier: float
    view_exponent: float
    views: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    bounds: tuple[Floats, ...]
    schema_hashes: tuple[str, ...]
    plan_id: str

    @property
    def n_clusters(self) -> int:
        """Number of clusters c."""
        return int(self.centers[0].shape[0])

    @property
    def scaled_centers(self) -> tuple[Floats, ...]:
        """Centres in the scaled units the solvers work in, each (c, d_h)."""
        return tuple(
            (a - sc.offset) / sc.scale for a, sc in zip(self.centers, self.scaling, strict=True)
        )

    def arrays(self) -> dict[str, Floats]:
        """Arrays of ``model.npz`` by name."""
        out: dict[str, Floats] = {}
        for h, (center, sc) in enumerate(zip(self.centers, self.scaling, strict=True)):
            out[f"centers_{h}"] = center
            out[f"offset_{h}"] = sc.offset
            out[f"scale_{h}"] = sc.scale
            out[f"delta_a_{h}"] = sc.delta_a
            out[f"delta_b_{h}"] = sc.delta_b
        out["view_weights"] = self.view_weights
        out["bandwidth"] = self.bandwidth
        out["holding_share"] = self.holding_share
        return out

    def description(self) -> dict[str, object]:
        """Content of ``model.json``: everything that is not an array."""
        return {
            "method": "fedhk-mvfc",
            "plan_id": self.plan_id,
            "n_clusters": self.n_clusters,
            "heat_kernel": self.heat_kernel,
            "scaling": self.scaling_kind,
            "fuzzifier": self.fuzzifier,
            "view_exponent": self.view_exponent,
            "views": [
                {
                    "name": name,
                    "columns": list(columns),
                    "bounds": bounds.tolist(),
                    "schema_hash": schema_hash,
                }
                for name, columns, bounds, schema_hash in zip(
                    self.views, self.columns, self.bounds, self.schema_hashes, strict=True
                )
            ],
        }

    @classmethod
    def from_parts(cls, arrays: dict[str, Floats], description: dict[str, object]) -> ClusterModel:
        """Rebuild a model from the content of ``model.npz`` and ``model.json``.

        Raises
        ------
        KeyError, TypeError, ValueError
            Where a part is missing or of another kind.
        """
        views = description["views"]
        if not isinstance(views, list):
            raise TypeError("views must be a list")
        if description["heat_kernel"] not in get_args(HeatKernel):
            raise ValueError("heat_kernel is unknown")
        s = len(views)
        return cls(
            centers=tuple(arrays[f"centers_{h}"] for h in range(s)),
            view_weights=arrays["view_weights"],
            scaling=tuple(
                ViewScaling(
                    arrays[f"offset_{h}"],
                    arrays[f"scale_{h}"],
                    arrays[f"delta_a_{h}"],
                    arrays[f"delta_b_{h}"],
                )
                for h in range(s)
            ),
            bandwidth=arrays["bandwidth"],
            holding_share=arrays["holding_share"],
            heat_kernel=str(description["heat_kernel"]),
            scaling_kind=str(description["scaling"]),
            fuzzifier=float(str(description["fuzzifier"])),
            view_exponent=float(str(description["view_exponent"])),
            views=tuple(str(v["name"]) for v in views),
            columns=tuple(tuple(map(str, v["columns"])) for v in views),
            bounds=tuple(np.asarray(v["bounds"], dtype=np.float64).reshape(-1, 2) for v in views),
            schema_hashes=tuple(str(v["schema_hash"]) for v in views),
            plan_id=str(description["plan_id"]),
        )

    def sha256(self) -> str:
        """SHA-256 over the arrays' bytes in name order: two runs agree bit for bit or differ."""
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return digest.hexdigest()
