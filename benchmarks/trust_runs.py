"""Masked runs against plain ones, and what noise costs a federation in accuracy.

Run with ``python -m benchmarks.trust_runs``; exits 1 where a line is not reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import accuracy
from benchmarks.privacy_utility import DELTA, ROUNDS, VIEW_EXPONENT
from benchmarks.trust_rows import Row, print_rows
from fedmvc_server.cardio import N_PHENOTYPES, cardio_views
from fedmvc_server.runner import RunResult
from fedmvc_server.simulation import simulate
from strategies.messages import Refusal, RoundRequest, as_array, from_bytes, to_bytes
from tests.federation.harness import federate
from tests.federation.protected_harness import (
    clustered_sites,
    noisy_plan,
    protected_plan,
    protected_workers,
)

__all__ = ["equality_row", "far_centres_row", "federated_accuracy"]

_SITES = 3
#: Largest difference of a centre, in the data's units.
_CLOSE = 1e-12


def _run(n: int, seed: int, plan: dict[str, Any], privacy: dict[str, Any]) -> RunResult:
    """Run the cardio set, dealt to three sites by chance."""
    views, _ = cardio_views(n, seed)
    names = [f"site-{i}" for i in range(_SITES)]
    sites = {
        name: {"views": [v[rows] for v in views]}
        for name, rows in zip(names, _parts(n, seed), strict=True)
    }
    fields = {"method": "fedhk-mvfc", "n_clusters": N_PHENOTYPES, "seed": seed, **plan}
    if privacy.get("secure_aggregation"):
        privacy = {**privacy, "participants": names, "max_rows": n}
    result = simulate({**fields, "privacy": privacy}, sites)
    assert result.status == "completed", result.stop_reason
    return result


def _parts(n: int, seed: int) -> list[np.ndarray[Any, Any]]:
    return np.array_split(np.random.default_rng([seed, 7]).permutation(n), _SITES)


def equality_row(aggregation: str, *, n: int = 10_000) -> Row:
    """Compare the final centres of a masked run with those of the same run in the clear."""
    options = {"aggregation": aggregation, "init": "spread", "acceleration": "none", "n_init": 2}
    plan = {"profile": "paper", "max_rounds": 20, "tol": 0.0, "fedhk": options}
    plain = _run(n, 0, plan, {})
    masked = _run(n, 0, plan, {"secure_aggregation": True})
    assert plain.model is not None and masked.model is not None
    apart = max(
        float(np.abs(a - b).max())
        for a, b in zip(plain.model.centers, masked.model.centers, strict=True)
    )
    same = all(
        np.array_equal(plain.site_results[s].labels, masked.site_results[s].labels)
        for s in plain.site_results
    )
    return Row(
        f"masked run against plain run, {aggregation}, {n} records, 20 rounds",
        f"centres differ by {apart:.1e}, labels {'equal' if same else 'differ'}",
        f"at most {_CLOSE:g}, equal labels",
        apart <= _CLOSE and same,
    )


def federated_accuracy(seed: int, epsilon: float, heat_kernel: str, n: int) -> float:
    """Accuracy of three sites with masks and distributed noise; infinite epsilon: masks alone.

    The bounds are the set's own extremes, taken as if they had been declared.
    """
    noise = {} if np.isinf(epsilon) else {"mechanism": "gaussian", "epsilon": epsilon}
    if noise:
        noise["delta"] = DELTA
    options = {"heat_kernel": heat_kernel, "view_exponent": VIEW_EXPONENT, "n_init": 1}
    plan = {"max_rounds": ROUNDS[n], "tol": 0.0, "fedhk": {**options, "acceleration": "none"}}
    result = _run(n, seed, plan, {"secure_aggregation": True, **noise})
    labels = cardio_views(n, seed)[1]
    found = np.empty(n, dtype=np.int64)
    for rows, name in zip(_parts(n, seed), sorted(result.site_results), strict=True):
        found[rows] = result.site_results[name].labels
    return accuracy(labels, found)


def far_centres_row() -> Row:
    """Send all sites centres outside the declared bounds, where a sum could hold one record."""
    refused = asked = 0
    sites = clustered_sites(_SITES)[0]
    for plan in (protected_plan(sites), noisy_plan(sites)):
        for widths in (1e-6, 1.0, 1e6):
            replies: list[Any] = []
            workers = protected_workers(sites)
            lie = partial(_moved_out, widths, replies)
            result = federate(plan, workers, change=dict.fromkeys(workers, lie))
            assert result.model is None
            asked += len(replies)
            refused += sum(isinstance(reply, Refusal) and reply.code == 8 for reply in replies)
    return Row(
        "centres outside the bounds, by 1e-6 to 1e6 widths, with masks and with masks and noise",
        f"{refused} of {asked} requests refused by the sites",
        "all of them, of every site",
        0 < asked == refused,
    )


def _moved_out(widths: float, replies: list[Any], worker: Any, body: bytes) -> bytes:
    """Hand a request on; a round's centres lie some widths above the upper bounds."""
    request: Any = from_bytes(body)
    bodies = getattr(request, "bodies", ())
    last = from_bytes(bodies[-1].tobytes()) if bodies else None
    if not isinstance(last, RoundRequest):
        return bytes(worker.handle(body))
    far = dataclasses.replace(last, centers=tuple(1.0 + widths + 0 * a for a in last.centers))
    lie = dataclasses.replace(request, bodies=(*bodies[:-1], as_array(to_bytes(far))))
    reply = worker.handle(to_bytes(lie))
    replies.append(from_bytes(reply))
    return bytes(reply)


ROWS: tuple[Callable[[], Row], ...] = (
    *(partial(equality_row, name) for name in ("exact", "weighted", "fedavg")),
    far_centres_row,
)


def main() -> int:
    """Print the figures; return the number that do not hold."""
    return print_rows("masked runs", ROWS)


if __name__ == "__main__":
    raise SystemExit(main())
