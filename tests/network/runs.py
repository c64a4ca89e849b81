"""Runs as the operator starts them, and what they leave while they go on."""

import contextlib
import csv
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from configs.plan import RunPlan
from fedmvc_server.simulation import simulate_folders
from fedmvc_server.synthesize import synthesize_cardio
from tests.network.federation import ROOT

SERVER = "import sys; from fedmvc_server.cli import main; sys.exit(main())"
END_S = 600.0


def fedhk_plan(*, max_rounds, min_sites, timeout_s, n_init=2, tol=1e-12, on_missing="stop"):
    """Return a plan file's text: FedHK-MVFC, four clusters, for as many rounds as it may take."""
    return f"""
method = "fedhk-mvfc"
profile = "paper"
n_clusters = 4
max_rounds = {max_rounds}
tol = {tol}
[fedhk]
n_init = {n_init}
[quorum]
min_sites = {min_sites}
timeout_s = {timeout_s}
on_missing = "{on_missing}"
"""


def wait_for(condition, what, timeout=90.0):
    """Wait until a condition holds; return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout, f"{what}: not within {timeout:g} s"
        time.sleep(0.05)
    return time.monotonic() - began


def make_sites(folder, *, sites=3, n=300):
    """Write site folders to ``data``, and a copy that nobody touches to ``undisturbed``."""
    synthesize_cardio(folder / "data", sites=sites, n=n, partition="iid")
    shutil.copytree(folder / "data", folder / "undisturbed")


class Run:
    """A plan and its results, and ``fedmvc-server run`` or ``resume`` as a process.

    Parameters
    ----------
    folder : Path
        For ``plan.toml``, the commands' log and the results, ``run``.
    plan : str
        The plan file's text.
    sites : Path
        A folder as `make_sites` makes it.
    """

    def __init__(self, folder, plan, sites):
        self.plan, self.out = folder / "plan.toml", folder / "run"
        self._folder, self._undisturbed = folder, sites / "undisturbed"
        self._command = None
        self.plan.write_text(plan)

    def start(self, federation):
        """Start the run at a federation (its ``address`` and ``ca``)."""
        options = ["--server", federation.address, "--ca", federation.ca, "--out", self.out]
        self._spawn("run", self.plan, *options)

    def resume(self):
        """Go on with the run, to its end; return the exit code."""
        self._spawn("resume", self.out)
        return self.wait()

    def _spawn(self, *arguments):
        with (self._folder / "command.log").open("ab") as log:
            self._command = subprocess.Popen(
                [sys.executable, "-c", SERVER, *map(str, arguments)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self):
        """Wait for the command's end; return its exit code."""
        try:
            return self._command.wait(END_S)
        finally:
            self.end()

    def end(self):
        """End the command, which lets Flower end the run too; for the end of a test."""
        if self._command.poll() is None:
            self._command.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._command.wait(30)
            self.kill()

    def kill(self):
        """Kill the command, with everything that it started; the run goes on at the SuperLink."""
        if self._command.poll() is None:
            os.killpg(self._command.pid, signal.SIGKILL)
        self._command.wait()

    @property
    def log(self):
        """What the commands have written."""
        return (self._folder / "command.log").read_text()

    def read(self, name):
        """Read a JSON file of the results, {} where it is not there."""
        try:
            return json.loads((self.out / name).read_text())
        except FileNotFoundError:
            return {}

    def rounds(self):
        """Return the sites of each round so far."""
        return sites_of_rounds(self.out)

    def await_round(self, number):
        """Wait until the sites are asked in a round, and the rounds before are written."""

        def there():
            progress = self.read("progress.json")
            return len(self.rounds()) >= number - 1 and progress.get("round", 0) >= number

        return wait_for(there, f"round {number}", 420)

    @functools.cached_property
    def expected(self):
        """The hash of the model of the same run without any trouble."""
        expected = simulate_folders(RunPlan.load(self.plan), self._undisturbed)
        return expected.model.sha256()


def sites_of_rounds(out):
    """Return the sites of each round in ``rounds.csv``."""
    try:
        with (out / "rounds.csv").open(newline="") as file:
            return [row["sites"].split() for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []


def short(digest):
    """Return how a hash reads in the table."""
    return f"{digest[:8]}..."


def children(pid):
    """Return the process ids of a process's children."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
