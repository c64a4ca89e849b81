import pytest

from tests.network.federation import Federation, echo_worker_command


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Start one SuperLink and three SuperNodes for the whole session.

    A test says with ``federation.serve(command)`` which workers the sites run.
    """
    running = Federation(tmp_path_factory.mktemp("federation"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def echoing(federation):
    """Let every site's worker answer what it is asked."""
    federation.serve(echo_worker_command)
    return federation
