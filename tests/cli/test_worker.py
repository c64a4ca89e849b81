import contextlib
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from configs.errors import TransportError
from configs.plan import RunPlan
from fedmvc_client.cli import app as client
from fedmvc_client.relay import SocketRelay
from strategies.messages import (
    HelloReply,
    HelloRequest,
    PrepareRequest,
    Refusal,
    from_bytes,
    to_bytes,
)
from tests.cli.commands import ENVIRONMENT, LOG_LINE, PLAN, call, script, write_plan

RUN_ID = "0a1b2c3d-0000-4000-8000-000000000000"


@pytest.fixture
def start(tmp_path):
    """Start the installed worker command and wait until its socket is there."""
    running = []

    def start(site):
        socket = tmp_path / "run" / "worker.sock"
        process = subprocess.Popen(
            [script("fedmvc-client"), "worker", "--socket", str(socket), "--site", str(site)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        running.append(process)
        deadline = time.monotonic() + 120
        while not socket.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process, socket

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(socket, message):
    return from_bytes(SocketRelay(socket).ask(to_bytes(message), 60.0))


def test_worker_serves_refuses_and_ends(start, sites, tmp_path):
    plan = RunPlan.load(write_plan(tmp_path, PLAN))
    site = sites / "st-anna"
    process, socket = start(site)
    (site / "ecg.csv").write_text("")  # a run opens the files again

    hello = ask(socket, HelloRequest(RUN_ID, plan.plan_id, plan.canonical()))
    refused = ask(
        socket, PrepareRequest(RUN_ID, plan.plan_id, ("ecg", "imaging"), np.array([2, 2]))
    )
    elsewhere = tmp_path / "run" / "other.sock"
    second = call(client, "worker", "--socket", elsewhere, "--site", site)
    still = ask(socket, HelloRequest(RUN_ID, plan.plan_id, plan.canonical()))
    mode, folder = socket.stat().st_mode, socket.parent.stat().st_mode
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)

    # it answers for its site, also after a second worker was turned away
    assert isinstance(hello, HelloReply)
    assert hello.site == "st-anna"
    assert isinstance(still, HelloReply)
    assert (stat.S_IMODE(mode), stat.S_IMODE(folder)) == (0o660, 0o750)
    assert second.code == 7
    assert second.sentence == (
        f"another 'fedmvc-client worker' of site 'st-anna' runs in this folder (process "
        f"{process.pid}): one worker a site, so stop that one first"
    )
    assert not elsewhere.exists()
    # a refusal's sentence leaves the site, its path stays on the site's own console
    assert isinstance(refused, Refusal)
    assert refused.code == 3
    assert "site 'st-anna', view 'ecg': its file is empty" in refused.message
    assert str(tmp_path) not in refused.message
    assert process.returncode == 0
    assert out == ""
    assert not socket.exists()
    lines = err.splitlines()
    assert "site 'st-anna': the worker answers at" in lines[0]
    assert err.count(refused.message) == 1
    assert f"  {site / 'ecg.csv'}" in lines
    assert lines[-1].endswith("site 'st-anna': the worker has ended")
    assert all(LOG_LINE.match(line) or line.startswith("  ") for line in lines)


def _no_file(site):
    (site / "ecg.csv").unlink()
    return "site 'st-anna', view 'ecg': its file does not exist: check [data] in site.toml."


def _wrong_column(site):
    text = (site / "ecg.csv").read_text()
    (site / "ecg.csv").write_text("x" + text)  # the id column comes first
    return "site 'st-anna', view 'ecg': id column 'patient_id' is missing"


def _few_rows(site):
    for path in site.glob("*.csv"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    return "rows; policy.min_cohort is 50"


@pytest.mark.parametrize("spoil", [_no_file, _wrong_column, _few_rows])
def test_worker_warns_of_data_that_no_run_could_start_on(sites, tmp_path, monkeypatch, spoil):
    served = []

    def serve(worker, path, **keywords):
        served.append(worker.site)
        return True

    monkeypatch.setattr("fedmvc_client.socket_server.serve_worker", serve)
    site = sites / "st-anna"
    sentence = spoil(site)

    ended = call(client, "worker", "--socket", tmp_path / "w", "--site", site)

    assert (ended.code, served) == (0, ["st-anna"])  # they may be put right while it serves
    warning, *others = ended.err.splitlines()
    assert "no run can start on these data yet: " in warning
    assert sentence in warning
    assert "'fedmvc-client check'" in warning
    assert "Traceback" not in ended.err
    assert spoil is _few_rows or f"  {site / 'ecg.csv'}" in others[0]


def test_worker_is_silent_on_data_that_are_right(sites, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmvc_client.socket_server.serve_worker", lambda *_, **__: True)

    ended = call(client, "worker", "--socket", tmp_path / "w", "--site", sites / "st-anna")

    assert len(ended.err.splitlines()) == 1
    assert ended.err.endswith("site 'st-anna': the worker has ended\n")


def test_a_signal_ends_the_command_in_the_middle_of_a_long_request(sites, tmp_path):
    """The command itself, its site one that computes without end, on a pool's threads."""
    socket = tmp_path / "run" / "w.sock"
    code = (
        "import sys, time, types\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from fedmvc_client import cli, socket_server\n"
        "class Endless:\n"
        "    site = 'st-anna'\n"
        "    def handle(self, body):\n"
        "        print('asked', flush=True)\n"
        "        with ThreadPoolExecutor(2) as pool:\n"
        "            list(pool.map(time.sleep, [60.0, 60.0]))\n"
        "serve = socket_server.serve_worker\n"
        "socket_server.serve_worker = lambda *a, **k: serve(*a, **k, grace=0.5)\n"
        "stub = types.ModuleType('fedmvc_client.worker')\n"
        "stub.folder_worker = lambda site: Endless()\n"
        "sys.modules['fedmvc_client.worker'] = stub\n"
        "sys.argv = ['fedmvc-client', 'worker', '--socket', *sys.argv[1:]]\n"
        "sys.exit(cli.main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(socket), "--site", str(sites / "st-anna")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=Path(__file__).resolve().parents[2],
    )
    try:
        deadline = time.monotonic() + 120
        while not socket.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)

        def asking():
            with contextlib.suppress(TransportError):
                SocketRelay(socket).ask(b"x", 60.0)

        asker = threading.Thread(target=asking)
        asker.start()
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=15)
        asker.join(10)
    finally:
        process.kill()
    assert process.returncode == 0
    assert not socket.exists()
    assert err.rstrip().endswith("site 'st-anna': the worker has ended and broke off a request")


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), ()), (("--allow-uid", "4711", "--allow-uid", "12"), (4711, 12))],
)
def test_worker_takes_the_users_it_is_told(sites, tmp_path, monkeypatch, options, expected):
    given = {}

    def serve(worker, path, **keywords):
        given.update(keywords)
        return True

    monkeypatch.setattr("fedmvc_client.socket_server.serve_worker", serve)
    site = sites / "st-anna"
    ended = call(client, "worker", "--socket", tmp_path / "w", "--site", site, *options)

    assert ended.code == 0
    assert tuple(given["allowed_uids"]) == expected


def test_worker_says_when_its_folder_is_open_to_others(sites, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)

    ended = call(client, "worker", "--socket", folder / "w.sock", "--site", sites / "st-anna")

    assert ended.code == 7
    assert "has mode 0755" in ended.sentence
    assert "chmod 750" in ended.sentence
    assert list(folder.iterdir()) == []


def test_worker_needs_a_site_folder(tmp_path):
    ended = call(client, "worker", "--socket", tmp_path / "w.sock", "--site", tmp_path / "nowhere")

    assert ended.code == 2
    assert "'site.toml' does not exist in folder 'nowhere'" in ended.sentence
    assert list(tmp_path.iterdir()) == []
