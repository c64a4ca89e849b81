"""What runs leave on a site's disk, and which words a failing disk gets to send."""

import dataclasses
import errno
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from configs.site import SiteConfig
from fedmvc_client import tabular
from fedmvc_client.approvals import Register
from fedmvc_client.results import read_results
from fedmvc_client.sources import FolderSource
from fedmvc_client.worker import folder_worker
from fedmvc_server.synthesize import synthesize_cardio
from strategies import messages as m
from strategies.messages import Refusal, from_bytes, to_bytes
from tests.federation.harness import federate, plan_of

PLAN = plan_of(4, profile="paper", max_rounds=4, tol=0.0)
RUN = "0123abcd-0000-4000-8000-000000000000"
KINDS = (m.HelloRequest, m.PrepareRequest, m.SeedRequest, m.RoundRequest, m.FinishRequest)


@pytest.fixture
def sites(tmp_path):
    """Two site folders of 60 records each."""
    synthesize_cardio(tmp_path / "sites", n=120, sites=2, partition="iid")
    return tmp_path / "sites"


@pytest.fixture
def site(sites):
    """Return the first site's folder."""
    return sites / "st-anna"


def hello(plan=PLAN, run_id=RUN):
    return m.HelloRequest(run_id, plan.plan_id, plan.canonical())


def prepare(run_id=RUN, plan=PLAN):
    return m.PrepareRequest(run_id, plan.plan_id, ("ecg", "imaging"), np.array([2, 2]))


def ask(worker, request):
    return from_bytes(worker.handle(to_bytes(request)))


def taped(sites):
    """Run PLAN on a copy; return the first site's requests by kind, its folder and the result."""
    seen = {}
    sites = shutil.copytree(sites, sites.parent / "recorded")

    def tap(worker, body):
        seen.setdefault(type(from_bytes(body)), body)
        return worker.handle(body)

    workers = {name: folder_worker(sites / name) for name in ("st-anna", "charite-nord")}
    result = federate(PLAN, workers, change={"st-anna": tap})
    assert result.status == "completed", result.stop_reason
    return [seen[kind] for kind in KINDS], sites / "st-anna", result


def test_runs_without_an_end_leave_eight_folders(site):
    worker = folder_worker(site)
    runs = [f"{i:08d}-aaaa" for i in range(12)]
    for run_id in runs:
        assert isinstance(ask(worker, hello(run_id=run_id)), m.HelloReply)
    kept = sorted(path.name for path in (site / "state" / "runs").iterdir())
    assert kept == runs[-8:]
    assert isinstance(ask(worker, prepare(runs[-8])), m.PrepareReply)
    assert "knows no run" in ask(worker, prepare(runs[0])).message


def test_a_run_folder_that_is_asked_again_is_not_the_one_to_go(site):
    worker = folder_worker(site)
    runs = [f"{i:08d}-aaaa" for i in range(8)]
    for i, run_id in enumerate(runs):
        ask(worker, hello(run_id=run_id))
        os.utime(site / "state" / "runs" / run_id, (i, i))
    ask(worker, hello(run_id=runs[0]))
    ask(worker, hello(run_id="99999999-aaaa"))
    kept = {path.name for path in (site / "state" / "runs").iterdir()}
    assert kept == {*runs, "99999999-aaaa"} - {runs[1]}


def test_results_are_never_overwritten(sites):
    requests, site, result = taped(sites)
    folder = site / "results" / result.run_id
    before = (folder / "membership.parquet").read_bytes()
    for worker in (folder_worker(site), folder_worker(site)):
        replies = [from_bytes(worker.handle(body)) for body in requests]
        # a server that lost its memory at the end gets what it got, and nothing else
        assert [type(r) for r in replies] == [m.HelloReply, *[Refusal] * 3, m.FinishReply]
        assert all("knows no run" in reply.message for reply in replies[1:4])
        other = m.FinishRequest(result.run_id, PLAN.plan_id, result.model)
        assert worker.handle(to_bytes(other)) == worker.handle(requests[-1])
        moved = dataclasses.replace(result.model, view_weights=result.model.view_weights[::-1])
        reply = ask(worker, dataclasses.replace(other, model=moved))
        assert f"already has results of run {result.run_id[:8]}" in reply.message
    assert (folder / "membership.parquet").read_bytes() == before
    assert read_results(folder).membership.shape == (60, 4)
    assert not any((site / "state" / "runs").iterdir())


def test_a_run_that_is_over_is_refused_even_where_its_results_are_gone(sites):
    requests, site, result = taped(sites)
    (site / "results" / result.run_id).rename(site / "aside")
    worker = folder_worker(site)
    replies = [from_bytes(worker.handle(body)) for body in requests]
    assert [(type(r), r.code) for r in replies] == [(Refusal, 8)] * len(KINDS)
    assert f"run {result.run_id[:8]} is over here" in replies[0].message


class Killed(BaseException):
    """Ends a worker where it stands."""


