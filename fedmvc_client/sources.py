"""Where a site's records come from: a folder of files, or arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from scipy.sparse import issparse

from configs.errors import ConfigError, DataRefused
from configs.plan import RunPlan
from configs.schema import DataSchema
from configs.site import Device, Policy, SiteConfig
from fedmvc_client.outcomes import Outcome, SelectionResult
from fedmvc_client.safe import FolderSafe, MemorySafe, Safe
from privacy.alignment import ROW_NUMBER, TOKEN_BYTES, link_tokens, read_linkage_key
from privacy.roster import Roster
from strategies.messages import FeatureSelection, ViewDescription

Floats = NDArray[np.float64]
#: A float64 array or a CSR matrix of shape (n, d_h); scipy has no types.
View: TypeAlias = Any

#: Arrays in memory are their owner's to experiment with.
_PERMISSIVE = Policy(
    approval="auto",
    auto_runs_a_month=2**31,
    min_cohort=1,
    min_contributors=1,
    min_cell=1,
    epsilon_budget=1e9,
    delta_budget=0.01,
    share_labels=True,
)

#: Columns of a view that are noted one by one.
_COLUMNS_NOTED = 5


@dataclass(frozen=True)
class Records:
    """A site's records: ids and views by name, (n, d_h) float64, NaN where missing.

    Arrays in memory may be sparse, for the vertical method only. ``notes`` are sentences on what
    was counted while reading, for the site's own log.
    """

    ids: tuple[str, ...]
    views: Mapping[str, View]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Link:
    """A site's tokens (n, 16), sorted; ``tokens[i]`` belongs to record ``order[i]``."""

    tokens: NDArray[np.uint8]
    order: NDArray[np.int64]
    id_rule: str


class Source(Protocol):
    """Records of one site, its policy, and a place for its results."""

    @property
    def name(self) -> str:
        """Name of the site."""
        ...

    @property
    def policy(self) -> Policy:
        """What the site demands of a run."""
        ...

    @property
    def device(self) -> Device:
        """Where and in which precision the site computes."""
        ...

    @property
    def safe(self) -> Safe:
        """The site's keys, register, ledger, audit log and vaults."""
        ...

    @property
    def state_dir(self) -> Path | None:
        """Folder for what must survive a restart; None keeps it in memory."""
        ...

    def describe(self) -> tuple[ViewDescription, ...]:
        """Describe the views of the site's schema: names, columns, units, bounds; no values."""
        ...

    def load(self) -> Records:
        """Read and check the records."""
        ...

    def link(self, records: Records, plan: RunPlan) -> Link:
        """Return the tokens by which a vertical run finds the records that all sites hold."""
        ...

    def save(self, run_id: str, result: Outcome, certificate: Mapping[str, Any]) -> None:
        """Keep a run's results, and what the run guarantees, at the site."""
        ...

    def finished(self, run_id: str) -> bool:
        """Say whether a run's results are already kept."""
        ...

    def result(self, run_id: str) -> Outcome | None:
        """Return a run's results; None where the run left none."""
        ...

    def selection(self, run_id: str) -> FeatureSelection | None:
        """Return the features that a run selected; None where it left no selection here."""
        ...


def _counted(columns: Mapping[str, int], what: str) -> list[str]:
    """Say how many cells of each column are ``what``: of many columns, of all together."""
    found = {column: count for column, count in columns.items() if count}
    if len(found) <= _COLUMNS_NOTED:
        return [f"column '{column}': {count} cells {what}" for column, count in found.items()]
    most = max(found, key=lambda column: found[column])
    return [
        f"{sum(found.values())} cells {what} in {len(found)} of {len(columns)} columns, most of "
        f"them ({found[most]}) in '{most}'"
    ]


