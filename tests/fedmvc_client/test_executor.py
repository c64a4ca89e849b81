"""The executor; the canaries fail where Flower starts tasks or loads apps in another way."""

import ast
import importlib
import inspect
import logging
import os
import socket
import sys

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.types import ExecutionSpec, Executor

from configs.errors import ProtocolError
from configs.processes import PASSPHRASE
from fedmvc_client import clientapp
from fedmvc_client.cli import app as client
from fedmvc_client.executor import Cold, Launcher, set_up_environment
from tests.cli.commands import call

SUPEREXEC = "flwr.supercore.superexec.run_superexec"
CLIENTAPP = "flwr.supernode.runtime.run_clientapp"


def calls(module, function):
    """Names of plain functions that a function of Flower's calls, in the order of its text."""
    source = inspect.getsource(getattr(importlib.import_module(module), function))
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return [node.func.id for node in nodes if isinstance(node.func, ast.Name)]


def spec(task_type=TaskType.CLIENT_APP, **changes):
    fields = {
        "task_type": task_type,
        "runtime_api_address": "127.0.0.1:9094",
        "token": "ab" * 16,
        "insecure": True,
        "root_certificates_path": None,
        "runtime_dependency_install": True,
        "parent_pid": 7,
        "suppress_output": False,
        "task_id": 1,
    }
    return ExecutionSpec(**{**fields, **changes})


class Recorder(Launcher):
    def __init__(self, codes=()):
        super().__init__("/run/worker.sock")
        self.codes, self.started = list(codes), []

    def start(self, arguments):
        self.started.append(arguments)
        code = self.codes.pop(0)
        return type("Started", (), {"exit_code": lambda self: code})()


def test_canary_flower_asks_for_its_executor_where_it_is_replaced():
    found = calls(SUPEREXEC, "run_superexec")
    assert found.count("get_executor") == 1
    command = importlib.import_module("flwr.supercore.cli.flower_superexec")
    assert command.run_superexec is importlib.import_module(SUPEREXEC).run_superexec


def test_canary_a_launcher_is_what_flower_calls_an_executor():
    asked = {name for name in vars(Executor) if not name.startswith("_")}
    assert asked == {name for name in vars(Launcher) if not name.startswith("_")} - {"start"}
    parameters = set(inspect.signature(ExecutionSpec).parameters)
    assert {"runtime_api_address", "token", "insecure", "parent_pid"} <= parameters


def test_canary_a_bundle_is_installed_before_its_app_is_looked_for_and_nowhere_else():
    found = calls(CLIENTAPP, "run_clientapp")
    order = [found.index(name) for name in ("pull_task_input", *clientapp.REPLACED, "client_app")]
    assert order == sorted(order)
    for name in clientapp.REPLACED:
        assert found.count(name) == 1
    # what is left that could import a bundle's code
    assert "load_client_app_fn" in found
    assert "load_app" not in found
    command = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    assert command.run_clientapp is importlib.import_module(CLIENTAPP).run_clientapp


def test_canary_flower_runs_a_message_by_what_its_command_is_given():
    parameters = inspect.signature(importlib.import_module(CLIENTAPP).run_clientapp).parameters
    ours = {"runtime_api_address", "token", "insecure", "parent_pid"}
    assert ours <= parameters.keys()
    assert parameters["runtime_dependency_install"].default is False  # nothing is installed
    assert parameters["certificates"].default is None  # the Runtime API is on this machine
    for name in parameters.keys() - ours:
        assert parameters[name].default is not inspect.Parameter.empty


@pytest.mark.parametrize("task_type", list(TaskType))
def test_whatever_the_task_is_our_process_is_started_and_installs_nothing(task_type):
    recorder = Recorder([None])

    result = recorder.launch(spec(task_type))

    assert result.status == "accepted"
    (arguments,) = recorder.started
    assert arguments[:4] == ["--runtime-api-address", "127.0.0.1:9094", "--token", "ab" * 16]
    assert arguments[4:] == ["--insecure", "--parent-pid", "7"]  # no dependency installation
    assert recorder.get_eligible_capacity({task_type}, insecure=True) == ({task_type}, set())


