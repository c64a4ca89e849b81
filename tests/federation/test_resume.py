"""A server lost at any exchange goes on to the very same result, and nothing is paid twice."""

import dataclasses
import json
import shutil

import httpx
import pytest

from configs.errors import ConfigError, TransportError
from configs.plan import RunPlan
from fedmvc_server.checkpoint import Checkpoint
from fedmvc_server.runner import new_run_id
from fedmvc_server.synthesize_features import synthesize_features
from privacy.canonical import unpack
from strategies import messages as m
from strategies.messages import as_array, from_bytes, to_bytes
from tests.federation import mufsht_harness, tensor_harness
from tests.federation.harness import Between, plan_of, workers_of
from tests.federation.protected_harness import (
    ask,
    clustered_sites,
    events,
    folder_workers,
    noisy_plan,
    passing_time,
    protected_plan,
    protected_workers,
    site_folders,
    watched_sums,
)
from tests.federation.resume_harness import LosingGrid, lose_and_resume, play

SITES, _ = clustered_sites(3, 90)
NAMES = sorted(SITES)
VIEWS, _ = tensor_harness.tables(66)
FEATURES, _ = mufsht_harness.hospitals(n=45, sizes=((5, 3), (4, 2)))
FEW = {"spare_exchanges": 0}
MASKED = {"secure_aggregation": True, "participants": sorted(FEATURES)}

#: A plan, fresh workers for it, and how many exchanges it takes.
CASES = {
    "fedhk exact": (plan_of(max_rounds=3, tol=0.0), lambda: workers_of(SITES)),
    "fedhk int8": (
        plan_of(max_rounds=3, tol=0.0, encoding="int8", n_init=2),
        lambda: workers_of(SITES),
    ),
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
        mufsht_harness.selection_plan(search="keys", local_sweeps=1),
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
        mufsht_harness.protected_plan({**MASKED, **FEW}, search="keys", local_sweeps=1),
        lambda: mufsht_harness.protected_workers(FEATURES),
    ),
    "noise": (noisy_plan(max_rounds=3), lambda: protected_workers(SITES)),
    "masked noise": (
        noisy_plan(NAMES, max_rounds=4, privacy=FEW),
        lambda: protected_workers(SITES),
    ),
}


def result_of(result, workers):
    """Return what a run left: model or selection, rounds, labels at the sites.

    Seconds are left out, and so are bytes to the sites: after a resume masked sums carry the
    envelopes of fresh keys.
    """
    assert result.status == "completed", result.stop_reason
    labels = [workers[n].result(result.run_id).labels.tobytes() for n in sorted(workers)]
    arrays = result.model or result.selection
    model = None if arrays is None else {k: v.tobytes() for k, v in arrays.arrays().items()}
    rounds = [{**row, "seconds": 0.0, "bytes_down": 0} for row in result.history]
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


#: What make test tries; make drills tries the rest too.
OFTEN = {
    *(("fedhk exact", False), ("noise", False)),
    *((case, True) for case in ("fedhk exact", "noise", "masked fedhk", "masked noise")),
    *(("tensor-fmvc", True), ("masked fed-mufsht", True)),
}


@pytest.mark.parametrize(
    ("case", "answered"),
    [
        pytest.param(
            *(case, answered),
            id=f"{case}, {'answered' if answered else 'unasked'}",
            marks=() if (case, answered) in OFTEN else pytest.mark.drill,
        )
        for case in CASES
        for answered in (False, True)
    ],
)
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
        assert written["run_id"] == result.run_id
        if at:
            ((event),) = written["resumed"]
            assert set(event) == {"at", "after_round"}
            assert 0 <= event["after_round"] <= whole.rounds
            assert result.bytes_up > whole.bytes_up  # hello came twice
        if "noise" in case:
            releases = plan.max_rounds
            assert {tuple(ledger_of(w)) for w in workers.values()} == {
                ((releases, "return", releases),)
            }


def heard_keys(sent, worker, body):
    """Let a worker answer, and keep for which exchange on it sent which keys."""
    reply = worker.handle(body)
    if isinstance(from_bytes(reply), m.KeysReply):
        sent.append((from_bytes(body).first, from_bytes(reply).message.tobytes()))
    return reply


def keys_in(message):
    """Return all public keys and commitments of a signed key message, see `KeyMessage`."""
    *_, envelope_key, masking_keys, commitments, _ = unpack(unpack(message)[0])
    return envelope_key, *unpack(masking_keys), *unpack(commitments)


