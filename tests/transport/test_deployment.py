import errno
import json
import os
import re
import signal
import socket
import threading
import time
import tomllib
from datetime import UTC, datetime, timedelta

import pytest

from configs.errors import ConfigError, FedMVCError, InternalError, TransportError
from configs.plan import RunPlan
from fedmvc_server import deployment
from fedmvc_server.deployment import check_reachable, run_deployed
from fedmvc_server.flower_cli import FlowerCli, RunStatus, write_app_folder
from fedmvc_server.run_results import RunResults
from tests.transport.kits import answering, make_kits

PLAN = 'method = "fedhk-mvfc"\nn_clusters = 2\n'
ROUNDS = "round,objective\n1,9.5\n2,8.25\n"


class FakeFlower:
    """Plays Flower's command line: `script(step)` returns a RunStatus or raises."""

    stopped = None

    def __init__(self, script, submit=None, stop=None):
        self.script, self.submit, self.stopping = script, submit, stop
        self.step = -1
        self.run_config = None

    def __call__(self, home, address, ca):
        self.home = home
        return self

    def run(self, app_folder, run_config):
        self.run_config = run_config
        self.app = tomllib.loads((app_folder / "pyproject.toml").read_text())
        if self.submit is not None:
            self.submit()
        return 42

    def status(self, run_id):
        assert run_id == 42
        self.step += 1
        return self.script(self.step)

    def stop(self, run_id):
        self.stopped = run_id
        if self.stopping is not None:
            self.stopping()


RUNNING = RunStatus("running", "", "N/A")


@pytest.fixture
def listener():
    """Listen on a loopback port, without TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def deploy(monkeypatch, tmp_path, listener):
    """Run a plan against a scripted Flower."""
    monkeypatch.setattr(deployment, "_STATUS_PERIOD", 0.0)
    monkeypatch.setattr(deployment, "_RUNNING_PERIOD", 0.0)
    monkeypatch.setattr(deployment, "_RESULT_GRACE", 0.05)
    (tmp_path / "plan.toml").write_text(PLAN)

    def run(script, submit=None, stop=None, **settings):
        flower = FakeFlower(script, submit, stop)
        monkeypatch.setattr(deployment, "FlowerCli", flower)
        run.flower = flower
        return run_deployed(
            tmp_path / "plan.toml", listener, None, tmp_path / "out", poll_s=0.01, **settings
        )

    return run


def _leave(folder, code, reason=""):
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps({"exit_code": code, "stop_reason": reason}))


@pytest.mark.parametrize("code", [0, 6])
def test_the_exit_code_is_the_results(deploy, tmp_path, code):
    def script(step):
        if step == 1:
            _leave(tmp_path / "out", code)
        return RUNNING

    assert deploy(script) == code
    assert deploy.flower.run_config == {
        "plan": RunPlan.parse(tomllib.loads(PLAN)).canonical(),
        "data": "",
        "resume": "",
        "out": str(tmp_path / "out"),
    }
    assert not deploy.flower.home.exists()  # nothing is left behind


def test_an_earlier_runs_result_is_not_taken_for_this_ones(deploy, tmp_path):
    _leave(tmp_path / "out", 0)

    with pytest.raises(InternalError, match="failed before it left a result"):
        deploy(lambda step: RunStatus("finished", "failed", "boom with a value"))


def test_a_half_written_result_is_waited_for(deploy, tmp_path):
    def script(step):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "result.json").write_text('{"exit_' if step == 0 else "")
        if step == 2:
            _leave(tmp_path / "out", 3)
        return RUNNING

    assert deploy(script) == 3


def test_rounds_are_reported_once_each(deploy, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rounds.csv").write_text("round,objective\n1,0.0\n")  # of an earlier run
    seen = []

    def script(step):
        (tmp_path / "out" / "rounds.csv").write_text(ROUNDS[: 16 + 8 * step])
        if step == 2:
            _leave(tmp_path / "out", 0)
        return RUNNING

    deploy(script, on_progress=seen.append)

    assert seen == [
        {"round": "1", "objective": "9.5"},
        {"round": "2", "objective": "8.25"},
    ]


@pytest.mark.parametrize(
    ("outcome", "kind", "sentence"),
    [
        (
            "failed",
            InternalError,
            "failed before it left a result: look at the SuperLink's log, and see that the "
            "SuperLink's user may write the results folder",
        ),
        ("stopped", TransportError, "stopped from outside"),
        ("completed", TransportError, "not in the output folder of this machine"),
    ],
)
def test_without_a_result_flowers_status_decides(deploy, outcome, kind, sentence):
    with pytest.raises(kind, match=sentence) as caught:
        deploy(lambda step: RunStatus("finished", outcome, "boom with a value"))

    assert "boom" not in caught.value.public_message


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_lost_run_that_had_begun_is_said_to_go_on_by_resume(deploy, tmp_path, outcome, begun):
    def script(step):
        if begun:
            (tmp_path / "out" / "checkpoint").mkdir(parents=True, exist_ok=True)
        return RunStatus("finished", outcome, "")

    with pytest.raises(FedMVCError) as caught:
        deploy(script)

    # a process that was lost is no defect of this software: it was an internal error (70) once
    assert caught.value.code == (70 if outcome == "failed" and not begun else 7)
    assert ("'fedmvc-server resume' goes on" in caught.value.public_message) is begun
    assert ("'fedmvc-server run'" in caught.value.public_message) is (
        outcome == "stopped" and not begun
    )


def test_a_run_that_could_leave_no_result_on_a_full_disk_says_so(tmp_path, monkeypatch):
    """Flower's status has no code: it was an internal error (70) once."""
    (tmp_path / "run.json").write_text("{}")
    ended = RunStatus("finished", "failed", "ServerApp failed with exception: ...")
    with pytest.raises(InternalError):
        deployment._explain(ended, tmp_path, "fl.example.org:8443")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"cannot be written \(No space left on device\)"):
        deployment._explain(ended, tmp_path, "fl.example.org:8443")


