import pytest

from fedmvc_server import deployment
from tests.network.federation import NAMES, Federation, echo_worker_command


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Start one SuperLink and three SuperNodes for the whole session.

    A test says with ``federation.serve(command)`` which workers the sites run.
    """
    running = Federation(tmp_path_factory.mktemp("federation"), cold=NAMES[:1])
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def rarely_asked(monkeypatch):
    """Ask Flower rarely where a run stands: it costs a process, and a result ends the wait too."""
    monkeypatch.setattr(deployment, "_STATUS_PERIOD", 30.0)
    monkeypatch.setattr(deployment, "_RUNNING_PERIOD", 30.0)


@pytest.fixture
def echoing(federation):
    """Let every site's worker answer what it is asked."""
    federation.serve(echo_worker_command)
    return federation
