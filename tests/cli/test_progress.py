import os
import pty
import re
import subprocess

from tests.cli.commands import ENVIRONMENT, LOG_LINE, PLAN, edit_lines, script, write_plan

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read_to_end(fd):
    """Read a terminal's output until its last writer is gone."""
    chunks = []
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # Linux: EIO once the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode()


def test_terminal_shows_a_table_of_rounds(sites, tmp_path):
    plan = write_plan(tmp_path, PLAN + "max_rounds = 3\n")
    edit_lines(sites / "st-anna" / "ecg.csv", lambda lines: [*lines[:-1]])
    arguments = ["simulate", str(plan), "--data", str(sites), "--out", str(tmp_path / "run")]
    terminal, other_end = pty.openpty()
    try:
        process = subprocess.Popen(
            [script("fedmvc-server"), *arguments],
            stdout=subprocess.PIPE,
            stderr=other_end,
            text=True,
            env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(other_end)
        shown = read_to_end(terminal)
        out, _ = process.communicate(timeout=120)
    finally:
        os.close(terminal)

    assert process.returncode == 0
    assert out.startswith("completed after 3 rounds")
    assert ESCAPE.search(shown)  # drawn in place
    lines = ESCAPE.sub("", shown).replace("\r", "").splitlines()
    heading = next(line for line in lines if "view weights" in line and "bytes up" in line)
    columns = [" ".join(cell.split()) for cell in heading.strip("┃").split("┃")]
    assert columns == ["round", "J", "view weights", "sites", "bytes up", "bytes down", "s"]
    last = [line for line in lines if line.startswith("│     3 │")]
    assert last
    assert re.search(r"│ +0\.\d{3} 0\.\d{3} │ +2 │", last[-1])
    # what the sites say stands above the table, one line each and whole
    said = [line for line in lines if "1 of 512 records lack it" in line]
    assert len(said) == 1
    assert LOG_LINE.match(said[0])
    assert not [line for line in lines if " round 3: J " in line]  # not as a log line too
