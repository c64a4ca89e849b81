"""Both halves on one machine behind one function: in-process grid, or Ray."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from configs.compatibility import one_view_only
from configs.errors import ConfigError, DataRefused
from configs.plan import RunPlan
from configs.schema import DataSchema
from fedmvc_client.relay import registered_workers
from fedmvc_client.socket_server import serve_sites
from fedmvc_client.worker import SiteWorker, array_worker, folder_worker
from fedmvc_server.array_sites import (
    View,
    bounded_schema,
    earlier_outcomes,
    schema_of,
    vertical_views,
    views_of,
)
from fedmvc_server.hosting import host_workers
from fedmvc_server.local_grid import LocalGrid
from fedmvc_server.ray_backend import run_in_ray
from fedmvc_server.runner import Observer, RunResult, new_run_id, run
from fedmvc_server.site_folders import refuse_too_few, site_folders
from fedmvc_server.site_keys import draw_keys
from privacy.alignment import normalise_id

__all__ = [
    "hosted_sites",
    "id_rule_of",
    "score_folders",
    "shared_rows",
    "simulate",
    "simulate_folders",
]

Backend = Literal["inprocess", "ray"]
Arrays = Mapping[str, Mapping[str, Sequence[np.ndarray[Any, Any] | None]]]


def simulate(
    plan: RunPlan | Mapping[str, Any] | str | Path,
    sites: Arrays,
    *,
    schema: DataSchema | None = None,
    backend: Backend = "inprocess",
    out: str | Path | None = None,
    observer: Observer | None = None,
    selection: RunResult | None = None,
) -> RunResult:
    """Run a plan over sites given as arrays.

    Parameters
    ----------
    plan : RunPlan, mapping or path
        A mapping is validated as a plan file would be.
    sites : mapping
        ``{name: {"views": [array of shape (n, d_h) or None, ...]}}``; None where a site lacks a
        view, NaN where a cell is missing. The same order of views everywhere. For the vertical
        method row i is the same record at every site, a site has one view (its list may hold just
        that one), and CSR matrices are taken too.
    schema : DataSchema, optional
        Views and columns; by default ``view_0``, ... with columns ``x0``, ...
    backend : {"inprocess", "ray"}
    out : path, optional
        Folder for ``result.json``, ``model.npz``, ``model.json`` and ``rounds.csv``.
    observer : callable, optional
        Called with the run's state after each round.
    selection : RunResult, optional
        Result of the Fed-MUFSHT run that ``plan.features`` names, over the same sites.

    Returns
    -------
    RunResult
        With ``site_results[name].labels``, ``.membership`` and ``.personal_model``. A run that was
        refused or lost its sites comes back too: look at ``status`` and ``stop_reason``.

    Raises
    ------
    ConfigError
        Where the plan or the arrays cannot be used at all.
    DataRefused
        Where the rows of a vertical run cannot be the same records.
    QuorumLost
        Where there are fewer sites than ``quorum.min_sites``.
    """
    plan = _plan_of(plan)
    earlier = earlier_outcomes(plan, selection)
    vertical = plan.method == "tensor-fmvc"
    views = {name: views_of(name, site, sparse_too=vertical) for name, site in sites.items()}
    if not views:
        raise ConfigError("simulate was given 0 sites: give at least one")
    if vertical:
        views = vertical_views(views)
    inferred = schema_of(views)
    if schema is not None and len(schema.view_names) != len(inferred.view_names):
        raise ConfigError(
            f"the sites list {len(inferred.view_names)} views, the schema has "
            f"{len(schema.view_names)}: both need the same views in the same order"
        )
    bounds = None
    if schema is None and plan.needs_bounds:
        bounds = "derived from data, simulation only"
        inferred = bounded_schema(inferred, views)
    schema = schema or inferred
    with tempfile.TemporaryDirectory(prefix="fedmvc-") as scratch:
        folder = Path(scratch) if backend == "ray" else None
        make = partial(_array_workers, views, schema, folder, earlier)
        where = None if out is None else Path(out)
        return _run(plan, make, backend, where, observer, bounds=bounds)


def simulate_folders(
    plan: RunPlan,
    data: Path,
    *,
    backend: Backend = "inprocess",
    out: Path | None = None,
    observer: Observer | None = None,
    run_id: str | None = None,
    require_approval: bool = False,
) -> RunResult:
    """Run a plan over the site folders in ``data``; their results go into each folder.

    Parameters are those of `simulate`; ``run_id`` is a fresh one by default. With
    ``require_approval`` each site asks for an approval of the plan, whatever its policy.

    Raises
    ------
    ConfigError
        Where there is no site folder or one of their files does not fit.
    QuorumLost
        Where there are fewer sites than ``quorum.min_sites``.
    """
    folders = site_folders(data)
    make = partial(_folder_workers, folders, require_approval)
    return _run(plan, make, backend, out, observer, run_id)


def _plan_of(plan: RunPlan | Mapping[str, Any] | str | Path) -> RunPlan:
    if isinstance(plan, RunPlan):
        return plan
    if isinstance(plan, str | Path):
        return RunPlan.load(plan)
    return RunPlan.parse(_plain(plan))


def _plain(value: Any) -> Any:
    """Return nested mappings as dictionaries and NumPy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _array_workers(
    views: Mapping[str, Sequence[View | None]],
    schema: DataSchema,
    folder: Path | None,
    earlier: Mapping[str, Mapping[str, Any]],
) -> dict[int, SiteWorker]:
    keys, roster = draw_keys(list(views))
    return {
        i: array_worker(
            name,
            views[name],
            schema,
            folder=folder,
            earlier=earlier.get(name),
            identity=keys[name],
            roster=roster,
        )
        for i, name in enumerate(sorted(views))
    }


