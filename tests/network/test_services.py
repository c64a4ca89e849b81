"""The service commands as processes: a server from its kit, sites that join, and all refusals."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import pytest

from fedmvc_client.node_key import NodeKey, Standing, ask_standing
from fedmvc_server.cli import app as server
from fedmvc_server.node_keys import NodeKey as FreshKey
from tests.cli.commands import Ended, call
from tests.configs.test_processes import alive
from tests.network.federation import BIN, ROOT, free_port
from tests.network.runs import children
from tests.transport.kits import answering, days_ago, make_kits

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.drill]

WAIT_S = 90
IMPATIENT = (
    "import sys\n"
    "from fedmvc_client import cli, join\n"
    "join.KEY_WINDOW_S, join.KEY_RETRY_S = 1.0, 0.1\n"
    "sys.exit(cli.main())\n"
)
#: `join` on a machine whose clock is off: what it measures, and what Flower signs with.
SHIFTED = (
    "import sys, time\n"
    "from datetime import timedelta\n"
    "time.time = lambda real=time.time: real() + {seconds}\n"
    "from flwr.supernode import node_auth_http_interceptor as signing\n"
    "signing.now = lambda real=signing.now: real() + timedelta(seconds={seconds})\n"
    "from fedmvc_client import cli, join\n"
    "{also}"
    "sys.exit(cli.main())\n"
)
UNDATED = "join.check_clock = lambda *_: None\n"


class Services:
    """Kits of two sites, a server started from them, and joins."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.kits = make_kits(folder / "kits", self.port)
        self.kit = self.kits / "server"
        self.processes = {}
        for name in ("st-anna", "riverside"):
            text = f'name = "{name}"\n[data]\necg = "ecg.csv"\n'
            (self.kits / name / "site.toml").write_text(text)

    def spawn(self, name, *command):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                list(map(str, command)),
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self.processes[name]

    def join(self, name, site, *options, program=None):
        command = [BIN / "fedmvc-client"] if program is None else [sys.executable, "-c", program]
        runtime = f"127.0.0.1:{free_port()}"
        arguments = ("join", "--site", site, "--runtime", runtime, *options)
        return self.spawn(name, *command, *arguments)

    def refused(self, name, site, *options, program=None):
        """Join to the end, which is a refusal."""
        code = self.join(name, site, *options, program=program).wait(WAIT_S)
        return Ended(code, "", self.log(name))

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def await_log(self, name, words, count=1):
        wait_until(lambda: self.log(name).count(words) >= count, f"'{words}' of {name}")

    def command(self, *arguments):
        ended = call(server, *arguments, "--json")
        assert (ended.code, ended.err) == (0, ""), ended.err
        return json.loads(ended.out)

    def status(self):
        ca = self.kit / "ca.crt"
        found = self.command("status", "--server", self.address, "--ca", ca, "--kit", self.kit)
        return {site["name"]: site for site in found["sites"]}

    def spare_site(self, name):
        """Copy the folder of a site that is not joined, for a test to spoil."""
        copied = self.folder / name
        shutil.copytree(self.kits / "riverside", copied)
        shutil.rmtree(copied / "state" / "flower", ignore_errors=True)
        return copied

    def stop(self):
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(30)


def said(ended):
    """Return how a refusal reads in the table: exit code and first words, no address."""
    words = re.sub(r"( at)? 127[.]0[.]0[.]1:\d+", "", ended.sentence)
    return f"exit {ended.code}: {textwrap.shorten(words, 80, placeholder=' ...')}"


