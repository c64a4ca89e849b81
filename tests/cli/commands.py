"""Run the command lines: in this process, where imports are paid once, or as installed scripts."""

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from configs.console import run_app

PLAN = 'method = "fedhk-mvfc"\nn_clusters = 4\n'
LOG_LINE = re.compile(r"\d\d:\d\d:\d\d ")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def sentence(self):
        """The one sentence of an error; fails where there is none, or more than one."""
        lines = self.err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 1, self.err
        sentence = errors[0].removeprefix("error: ")
        # beside it only log lines and indented details: no traceback, and nothing said twice
        others = [line for line in lines if line != errors[0]]
        assert all(line.startswith("  ") or LOG_LINE.match(line) for line in others), self.err
        assert self.err.count(sentence) == 1, self.err
        assert "Traceback" not in self.err + self.out
        return sentence

    @property
    def words(self):
        """Both streams without the frames and line breaks of a help page."""
        return " ".join(re.sub(r"[─│╭╮╰╯]", " ", self.out + self.err).split())


def call(app, *arguments):
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {name: logging.getLogger(name).level for name in ("fedmvc", "fedmvc.site")}
    try:
        with (
            mock.patch.object(sys, "argv", ["fedmvc", *map(str, arguments)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run_app(app)
    finally:
        root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    return Ended(code, out.getvalue(), err.getvalue())


def script(name):
    """Path of an installed console script."""
    return str(Path(sys.executable).with_name(name))


def run_script(name, *arguments, cwd=None):
    """Run an installed console script to its end."""
    done = subprocess.run(
        [script(name), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT,
        timeout=300,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def write_plan(folder, text=PLAN, name="plan.toml"):
    """Write a plan file and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def edit_lines(path, change):
    """Replace a file's lines by ``change(lines)``."""
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def edit_text(path, old, new):
    """Replace a text that must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


#: What a site writes down of any plan that it is shown: its register, ledger and audit log.
BOOKS = re.compile(
    r"(^|/)(plans/[0-9a-f]{64}\.json|state/(audit\.jsonl|ledger\.key|(register|ledger)\.db.*))$"
)


def files_in(folder):
    """Names of the files in a folder, relative to it, without sites' books."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not BOOKS.search(name)}
