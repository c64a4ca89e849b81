"""The site's SuperNode: its command, and what becomes of one that ends."""

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from configs.endpoint import Reached, Unreachable
from configs.errors import ConfigError, ProtocolError, TransportError
from configs.processes import only_one
from fedmvc_client import join as joining
from fedmvc_client import supernode
from fedmvc_client.join import JoinSettings, join, supernode_command
from fedmvc_client.node_key import NodeKey, Standing
from tests.fedmvc_client.test_join_refusals import not_connected
from tests.transport.kits import make_kits

BUSY = not_connected("[code: 2004] Failed to activate SuperNode.")
CONNECTED = "INFO :      SuperNode ID: 42"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("kits") / "kits") / "st-anna"


@pytest.fixture
def site(pristine, tmp_path):
    folder = shutil.copytree(pristine, tmp_path / "st-anna")
    (folder / "site.toml").write_text('name = "st-anna"\n[data]\necg = "ecg.csv"\n')
    return folder


@pytest.fixture
def server(monkeypatch):
    """Play the server: what it says of the clock and of the key, changed as a test goes on."""

    class Server:
        def __init__(self):
            self.ahead_s = 0.0
            self.standing = Standing.REGISTERED
            self.failures = []

        def reach(self, address, ca):
            if self.failures:
                raise self.failures.pop()
            return Reached("127.0.0.1", 8443, None, self.ahead_s)

    playing = Server()
    monkeypatch.setattr(joining, "reach", playing.reach)
    monkeypatch.setattr(joining, "ask_standing", lambda *ignored: playing.standing)
    # no fake listens; another test of this machine may have the default port
    monkeypatch.setattr(joining, "refuse_taken_port", lambda *ignored: None)
    for name, seconds in (("FIRST_PAUSE_S", 0.01), ("KEY_RETRY_S", 0.05)):
        monkeypatch.setattr(joining, name, seconds)
    return playing


def fake(folder, *lives):
    """Return the command of a SuperNode whose nth life runs the nth code (the last for ever)."""
    folder.mkdir(exist_ok=True)
    for number, code in enumerate(lives):
        (folder / f"life{number}.py").write_text(code)
    count = folder / "count"
    program = (
        "import pathlib, runpy, sys\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "nth = int(count.read_text()) if count.exists() else 0\n"
        "count.write_text(str(nth + 1))\n"
        f"runpy.run_path({str(folder)!r} + f'/life{{min(nth, {len(lives) - 1})}}.py')\n"
    )
    return [sys.executable, "-c", program]


def says(text, status=1):
    return f"print({text!r}, flush=True); raise SystemExit({status})"


STAYS = f"import time; print({CONNECTED!r}, flush=True); time.sleep(60)"


def stop_soon(marker):
    """Send this process SIGTERM once `marker` exists."""

    def wait():
        deadline = time.monotonic() + 60
        while not marker() and time.monotonic() < deadline:
            time.sleep(0.02)
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # else it would end the tests
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def lives(folder):
    path = folder / "count"
    return int(path.read_text() or 0) if path.exists() else 0


def test_every_argument_of_the_supernode(site):
    settings = JoinSettings.load(site, socket=Path("/run/fedmvc/a.sock"))

    assert supernode_command(settings) == [
        *(sys.executable, "-m", "fedmvc_client.supernode"),
        *("--superlink", "127.0.0.1:8443"),
        *("--root-certificates", f"{site}/ca.crt"),
        *("--auth-supernode-private-key", f"{site}/state/node.key"),
        *("--isolation", "process"),
        *("--host", "127.0.0.1", "--port", "9094"),
        *("--node-config", 'worker="/run/fedmvc/a.sock" site="st-anna"'),
    ]


def test_flower_takes_the_arguments_and_reads_the_node_config(site):
    from flwr.common.config import parse_config_args
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    settings = JoinSettings.load(site, server="[::1]:9", runtime="[::1]:7", socket=Path("/a b/w"))
    command = supernode_command(settings)

    parsed = _parse_args_run_supernode().parse_args(command[3:])

    assert (parsed.host, parsed.port, parsed.isolation) == ("::1", 7, "process")
    assert parsed.insecure is False
    assert parsed.superlink == "[::1]:9"
    assert parse_config_args([parsed.node_config]) == {"worker": "/a b/w", "site": "st-anna"}


def test_fast_poll_is_another_module(site):
    command = supernode_command(JoinSettings.load(site, fast_poll=True))

    assert command[1:3] == ["-m", "fedmvc_client.fast_poll"]


def test_the_socket_is_the_sites_own_by_default(site):
    assert JoinSettings.load(site).socket == site / "run" / "worker.sock"


