"""`flwr run .` with the documented keys, on the local SuperLink that Flower starts by itself."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from configs.plan import RunPlan
from fedmvc_server.simulation import simulate_folders
from fedmvc_server.synthesize import synthesize_cardio
from tests.network.federation import BIN, ROOT, free_port

pytestmark = [pytest.mark.network, pytest.mark.slow]


def processes_naming(text):
    """Process ids whose command line holds `text`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and int(entry.parent.name) != os.getpid():
            found.append(int(entry.parent.name))
    return found


@pytest.fixture
def flower(tmp_path):
    """Environment of a private local SuperLink, which is ended afterwards."""
    port = str(free_port())
    yield {
        **os.environ,
        "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    for pid in processes_naming(f"--port {port}"):
        os.killpg(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while processes_naming(f"--port {port}") and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in processes_naming(f"--port {port}"):
        os.killpg(pid, signal.SIGKILL)


def test_flwr_run_leaves_what_simulate_leaves(flower, tmp_path):
    data, out = tmp_path / "sites", tmp_path / "run"
    synthesize_cardio(data, sites=2, n=600)
    plan = ROOT / "configs" / "presets" / "paper.toml"

    done = subprocess.run(
        [
            *(sys.executable, "-m", "flwr.cli.app", "run", str(ROOT), "local", "--stream"),
            *("--federation-config", "num-supernodes=2"),
            *("--run-config", f'plan="{plan}" data="{data}" out="{out}"'),
        ],
        env=flower,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert (out / "result.json").is_file(), done.stdout + done.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["status"] == "completed", result["stop_reason"]
    simulate_folders(RunPlan.load(plan), data, out=tmp_path / "inprocess")
    with (
        np.load(out / "model.npz") as by_flower,
        np.load(tmp_path / "inprocess" / "model.npz") as expected,
    ):
        assert set(by_flower) == set(expected)
        for name in expected:
            np.testing.assert_allclose(by_flower[name], expected[name], rtol=0, atol=1e-12)
