"""``fedmvc-server rehearse`` as a command: a whole federation for one run, and nothing after it."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from configs.errors import ConfigError
from fedmvc_server.local_federation import LOOPBACK, LocalFederation
from fedmvc_server.synthesize import synthesize_cardio
from tests.cli.commands import ENVIRONMENT, Ended, edit_text, script, write_plan
from tests.network.federation import ROOT

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.drill]

WAIT_S = 300
SHORT = 'method = "fedhk-mvfc"\nn_clusters = 4\nmax_rounds = 2\n[fedhk]\nn_init = 1\n'


def begin(*arguments, cwd=None, **environment):
    return subprocess.Popen(
        [script("fedmvc-server"), "rehearse", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT), **environment},
        # a shell lets what it runs in the background ignore Ctrl-C, and that is inherited
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def to_the_end(process):
    out, err = process.communicate(timeout=WAIT_S)
    return Ended(process.returncode, out, err)


def until_online(process):
    """Read standard error until all sites are online."""
    said = ""
    while "all sites are online" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line


def running(folder):
    """Command lines of processes that were started by a rehearsal in `folder` and still live.

    Whatever they are called, all have Flower's folder below it in their environment.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            if os.fsencode(folder / "federation") in environment:
                found.append((process / "cmdline").read_bytes().decode())
        except OSError:
            continue  # it has ended, or is another user's
    return found


def comparable(line):
    """Leave out of a line what differs from run to run: ids, ports, seconds, a few bytes."""
    line = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "RUN_ID", line)
    line = re.sub(r"\d+ B up", "B up", line)
    line = re.sub(r"(J \d\.\d{8})\d+", r"\1", line)
    line = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", line)
    return re.sub(r"[\d.]+ s\b", "S s", re.sub(r"^\d\d:\d\d:\d\d ", "", line))


def test_what_the_makefile_runs_prints_what_the_readme_shows(tmp_path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    arguments = shlex.split(re.search(r"fedmvc-server rehearse (.*)", makefile).group(1))
    shutil.copytree(ROOT / "configs" / "presets", tmp_path / "configs" / "presets")
    folder = tmp_path / "build" / "federation"
    arguments = [argument.replace("$(FEDERATION)", "build/federation") for argument in arguments]

    ended = to_the_end(begin(*arguments, cwd=tmp_path))

    assert ended.code == 0, ended.err
    assert running(folder) == []
    assert sorted(path.name for path in folder.iterdir()) == ["run", "sites"]
    result = json.loads((folder / "run" / "result.json").read_text())
    for site in ("st-anna", "charite-nord", "riverside"):
        assert (folder / "sites" / site / "results" / result["run_id"]).is_dir()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("## A federation on this machine\n")[1].split("\n## ")[0]
    shown = re.search(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL).group(1)
    printed = [comparable(line) for line in (ended.err + ended.out).splitlines()]
    for line in shown.splitlines():
        assert comparable(line) in printed


def test_ctrl_c_stops_everything(tmp_path):
    plan = write_plan(tmp_path, SHORT.replace("max_rounds = 2", "max_rounds = 500\ntol = 0.0"))
    process = begin(plan, "--out", tmp_path / "out", "--sites", "2")
    until_online(process)
    assert running(tmp_path / "out")

    process.send_signal(signal.SIGINT)
    ended = to_the_end(process)

    assert (ended.code, ended.out) == (130, "")
    assert ended.sentence == "stopped at the keyboard"
    assert running(tmp_path / "out") == []
    assert (tmp_path / "out" / "federation" / "logs" / "server.log").is_file()


def test_no_process_outlives_a_rehearsal_that_is_killed(tmp_path):
    given = (write_plan(tmp_path, SHORT), "--out", tmp_path / "out", "--sites", "2")
    process = begin(*given, TMPDIR=str(tmp_path))  # it cannot clear its sockets away
    until_online(process)

    process.kill()
    process.wait(WAIT_S)

    deadline = time.monotonic() + 60
    while found := running(tmp_path / "out"):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    process.communicate()


def test_the_policy_of_given_sites_holds_and_their_files_stay(tmp_path):
    data = tmp_path / "sites"
    synthesize_cardio(data, sites=2, n=600)
    for site in data.glob("*/site.toml"):
        edit_text(site, 'approval = "auto"', 'approval = "required"')
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    plan = write_plan(tmp_path, SHORT)

    ended = to_the_end(begin(plan, "--out", tmp_path / "out", "--data", data, "--fast"))

    assert ended.code == 4
    assert "the sites in --data decide by their own site.toml, here too" in ended.sentence
    assert "plans approve" in ended.sentence
    assert {path: path.read_bytes() for path in before} == before
    assert running(tmp_path / "out") == []


def test_what_ends_the_server_is_said_in_its_own_sentence(tmp_path):
    synthesize_cardio(tmp_path / "sites", sites=1, n=100)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        federation = LocalFederation(tmp_path / "federation", tmp_path / "sites", port=port)
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}"):
            federation.start()

    assert federation.processes == {}
    assert running(tmp_path) == []