def describe_views(schema: DataSchema, held: Sequence[str]) -> tuple[ViewDescription, ...]:
    """Describe every view of a schema for hello."""
    out = []
    for name in schema.view_names:
        features = schema.features(name)
        out.append(
            ViewDescription(
                name,
                tuple(f.name for f in features),
                tuple(f.unit for f in features),
                np.array([f.bounds or (0.0, 0.0) for f in features]).reshape(-1, 2),
                np.array([f.bounds is not None for f in features], dtype=bool),
                schema.schema_hash(name),
                name in held,
            )
        )
    return tuple(out)


class FolderSource:
    """A site's folder: ``site.toml``, ``schema.toml``, data files, ``results``, ``state``.

    Raises
    ------
    ConfigError
        Where one of the two files does not fit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.config = SiteConfig.load(self.folder)
        self.schema = DataSchema.load(self.folder / "schema.toml")
        self.safe: Safe = FolderSafe(self.folder, self.config)

    @property
    def name(self) -> str:
        """Name of the site."""
        return self.config.name

    @property
    def policy(self) -> Policy:
        """Table ``[policy]`` of ``site.toml``."""
        return self.config.policy

    @property
    def device(self) -> Device:
        """Table ``[device]`` of ``site.toml``."""
        return self.config.device

    @property
    def state_dir(self) -> Path | None:
        """``state`` in the site's folder."""
        return self.folder / "state"

    def describe(self) -> tuple[ViewDescription, ...]:
        """Describe the schema's views."""
        return describe_views(self.schema, list(self.config.data))

    def load(self) -> Records:
        """Read the files; count what is missing or outside its bounds."""
        from fedmvc_client.data import load_site  # pyarrow: only the worker needs it

        data = load_site(self.folder, self.schema, self.config)
        notes = [
            f"site '{self.name}', view '{view}', {sentence}"
            for what, counts in (
                ("missing", data.report.missing),
                ("outside their declared bounds", data.report.outside_bounds),
            )
            for view, columns in counts.items()
            for sentence in _counted(columns, what)
        ]
        notes += [
            f"site '{self.name}', view '{view}': {count} of {data.report.rows} records lack it"
            for view, count in data.report.lacking_view.items()
            if count
        ]
        return Records(data.ids, dict(data.views), tuple(notes))

    def link(self, records: Records, plan: RunPlan) -> Link:
        """Hash the ids under the linkage key that the sites share."""
        key = read_linkage_key(self.folder / self.config.keys.linkage)
        tokens, order = link_tokens(
            records.ids,
            rule=self.schema.id_rule,
            key=key,
            plan_id=plan.plan_id,
            cost=plan.tensor.link_cost,
            site=self.name,
        )
        return Link(tokens, order, self.schema.id_rule)

    def save(self, run_id: str, result: Outcome, certificate: Mapping[str, Any]) -> None:
        """Write ``results/RUN_ID``."""
        from fedmvc_client.results import write_results

        write_results(self.folder / "results" / run_id, result, certificate)

    def finished(self, run_id: str) -> bool:
        """Say whether ``results/RUN_ID`` is there."""
        return (self.folder / "results" / run_id).exists()

    def result(self, run_id: str) -> Outcome | None:
        """Read ``results/RUN_ID``."""
        from fedmvc_client.results import read_results

        return read_results(self.folder / "results" / run_id)

    def selection(self, run_id: str) -> FeatureSelection | None:
        """Read ``selection.json`` and ``selection.npz`` of ``results/RUN_ID``."""
        from fedmvc_client.results import read_selection

        description = self.folder / "results" / run_id / "selection.json"
        if not description.is_file():
            return None
        try:
            return read_selection(description, description.with_suffix(".npz"))
        except ConfigError as error:
            raise DataRefused(
                f"site '{self.name}' cannot read its selection of run {run_id}: restore "
                "selection.json and selection.npz in that run's results, or take part in a "
                "selection again",
                local_detail=error.local_detail,
            ) from error