@pytest.mark.parametrize("case", ["masked fedhk", "masked noise", "masked fed-mufsht"])
def test_after_every_resume_the_set_up_is_repeated_with_fresh_keys(
    undisturbed, tmp_path, monkeypatch, case
):
    """Lost three times, once within a repeated set-up: no key is sent twice, none is left over."""
    plan, make = CASES[case]
    (expected, exchanges, _), workers, sent = undisturbed(case), make(), []
    tap = {n: Between(w, lambda w, b: heard_keys(sent, w, b)) for n, w in workers.items()}
    run_id, out = new_run_id(), tmp_path / "out"
    first = exchanges.index("unmask")
    with watched_sums(monkeypatch):
        play(plan, tap, out, run_id, lost=(first + 1, True))  # the second sum is asked
        play(plan, tap, out, run_id, lost=(4, True), resume=True)  # within shares of the next
        result = play(plan, tap, out, run_id, resume=True)
    assert result_of(result, workers) == expected
    assert len(result.resumed) == 2
    sets = {first: {message for f, message in sent if f == first} for first, _ in sent}
    assert list(sets) == [1, 3, 4], "each set-up is for the first sum that is asked under it"
    assert all(len(keys) == 3 for keys in sets.values()), "a set-up asked again has its own keys"
    everything = [part for keys in sets.values() for message in keys for part in keys_in(message)]
    assert len(everything) == len(set(everything))
    if "noise" in case:
        releases = [tuple(ledger_of(worker)) for worker in workers.values()]
        assert set(releases) == {((plan.max_rounds, "return", plan.max_rounds),)}


@pytest.mark.parametrize("missed", ["sum", "keys"])
def test_a_site_that_is_away_when_keys_are_made_anew_ends_no_resumed_run(
    tmp_path, monkeypatch, missed
):
    """Of four sites one may be away; a resume after that finds the same way again."""
    sites, _ = clustered_sites(4, 90)
    plan = noisy_plan(sorted(sites), max_rounds=5, privacy=FEW, quorum={"timeout_s": 1.0})
    workers, run_id, out, sent = protected_workers(sites), new_run_id(), tmp_path / "out", []
    last = max(sites)

    def change(worker, body):
        request = from_bytes(body)
        dead = {
            "sum": isinstance(request, m.SumRequest) and request.exchange == 2,
            "keys": isinstance(request, m.KeysRequest) and request.first == 3,
        }
        if worker.site == last and dead[missed]:
            raise TransportError("the line is dead")
        return heard_keys(sent, worker, body)

    tap = {name: Between(worker, change) for name, worker in workers.items()}
    with watched_sums(monkeypatch), passing_time(monkeypatch):
        play(plan, tap, out, run_id, lost=(5, True))
        play(plan, tap, out, run_id, lost=(5, False), resume=True)
        result = play(plan, tap, out, run_id, resume=True)
    assert (result.status, result.rounds) == ("completed", 5), result.stop_reason
    said = "no fresh keys yet" if missed == "keys" else "the sum of round 2 is without"
    (warning,) = result.warnings
    assert said in warning
    assert last in warning
    firsts = sorted({first for first, _ in sent})
    assert firsts[0] == 1
    assert firsts[-1] > 3, "the next sum that can has fresh keys"
    assert {tuple(ledger_of(w)) for n, w in workers.items() if n != last} == {((5, "return", 5),)}


# -- workers that are started anew in between -------------------------------------------------


@pytest.fixture(scope="module")
def cardio(tmp_path_factory):
    """Write three site folders with keys; no test writes here."""
    return site_folders(tmp_path_factory.mktemp("cardio") / "sites")


