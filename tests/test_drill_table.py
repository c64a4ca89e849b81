"""What the drills' table says of tests that passed, failed, were skipped or never ran."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.drill_table import ROWS, DrillTable, Row

ROOT = Path(__file__).parents[1]
TWO = (Row("killed", "a site is killed", "the run goes on"), Row("full", "disk full", "one word"))


@pytest.fixture
def table():
    """Expect two tests of the first row and one of the second."""
    table = DrillTable(TWO)
    table.expect("one", ["killed"])
    table.expect("two", ["killed"])
    table.expect("three", ["full"])
    return table


def test_a_row_holds_where_all_its_tests_passed(table):
    table.note("one", "passed", seen=["back after 67 s"])
    table.note("two", "passed", seen=["hash 3fa1 twice", "back after 67 s"])
    table.note("three", "passed")

    assert table.verdicts() == {"killed": "held", "full": "held"}
    assert table.complete()
    text = table.text(whole=True)
    assert "back after 67 s; hash 3fa1 twice" in text
    assert "| 1 test " in text


def test_one_failure_fails_a_row_whatever_comes_after(table):
    table.note("one", "failed", seen=["exit 6"])
    table.note("one", "passed")
    table.note("two", "passed")

    assert table.verdicts()["killed"] == "FAILED"
    assert not table.complete()
    assert "FAILED" in table.text(whole=False)


def test_a_skipped_test_leaves_its_row_unshown_with_the_reason(table):
    table.note("one", "passed", seen=["all well"])
    table.note("two", "skipped", reason="nginx is not installed")
    table.note("three", "passed")

    assert table.verdicts() == {"killed": "not run", "full": "held"}
    assert not table.complete()
    text = table.text(whole=False)
    assert "nginx is not installed" in text
    assert "all well" not in text


def test_a_test_that_never_came_leaves_its_row_unshown(table):
    table.note("one", "passed")

    assert table.verdicts() == {"killed": "not run", "full": "not run"}


def test_rows_without_a_test_are_printed_only_where_all_are_asked_for():
    table = DrillTable(TWO)
    assert not table.begun
    table.expect("one", ["full"])
    table.note("one", "passed")

    assert table.begun
    assert not table.complete()
    assert "a site is killed" not in table.text(whole=False)
    assert "no test of it was run" in table.text(whole=True)


def test_a_row_that_does_not_exist_is_an_error(table):
    with pytest.raises(ValueError, match="drill 'fulll', which is no row"):
        table.expect("four", ["fulll"])
    table.expect("five", [])  # a drill without a row


def test_names_are_told_apart():
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("options", "code"), [(["--every-drill"], 1), ([], 0)])
def test_every_drill_fails_a_run_in_which_a_row_was_not_shown(tmp_path, options, code):
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "@pytest.mark.drill('wrong-ca')\n"
        "def test_one(seen):\n"
        "    seen('exit 7')\n"
        "@pytest.mark.drill('proxy')\n"
        "@pytest.mark.skip(reason='nginx is not installed')\n"
        "def test_two():\n"
        "    raise AssertionError\n"
    )
    plugin = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "--rootdir", tmp_path, tmp_path, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == code, done.stdout + done.stderr
    lines = {line.split("|")[1].strip(): line for line in done.stdout.splitlines() if "|" in line}
    assert "exit 7" in lines["wrong CA"]
    assert "held" in lines["wrong CA"]
    assert "nginx is not installed" in done.stdout
    assert ("SuperNode killed mid-round" in lines) is bool(options)