class ArraySource:
    """Views in memory, for simulation from Python; a permissive policy.

    Rows have no ids but their numbers, so in a vertical run row i is the same record everywhere.

    Parameters
    ----------
    name : str
    views : sequence of ndarray or CSR matrix of shape (n, d_h), or None
        In the schema's order; None where the site lacks a view. NaN = missing. A CSR matrix is for
        the vertical method only.
    schema : DataSchema
    device : Device, optional
    folder : Path, optional
        Where results go when another process than the caller's computes them.
    earlier : mapping of str to Outcome, optional
        What earlier runs left at this site, by run id.
    identity, roster : optional
        The site's key and the federation's, for runs with masked sums.
    """

    def __init__(
        self,
        name: str,
        views: Sequence[View | None],
        schema: DataSchema,
        device: Device | None = None,
        folder: Path | None = None,
        earlier: Mapping[str, Outcome] | None = None,
        identity: Ed25519PrivateKey | None = None,
        roster: Roster | None = None,
    ) -> None:
        self.name = name
        self.policy = _PERMISSIVE
        self.safe: Safe = MemorySafe(name, self.policy, identity, roster)
        self.device = device or Device()
        self.state_dir: Path | None = None
        self._folder = folder
        self._results: dict[str, Outcome] = {}
        self._earlier = dict(earlier or {})
        self._schema = schema
        self._views = list(views)

    def describe(self) -> tuple[ViewDescription, ...]:
        """Describe the schema's views."""
        held = [
            name
            for name, view in zip(self._schema.view_names, self._views, strict=False)
            if view is not None
        ]
        return describe_views(self._schema, held)

    def load(self) -> Records:
        """Check the arrays' shapes; non-finite cells become missing.

        Raises
        ------
        DataRefused
        """
        views: dict[str, View] = {}
        n_rows: int | None = None
        for name, view in zip(self._schema.view_names, self._views, strict=False):
            if view is None:
                continue
            array = view if issparse(view) else np.array(view, dtype=np.float64)
            expected = len(self._schema.features(name))
            if array.ndim != 2 or array.shape[1] != expected:
                raise DataRefused(
                    f"site '{self.name}': view '{name}' has shape {array.shape}, the schema "
                    f"declares {expected} columns: give an array of shape (rows, {expected})"
                )
            if n_rows is not None and array.shape[0] != n_rows:
                raise DataRefused(
                    f"site '{self.name}': view '{name}' has {array.shape[0]} rows, the views "
                    f"before it have {n_rows}: every view needs the same rows, NaN where missing"
                )
            n_rows = array.shape[0]
            if not issparse(array):
                array[~np.isfinite(array)] = np.nan
            views[name] = array
        if not n_rows:
            raise DataRefused(f"site '{self.name}' has 0 rows: give it data or leave it out")
        return Records(tuple(str(i) for i in range(n_rows)), views)

    def link(self, records: Records, plan: RunPlan) -> Link:
        """Return the row numbers, big-endian: the tokens' order is then the rows'."""
        n = len(records.ids)
        tokens = np.zeros((n, TOKEN_BYTES), dtype=np.uint8)
        tokens[:, -8:] = np.arange(n, dtype=">u8").view(np.uint8).reshape(n, 8)
        return Link(tokens, np.arange(n), ROW_NUMBER)

    def save(self, run_id: str, result: Outcome, certificate: Mapping[str, Any]) -> None:
        """Keep the results in memory, or in the folder given."""
        if self._folder is None:
            self._results[run_id] = result
            return
        from fedmvc_client.results import write_results

        write_results(self._folder / self.name / run_id, result, certificate)

    def finished(self, run_id: str) -> bool:
        """Say whether `save` kept results of the run."""
        if self._folder is None:
            return run_id in self._results
        return (self._folder / self.name / run_id).exists()

    def result(self, run_id: str) -> Outcome | None:
        """Return what `save` kept."""
        if self._folder is None:
            return self._results.get(run_id)
        from fedmvc_client.results import read_results

        return read_results(self._folder / self.name / run_id)

    def selection(self, run_id: str) -> FeatureSelection | None:
        """Return the selection of an earlier run, given or kept."""
        kept = self._earlier.get(run_id) or self.result(run_id)
        return kept.selection if isinstance(kept, SelectionResult) else None
