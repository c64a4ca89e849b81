"""What the processes of a local federation are started with."""

import socket

import pytest

from configs.processes import PASSPHRASE
from fedmvc_server import local_federation
from fedmvc_server.local_federation import LOOPBACK, LocalFederation, free_port
from fedmvc_server.synthesize import synthesize_cardio


@pytest.mark.parametrize("given", [None, "correct horse"])
def test_of_all_processes_the_workers_alone_get_the_passphrase(tmp_path, monkeypatch, given):
    """The SuperLink, the executors and the SuperNodes had it too, in an environment to be read."""
    got = {}
    monkeypatch.setattr(
        local_federation,
        "Child",
        lambda name, command, environment, *_, **__: got.update({name: environment}),
    )
    if given:
        monkeypatch.setenv(PASSPHRASE, given)
    else:
        monkeypatch.delenv(PASSPHRASE, raising=False)
    synthesize_cardio(tmp_path / "sites", sites=1, n=100)
    federation = LocalFederation(tmp_path / "federation", tmp_path / "sites")
    federation._sockets = tmp_path
    (site,) = federation.names

    for name in ("server", f"worker-{site}", f"executor-{site}", f"join-{site}"):
        federation.spawn(name)

    assert {name: environment.get(PASSPHRASE) for name, environment in got.items()} == {
        "server": None,
        f"worker-{site}": given,
        f"executor-{site}": None,
        f"join-{site}": None,
    }


def test_a_free_port_is_none_that_an_outgoing_connection_may_take(monkeypatch):
    """A SuperNode found its port taken by a connection that had begun after the choice."""
    assert all(1024 < free_port() < 32_768 for _ in range(20))
    with socket.socket() as taken:
        taken.bind((LOOPBACK, free_port()))
        taken.listen()
        port, other = taken.getsockname()[1], free_port()
        monkeypatch.setattr(local_federation, "_PORTS", [port, other])
        assert {free_port() for _ in range(20)} == {other}
