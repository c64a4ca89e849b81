import pytest

from tests.network.federation import Federation


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Start one federation of three echoing sites for the whole session."""
    running = Federation(tmp_path_factory.mktemp("federation"))
    try:
        running.start()
        yield running
    finally:
        running.stop()
