"""The supervisor, with children that cost nothing, in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import ConfigError, TransportError
from configs.processes import only_one
from fedmvc_server import service
from fedmvc_server.kit import ServerKit
from fedmvc_server.local_federation import free_port
from tests.configs.test_processes import STUBBORN, alive, wait_until
from tests.transport.kits import days_ago, make_kits

ROOT = Path(__file__).parents[2]
#: Says its process id in a file of its own, and waits.
CHILD = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(60)"


class Supervisor:
    """A process that supervises the children `one` and `two`."""

    def __init__(self, folder, code):
        self.folder = folder
        program = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from configs.console import set_up_logging\n"
            "from configs.errors import FedMVCError\n"
            "from fedmvc_server import service\n"
            "service.END_S, service.FIRST_PAUSE_S = 1.0, 0.05\n"
            "set_up_logging()\n"
            "def child(name, code):\n"
            "    command = [sys.executable, '-c', code, name]\n"
            "    return service.Service(name, command, os.environ, Path('.'))\n"
            "try:\n"
            f"    service.supervise([child('one', {CHILD!r}), child('two', {code!r})],\n"
            "        ready=lambda: print('ready', flush=True))\n"
            "except FedMVCError as error:\n"
            "    print(error, flush=True)\n"
            "    sys.exit(error.code)\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def pids(self, name):
        path = self.folder / name
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def pid(self, name, nth=0):
        wait_until(lambda: len(self.pids(name)) > nth)
        return self.pids(name)[nth]


@pytest.fixture
def supervise(tmp_path):
    running = []

    def run(code=CHILD):
        running.append(Supervisor(tmp_path, code))
        return running[-1]

    yield run
    for supervisor in running:
        supervisor.process.kill()
        supervisor.process.communicate()


def test_a_child_that_dies_comes_back_and_the_other_goes_on(supervise):
    supervisor = supervise()
    other = supervisor.pid("two")

    os.kill(supervisor.pid("one"), signal.SIGKILL)
    again = supervisor.pid("one", 1)
    supervisor.process.send_signal(signal.SIGTERM)
    out, err = supervisor.process.communicate(timeout=30)

    assert supervisor.process.returncode == 0
    assert out == "ready\n"
    assert "the one ended (signal 9) after" in err
    assert supervisor.pids("two") == [other]
    assert not alive(again)
    assert not alive(other)


def test_sigterm_leaves_no_process_even_of_stubborn_children(supervise):
    stubborn = STUBBORN.replace(
        "print(os.getpid(), below.pid, flush=True)",
        "open('two', 'w').write(f'{os.getpid()}\\n{below.pid}\\n')",
    )
    supervisor = supervise(stubborn)
    pids = [supervisor.pid("one"), supervisor.pid("two"), supervisor.pid("two", 1)]

    supervisor.process.send_signal(signal.SIGTERM)
    supervisor.process.communicate(timeout=30)

    assert supervisor.process.returncode == 0
    wait_until(lambda: not any(map(alive, pids)))


def test_children_end_with_a_supervisor_that_is_killed(supervise):
    supervisor = supervise()
    pids = [supervisor.pid("one"), supervisor.pid("two")]

    supervisor.process.kill()

    wait_until(lambda: not any(map(alive, pids)))


def test_a_child_that_never_stays_up_ends_the_service(supervise):
    supervisor = supervise("raise SystemExit(3)")
    one = supervisor.pid("one")
    out, err = supervisor.process.communicate(timeout=60)

    assert supervisor.process.returncode == TransportError.code
    assert "the two ended 5 times within 10 s of its start (last with exit status 3)" in out
    assert err.count("it is started again") == 4
    assert not alive(one)


def test_a_child_starts_when_it_may(tmp_path):
    open_now = []
    kept = service._Kept(
        service.Service(
            "one", [sys.executable, "-c", "pass"], os.environ, tmp_path, lambda: bool(open_now)
        )
    )
    kept.look()
    assert kept.child is None

    open_now.append(True)
    kept.look()

    assert kept.child is not None
    kept.child.clear_away()


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return ServerKit.at(make_kits(tmp_path_factory.mktemp("kits") / "kits") / "server")


@pytest.fixture
def never_supervised(monkeypatch):
    monkeypatch.setattr(service, "supervise", lambda *a, **k: pytest.fail("started"))


@pytest.mark.usefixtures("never_supervised")
def test_a_taken_port_is_named(kit):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"listen at 127\.0\.0\.1:{port} \(Address already"):
            service.start(kit, "127.0.0.1", port)


@pytest.mark.usefixtures("never_supervised")
def test_a_second_start_with_one_kit_is_refused(kit):
    with (
        only_one(kit.state / "start.lock", ""),
        pytest.raises(TransportError, match=rf"runs with this kit \(process {os.getpid()}\)"),
    ):
        service.start(kit, "127.0.0.1", None)


@pytest.mark.usefixtures("never_supervised")
def test_an_expired_certificate_is_not_served(tmp_path):
    kit = ServerKit.at(make_kits(tmp_path / "kits", days=1, made=days_ago(2)) / "server")

    with pytest.raises(ConfigError, match=r"expired on .*'fedmvc-server renew'"):
        service.start(kit, "127.0.0.1", None)
    assert list(kit.state.iterdir()) == []  # nothing was started


def test_start_supervises_both_and_the_executor_waits(kit, monkeypatch):
    seen = []
    monkeypatch.setattr(service, "supervise", lambda services, ready: seen.extend(services))

    service.start(kit, "127.0.0.1", free_port())

    assert [each.name for each in seen] == ["SuperLink", "executor"]
    assert seen[0].when()
    assert not seen[1].when()  # nobody listens
