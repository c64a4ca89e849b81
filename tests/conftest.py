"""The drills' table: tests name their row by ``@pytest.mark.drill(NAME)``, see `drill_table`."""

import pytest

from tests.drill_table import DrillTable

TABLE = pytest.StashKey[DrillTable]()
SEEN = "seen"


def pytest_addoption(parser):
    parser.addoption(
        "--every-drill",
        action="store_true",
        help="print every row of the drills' table, and fail where one was not shown to hold",
    )


def pytest_configure(config):
    config.stash[TABLE] = DrillTable()


def pytest_collection_finish(session):
    for item in session.items:
        names = [name for mark in item.iter_markers("drill") for name in mark.args]
        try:
            session.config.stash[TABLE].expect(item.nodeid, names)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.fixture
def seen(request):
    """Give a function that notes a short sentence of what a drill measured, for the table."""

    def note(sentence):
        request.node.user_properties.append((SEEN, sentence))

    return note


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" or report.outcome != "passed":
        item.config.stash[TABLE].note(
            report.nodeid,
            report.outcome,
            reason=report.longrepr[2].removeprefix("Skipped: ") if report.skipped else "",
            seen=[words for name, words in report.user_properties if name == SEEN],
        )
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    config = session.config
    if config.getoption("--every-drill") and not config.stash[TABLE].complete():
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    table, whole = config.stash[TABLE], config.getoption("--every-drill")
    if whole or table.begun:
        terminalreporter.section("drills")
        terminalreporter.write_line(table.text(whole=whole))
