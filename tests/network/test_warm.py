"""The warm executor: a process a message, forked from one that is safe to copy."""

import json
import subprocess
import sys

import pytest

from tests.network.federation import ROOT

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.drill]


def test_each_message_has_a_process_of_its_own_forked_where_nothing_else_runs():
    done = subprocess.run(
        [sys.executable, "-m", "tests.network.warm_messages"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: fedmvc_client.clientapp") == 2  # what --help prints
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["codes"] == [0, 0]
    assert report["pids"] == 3
    assert report["threads"] == {"fork server": 1, "executor": 1}
    assert report["imported"]
    assert report["sockets"] == 1  # where it is told to fork
    # one that was killed is named, and taken leave of
    assert (report["killed"], report["left"]) == (-9, 0)
    assert "ended by SIGKILL" in done.stderr
