"""Fed-MUFSHT federations in this process."""

from __future__ import annotations

import io

import numpy as np

from configs.plan import RunPlan
from fedmvc_client.worker import array_worker
from fedmvc_server.array_sites import bounded_schema, schema_of
from fedmvc_server.planted import planted_views
from fedmvc_server.site_keys import draw_keys
from strategies import messages as m
from strategies.messages import from_bytes
from tests.federation.harness import federate, split
from tests.federation.tensor_harness import Tape

#: Small planted views: 40 features, 16 of them informative.
SIZES = ((15, 6), (12, 5), (13, 5))


def selection_plan(
    n_clusters=3, *, quorum=None, max_rounds=2, tol=0.0, seed=0, profile=None, **mufsht
):
    """Return a plan; further keywords are keys of its table ``[mufsht]``."""
    fields = {
        "method": "fed-mufsht",
        "n_clusters": n_clusters,
        "max_rounds": max_rounds,
        "tol": tol,
        "seed": seed,
        "quorum": {"timeout_s": 5.0} | (quorum or {}),
        "mufsht": {"local_sweeps": 3, **mufsht},
    }
    if profile is not None:
        fields["profile"] = profile
    return RunPlan.parse(fields)


def protected_plan(privacy, **options):
    """Return a plan of `selection_plan` with a table ``[privacy]``."""
    fields = selection_plan(**{"weighting": "uniform", **options}).fields()
    del fields["quorum"]["min_sites"]  # follows from the participants
    return RunPlan.parse({**fields, "privacy": privacy})


def hospitals(n=120, n_sites=3, seed=0, sizes=SIZES, n_clusters=3):
    """Return sites with planted rows dealt at random, and which features are informative."""
    planted = planted_views(n, seed, sizes=sizes, n_clusters=n_clusters)
    sites, _ = split(planted.views, planted.labels, "iid", n_sites, seed=seed)
    return sites, planted.informative


def protected_workers(sites):
    """Return one array worker a site, by name, with keys and bounds that values just keep to."""
    views = {name: site["views"] for name, site in sites.items()}
    schema, (keys, roster) = bounded_schema(schema_of(views), views), draw_keys(sorted(sites))
    return {
        name: array_worker(name, views[name], schema, identity=keys[name], roster=roster)
        for name in sorted(sites)
    }


def recorded(plan, sites, change=None):
    """Run a protected plan; return what crossed the wire, the workers and the result."""
    tape, workers = Tape(), protected_workers(sites)
    result = federate(plan, workers, change=change, grid_class=tape.grid_class())
    assert result.status == "completed", result.stop_reason
    return tape, workers, result


def asked_of_method(message):
    """Return the last of the method's requests in a sum or question; None in other messages."""
    if not isinstance(message, m.SumRequest | m.AskRequest):
        return None
    return from_bytes(message.bodies[-1].tobytes())


def noted(worker):
    """Return what a site keeps of its runs, as its files keep it."""
    kept = {}
    for run_id, participant in worker._participants.items():
        kept[run_id] = io.BytesIO()
        np.savez(kept[run_id], **participant.state())
    return kept


def restart(worker, kept):
    """Throw all participants away and make them again from what was noted."""
    for run_id, file in kept.items():
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            state = {name: arrays[name] for name in arrays.files}
        there = worker._participants[run_id]
        fresh = type(there).begin(there.plan, run_id, worker.source, worker.source.load())
        fresh.restore(state)
        worker._participants[run_id] = fresh


def killed_while_it_answers(worker, body):
    """Let the site forget what it noted after its first reply, which did not arrive."""
    if not isinstance(from_bytes(body), m.SumRequest | m.AskRequest):
        return worker.handle(body)
    kept = noted(worker)
    first = worker.handle(body)
    restart(worker, kept)
    again = worker.handle(body)
    assert again == first
    return again


class Wire:
    """Keeps every message that passes to and from one site."""

    def __init__(self):
        self.messages = []

    def __call__(self, worker, body):
        reply = worker.handle(body)
        self.messages += [from_bytes(body), from_bytes(reply)]
        return reply

    def of(self, kind):
        """Return the messages of one kind, in order."""
        return [message for message in self.messages if isinstance(message, kind)]
