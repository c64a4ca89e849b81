"""The books of a site that is killed, raced and tampered with: small forms of the figures.

They fork, so they run in a process of their own that has no threads.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib, json
from dataclasses import asdict
from benchmarks import ledger_faults as faults
from benchmarks.ledger_tampering import tamper


def careless(folder, tell):
    "Draws noise before it is paid."
    books = faults.open_books(folder)
    books.ledger.reserve(faults.RUN, faults.PLAN.plan_id, faults.COST)
    for exchange in range(faults.RELEASES):
        tell("noise drawn")
        books.ledger.spend(faults.RUN, exchange, hashlib.sha256(bytes([exchange])).digest())


found = {
    "killed": faults.kill_at_points(every=19),
    "killed at random": faults.kill_at_random(3),
    "raced": faults.race(2),
    "tampered": tamper(rows_edited=1),
    "careless": faults.kill_at_points(every=7, life=careless),
}
print(json.dumps({k: {**asdict(v), "passed": v.passed} for k, v in found.items()}))
"""


@pytest.fixture(scope="module")
def figures():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["killed", "killed at random", "raced", "tampered"])
def test_nothing_is_under_counted_overspent_or_overlooked(figures, name):
    assert figures[name]["passed"], figures[name]


def test_a_site_that_draws_noise_before_paying_would_be_caught(figures):
    assert figures["careless"]["under_counted"] > 0, figures["careless"]
    assert not figures["careless"]["passed"]