def _folder_workers(
    folders: Sequence[Path], require_approval: bool = False
) -> dict[int, SiteWorker]:
    workers = [folder_worker(folder, require_approval) for folder in folders]
    names = [w.site for w in workers]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(
            f"{names.count(twice[0])} site folders are named '{twice[0]}': rename one"
        )
    return dict(enumerate(workers))


def _run(
    plan: RunPlan,
    make: partial[dict[int, SiteWorker]],
    backend: str,
    out: Path | None,
    observer: Observer | None,
    run_id: str | None = None,
    bounds: str | None = None,
) -> RunResult:
    workers = make()
    refuse_too_few(plan, len(workers), "the simulation")
    run_id = run_id or new_run_id()
    if backend == "inprocess":
        named = {w.site: w for w in workers.values()}
        with registered_workers(named):
            grid = LocalGrid(_client_app(), {name: {"site": name} for name in sorted(named)})
            result = run(grid, plan, run_id, out=out, observer=observer, bounds=bounds)
    elif backend == "ray":
        result = _run_ray(plan, make, len(workers), run_id, out, observer, bounds)
    else:
        raise ConfigError(f"backend '{backend}' is unknown: use 'inprocess' or 'ray'")
    for worker in workers.values():
        worker.forget(run_id)  # a refused run too leaves nothing that would set it up again
        kept = worker.result(run_id)
        if kept is not None:
            result.site_results[worker.site] = kept
    return result


def _run_ray(
    plan: RunPlan,
    make: partial[dict[int, SiteWorker]],
    n_sites: int,
    run_id: str,
    out: Path | None,
    observer: Observer | None,
    bounds: str | None,
) -> RunResult:
    finished: list[RunResult] = []

    def main(grid: Grid, context: Context) -> None:
        with host_workers(serve_sites, make, context.run_id):
            finished.append(run(grid, plan, run_id, out=out, observer=observer, bounds=bounds))

    run_in_ray(main, _client_app(), n_sites)
    return finished[0]


def _client_app() -> ClientApp:
    """Import the ClientApp here only.

    `flwr run` imports this module in the ServerApp's thread, while another loads the ClientApp by
    its name: that one would find a module half loaded and give up.
    """
    from fedmvc_client.app import app

    return app


def score_folders(
    plan: RunPlan, data: Path, result: RunResult, truth: Path
) -> dict[str, dict[str, float]]:
    """Score a finished simulation against a truth file, beside its baselines.

    Raises
    ------
    DataRefused
        Where the truth file cannot be read or lacks records of the run.
    """
    from fedmvc_server.scores import horizontal_scores, vertical_scores

    sources = {w.site: w.source for w in _folder_workers(site_folders(data)).values()}
    records = {name: sources[name].load() for name in sorted(result.site_results)}
    if plan.method == "tensor-fmvc":
        return vertical_scores(plan, records, result, truth, id_rule_of(data))
    if plan.method == "fed-mufsht":
        from fedmvc_server.selection_scores import selection_scores

        return selection_scores(plan, records, result, truth)
    columns = {v.name: v.columns for name in records for v in sources[name].describe()}
    return horizontal_scores(plan, records, columns, result, truth)


def id_rule_of(data: Path) -> str:
    """Return the ``id_rule`` of the first site folder; a vertical run needs the same at all."""
    return DataSchema.load(site_folders(data)[0] / "schema.toml").id_rule


def shared_rows(data: Path) -> tuple[list[str], dict[str, Any]]:
    """Read the records that all site folders in ``data`` hold, in the order of their ids.

    Returns
    -------
    ids : list of str
        Normalised by the schema's rule, sorted.
    views : dict
        Each site's view (n, d) of these records.

    Raises
    ------
    DataRefused
        Where a site's files do not fit, it holds another number of views than one, or nothing is
        shared.
    """
    rows, views = {}, {}
    folders = site_folders(data)
    for folder, worker in zip(folders, _folder_workers(folders).values(), strict=True):
        source = worker.source
        records = source.load()
        one_view_only(source.name, len(records.views))
        rule = DataSchema.load(folder / "schema.toml").id_rule
        rows[source.name] = {normalise_id(r, rule): i for i, r in enumerate(records.ids)}
        (views[source.name],) = records.views.values()
    ids = sorted(set.intersection(*(set(known) for known in rows.values())))
    if not ids:
        raise DataRefused(f"the {len(rows)} site folders share 0 ids: give lists that overlap")
    return ids, {site: view[[rows[site][record] for record in ids]] for site, view in views.items()}


@contextmanager
def hosted_sites(data: Path, flower_run_id: int) -> Iterator[int]:
    """Serve the site folders in ``data`` to simulated nodes; yields the number of sites."""
    folders = site_folders(data)
    with host_workers(serve_sites, partial(_folder_workers, folders), flower_run_id):
        yield len(folders)
