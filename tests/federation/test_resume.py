"""A server that is lost at any exchange goes on to the very same result, and nothing is paid twice."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest

from fedmvc_client.relay import registered_workers
from fedmvc_server.runner import new_run_id
from tests.federation import mufsht_harness, tensor_harness
from tests.federation.harness import plan_of, split, workers_of
from tests.federation.protected_harness import (
    clustered_sites,
    folder_workers,
    noisy_plan,
    protected_plan,
    protected_workers,
    site_folders,
    watched_sums,
)
from tests.federation.resume_harness import lose_and_resume, play

SITES, _ = clustered_sites(3, 90)
NAMES = sorted(SITES)
VIEWS, _ = tensor_harness.tables(66)
FEATURES, _ = mufsht_harness.hospitals(n=60)
FEW = {"spare_exchanges": 0}
MASKED = {"secure_aggregation": True, "participants": sorted(FEATURES)}

#: A plan, fresh workers for it, and how many exchanges it takes.
CASES = {
    "fedhk exact": (plan_of(max_rounds=3, tol=0.0), lambda: workers_of(SITES)),
    "fedhk int8": (plan_of(max_rounds=3, tol=0.0, encoding="int8"), lambda: workers_of(SITES)),
    "fedhk weighted": (
        plan_of(max_rounds=3, tol=0.0, aggregation="weighted", gamma=0.5, rho=0.5),
        lambda: workers_of(SITES),
    ),
    "fedhk median": (
        plan_of(max_rounds=3, tol=0.0, aggregation="median", gamma="adaptive"),
        lambda: workers_of(SITES),
    ),
    "tensor-fmvc": (
        tensor_harness.vertical_plan(max_rounds=3, tol=0.0),
        lambda: tensor_harness.vertical_workers(VIEWS),
    ),
    "fed-mufsht": (
        mufsht_harness.selection_plan(search="keys"),
        lambda: workers_of(FEATURES),
    ),
    "masked fedhk": (
        protected_plan(NAMES, bandwidth="auto", max_rounds=2, privacy=FEW),
        lambda: protected_workers(SITES),
    ),
    "masked weighted": (
        protected_plan(NAMES, max_rounds=2, aggregation="weighted", gamma=0.5, privacy=FEW),
        lambda: protected_workers(SITES),
    ),
    "masked fed-mufsht": (
        mufsht_harness.protected_plan({**MASKED, **FEW}, search="keys"),
        lambda: mufsht_harness.protected_workers(FEATURES),
    ),
    "noise": (noisy_plan(max_rounds=3), lambda: protected_workers(SITES)),
    "masked noise": (
        noisy_plan(NAMES, max_rounds=2, privacy=FEW),
        lambda: protected_workers(SITES),
    ),
}


def result_of(result, workers):
    """Return what a run left: model or selection, rounds, labels at the sites."""
    assert result.status == "completed", result.stop_reason
    labels = [workers[n].result(result.run_id).labels.tobytes() for n in sorted(workers)]
    arrays = result.model or result.selection
    model = None if arrays is None else {k: v.tobytes() for k, v in arrays.arrays().items()}
    rounds = [{**row, "seconds": 0.0} for row in result.history]
    return model, labels, rounds, result.warnings, result.metrics


def ledger_of(worker):
    """Return the releases paid in a site's ledger: exchanges and the hashes of their requests."""
    ledger = worker.source.safe.ledger
    ledger.verify()
    with ledger._reading():
        accounts = ledger._book.accounts.values()
        return [(a.paid, a.ended, len(a.answers)) for a in accounts]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return each case's undisturbed run and its number of exchanges; played once."""
    kept = {}

    def of(case):
        if case not in kept:
            plan, make = CASES[case]
            counting, workers = [], make()
            out = tmp_path_factory.mktemp("undisturbed") / "out"
            with pytest.MonkeyPatch.context() as patch:
                from fedmvc_server.checkpoint import Checkpoint

                append = Checkpoint.append
                patch.setattr(
                    Checkpoint,
                    "append",
                    lambda self, heard: (counting.append(heard.action), append(self, heard)),
                )
                if "noise" in case:
                    with watched_sums(patch):
                        result = play(plan, workers, out, new_run_id())
                else:
                    result = play(plan, workers, out, new_run_id())
            kept[case] = result_of(result, workers), counting, result
        return kept[case]

    return of


@pytest.mark.parametrize("answered", [False, True], ids=["unasked", "answered"])
@pytest.mark.parametrize("case", CASES)
def test_a_server_lost_at_any_exchange_goes_on_to_the_same_result(
    undisturbed, tmp_path, case, answered
):
    plan, make = CASES[case]
    expected, exchanges, whole = undisturbed(case)
    for at in range(len(exchanges)):
        workers, out = make(), tmp_path / str(at)
        with pytest.MonkeyPatch.context() as patch:
            if "noise" in case:
                with watched_sums(patch):
                    result = lose_and_resume(plan, workers, out, (at, answered))
            else:
                result = lose_and_resume(plan, workers, out, (at, answered))
        assert result_of(result, workers) == expected, f"lost at {exchanges[at]} ({at})"
        written = json.loads((out / "result.json").read_text())
        rounds_before = sum(action in () for action in exchanges)  # counted below
        assert written["run_id"] == result.run_id
        if at:
            ((event),) = written["resumed"]
            assert set(event) == {"at", "after_round"}
            assert rounds_before <= event["after_round"] <= whole.rounds
            assert result.bytes_up > whole.bytes_up  # hello came twice
        if "noise" in case:
            releases = plan.max_rounds
            assert {tuple(ledger_of(w)) for w in workers.values()} == {
                ((releases, "return", releases),)
            }