def test_a_run_whose_folder_cannot_be_made_on_this_machine_says_so(deploy, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="folder 'out' cannot be written"):
        deploy(lambda step: RunStatus("finished", "failed", "boom"))


def test_a_failed_run_leaves_no_folder_behind(deploy, tmp_path):
    with pytest.raises(InternalError):
        deploy(lambda step: RunStatus("finished", "failed", "boom"))
    assert not (tmp_path / "out").exists()


def test_a_run_that_waits_says_for_whom(deploy, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(deployment, "_WORD_EVERY", 0.1)
    out = tmp_path / "out"
    out.mkdir()
    since = (datetime.now(UTC) - timedelta(seconds=75)).isoformat()

    def script(step):
        if step == 1:
            fields = {"phase": "round", "round": 1, "waiting_for": ["riverside"], "since": since}
            (out / "progress.json").write_text(json.dumps(fields))
        if "waiting for riverside" in caplog.text or step > 1000:
            _leave(out, 0)
        return RUNNING

    with caplog.at_level("INFO", "fedmvc"):
        deploy(script)

    assert re.search(r"round 1: waiting for riverside for \d+ s", caplog.text)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"since": "x"}', '{"phase": "round", "round": 1, "since": 3}']
)
def test_a_progress_file_that_says_nothing_is_no_word(tmp_path, text):
    results = RunResults(tmp_path, None, ("127.0.0.1:1", None))
    (tmp_path / "progress.json").write_text(text)
    assert results.waiting(0.0) == ""


def test_a_superlink_with_tls_wants_its_ca(tmp_path):
    kits = make_kits(tmp_path / "kits")
    with (
        answering(kits / "server") as address,
        pytest.raises(ConfigError, match=r"speaks TLS: give its CA certificate with --ca"),
    ):
        check_reachable(address, None)


def test_a_silent_superlink_is_given_up_with_the_seconds(deploy, monkeypatch):
    monkeypatch.setattr(deployment, "SILENCE_TIMEOUT", 0.05)

    def script(step):
        raise TransportError("down")

    with pytest.raises(TransportError, match=r"has not answered for 0\.05 s"):
        deploy(script)


def test_a_short_silence_is_borne(deploy, tmp_path):
    def script(step):
        if step < 2:
            raise TransportError("down")
        _leave(tmp_path / "out", 0)
        return RUNNING

    assert deploy(script) == 0


def test_a_run_that_never_starts_is_stopped(deploy, monkeypatch):
    monkeypatch.setattr(deployment, "START_TIMEOUT", 0.05)

    with pytest.raises(TransportError, match=r"did not start the run in 0\.05 s"):
        deploy(lambda step: RunStatus("pending", "", ""))

    assert deploy.flower.stopped == 42