def test_what_cannot_be_passed_on_is_refused(site):
    with pytest.raises(ConfigError, match="has a quote"):
        JoinSettings.load(site, socket=Path('/run/a".sock'))
    with pytest.raises(ConfigError, match="the runtime address '9094' is not HOST:PORT"):
        JoinSettings.load(site, runtime="9094")


@pytest.mark.usefixtures("server")
def test_a_supernode_that_dies_is_started_again_and_a_stop_is_clean(site, tmp_path, caplog):
    folder = tmp_path / "fake"
    dies = f"import os; print({CONNECTED!r}, flush=True); os.kill(os.getpid(), 9)"
    stop_soon(lambda: caplog.text.count("as node 42") == 2)

    with caplog.at_level("INFO", "fedmvc.site"):
        join(JoinSettings.load(site), command=fake(folder, dies, says("odd", 4), STAYS))

    assert lives(folder) == 3
    assert "the SuperNode ended (signal 9)" in caplog.text
    assert "the SuperNode ended (exit status 4)" in caplog.text
    assert "is signing off" in caplog.text


@pytest.mark.usefixtures("server")
def test_a_full_disk_does_not_take_the_site_off_the_air(site, tmp_path, caplog):
    home = site / "state" / "flower"
    home.mkdir(parents=True)
    (home / "known.txt").symlink_to("/dev/full")
    stop_soon(lambda: "as node 42" in caplog.text)

    with caplog.at_level("INFO", "fedmvc.site"):
        join(JoinSettings.load(site), command=fake(tmp_path / "fake", STAYS))

    assert "is signing off" in caplog.text


@pytest.mark.usefixtures("server")
def test_its_output_is_passed_on(site, tmp_path, capfd):
    with pytest.raises(TransportError):
        join(
            JoinSettings.load(site),
            command=fake(tmp_path / "fake", says("\x1b[91mERROR \x1b[0m: Exit Code: 303")),
        )

    assert "  supernode: ERROR : Exit Code: 303" in capfd.readouterr().err.splitlines()


def test_a_key_still_counted_as_online_is_waited_for(site, server, tmp_path, caplog):
    folder = tmp_path / "fake"
    stop_soon(lambda: lives(folder) == 3)

    with caplog.at_level("INFO", "fedmvc.site"):
        join(JoinSettings.load(site), command=fake(folder, says(BUSY), says(BUSY), STAYS))

    assert caplog.text.count("counts so for 60 s") == 1  # said once


def test_flowers_words_on_a_busy_key_are_passed_on_once(site, server, tmp_path, capfd):
    """They were sixteen lines at each of the tries of 75 s."""
    folder = tmp_path / "fake"
    stop_soon(lambda: lives(folder) == 4)
    gone = says("odd", 4)

    join(JoinSettings.load(site), command=fake(folder, says(BUSY), says(BUSY), gone, STAYS))

    lines = capfd.readouterr().err.splitlines()
    assert lines.count("  supernode: [code: 2004] Failed to activate SuperNode.") == 1
    assert lines.count("  supernode: odd") == 1  # another fault is not kept back


def test_a_key_in_use_is_refused_in_the_end(site, server, tmp_path, monkeypatch):
    folder = tmp_path / "fake"
    monkeypatch.setattr(joining, "KEY_WINDOW_S", 0.3)

    with pytest.raises(TransportError, match="another SuperNode with the node key of site 'st-a"):
        join(JoinSettings.load(site), command=fake(folder, says(BUSY)))

    assert lives(folder) > 1


def never(folder):
    return fake(folder, "raise SystemExit('started')")


def test_a_key_that_the_server_does_not_know_is_refused_at_once(site, server, tmp_path):
    server.standing = Standing.UNKNOWN
    key = NodeKey.load(site / "state" / "node.key")

    with pytest.raises(TransportError, match="does not know the node key of site 'st-anna'") as it:
        join(JoinSettings.load(site), command=never(tmp_path / "fake"))

    assert key.fingerprint in str(it.value)
    assert lives(tmp_path / "fake") == 0


def test_a_key_that_was_let_in_before_was_revoked(site, server, tmp_path):
    """The SuperNode of a revoked site ends with 0 and says nothing, as with a clock that is off."""
    turned_away = (
        f"import pathlib; print({CONNECTED!r}, flush=True); "
        f"pathlib.Path({str(tmp_path / 'was-in')!r}).touch()"
    )

    def standing(*ignored):
        return Standing.UNKNOWN if (tmp_path / "was-in").exists() else Standing.REGISTERED

    joining.ask_standing = standing  # the fixture's monkeypatch puts it back
    with pytest.raises(TransportError, match=r"no longer knows .*: the operator revoked"):
        join(JoinSettings.load(site), command=fake(tmp_path / "fake", turned_away))

    with pytest.raises(TransportError, match="no longer knows"):  # the next join knows it too
        join(JoinSettings.load(site), command=never(tmp_path / "never"))