@pytest.mark.parametrize("where", ["before the results", "after the results"])
def test_a_worker_killed_while_it_ends_a_run_ends_it_when_asked_again(
    sites, site, monkeypatch, where
):
    requests, other, result = taped(sites)
    worker = folder_worker(site)
    for body in requests[:4]:
        worker.handle(body)
    owner, name = (
        (FolderSource, "save") if where == "before the results" else (Register, "finished")
    )

    def dies(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(Killed):
            worker.handle(requests[4])
    again = folder_worker(site)
    assert again.handle(requests[4]) == folder_worker(other).handle(requests[4])
    assert read_results(site / "results" / result.run_id).membership.shape == (60, 4)
    assert not any((site / "state" / "runs").iterdir())


def test_results_of_another_process_stand_in_the_way_of_finish(sites, site):
    requests, other, _ = taped(sites)
    worker = folder_worker(site)
    for body in requests[:4]:
        assert not isinstance(from_bytes(worker.handle(body)), Refusal)
    shutil.copytree(other / "results", site / "results")
    assert "already has results" in from_bytes(worker.handle(requests[4])).message


@pytest.mark.parametrize("restart", [False, True])
def test_the_same_hello_again_leaves_a_running_run_alone(sites, site, restart):
    requests, _, _ = taped(sites)
    worker = folder_worker(site)
    for body in requests[:3]:
        assert not isinstance(from_bytes(worker.handle(body)), Refusal)
    if restart:
        worker = folder_worker(site)
    assert isinstance(from_bytes(worker.handle(requests[0])), m.HelloReply)
    assert isinstance(from_bytes(worker.handle(requests[3])), m.StatisticsReply)
    assert isinstance(from_bytes(worker.handle(requests[4])), m.FinishReply)


# -- words of the disk -----------------------------------------------------------------------


def as_parquet(site):
    """Store the ecg view as Parquet; return its file."""
    path = site / "ecg.parquet"
    table = csv.read_csv(
        site / "ecg.csv",
        convert_options=csv.ConvertOptions(column_types={"patient_id": pa.string()}),
    )
    pq.write_table(table, path, compression="snappy")
    config = SiteConfig.load(site).model_dump(mode="json")
    SiteConfig.parse({**config, "data": {**config["data"], "ecg": "ecg.parquet"}}).dump(site)
    return path


def prepared(site):
    worker = folder_worker(site)
    ask(worker, hello())
    return ask(worker, prepare())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EACCES, "Failed to open local file '/mnt/ward-7/ecg'"), "Permission denied"),
        (OSError(errno.EIO, None), "Input/output error"),
        (OSError("Cannot open for reading: path '/mnt/ward-7/ecg'"), "the system gives no reason"),
    ],
)
@pytest.mark.parametrize("place", ["read", "save"])
def test_a_failing_disk_is_told_without_a_path(sites, site, monkeypatch, error, words, place):
    def fail(*_):
        raise error

    if place == "read":
        monkeypatch.setattr(tabular, "_read_csv", fail)
        reply = prepared(site)
        assert (reply.code, "its file cannot be read" in reply.message) == (3, True)
    else:
        requests, _, _ = taped(sites)
        worker = folder_worker(site)
        for body in requests[:4]:
            worker.handle(body)
        monkeypatch.setattr(worker.source, "save", fail)
        reply = from_bytes(worker.handle(requests[4]))
        assert (reply.code, "cannot use its own folder" in reply.message) == (2, True)
    assert f"({words})" in reply.message
    assert "ward-7" not in reply.message
    assert "None" not in reply.message


def test_a_folder_in_a_parquet_files_place_is_told_without_its_path(site):
    path = as_parquet(site)
    assert isinstance(prepared(site), m.PrepareReply)
    path.unlink()
    path.mkdir()
    reply = prepared(site)
    assert reply.code == 3
    assert "ecg.parquet" not in reply.message
    assert "is not a readable Parquet file" in reply.message


def test_a_damaged_parquet_file_is_one_sentence(site):
    """Whatever a flipped byte makes of the file, no path and no inside of the reader gets out."""
    path = as_parquet(site)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = 0
    for _ in range(60):
        body = bytearray(whole)
        for place in rng.integers(4, len(body) - 8, 20):
            body[place] = rng.integers(256)
        path.write_bytes(bytes(body))
        reply = prepared(site)
        if isinstance(reply, m.PrepareReply):
            continue
        assert reply.code == 3, reply.message
        assert str(site.parent) not in reply.message
        damaged += "is not a readable Parquet file: write it again" in reply.message
    assert damaged > 30


def test_text_that_is_no_utf8_is_a_damaged_parquet_file(site):
    path = as_parquet(site)
    table = pq.read_table(path)
    wrong = pa.array([b"\xff\xfe" + bytes([65 + i % 26]) * (1 + i) for i in range(len(table))])
    wrong = wrong.view(pa.string())
    pq.write_table(table.set_column(0, "patient_id", wrong), path)
    assert "is not a readable Parquet file" in prepared(site).message