FOLDER_NAMES = ["charite-nord", "riverside", "st-anna"]
RESTARTED = {
    "weighted": plan_of(
        4, profile="paper", max_rounds=2, tol=0.0, aggregation="weighted", gamma=0.5, rho=0.5
    ),
    "masked": protected_plan(FOLDER_NAMES, max_rounds=2, privacy=FEW),
    "masked noise": noisy_plan(FOLDER_NAMES, max_rounds=2, privacy=FEW),
    "noise": noisy_plan(max_rounds=2),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.drill if c == "masked" else ()) for c in RESTARTED],
)
def test_workers_started_anew_after_any_exchange_give_the_same(cardio, tmp_path, monkeypatch, case):
    plan = RESTARTED[case]
    data = shutil.copytree(cardio, tmp_path / "undisturbed")
    with watched_sums(monkeypatch):
        workers = folder_workers(data)
        whole = play(plan, workers, tmp_path / "out", new_run_id())
    expected = result_of(whole, workers)
    for at in range(1, 20):
        data = shutil.copytree(cardio, tmp_path / f"sites-{at}")
        with watched_sums(monkeypatch):
            run_id, out = new_run_id(), tmp_path / f"out-{at}"
            first = play(plan, folder_workers(data), out, run_id, lost=(at, True))
            if first.status == "completed":
                break
            workers = folder_workers(data)
            result = play(plan, workers, out, run_id, resume=True)
        assert result_of(result, workers) == expected, f"lost at {at}"
        assert not any(data.glob("*/state/runs/*"))
        if "noise" in case:
            releases = [tuple(ledger_of(worker)) for worker in workers.values()]
            assert set(releases) == {((2, "return", 2),)}
    assert at >= 4


@pytest.mark.parametrize("method", ["tensor-fmvc", "fed-mufsht"])
def test_workers_of_other_methods_started_anew_give_the_same(tmp_path, method):
    if method == "tensor-fmvc":
        plan = tensor_harness.vertical_plan(max_rounds=2, tol=0.0)
        source = tensor_harness.hospitals(tmp_path / "source", sites=3, n=60)
    else:
        plan = mufsht_harness.selection_plan(max_rounds=2, local_sweeps=1)
        source = tmp_path / "source"
        synthesize_features(source, sites=2, n=120, n_clusters=3, missing=0.1, seed=0)
    workers = folder_workers(shutil.copytree(source, tmp_path / "undisturbed"))
    expected = result_of(play(plan, workers, tmp_path / "out", new_run_id()), workers)
    for at in (2, 4, 5):
        data = shutil.copytree(source, tmp_path / f"sites-{at}")
        run_id, out = new_run_id(), tmp_path / f"out-{at}"
        play(plan, folder_workers(data), out, run_id, lost=(at, True))
        workers = folder_workers(data)
        result = play(plan, workers, out, run_id, resume=True)
        assert result_of(result, workers) == expected, f"lost at {at}"


# -- servers that lie ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["masked fedhk", "noise", "masked fed-mufsht"])
def test_a_server_that_resumes_with_other_centres_is_refused_and_noted(tmp_path, kind):
    """The number that was answered is bound to its bytes; a round of exact sums too."""
    plan, make = CASES[kind]
    workers, requests = make(), []
    tap = {
        n: Between(w, lambda w, b: (requests.append(b), w.handle(b))[1]) for n, w in workers.items()
    }
    lost = {"masked fedhk": 7, "noise": 2, "masked fed-mufsht": 8}[kind]
    play(plan, tap, tmp_path / "out", new_run_id(), lost=(lost, True))
    sums = [r for r in map(from_bytes, requests) if isinstance(r, m.SumRequest)]
    honest = sums[-1]
    site = sorted(workers)[-1]
    asked = from_bytes(honest.bodies[-1].tobytes())
    changed = (
        dataclasses.replace(asked, centers=tuple(a * 0.99 for a in asked.centers))
        if isinstance(asked, m.RoundRequest)
        else dataclasses.replace(asked, weights=asked.weights[::-1])
    )
    lying = dataclasses.replace(honest, bodies=(*honest.bodies[:-1], as_array(to_bytes(changed))))
    before = len(events(workers[site], "request refused"))
    hello = next(b for b in requests if isinstance(from_bytes(b), m.HelloRequest))
    assert isinstance(from_bytes(workers[site].handle(hello)), m.HelloReply)
    reply = ask(workers[site], lying)
    assert reply.code == 8
    if "masked" in kind:
        # under the next number the masks are fresh, but the round has been answered
        named = dataclasses.replace(lying, exchange=lying.exchange + 1)
        reply = ask(workers[site], named)
        assert (reply.code, "has answered another" in reply.message) == (8, True), reply
    assert len(events(workers[site], "request refused")) == before + (2 if "masked" in kind else 1)
    assert from_bytes(workers[site].handle(to_bytes(honest))).exchange == honest.exchange


# -- servers that are lost again, and sites that do not come back ------------------------------