@pytest.mark.parametrize(("ahead_s", "word"), [(600.0, "ahead of"), (-600.0, "behind")])
def test_a_clock_that_is_off_is_measured_before_anything_starts(
    site, server, tmp_path, ahead_s, word
):
    server.ahead_s = ahead_s

    with pytest.raises(TransportError, match=f"clock is 600 s {word} the server's"):
        join(JoinSettings.load(site), command=never(tmp_path / "fake"))


def test_a_clock_that_goes_off_later_is_named_too(site, server, tmp_path):
    turned_away = f"print({CONNECTED!r}, flush=True)"

    def reach(*ignored):
        off = 600.0 if lives(tmp_path / "fake") else 0.0
        return Reached("127.0.0.1", 8443, None, off)

    joining.reach = reach
    with pytest.raises(TransportError, match="clock is 600 s ahead of"):
        join(JoinSettings.load(site), command=fake(tmp_path / "fake", turned_away))


def test_signatures_that_are_refused_although_the_clock_seems_right(site, server, tmp_path):
    server.standing = Standing.REJECTED

    with pytest.raises(TransportError, match="takes no signature of site 'st-anna'"):
        join(JoinSettings.load(site), command=never(tmp_path / "fake"))


def test_being_turned_away_without_a_cause_ends_too(site, server, tmp_path):
    server.standing = Standing.UNCLEAR

    with pytest.raises(TransportError, match="away 3 times"):
        join(JoinSettings.load(site), command=fake(tmp_path / "fake", says("", 0)))


def test_a_server_that_is_away_is_waited_for(site, server, tmp_path, caplog):
    folder = tmp_path / "fake"
    server.failures = [Unreachable("the SuperLink at x does not answer (refused)")]
    stop_soon(lambda: lives(folder) == 1)

    with caplog.at_level("INFO", "fedmvc.site"):
        join(JoinSettings.load(site), command=fake(folder, STAYS))

    assert "does not answer (refused); trying again" in caplog.text


def test_a_stop_while_the_server_is_away_is_clean(site, server, tmp_path, monkeypatch):
    asked = []

    def reach(*ignored):
        asked.append(1)
        raise Unreachable("away")

    monkeypatch.setattr(joining, "reach", reach)
    stop_soon(lambda: asked)

    join(JoinSettings.load(site), command=never(tmp_path / "fake"))


@pytest.mark.usefixtures("server")
def test_one_join_a_site(site, tmp_path):
    with (
        only_one(site / "state" / "flower" / "join.lock", ""),
        pytest.raises(TransportError, match=rf"runs with this key \(process {os.getpid()}\)"),
    ):
        join(JoinSettings.load(site), command=never(tmp_path / "fake"))


@pytest.mark.usefixtures("server")
def test_a_key_that_others_may_read_or_that_is_none_is_refused(site, tmp_path):
    key = site / "state" / "node.key"
    key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"'node\.key' is open to other users"):
        join(JoinSettings.load(site), command=never(tmp_path / "fake"))

    key.chmod(0o600)
    key.write_text("-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match=r"'node\.key' is no unlocked OpenSSH private key"):
        join(JoinSettings.load(site), command=never(tmp_path / "fake"))


def test_another_release_of_flower_ends_with_8(site, monkeypatch):
    from configs import flower_version

    monkeypatch.setattr(flower_version, "installed", lambda name: "1.43.0")

    with pytest.raises(ProtocolError, match=r"flwr 1\.43\.0 is installed"):
        join(JoinSettings.load(site))


def test_a_supernode_that_lost_its_work_ends(tmp_path):
    """Flower's returns then, and a thread of it would keep the process alive for ever."""
    import subprocess

    code = (
        "import sys, threading, time, types\n"
        "def flower_supernode():\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    print(sys.argv[0], sys.argv[1:])\n"
        "stub = types.ModuleType('flwr.supernode.cli')\n"
        "stub.flower_supernode = flower_supernode\n"
        "sys.modules['flwr.supernode.cli'] = stub\n"
        "from fedmvc_client.supernode import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--port", "1"],
        capture_output=True,
        text=True,
        timeout=45,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert done.returncode == supernode.LOST
    assert done.stdout == "flower-supernode ['--port', '1']\n"
