"""The disk of OUT fills up while a run goes on; with room again, `resume` ends it."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from fedmvc_server.checkpoint import unfinished
from tests.network.runs import Run, fedhk_plan, make_sites, short

pytestmark = [
    pytest.mark.drill("disk-full"),
    pytest.mark.network,
    pytest.mark.slow,
]

PLAN = fedhk_plan(max_rounds=5, min_sites=3, timeout_s=90)


@pytest.fixture
def small_disk():
    """Mount a disk of 1 MiB; a loop device would need a kernel module."""
    folder = Path(tempfile.mkdtemp(prefix="fm-", dir="/tmp"))
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"this user cannot mount a small disk: {mounted.stderr.strip()}")
    yield folder
    # a process that still writes there keeps it until its end
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


def fill(path):
    """Write a file until the disk takes nothing more, not even a byte."""
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_a_full_disk_ends_the_run_and_spoils_nothing(federation, small_disk, tmp_path, seen):
    make_sites(tmp_path)
    run = Run(tmp_path, PLAN, tmp_path)
    run.out = small_disk / "run"
    federation.serve_folders(tmp_path / "data")
    run.start(federation)
    try:
        run.await_round(3)
        fill(small_disk / "ballast")
        code = run.wait()
    finally:
        run.end()

    assert code == 2, run.log
    sentence = "results folder 'run' cannot be written (No space left on device): make room"
    assert sentence in run.log
    assert "fedmvc-server resume" in run.log
    before = run.rounds()
    assert len(before) in (2, 3)
    assert all(len(sites) == 3 for sites in before)
    assert unfinished(run.out).server == federation.address  # reads the whole checkpoint
    assert list(run.out.rglob("*.part")) == []

    (small_disk / "ballast").unlink()
    code = run.resume()

    assert code == 0, run.log
    result = run.read("result.json")
    assert result["metrics"]["model_sha256"] == run.expected
    assert run.rounds()[: len(before)] == before
    assert result["rounds"] == len(run.rounds()) == 5
    seen(
        f"exit 2, 'results folder ... cannot be written (No space left on device)'; {len(before)} "
        f"rounds whole; resumed: hash {short(run.expected)} twice"
    )
