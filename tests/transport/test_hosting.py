import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs.errors import DataRefused, InternalError, TransportError
from fedmvc_client.relay import SocketRelay, simulation_folder, simulation_socket
from fedmvc_client.socket_server import serve_sites
from fedmvc_server.hosting import host_workers
from tests.transport import sites

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def temporary_folder(monkeypatch):
    """Keep the sockets of tests apart, in a folder short enough for a socket."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="fm-", dir="/tmp")
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    monkeypatch.undo()
    shutil.rmtree(folder)


def _gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_one_process_serves_every_site_and_ends_with_the_block():
    with host_workers(serve_sites, functools.partial(sites.make_echoes, 3), 7) as pid:
        replies = [
            SocketRelay(simulation_socket(7, index), expected_uid=os.getuid()).ask(b"hi", 5.0)
            for index in (2, 0, 0)
        ]

    assert replies == [
        f"site-2:{pid}:1:hi".encode(),
        f"site-0:{pid}:1:hi".encode(),
        f"site-0:{pid}:2:hi".encode(),
    ]
    assert _gone(pid)
    assert not simulation_folder(7).exists()


def test_pyarrow_is_whole_before_any_site_computes():
    # one site's first import of it, while saving, once broke another's k-means: scikit-learn
    # looks for pyarrow among the modules and found half of it
    with host_workers(serve_sites, functools.partial(sites.make_loaded, 1), 7):
        relay = SocketRelay(simulation_socket(7, 0), expected_uid=os.getuid())
        assert relay.ask(b"hi", 5.0) == b"True"


def test_it_ends_when_the_block_raises():
    with (
        pytest.raises(RuntimeError, match="the run failed"),
        host_workers(serve_sites, functools.partial(sites.make_echoes, 1), 7) as pid,
    ):
        raise RuntimeError("the run failed")

    assert _gone(pid)
    assert not simulation_folder(7).exists()


def test_it_ends_when_its_parent_is_killed():
    code = (
        "import functools, time\n"
        "from fedmvc_client.socket_server import serve_sites\n"
        "from fedmvc_server.hosting import host_workers\n"
        "from tests.transport import sites\n"
        "with host_workers(serve_sites, functools.partial(sites.make_echoes, 1), 7) as pid:\n"
        "    print(pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)

    assert _gone(pid)
    assert not simulation_folder(7).exists()


def test_a_sites_refusal_keeps_its_kind_and_sentence():
    with (
        pytest.raises(DataRefused, match="site 'site-0' has 0 rows: add data") as caught,
        host_workers(serve_sites, functools.partial(sites.make_refused, 1), 7),
    ):
        pytest.fail("entered without workers")

    assert caught.value.local_detail == "/data/site-0"


def test_any_other_failure_is_an_internal_error(capfd):
    with (
        pytest.raises(InternalError, match="ended at once"),
        host_workers(serve_sites, functools.partial(sites.make_broken, 1), 7),
    ):
        pytest.fail("entered without workers")

    assert "KeyError" in capfd.readouterr().err


def test_a_start_without_end_is_cut_off():
    with (
        pytest.raises(TransportError, match=r"within 1\.5 s"),
        host_workers(serve_sites, functools.partial(sites.make_slowly, 1), 7, start_timeout=1.5),
    ):
        pytest.fail("entered without workers")


def test_what_cannot_be_handed_over_is_told():
    with (
        pytest.raises(InternalError, match="cannot be handed"),
        host_workers(serve_sites, lambda: {}, 7),
    ):
        pytest.fail("entered without workers")