def test_an_interrupt_stops_the_run(deploy):
    def script(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deploy(script)

    assert deploy.flower.stopped == 42


def test_an_interrupt_with_the_superlink_down_is_still_one(deploy):
    """It was the SuperLink's silence (7) once, and no word on `resume`."""

    def interrupted(step):
        raise KeyboardInterrupt

    def down():
        raise TransportError("down")

    with pytest.raises(KeyboardInterrupt):
        deploy(interrupted, stop=down)

    assert deploy.flower.stopped == 42


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_run_is_submitted_stops_it(deploy, number):
    """The run had no id yet, and went on at all hospitals."""
    earlier = signal.getsignal(number)
    if number == signal.SIGTERM:  # as in a rehearsal, where it does what Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    expected = signal.getsignal(number)
    taken = []

    def submit():
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        taken.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            deploy(lambda step: RUNNING, submit=submit)
        assert signal.getsignal(number) is expected
    finally:
        signal.signal(number, earlier)

    assert taken == [True]
    assert deploy.flower.stopped == 42
    assert deploy.flower.step == -1


def test_an_interrupt_of_a_submission_that_fails_says_why_it_did(deploy):
    def submit():
        os.kill(os.getpid(), signal.SIGINT)
        raise TransportError("down")

    with pytest.raises(TransportError, match="down"):
        deploy(lambda step: RUNNING, submit=submit)

    assert deploy.flower.stopped is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_may_be_submitted_from_another_thread(deploy, tmp_path):
    codes = []

    def script(step):
        _leave(tmp_path / "out", 0)
        return RUNNING

    thread = threading.Thread(target=lambda: codes.append(deploy(script)))
    thread.start()
    thread.join()

    assert codes == [0]


def test_a_bad_plan_is_refused_before_anything_is_asked(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN + "n_cluster = 2\n")

    with pytest.raises(ConfigError, match="n_cluster"):
        run_deployed(tmp_path / "plan.toml", "127.0.0.1:1", None, tmp_path / "out")


def test_a_run_config_reaches_flower_with_its_quotes(tmp_path, monkeypatch):
    from flwr.common.config import parse_config_args

    seen = {}

    def command(*arguments):
        seen.update(parse_config_args([arguments[-1]]))
        return {"run-id": "42"}

    cli = FlowerCli(tmp_path, "127.0.0.1:8443", None)
    monkeypatch.setattr(cli, "_command", command)
    values = {"plan": '{"a": "b c", "d": [1.5]}', "data": "", "out": "/tmp/it's \\ here ü"}

    assert cli.run(tmp_path, values) == 42
    assert seen == values


def test_an_unreachable_superlink_names_address_and_seconds():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started = time.monotonic()

    with pytest.raises(TransportError, match=rf"{address} \(tried for 0\.3 s\)"):
        check_reachable(address, None, timeout_s=0.3)

    assert time.monotonic() - started < 1.0


def test_a_server_that_never_speaks_is_cut_off(listener, tmp_path):
    from tests.network.credentials import write_credentials

    write_credentials(tmp_path, ())
    started = time.monotonic()

    with pytest.raises(TransportError, match="no SuperLink answers"):
        check_reachable(listener, tmp_path / "ca.crt", timeout_s=0.3)

    assert time.monotonic() - started < 1.5


def test_a_certificate_of_another_ca_is_refused(tmp_path):
    import ssl

    from tests.network.credentials import write_credentials

    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        write_credentials(tmp_path / name, ())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "theirs" / "server.pem", tmp_path / "theirs" / "server.key")

    def accept(server):
        connection, _ = server.accept()
        with connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, args=(server,))
        thread.start()
        with pytest.raises(TransportError, match=r"did not sign for '127\.0\.0\.1'"):
            check_reachable(f"127.0.0.1:{server.getsockname()[1]}", tmp_path / "ours" / "ca.crt")
        thread.join()


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", ":8443", "localhost:0", "localhost:65536", "http://x:1"]
)
def test_a_malformed_address_is_refused(address):
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        check_reachable(address, None)


def test_another_machine_needs_tls():
    with pytest.raises(ConfigError, match="needs TLS"):
        check_reachable("superlink.example:8443", None)


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_an_unusable_ca_is_refused(tmp_path, content):
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)

    with pytest.raises(ConfigError, match=r"'ca\.crt' cannot be read as PEM"):
        check_reachable("localhost:8443", path)


def test_the_bundle_holds_no_code(tmp_path):
    write_app_folder(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
    app = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"] == {
        "publisher": "fedmvc",
        "fab-include": ["pyproject.toml"],
        "components": {
            "serverapp": "fedmvc_server.app:app",
            "clientapp": "fedmvc_client.app:app",
        },
        "config": {"plan": "", "data": "", "out": "", "poll": "", "resume": ""},
    }


def test_the_bundle_agrees_with_the_checkouts_own(tmp_path):
    from pathlib import Path

    write_app_folder(tmp_path)
    root = Path(__file__).resolve().parents[2]
    ours = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["flwr"]
    written = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["flwr"]

    assert written == ours


def test_flowers_configuration_is_ours_and_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    cli = FlowerCli(tmp_path, "10.0.0.1:8443", tmp_path / 'a "ca".crt')

    config = tomllib.loads((tmp_path / "config.toml").read_text())
    assert config["superlink"]["fedmvc"] == {
        "address": "10.0.0.1:8443",
        "root-certificates": str(tmp_path / 'a "ca".crt'),
    }
    environment = cli.environment()
    assert environment["FLWR_HOME"] == str(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["NO_PROXY"] == "intranet.example,127.0.0.1,localhost,::1,10.0.0.1"


@pytest.mark.parametrize(("options", "poll"), [({}, None), ({"fast_poll": True}, "0.01")])
def test_fast_poll_travels_as_a_key_of_the_run(deploy, tmp_path, options, poll):
    def script(step):
        _leave(tmp_path / "out", 0)
        return RUNNING

    assert deploy(script, **options) == 0
    assert deploy.flower.run_config.get("poll") == poll
    assert deploy.flower.app["tool"]["flwr"]["app"]["config"]["poll"] == ""
