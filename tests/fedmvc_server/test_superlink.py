"""The exact commands of SuperLink and executor."""

import sys
from pathlib import Path

import pytest

from configs.endpoint import CertificateFacts
from configs.errors import ConfigError
from fedmvc_server.kit import ServerKit
from fedmvc_server.superlink import (
    Listening,
    environment,
    is_loopback,
    superexec_command,
    superlink_command,
)
from tests.transport.kits import days_ago, make_kits

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return ServerKit.at(make_kits(tmp_path_factory.mktemp("kits") / "kits", 18443) / "server")


def choose(kit, host="127.0.0.1", port=None, behind_proxy=False):
    return Listening.choose(kit, kit.certificate_facts(), host, port, behind_proxy)


def test_every_argument_of_the_superlink(kit):
    assert superlink_command(kit, choose(kit)) == [
        f"{BIN}/flower-superlink",
        *("--host", "127.0.0.1", "--port", "18443"),
        *("--ssl-ca-certfile", f"{kit.folder}/ca.crt"),
        *("--ssl-certfile", f"{kit.folder}/server.pem"),
        *("--ssl-keyfile", f"{kit.folder}/server.key"),
        "--enable-supernode-auth",
        *("--database", f"{kit.folder}/state/state.db"),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", f"{kit.folder}/superexec.secret"),
        "--disable-runtime-dependency-installation",
    ]


def test_every_argument_of_the_executor(kit):
    assert superexec_command(kit, choose(kit)) == [
        f"{BIN}/flower-superexec",
        *("--root-certificates", f"{kit.folder}/ca.crt"),
        *("--runtime-api-address", "127.0.0.1:18443"),
        *("--superexec-auth-secret-file", f"{kit.folder}/superexec.secret"),
    ]


def test_flower_knows_the_arguments_and_installs_nothing(kit, monkeypatch):
    from flwr.supercore.cli.flower_superexec import _parse_args
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    superlink = _parse_args_run_superlink().parse_args(superlink_command(kit, choose(kit))[1:])
    executor = _parse_args().parse_args(superexec_command(kit, choose(kit))[1:])

    assert superlink.runtime_dependency_install is False
    assert executor.runtime_dependency_install is False
    assert superlink.enable_supernode_auth


def test_the_environment_is_silent_and_keeps_to_the_kit(kit):
    made = environment(kit, choose(kit))

    assert made["FLWR_TELEMETRY_ENABLED"] == "0"
    assert made["FLWR_HOME"] == f"{kit.folder}/state/flower"
    assert "127.0.0.1" in made["NO_PROXY"]


def test_behind_a_proxy_it_listens_elsewhere_and_is_reached_locally(kit, tmp_path):
    proxied = ServerKit.at(make_kits(tmp_path / "kits", proxy=True) / "server")

    assert choose(kit, "0.0.0.0", behind_proxy=True) == Listening("0.0.0.0", 8000, "127.0.0.1")
    assert choose(proxied).port == 8000
    assert choose(proxied, port=9).port == 9


def test_an_address_that_others_reach_needs_a_proxy(kit):
    with pytest.raises(ConfigError, match=r"'0\.0\.0\.0', which other machines reach.*proxy"):
        choose(kit, "0.0.0.0")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_this_machine_alone(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "fl.example.org"])
def test_all_else_is_reached_by_others(host):
    assert not is_loopback(host)


def test_a_certificate_without_a_local_name_is_refused(kit):
    facts = CertificateFacts(("fl.example.org",), days_ago(1), days_ago(-1))

    with pytest.raises(ConfigError, match=r"is for fl\.example\.org and not for 127\.0\.0\.1"):
        Listening.choose(kit, facts, "127.0.0.1", None, False)