def wait_until(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def programs(pid):
    """Return the children of a process of ours: process id by program."""
    found = {}
    for below in children(pid):
        words = Path(f"/proc/{below}/cmdline").read_bytes().decode().split("\0")
        found[next(w for w in words if "flower-" in w or "fedmvc_client." in w)] = below
    return {Path(name).name: below for name, below in found.items()}


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    running = Services(tmp_path_factory.mktemp("services"))
    try:
        running.spawn("start", BIN / "fedmvc-server", "start", "--kit", running.kit)
        running.await_log("start", "the SuperLink answers at")
        running.command("register", "--kit", running.kit, "--server", running.address)
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def joined(services):
    """Join st-anna, for the tests that need a site that is online."""
    services.join("st-anna", services.kits / "st-anna")
    services.await_log("st-anna", "is connected to")
    return services


def test_a_joined_site_is_online_and_the_other_was_never_seen(joined):
    found = joined.status()

    assert {name: site["status"] for name, site in found.items()} == {
        "riverside": "registered",
        "st-anna": "online",
    }
    assert found["st-anna"]["heartbeat_age_s"] < WAIT_S
    assert found["riverside"]["heartbeat_age_s"] is None


def test_a_superlink_that_is_killed_comes_back_and_the_site_with_it(joined):
    before = programs(joined.processes["start"].pid)
    node = programs(joined.processes["st-anna"].pid)

    os.kill(before["flower-superlink"], signal.SIGKILL)
    joined.await_log("start", "the SuperLink ended (signal 9)")
    joined.await_log("start", "Uvicorn running on", 2)
    back = time.monotonic()  # its SuperNode may not even have noticed
    wait_until(
        lambda: joined.status()["st-anna"]["heartbeat_age_s"] < time.monotonic() - back,
        "a heartbeat of st-anna",
    )

    after = programs(joined.processes["start"].pid)
    assert after["flower-superexec"] == before["flower-superexec"]  # runs go on in it
    assert after["flower-superlink"] != before["flower-superlink"]
    assert programs(joined.processes["st-anna"].pid) == node
    assert joined.status()["st-anna"]["status"] == "online"


def test_what_a_superlink_really_answers_to_the_question_for_a_key(services, monkeypatch):
    from flwr.supernode import node_auth_http_interceptor as signing

    ca, unknown = services.kit / "ca.crt", services.folder / "unknown.key"
    unknown.touch(mode=0o600)
    unknown.write_bytes(FreshKey().private)
    known = NodeKey.load(services.kits / "riverside" / "state" / "node.key")

    assert ask_standing(services.address, ca, known) is Standing.REGISTERED
    assert ask_standing(services.address, ca, NodeKey.load(unknown)) is Standing.UNKNOWN
    now = signing.now
    for minutes in (10, -10):
        monkeypatch.setattr(signing, "now", lambda m=minutes: now() + timedelta(minutes=m))
        assert ask_standing(services.address, ca, known) is Standing.REJECTED
    assert services.status()["riverside"]["status"] == "registered"  # nothing was changed


@pytest.mark.drill("unknown-key")
def test_an_unknown_key_is_refused(services, seen):
    site = services.spare_site("unknown")
    (site / "state" / "node.key").write_bytes(FreshKey().private)

    ended = services.refused("unknown", site)

    assert ended.code == 7
    assert "does not know the node key of site 'riverside' (SHA256:" in ended.sentence
    assert "fedmvc-server register" in ended.sentence
    seen(said(ended))


@pytest.mark.drill("wrong-ca")
def test_another_authority_is_refused(services, seen):
    site = services.spare_site("wrong-ca")
    other = make_kits(services.folder / "other")
    shutil.copy(other / "server" / "ca.crt", site / "ca.crt")

    ended = services.refused("wrong-ca", site)

    assert ended.code == 7
    assert "has a certificate that this CA did not sign" in ended.sentence
    seen(said(ended))


@pytest.mark.drill("expired-certificate")
def test_an_expired_certificate_is_refused(services, seen):
    old = make_kits(services.folder / "old", days=1, made=days_ago(3))
    site = services.spare_site("expired")
    shutil.copy(old / "server" / "ca.crt", site / "ca.crt")

    with answering(old / "server") as address:
        ended = services.refused("expired", site, "--server", address)

    assert ended.code == 7
    assert f"the certificate of the SuperLink at {address} has expired on" in ended.sentence
    seen(said(ended))


@pytest.mark.drill("clock")
@pytest.mark.parametrize(
    ("seconds", "also", "words"),
    [
        (600, "", r"clock is (599|600|601) s ahead of the server's at"),
        (-600, "", r"clock is (599|600|601) s behind the server's at"),
        # as where something on the way takes the server's date away
        (600, UNDATED, "takes no signature of site 'riverside', which signs with this machine's"),
        (-600, UNDATED, "takes no signature of site 'riverside', which signs with this machine's"),
    ],
    ids=["ahead", "behind", "ahead, no date", "behind, no date"],
)
def test_a_clock_that_is_ten_minutes_off_is_refused(services, seen, seconds, also, words):
    site = services.spare_site(f"clock{seconds}{len(also)}")
    program = SHIFTED.format(seconds=seconds, also=also)

    ended = services.refused(site.name, site, program=program)

    assert ended.code == 7
    assert re.search(words, ended.sentence)
    seen(said(ended))


@pytest.mark.drill("second-join")
def test_a_second_join_in_the_same_folder_is_refused_at_once(joined, seen):
    ended = joined.refused("second", joined.kits / "st-anna")

    assert ended.code == 7
    pid = joined.processes["st-anna"].pid
    assert f"another 'fedmvc-client join' of site 'st-anna' runs with this key (process {pid})" in (
        ended.sentence
    )
    seen(f"in the same folder: {said(ended)}")


@pytest.mark.drill("second-join")
def test_a_join_with_the_same_key_elsewhere_is_refused_after_the_window(joined, seen):
    copied = joined.folder / "copy"
    shutil.copytree(joined.kits / "st-anna", copied, ignore=shutil.ignore_patterns("flower"))

    ended = joined.refused("copy", copied, program=IMPATIENT)

    assert ended.code == 7
    assert "[code: 2004] Failed to activate SuperNode." in ended.err  # what Flower says of it
    assert "another SuperNode with the node key of site 'st-anna' is online" in ended.sentence
    assert joined.processes["st-anna"].poll() is None
    seen(f"elsewhere, after the window: {said(ended)}")


def test_sigterm_signs_off_so_that_the_key_is_free_at_once(joined):
    first = joined.processes["st-anna"]
    pids = programs(first.pid).values()
    first.send_signal(signal.SIGTERM)

    assert first.wait(WAIT_S) == 0
    assert not any(map(alive, pids))
    assert joined.status()["st-anna"]["status"] == "offline"
    joined.join("st-anna", joined.kits / "st-anna")
    joined.await_log("st-anna", "is connected to")
    assert "another SuperNode" not in joined.log("st-anna")


@pytest.mark.drill("revoked")
def test_a_site_that_is_revoked_ends_with_the_reason(joined, seen):
    arguments = ("--kit", joined.kit, "--server", joined.address)
    joined.command("revoke", "st-anna", *arguments)
    began = time.monotonic()

    assert joined.processes["st-anna"].wait(WAIT_S) == 7
    seconds = time.monotonic() - began
    ended = Ended(7, "", joined.log("st-anna"))
    assert "no longer knows the node key of site 'st-anna'" in ended.sentence
    assert "revoked" in ended.sentence
    seen(f"{said(ended)} (after {seconds:.0f} s)")
    assert joined.status()["st-anna"]["status"] == "revoked"


def test_sigterm_leaves_no_process(services):
    """Last: it ends the server."""
    started = services.processes["start"]
    pids = list(programs(started.pid).values())
    assert len(pids) == 2

    started.send_signal(signal.SIGTERM)

    assert started.wait(WAIT_S) == 0
    assert not any(map(alive, pids))
    assert services.log("start").rstrip().endswith("SuperLink and executor ended")
