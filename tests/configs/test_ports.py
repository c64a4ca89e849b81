"""Ports that are taken, and ports that somebody listens at."""

import socket

import pytest

from configs.errors import ConfigError
from configs.ports import listens, refuse_taken_port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_somebody_has_is_refused(host):
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        assert listens(host, port)
        with pytest.raises(ConfigError) as caught:
            refuse_taken_port(host, port, "the SuperLink", "give another --port")

    assert str(caught.value) == (
        f"the SuperLink cannot listen at {host}:{port} (Address already in use): "
        "give another --port"
    )
    assert not listens(host, port)
    refuse_taken_port(host, port, "the SuperLink", "give another --port")


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"cannot listen at 192\.0\.2\.7:9094 \(Cannot assign"):
        refuse_taken_port("192.0.2.7", 9094, "the SuperNode", "give another --runtime")


def test_a_name_that_is_none_is_refused_and_nobody_listens_there():
    """The resolver's encoding refuses it, and that was an internal error (70) once."""
    with pytest.raises(ConfigError, match=r"at fl\.\.example\.org:1 \(it is no host name\): give"):
        refuse_taken_port("fl..example.org", 1, "the SuperLink", "give another --host")
    assert not listens("fl..example.org", 1)
