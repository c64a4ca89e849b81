"""Children that are watched, and that nobody leaves behind."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.errors import ConfigError, TransportError
from configs.processes import (
    PASSPHRASE,
    Child,
    StopSignals,
    direct_to,
    end_all,
    flower_environment,
    only_one,
    program,
)

ROOT = str(Path(__file__).parents[2])
#: Ignores SIGTERM and has a child of its own; says both process ids.
STUBBORN = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(os.getpid(), below.pid, flush=True)\n"
    "time.sleep(60)\n"
)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def child(code, tmp_path):
    return Child("child", [sys.executable, "-c", code], os.environ, tmp_path, read=True)


def first_line(made):
    lines = []
    while not lines:
        lines = made.lines()
    return lines[0]


def test_lines_arrive_whole_and_end_with_none(tmp_path):
    code = (
        "import sys; sys.stdout.write('one\\ntw'); sys.stdout.flush(); sys.stdout.write('o\\nlast')"
    )
    made = child(code, tmp_path)

    read = []
    while (lines := made.lines()) is not None:
        read += lines
    made.clear_away()

    assert read == [b"one", b"two", b"last"]
    assert made.ended() == 0


def test_what_does_not_end_is_killed_with_what_it_started(tmp_path):
    made = child(STUBBORN, tmp_path)
    pids = [int(pid) for pid in first_line(made).split()]

    end_all([made], 0.2)

    assert made.ended() == -signal.SIGKILL
    wait_until(lambda: not any(map(alive, pids)))


def test_children_end_when_their_parent_is_killed(tmp_path):
    parent = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from configs.processes import Child\n"
        "code = 'import time; time.sleep(60)'\n"
        "made = Child('child', [sys.executable, '-c', code], os.environ, Path('.'))\n"
        "print(made.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", parent],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    with started:
        pid = int(started.stdout.readline())
        assert alive(pid)
        started.kill()

    wait_until(lambda: not alive(pid))


def test_signals_are_a_flag_and_the_earlier_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as stop:
        assert not stop.given
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(30.0)  # returns at once

        assert stop.given

    assert signal.getsignal(signal.SIGTERM) is before


def test_a_wait_returns_when_there_is_something_to_read(tmp_path):
    made = child("print('here')", tmp_path)
    with StopSignals() as stop:
        assert stop.wait(30.0, made.output)
    assert first_line(made) == b"here"
    made.clear_away()


def test_a_lock_is_held_once_and_freed(tmp_path):
    path = tmp_path / "state" / "lock"
    with (
        only_one(path, "taken by {pid}"),
        pytest.raises(TransportError, match=f"taken by {os.getpid()}"),
        only_one(path, "taken by {pid}"),
    ):
        pytest.fail("held twice")
    with only_one(path, "taken by {pid}"):
        pass


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "state").write_text("a file")

    with (
        pytest.raises(ConfigError, match="folder 'state' cannot be written"),
        only_one(tmp_path / "state" / "lock", "taken"),
    ):
        pytest.fail("locked")


def test_a_lock_is_held_also_where_the_disk_is_full(tmp_path):
    """It was an internal error; the process id in the file is only for words."""
    path = tmp_path / "lock"
    path.symlink_to("/dev/full")

    with only_one(path, "taken"), pytest.raises(TransportError), only_one(path, "taken"):
        pytest.fail("held twice")


def test_a_folder_that_takes_no_lock_is_said(tmp_path, monkeypatch):
    def refuse(*ignored):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)

    with (
        pytest.raises(ConfigError, match=r"folder 'state' takes no lock \(No locks available\)"),
        only_one(tmp_path / "state" / "lock", "taken"),
    ):
        pytest.fail("locked")


def test_only_a_worker_gets_the_passphrase(monkeypatch, tmp_path):
    monkeypatch.setenv(PASSPHRASE, "correct horse")

    assert PASSPHRASE not in flower_environment(tmp_path)
    assert os.environ[PASSPHRASE] == "correct horse"


def test_exceptions_from_a_proxy_are_the_same_in_both_spellings():
    assert direct_to({"no_proxy": "a, b"}, ["c"]) == dict.fromkeys(
        ("NO_PROXY", "no_proxy"), "a,b,127.0.0.1,localhost,::1,c"
    )


def test_flower_gets_its_home_silence_and_no_proxy_for_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "intranet.example, 127.0.0.1")
    monkeypatch.setenv("PATH", "/usr/bin")

    made = flower_environment(tmp_path, ["fl.example.org"])

    assert made["NO_PROXY"] == "intranet.example,127.0.0.1,localhost,::1,fl.example.org"
    assert made["no_proxy"] == made["NO_PROXY"]
    assert made["FLWR_HOME"] == str(tmp_path)
    assert (made["FLWR_TELEMETRY_ENABLED"], made["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert made["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]


def test_programs_are_those_beside_this_python():
    assert program("flower-superlink") == str(Path(sys.executable).with_name("flower-superlink"))
    with pytest.raises(ConfigError, match="'flower-nothing' is not installed"):
        program("flower-nothing")
