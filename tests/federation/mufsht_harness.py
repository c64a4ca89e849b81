"""Fed-MUFSHT federations in this process."""

from __future__ import annotations

from configs.plan import RunPlan
from fedmvc_server.planted import planted_views
from strategies.messages import from_bytes
from tests.federation.harness import split

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


def hospitals(n=120, n_sites=3, seed=0, sizes=SIZES, n_clusters=3):
    """Return sites with planted rows dealt at random, and which features are informative."""
    planted = planted_views(n, seed, sizes=sizes, n_clusters=n_clusters)
    sites, _ = split(planted.views, planted.labels, "iid", n_sites, seed=seed)
    return sites, planted.informative


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