def test_a_message_is_its_own_python_without_the_current_folder(monkeypatch):
    commands = []

    class Popen:
        def __init__(self, command):
            commands.append(command)

        def poll(self):
            return None

    monkeypatch.setattr("subprocess.Popen", Popen)
    Cold("/run/worker.sock").launch(spec())

    head = [sys.executable, "-P", "-m", "fedmvc_client.clientapp", "/run/worker.sock"]
    assert commands[0][:5] == head


def test_a_process_that_was_killed_is_named_in_the_log(caplog):
    recorder = Recorder([None, 0, 1, -9])
    for _ in range(4):
        recorder.launch(spec())

    with caplog.at_level(logging.ERROR, "fedmvc.site"):
        recorder.reconcile()
        recorder.reconcile()

    (record,) = caplog.records
    assert "ended by SIGKILL" in record.getMessage()


def test_the_environment_is_quiet_and_asks_no_proxy_on_the_way_to_the_supernode():
    environment = {"NO_PROXY": "intranet.example", "HTTP_PROXY": "http://proxy:3128"}

    set_up_environment(environment, "supernode", fast_poll=True)

    assert environment["NO_PROXY"] == "intranet.example,127.0.0.1,localhost,::1,supernode"
    assert environment["no_proxy"] == environment["NO_PROXY"]
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] == "0.05"


def test_the_passphrase_of_the_sites_key_is_not_passed_on():
    environment = {PASSPHRASE: "correct horse", "PATH": "/usr/bin"}
    set_up_environment(environment, "127.0.0.1")
    assert PASSPHRASE not in environment
    assert environment["PATH"] == "/usr/bin"


def test_flowers_own_poll_is_left_alone_by_default():
    environment = {}
    set_up_environment(environment, "127.0.0.1")
    assert "FLWR_SUPEREXEC_TASK_POLL_INTERVAL" not in environment


@pytest.mark.parametrize("address", ["9094", "host:", ":9094", "host:0", "host:99999", "a/b:9094"])
def test_an_address_that_is_none_is_refused(address):
    ended = call(client, "executor", "--runtime", address, "--socket", "/x.sock")
    assert ended.code == 2
    assert f"the Runtime API's address '{address}' is not HOST:PORT" in ended.sentence
    assert ended.sentence.endswith("127.0.0.1:9094, where the SuperNode listens")


@pytest.mark.parametrize("there", [True, False])
def test_a_supernode_that_is_not_there_is_said_once(monkeypatch, tmp_path, there):
    """Flower's own words were a failed attempt and when it tries again, and not at what."""
    from flwr.supercore import cli as flower

    monkeypatch.setattr(flower, "flower_superexec", lambda: None)
    monkeypatch.setattr(importlib.import_module(SUPEREXEC), "get_executor", None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        runtime = f"127.0.0.1:{listening.getsockname()[1]}"
        if not there:
            listening.close()
        ended = call(client, "executor", "--runtime", runtime, "--socket", tmp_path / "w.sock")

    (line,) = ended.err.splitlines()
    said = f"no SuperNode answers at {runtime}: start 'fedmvc-client join'"
    assert ended.code == 0
    assert (said in line) is not there
    assert (f"asks for messages at {runtime}" in line) is there


def test_another_flower_is_refused_with_both_versions(monkeypatch):
    monkeypatch.setattr("configs.flower_version.installed", lambda name: "1.42.1")
    ended = call(client, "executor", "--socket", "/x.sock")
    assert ended.code == 8
    assert "flwr 1.42.1 is installed and fedmvc needs 1.42.0" in ended.sentence
    with pytest.raises(ProtocolError, match=r"flwr 1\.42\.1"):
        clientapp.run("/x.sock", [])
