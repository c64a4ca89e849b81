"""Small federations in this process, and the pooled iteration written the slow, obvious way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from configs.plan import RunPlan
from configs.schema import DataSchema
from configs.site import Device
from fedmvc_client.app import app
from fedmvc_client.relay import registered_workers
from fedmvc_client.worker import SiteWorker, array_worker
from fedmvc_server.local_grid import LocalGrid
from fedmvc_server.partitions import partition
from fedmvc_server.runner import RunResult, new_run_id, run
from strategies.preparation import box_seeds
from strategies.statistics import ViewScaling
from tests.solvers.reference import Reference, pooled_scaling

Change = Callable[[SiteWorker, bytes], bytes]


def plan_of(n_clusters=3, *, quorum=None, max_rounds=50, tol=1e-6, seed=0, profile=None, **fedhk):
    """Return a plan; further keywords are keys of its table ``[fedhk]``."""
    fields = {
        "method": "fedhk-mvfc",
        "n_clusters": n_clusters,
        "max_rounds": max_rounds,
        "tol": tol,
        "seed": seed,
        "fedhk": fedhk,
    }
    if profile is not None:
        fields["profile"] = profile
    if quorum is not None:
        fields["quorum"] = quorum
    return RunPlan.parse(fields)


def split(views, labels, kind, n_sites, seed=0):
    """Deal rows to sites; returns the sites' arrays and their row numbers, in name order."""
    parts = partition(kind, labels, n_sites, seed=seed)
    names = [f"site-{i:02d}" for i in range(n_sites)]
    sites = {
        name: {"views": [v[rows] for v in views]} for name, rows in zip(names, parts, strict=True)
    }
    return sites, dict(zip(names, parts, strict=True))


def pooled_labels(result, rows):
    """Labels of all sites, put back into the order of the pooled rows."""
    out = np.empty(sum(r.size for r in rows.values()), dtype=int)
    for name, index in rows.items():
        out[index] = result.site_results[name].labels
    return out


def accuracy(truth, labels):
    """Share of rows whose cluster, matched one to one, is the true one."""
    size = int(max(truth.max(), labels.max())) + 1
    table = np.zeros((size, size))
    np.add.at(table, (truth, labels), 1)
    return table[linear_sum_assignment(-table)].sum() / truth.size


class Between:
    """Stands in a worker's place: sees each request, may change it, the reply, or raise."""

    def __init__(self, worker: SiteWorker, change: Change) -> None:
        self.worker = worker
        self.change = change

    @property
    def site(self):
        """Name of the site."""
        return self.worker.site

    def handle(self, body):
        """Answer through `change`."""
        return self.change(self.worker, body)


def workers_of(sites, *, schema=None, devices: Mapping[str, Device] | None = None):
    """Return one array worker a site, by name."""
    schema = schema or DataSchema.from_arrays(
        [
            next(v for v in column if v is not None)
            for column in zip(*(s["views"] for s in sites.values()), strict=True)
        ]
    )
    schemas = schema if isinstance(schema, Mapping) else dict.fromkeys(sites, schema)
    return {
        name: array_worker(
            name,
            site["views"],
            schemas[name],
            device=(devices or {}).get(name, Device(device="cpu")),
        )
        for name, site in sorted(sites.items())
    }


def federate(
    plan,
    workers,
    *,
    change: Mapping[str, Change] | None = None,
    grid_class: type[LocalGrid] = LocalGrid,
    observer=None,
    out=None,
) -> RunResult:
    """Run a plan over workers, some of them replaced by what `change` makes of them."""
    named = {
        name: Between(worker, change[name]) if change and name in change else worker
        for name, worker in workers.items()
    }
    run_id = new_run_id()
    with registered_workers(named):
        grid = grid_class(app, {name: {"site": name} for name in named})
        watch = None if observer is None else lambda state: observer(grid, state)
        result = run(grid, plan, run_id, out=out, observer=watch)
    for name, worker in workers.items():
        kept = worker.result(run_id)
        if kept is not None:
            result.site_results[name] = kept
    return result


# -- the reference ---------------------------------------------------------------------------


@dataclass
class Centralised:
    """End of the plain iteration on pooled rows; centres in data units."""

    rounds: int
    centers: list
    view_weights: np.ndarray
    objectives: list
    membership: np.ndarray


def reference_of(views, settings):
    """Scaling and reference data of pooled rows, and the bandwidth the settings stand for."""
    scaling = [pooled_scaling(v, settings.scaling, settings.heat_kernel) for v in views]
    partly = [(np.isnan(v).any(axis=1) & ~np.isnan(v).all(axis=1)).any() for v in views]
    cells = [settings.heat_kernel != "one" or bool(p) for p in partly]
    reference = Reference.of(views, scaling, settings.heat_kernel, cells)
    bandwidth = np.full(len(views), 1.0)
    if settings.bandwidth != "auto":
        return scaling, reference, bandwidth * settings.bandwidth
    for h, (x, delta) in enumerate(zip(reference.x, reference.delta, strict=True)):
        middle = (delta * x).sum(axis=0) / np.maximum(delta.sum(axis=0), 1e-300)
        bandwidth[h] = 0.1 * reference.held[:, h].sum() / (delta * (x - middle) ** 2).sum()
    return scaling, reference, bandwidth


def centralised(views: Sequence[np.ndarray], plan: RunPlan) -> Centralised:
    """U -> V -> A on the pooled rows from one box start, loops and broadcasts only."""
    settings = plan.settings(sum(v.shape[1] for v in views))
    scaling, reference, bandwidth = reference_of(views, settings)
    low = [np.nanmin(v, axis=0) for v in views]
    high = [np.nanmax(v, axis=0) for v in views]
    seeds = box_seeds(low, high, plan.n_clusters, 1, plan.seed)
    a = [(s - sc.offset) / sc.scale for s, sc in zip(seeds, scaling, strict=True)]
    active = np.array([np.isfinite(sc.delta_b).any() for sc in scaling])
    v = (active / active.sum())[None]
    share, alpha = reference.held.mean(axis=0), settings.view_exponent
    objectives: list[float] = []
    while True:
        sums = reference.statistics(a, v, bandwidth[None], share, settings.fuzzifier, alpha)
        objectives.append(float((v**alpha * sums.dispersion / share).sum()))
        change = abs(objectives[-2] - objectives[-1]) if len(objectives) > 1 else np.inf
        if change <= plan.tol * abs(objectives[-1]) or len(objectives) == plan.max_rounds:
            break
        q = sums.dispersion[0] / share
        power = np.where(active, np.where(active, q, 1.0) ** (-1.0 / (alpha - 1.0)), 0.0)
        v = (power / power.sum())[None]
        a = [_ratio(n, w, old) for n, w, old in zip(sums.numerator, sums.mass, a, strict=True)]
    return Centralised(
        len(objectives),
        _raw(a, scaling),
        v[0],
        objectives,
        reference.memberships([x[0] for x in a], v[0], bandwidth, share, settings.fuzzifier, alpha),
    )


def _ratio(numerator, mass, old):
    weight = np.broadcast_to(mass[..., None] if mass.ndim == 2 else mass, numerator.shape)
    return np.where(weight > 1e-300, numerator / np.maximum(weight, 1e-300), old)


def _raw(centers, scaling: Sequence[ViewScaling]):
    return [sc.offset + sc.scale * a[0] for a, sc in zip(centers, scaling, strict=True)]
