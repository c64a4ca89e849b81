"""Vertical federations in this process, and the same rounds as a plain loop over their solvers."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from configs.plan import RunPlan
from fedmvc_client.solvers.tensor_site import TensorSite
from fedmvc_client.worker import SiteWorker, folder_worker
from fedmvc_server.array_sites import vertical_views
from fedmvc_server.local_grid import LocalGrid
from fedmvc_server.synthesize_vertical import synthesize_vertical
from strategies.messages import from_bytes, to_bytes
from strategies.records import from_record
from strategies.tensor_admm import TensorDriver
from tests.federation.harness import workers_of

#: The linkage key of the folders that `hospitals` writes: tokens are the same in every test run.
KEY = bytes(range(32))
QUORUM = {"timeout_s": 5.0}


def vertical_plan(
    n_clusters=3, *, quorum=None, max_rounds=20, tol=1e-6, seed=0, profile=None, **tensor
):
    """Return a vertical plan; further keywords are keys of its table ``[tensor]``."""
    fields = {
        "method": "tensor-fmvc",
        "n_clusters": n_clusters,
        "max_rounds": max_rounds,
        "tol": tol,
        "seed": seed,
        "quorum": QUORUM | (quorum or {}),
        "tensor": {"link_cost": 1, **tensor},
    }
    if profile is not None:
        fields["profile"] = profile
    return RunPlan.parse(fields)


def lone(views: Mapping[str, Any]):
    """Return the sites of `simulate` where each holds one view."""
    return {name: {"views": [view]} for name, view in views.items()}


def vertical_workers(views: Mapping[str, Any]) -> dict[str, SiteWorker]:
    """Return one array worker a site, each with one view, as `simulate` makes them."""
    placed = vertical_views({name: [view] for name, view in views.items()})
    return workers_of({name: {"views": held} for name, held in placed.items()})


def tables(n=90, n_clusters=3, seed=0, sparse=False):
    """Draw three views of clustered rows for sites whose names are not given in their order.

    Some rows lack a view, one lacks all, some cells are missing. With `sparse` the second view is
    a CSR matrix of counts.
    """
    rng = np.random.default_rng(seed)
    truth = rng.integers(n_clusters, size=n)
    views = {
        name: rng.normal(size=(n, d)) + 2.5 * rng.normal(size=(n_clusters, d))[truth]
        for name, d in (("north", 3), ("anna", 4), ("mercy", 2))
    }
    views["anna"][7, 1] = views["mercy"][11, 0] = np.nan
    if sparse:
        rates = rng.gamma(0.3, 6.0, size=(n_clusters, 30))
        views["anna"] = rng.poisson(rates[truth]).astype(float)
    views["north"][[3, 5]] = views["anna"][[3, 20, 21]] = views["mercy"][[3, 60]] = np.nan
    if sparse:
        views["anna"] = csr_matrix(views["anna"])
    return views, truth


# -- one process -----------------------------------------------------------------------------


@dataclass
class Loop:
    """End of the rounds played in one process."""

    labels: np.ndarray
    vote: np.ndarray
    view_weights: list
    objectives: list
    rounds: int
    alone: dict


def loop(plan: RunPlan, views: Mapping[str, Any]) -> Loop:
    """Play all sites and the server, without a message."""
    settings, names = plan.tensor_settings(), sorted(views)
    sites = {
        name: TensorSite(views[name], settings, plan.n_clusters, seed=plan.seed, position=m)
        for m, name in enumerate(names)
    }
    starts = {name: sites[name].start() for name in names}
    alone = {name: sites[name].alone() for name in names}
    driver = TensorDriver(
        settings,
        plan.n_clusters,
        {name: starts[name][0] for name in names},
        {name: starts[name][1] for name in names},
        alone=alone,
        tol=plan.tol,
        max_rounds=plan.max_rounds,
    )
    objectives = []
    for name in names:
        sites[name].rename(driver.names[name])
        alone[name] = np.array([-1 if k < 0 else driver.names[name][k] for k in alone[name]])
    while not driver.done:
        answers = {}
        for name in names:
            query = driver.query(name)
            answers[name] = sites[name].sweep(query.weight, query.mu, query.z, query.scale)
        driver.advance(
            {name: answer[0] for name, answer in answers.items()},
            {name: answer[1] for name, answer in answers.items()},
        )
        objectives.append(driver.objective)
    end = driver.result()
    return Loop(end.labels, end.vote, end.view_weights.tolist(), objectives, driver.rounds, alone)


# -- folders ---------------------------------------------------------------------------------


def hospitals(out: Path, *, sites=4, n=150, overlap=0.9, seed=3, prefix="") -> Path:
    """Write site folders with the key `KEY`; every id gets the prefix."""
    synthesize_vertical(out, sites=sites, n=n, n_clusters=3, overlap=overlap, seed=seed)
    for path in out.glob("*/state/linkage.key"):
        path.write_text(KEY.hex() + "\n")
    for path in [*out.glob("*/*.csv"), out / "truth.csv"]:
        edit_rows(path, lambda rows: [[prefix + row[0], *row[1:]] for row in rows])
    return out


def edit_rows(path: Path, change) -> None:
    """Replace a CSV's rows, header aside, by ``change(rows)``."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([header, *change(rows)])


def view_file(folder: Path) -> Path:
    """Return the one CSV of a site's folder."""
    (path,) = folder.glob("*.csv")
    return path


def folder_workers(data: Path) -> dict[str, SiteWorker]:
    """Return one worker a site folder, by name."""
    workers = [folder_worker(path.parent) for path in sorted(data.glob("*/site.toml"))]
    return {worker.site: worker for worker in workers}


def by_id(result) -> dict[str, int]:
    """Return a site's labels by record."""
    return dict(zip(result.ids, result.labels.tolist(), strict=True))


# -- messages --------------------------------------------------------------------------------


@dataclass
class Tape:
    """Everything that crossed between the server and the sites, as Flower content."""

    down: list = field(default_factory=list)
    up: list = field(default_factory=list)

    def grid_class(self):
        """Return a grid that records on this tape."""
        tape = self

        class Recording(LocalGrid):
            def push_messages(self, messages):
                messages = list(messages)
                tape.down += [message.content for message in messages]
                return super().push_messages(messages)

            def pull_messages(self, message_ids):
                replies = list(super().pull_messages(message_ids))
                tape.up += [reply.content for reply in replies if not reply.has_error()]
                return replies

        return Recording

    def bodies(self, direction):
        """Return the bytes of all messages "up" or "down"."""
        return [from_record(content) for content in getattr(self, direction)]

    def of(self, kind):
        """Return the messages of one kind, in order."""
        found = [from_bytes(body) for body in [*self.bodies("down"), *self.bodies("up")]]
        return [message for message in found if isinstance(message, kind)]


def arrays_in(message):
    """Yield (field, array) of a message, parts included."""
    for entry in dataclasses.fields(message):
        value = getattr(message, entry.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, np.ndarray):
                yield entry.name, part
            elif dataclasses.is_dataclass(part):
                yield from arrays_in(part)


def replacing(kind, tamper, *, number=None):
    """Change a site's replies to requests of a kind; ``tamper(reply)`` gives a message or bytes."""

    def change(worker, body):
        request, reply = from_bytes(body), worker.handle(body)
        if not isinstance(request, kind) or number not in (None, getattr(request, "round", None)):
            return reply
        changed = tamper(from_bytes(reply))
        return changed if isinstance(changed, bytes) else to_bytes(changed)

    return change
