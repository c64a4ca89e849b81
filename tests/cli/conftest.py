import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmvc_server.cli import app as server
from tests.cli.commands import Ended, call, run_script, write_plan


@dataclass(frozen=True)
class FinishedRun:
    """A simulate command that ran to its end, and what it left."""

    ended: Ended
    data: Path
    out: Path
    result: dict

    def site_results(self, site):
        return self.data / site / "results" / self.result["run_id"]


@pytest.fixture(scope="session")
def pristine(tmp_path_factory):
    """Write 600 patients at two sites; nothing may change this folder."""
    out = tmp_path_factory.mktemp("data") / "sites"
    assert call(server, "synthesize", "cardio", "--out", out, "--n", 600).code == 0
    return out


@pytest.fixture
def sites(pristine, tmp_path):
    """Copy the two sites for one test to spoil."""
    return shutil.copytree(pristine, tmp_path / "sites")


@pytest.fixture(scope="session")
def finished(pristine, tmp_path_factory):
    """Run the installed script once with --json, for every test that only looks at what it left."""
    folder = tmp_path_factory.mktemp("finished")
    data = shutil.copytree(pristine, folder / "sites")
    plan, out = write_plan(folder), folder / "run"
    ended = run_script("fedmvc-server", "simulate", plan, "--data", data, "--out", out, "--json")
    assert ended.code == 0, ended.err
    return FinishedRun(ended, data, out, json.loads((out / "result.json").read_text()))