def test_a_run_that_is_lost_twice_lists_both_and_counts_all_of_it(tmp_path):
    plan, workers, run_id = plan_of(max_rounds=3, tol=0.0), workers_of(SITES), new_run_id()
    out = tmp_path / "out"
    seen = []
    watch = lambda state: seen.append(len(state.history))  # noqa: E731
    play(plan, workers, out, run_id, lost=(4, True), observer=watch)
    play(plan, workers, out, run_id, lost=(2, False), resume=True, observer=watch)
    result = play(plan, workers, out, run_id, resume=True, observer=watch)
    whole = play(plan, workers_of(SITES), tmp_path / "other", new_run_id())
    assert result.model.sha256() == whole.model.sha256()
    assert [event["after_round"] for event in result.resumed] == [1, 2]
    assert seen == [1, 1, 2, 2, 3]
    assert [row["bytes_up"] for row in result.history] == [r["bytes_up"] for r in whole.history]
    rows = (out / "rounds.csv").read_text().splitlines()
    assert len(rows) == 4
    assert not (out / "checkpoint").exists()


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [(lambda: httpx.ConnectError("gone"), "stopped", 7), (KeyboardInterrupt, "stopped", 130)],
)
def test_a_lost_superlink_and_ctrl_c_end_a_run_that_goes_on(
    tmp_path, monkeypatch, fault, status, code
):
    plan, workers, run_id = plan_of(max_rounds=2, tol=0.0), workers_of(SITES), new_run_id()
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(LosingGrid, "fault", staticmethod(fault))
        result = play(plan, workers, out, run_id, lost=(4, True))
    assert (result.status, result.exit_code) == (status, code)
    assert play(plan, workers, out, run_id, resume=True).status == "completed"


def quick(on_missing):
    return plan_of(
        max_rounds=3,
        tol=0.0,
        quorum={"timeout_s": 1.0, "min_sites": 2, "on_missing": on_missing},
    )


def test_a_site_that_does_not_come_back_stops_the_run_until_it_does(tmp_path):
    plan, workers, run_id = quick("stop"), workers_of(SITES), new_run_id()
    out = tmp_path / "out"
    play(plan, workers, out, run_id, lost=(4, True))
    stopped = play(plan, workers, out, run_id, resume=True, away=NAMES[:1])
    assert (stopped.status, stopped.exit_code) == ("stopped", 6)
    assert f"'{NAMES[0]}' has not come back since the run was interrupted" in stopped.stop_reason
    result = play(plan, workers, out, run_id, resume=True)
    whole = play(plan, workers_of(SITES), tmp_path / "other", new_run_id())
    assert result.model.sha256() == whole.model.sha256()


def test_a_run_goes_on_without_a_site_where_the_plan_says_so(tmp_path):
    plan, workers, run_id = quick("continue"), workers_of(SITES), new_run_id()
    out = tmp_path / "out"
    play(plan, workers, out, run_id, lost=(4, True))
    result = play(plan, workers, out, run_id, resume=True, away=NAMES[:1])
    assert result.status == "completed", result.stop_reason
    assert "has not come back" in result.dropped[NAMES[0]]
    assert [len(row["sites"]) for row in result.history] == [3, 2, 2]


def test_a_masked_run_that_told_its_sites_is_over(tmp_path, monkeypatch):
    plan, make = CASES["masked fedhk"]
    plan = RunPlan.parse({**plan.fields(), "quorum": {"timeout_s": 1.0}})
    workers, out, run_id = make(), tmp_path / "out", new_run_id()
    play(plan, workers, out, run_id, lost=(9, True))
    with passing_time(monkeypatch):
        ended = play(plan, workers, out, run_id, resume=True, away=NAMES[:1])
    assert ended.exit_code == 6, ended.stop_reason
    with pytest.raises(ConfigError, match="its sites were told that it is over"):
        play(plan, workers, out, run_id, resume=True)


def test_tokens_do_not_lie_in_the_checkpoint(tmp_path):
    plan = tensor_harness.vertical_plan(max_rounds=2)
    workers = folder_workers(tensor_harness.hospitals(tmp_path / "sites", sites=3, n=60))
    tape, out = [], tmp_path / "out"
    tap = {
        n: Between(w, lambda w, b: (tape.append(w.handle(b)), tape[-1])[1])
        for n, w in workers.items()
    }
    play(plan, tap, out, new_run_id(), lost=(3, True))
    links = [r for r in map(from_bytes, tape) if isinstance(r, m.LinkReply)]
    kept = b"".join(path.read_bytes() for path in (out / "checkpoint").iterdir())
    assert len(links) == 3
    for link in links:
        assert len(link.tokens) > 20
        assert not any(row.tobytes() in kept for row in link.tokens)
