"""Kits at a real SuperLink: who is let in after register, rotate and revoke."""

import json
import os
import signal
import subprocess
import time

import pytest

from fedmvc_server.cli import app as server
from fedmvc_server.flower_cli import FlowerCli
from tests.cli.commands import call
from tests.network.federation import BIN, free_port

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.drill]

WAIT_S = 90
FEDERATION = """
name = "cardio"
[server]
addresses = ["127.0.0.1"]
port = {port}
[[sites]]
name = "st-anna"
[[sites]]
name = "riverside"
"""


class Kits:
    """Kits of two sites, and a SuperLink that runs from the server's."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.out = folder / "kits"
        self.kit = self.out / "server"
        (folder / "federation.toml").write_text(FEDERATION.format(port=self.port))
        ended = call(server, "provision", folder / "federation.toml", "--out", self.out)
        assert ended.code == 0, ended.err
        (folder / "cli").mkdir()
        self.flower = FlowerCli(folder / "cli", self.address, self.kit / "ca.crt")
        self.processes = []

    def command(self, *arguments):
        return call(server, *arguments, "--kit", self.kit, "--server", self.address)

    def read(self, *arguments):
        ended = self.command(*arguments, "--json")
        assert (ended.code, ended.err) == (0, "")
        return json.loads(ended.out)

    def nodes(self):
        return json.loads((self.kit / "nodes.json").read_text())

    def start_superlink(self):
        self.spawn(
            "superlink",
            str(BIN / "flower-superlink"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", str(self.kit / "ca.crt")),
            *("--ssl-certfile", str(self.kit / "server.pem")),
            *("--ssl-keyfile", str(self.kit / "server.key")),
            "--enable-supernode-auth",
            *("--isolation", "process"),
            *("--superexec-auth-secret-file", str(self.kit / "superexec.secret")),
            *("--database", str(self.folder / "state.db")),
            "--disable-runtime-dependency-installation",
        )
        until(lambda: "running on" in self.log("superlink").lower(), "SuperLink")

    def start_node(self, name, key):
        site = self.out / "st-anna"
        return self.spawn(
            name,
            str(BIN / "flower-supernode"),
            *("--superlink", self.address, "--max-retries", "3"),
            *("--root-certificates", str(site / "ca.crt")),
            *("--auth-supernode-private-key", str(key)),
            *("--isolation", "process", "--host", "127.0.0.1", "--port", str(free_port())),
        )

    def spawn(self, name, *command):
        environment = {
            **self.flower.environment(),
            "FLWR_HOME": str(self.folder / name),
            "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", "")]),
            "PYTHONUNBUFFERED": "1",
        }
        (self.folder / name).mkdir()
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self.processes):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        continue


def until(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    made = Kits(tmp_path_factory.mktemp("provision"))
    try:
        made.start_superlink()
        yield made
    finally:
        made.stop()


def test_registered_rotated_revoked(kits):
    registered = kits.read("register")["registered"]
    assert list(registered) == ["st-anna", "riverside"]
    before = kits.nodes()
    assert {name: record["node_id"] for name, record in before.items()} == registered

    # the key of the kit lets the site in
    first, key = registered["st-anna"], kits.out / "st-anna" / "state" / "node.key"
    old = kits.folder / "old.key"
    old.write_bytes(key.read_bytes())
    node = kits.start_node("before", key)
    until(lambda: f"SuperNode ID: {first}" in kits.log("before"), "SuperNode")
    node.terminate()
    node.wait(20)

    # rotated: another key, and the old one counts no more
    rotated = kits.read("rotate", "st-anna")
    assert rotated["key"] == str(key)
    assert kits.nodes()["st-anna"]["node_id"] == rotated["node_id"] != first
    refused = kits.start_node("old", old)
    assert refused.wait(WAIT_S) != 0
    assert "Failed to activate" in kits.log("old")
    node = kits.start_node("after", key)
    until(lambda: f"SuperNode ID: {rotated['node_id']}" in kits.log("after"), "SuperNode")

    # revoked while it is connected: cut off
    revoked = kits.read("revoke", "st-anna")
    node.wait(WAIT_S)
    assert kits.nodes()["st-anna"]["revoked_at"] == revoked["revoked_at"]
    assert kits.nodes()["riverside"] == before["riverside"]
    assert kits.flower.nodes() == {
        first: "unregistered",
        rotated["node_id"]: "unregistered",
        registered["riverside"]: "registered",
    }

    # a lost record does not let a key in twice
    (kits.kit / "nodes.json").unlink()
    lost = kits.command("register", "--site", "riverside")
    assert lost.code == 2
    assert "knows the key of site 'riverside' already, and nodes.json does not" in lost.sentence
    assert not (kits.kit / "nodes.json").exists()


def test_another_authoritys_superlink_gets_no_key(kits, tmp_path):
    other = tmp_path / "kits"
    call(server, "provision", kits.folder / "federation.toml", "--out", other)
    ended = call(server, "register", "--kit", other / "server", "--server", kits.address)
    assert ended.code == 7
    assert "has a certificate that this CA did not sign" in ended.sentence
    assert not (other / "server" / "nodes.json").exists()
