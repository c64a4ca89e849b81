import contextlib
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from configs.errors import TransportError
from fedmvc_client import relay, socket_server
from fedmvc_client.relay import (
    InProcessRelay,
    SocketRelay,
    register_worker,
    registered_workers,
    resolve_relay,
    simulation_socket,
    unregister_worker,
)
from fedmvc_client.socket_server import WorkerServer

ROOT = Path(__file__).resolve().parents[2]
HEADER = struct.Struct("!4sBQ")


def _raw(path, data, *, shut=True):
    """Send bytes as they are; return (status, rest) of what comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        connection.connect(os.fspath(path))
        connection.sendall(data)
        if shut:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        # Bytes that the worker left unread make its close a reset, after its reply.
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
    if not received:
        return None, b""
    magic, status, length = HEADER.unpack(received[: HEADER.size])
    assert magic == b"FMVC"
    assert length == len(received) - HEADER.size
    return status, received[HEADER.size :]


def test_in_process_relay_calls_the_worker(echo_worker):
    assert InProcessRelay(echo_worker()).ask(b"hello", 1.0) == b"st-anna:hello"


def test_in_process_relay_takes_one_request_at_a_time(echo_worker):
    worker = echo_worker(delay=0.2)
    busy = InProcessRelay(worker)
    thread = threading.Thread(target=busy.ask, args=(b"first", 5.0))
    thread.start()
    time.sleep(0.05)

    with pytest.raises(TransportError, match=r"still busy after 0\.01 s"):
        busy.ask(b"second", 0.01)

    thread.join()
    assert worker.most_running == 1


@pytest.mark.parametrize("body", [b"x", b"\x00\xff" * 10, os.urandom(3_000_000)])
def test_socket_echoes(serve, echo_worker, body):
    path = serve(echo_worker())

    assert SocketRelay(path).ask(body, 5.0) == b"st-anna:" + body


def test_socket_and_its_folder_keep_others_out(tmp_path, echo_worker):
    server = WorkerServer(echo_worker(), tmp_path / "made" / "worker.sock")

    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "made" / "worker.sock").stat().st_mode) == 0o660
    server.close()
    assert not (tmp_path / "made" / "worker.sock").exists()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o751])
def test_an_open_folder_is_refused_with_both_modes(folder, echo_worker, mode):
    os.chmod(folder, mode)

    with pytest.raises(TransportError, match=rf"mode 0{mode:o}; at most 0750"):
        WorkerServer(echo_worker(), folder / "worker.sock")


def test_a_folder_of_another_user_is_refused(folder, echo_worker, monkeypatch):
    os.chown(folder, 12345, -1) if os.getuid() == 0 else pytest.skip("needs root to chown")

    with pytest.raises(TransportError, match="belongs to user 12345"):
        WorkerServer(echo_worker(), folder / "worker.sock")


def test_two_clients_at_once_are_served_one_after_the_other(serve, echo_worker):
    worker = echo_worker(delay=0.1)
    path = serve(worker)
    replies = []
    threads = [
        threading.Thread(target=lambda n=n: replies.append(SocketRelay(path).ask(b"%d" % n, 5.0)))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(replies) == [b"st-anna:0", b"st-anna:1", b"st-anna:2"]
    assert worker.most_running == 1


def test_a_slow_worker_ends_the_wait_at_the_deadline(serve, echo_worker):
    path = serve(echo_worker(delay=0.5))
    started = time.monotonic()

    with pytest.raises(TransportError, match=r"did not reply in 0\.1 s"):
        SocketRelay(path).ask(b"hello", 0.1)

    assert time.monotonic() - started < 0.4
    assert SocketRelay(path).ask(b"later", 5.0) == b"st-anna:later"  # it goes on serving


def test_another_user_is_refused(serve, echo_worker, monkeypatch):
    path = serve(echo_worker())
    monkeypatch.setattr(socket_server, "peer_uid", lambda connection: os.getuid() + 1)

    with pytest.raises(TransportError, match=r"this user: .* --allow-uid"):
        SocketRelay(path).ask(b"hello", 5.0)


def test_a_listed_user_is_served(serve, echo_worker, monkeypatch):
    path = serve(echo_worker(), allowed_uids=[os.getuid() + 1])
    monkeypatch.setattr(socket_server, "peer_uid", lambda connection: os.getuid() + 1)

    assert SocketRelay(path).ask(b"hello", 5.0) == b"st-anna:hello"


def test_a_socket_of_another_user_is_not_asked(serve, echo_worker):
    path = serve(echo_worker())

    with pytest.raises(TransportError, match=f"belongs to user {os.getuid()}"):
        SocketRelay(path, expected_uid=os.getuid() + 1).ask(b"hello", 5.0)


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (HEADER.pack(b"FMVC", 0, 1001), 2),  # announced above the limit
        (HEADER.pack(b"FMVC", 0, 2**63), 2),
        (HEADER.pack(b"FMVC", 0, 0), 3),  # empty
        (HEADER.pack(b"HTTP", 0, 5) + b"hello", 3),  # no frame
        (HEADER.pack(b"FMVC", 99, 5) + b"hello", 3),  # unknown status
        (b"FMV", None),  # truncated header
        (HEADER.pack(b"FMVC", 0, 5) + b"hel", None),  # truncated body
        (b"", None),
    ],
)
def test_a_hostile_frame_is_refused_and_the_worker_goes_on(serve, echo_worker, frame, status):
    path = serve(echo_worker(), max_bytes=1000)

    assert _raw(path, frame) == (status, b"")
    assert SocketRelay(path).ask(b"hello", 5.0) == b"st-anna:hello"


def test_a_client_that_sends_nothing_is_cut_off(serve, echo_worker):
    path = serve(echo_worker(), io_timeout=0.1)
    started = time.monotonic()

    assert _raw(path, HEADER.pack(b"FMVC", 0, 5) + b"h", shut=False) == (None, b"")
    assert time.monotonic() - started < 2
    assert SocketRelay(path).ask(b"hello", 5.0) == b"st-anna:hello"


def test_a_worker_that_raises_says_nothing_of_why(serve, raising_worker, caplog):
    path = serve(raising_worker())

    with pytest.raises(TransportError) as caught:
        SocketRelay(path).ask(b"hello", 5.0)

    assert str(caught.value) == "the worker of this site failed: look at its log"
    assert _raw(path, HEADER.pack(b"FMVC", 0, 1) + b"x") == (4, b"")
    assert "4711" in caplog.text  # at the site it is logged


def test_a_request_above_the_limit_is_not_sent(folder):
    with pytest.raises(TransportError, match=r"11 bytes; the worker's socket takes at most 10"):
        SocketRelay(folder / "none.sock", max_bytes=10).ask(b"x" * 11, 1.0)


def test_a_reply_above_the_limit_is_not_read(serve, echo_worker):
    path = serve(echo_worker())

    with pytest.raises(TransportError, match="size limit"):
        SocketRelay(path, max_bytes=10).ask(b"x" * 10, 5.0)


@pytest.fixture
def full(folder):
    """Give a socket at which as many wait as may; what is accepted makes room."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(os.fspath(folder / "worker.sock"))
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            for _ in range(10):
                waiting = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                waiting.settimeout(1.0)
                waiting.connect(os.fspath(folder / "worker.sock"))
        yield listener


@pytest.mark.usefixtures("full")
def test_a_worker_that_takes_no_request_is_waited_for_until_the_deadline(folder):
    """It was said at once not to be running."""
    started = time.monotonic()

    with pytest.raises(TransportError, match=r"took no request in 0\.3 s"):
        SocketRelay(folder / "worker.sock").ask(b"hello", 0.3)

    assert 0.3 <= time.monotonic() - started < 2


def test_a_worker_that_has_room_again_is_reached(folder, full):
    made_room = threading.Timer(0.2, lambda: full.accept()[0].close())
    made_room.start()
    try:
        with pytest.raises(TransportError, match=r"did not reply in 1 s"):  # so it was reached
            SocketRelay(folder / "worker.sock").ask(b"hello", 1.0)
    finally:
        made_room.join()


@pytest.mark.usefixtures("full")
def test_a_socket_at_which_many_wait_is_served_by_another_worker(folder, echo_worker):
    """It was said that it cannot be examined and should be removed."""
    with pytest.raises(TransportError, match="another worker already serves"):
        WorkerServer(echo_worker(), folder / "worker.sock")


def test_no_worker_gives_one_sentence_without_the_path(folder):
    with pytest.raises(TransportError) as caught:
        SocketRelay(folder / "none.sock").ask(b"hello", 1.0)

    assert "is not running" in caught.value.public_message
    assert str(folder) not in caught.value.public_message
    assert str(folder) in caught.value.local_detail


def test_a_stale_socket_is_replaced(folder, serve, echo_worker):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(os.fspath(folder / "worker.sock"))

    path = serve(echo_worker())

    assert SocketRelay(path).ask(b"hello", 5.0) == b"st-anna:hello"


def test_a_live_socket_is_not_replaced(serve, echo_worker):
    path = serve(echo_worker())

    with pytest.raises(TransportError, match="another worker already serves"):
        WorkerServer(echo_worker("other"), path)

    assert SocketRelay(path).ask(b"hello", 5.0) == b"st-anna:hello"


def test_a_file_is_not_replaced(folder, echo_worker):
    (folder / "worker.sock").write_text("precious")

    with pytest.raises(TransportError, match="not a socket"):
        WorkerServer(echo_worker(), folder / "worker.sock")

    assert (folder / "worker.sock").read_text() == "precious"


def test_a_long_path_is_refused_with_both_numbers(folder, echo_worker):
    path = folder / ("x" * 120)

    with pytest.raises(TransportError, match=rf"{len(os.fsencode(path))} bytes; at most 100"):
        WorkerServer(echo_worker(), path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_worker_cleanly_after_its_reply(folder, number):
    path = folder / "worker.sock"
    code = (
        "import sys, time\n"
        "from fedmvc_client.socket_server import serve_worker\n"
        "class Slow:\n"
        "    site = 'st-anna'\n"
        "    def handle(self, body):\n"
        "        time.sleep(0.3)\n"
        "        return body\n"
        "serve_worker(Slow(), sys.argv[1], ready=lambda: print('ready', flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            replies = []
            asking = threading.Thread(
                target=lambda: replies.append(SocketRelay(path).ask(b"hello", 5.0))
            )
            asking.start()
            time.sleep(0.1)

            process.send_signal(number)

            assert process.wait(5) == 0
            asking.join(5)
        finally:
            process.kill()
    assert replies == [b"hello"]
    assert not path.exists()


def test_a_request_that_takes_too_long_does_not_hold_the_end_up(folder):
    path = folder / "worker.sock"
    released = threading.Event()

    class Busy:
        site = "st-anna"

        def handle(self, body):
            asked.set()
            released.wait(30)
            return body

    asked, stop, ended = threading.Event(), threading.Event(), []
    serving = threading.Thread(
        target=lambda: ended.append(
            socket_server.serve_worker(Busy(), path, stop=stop, grace=0.2, ready=ready.set)
        )
    )
    ready = threading.Event()
    serving.start()
    assert ready.wait(5)
    replies = []
    asking = threading.Thread(
        target=lambda: replies.append(SocketRelay(path).ask(b"hello", 20.0)), daemon=True
    )
    asking.start()
    assert asked.wait(5)
    try:
        started = time.monotonic()
        stop.set()
        serving.join(5)
        assert time.monotonic() - started < 2
        assert ended == [False]
        assert not path.exists()
    finally:
        released.set()
    asking.join(5)
    assert replies == [b"hello"]  # where the process lives on, so does the request


def test_several_workers_have_a_socket_each(folder, echo_worker):
    stop, ready = threading.Event(), threading.Event()
    workers = {name: echo_worker(name) for name in ("a", "b")}
    thread = threading.Thread(
        target=socket_server.serve_worker,
        args=(workers, folder),
        kwargs={"ready": ready.set, "stop": stop},
    )
    thread.start()
    try:
        assert ready.wait(5)
        assert SocketRelay(folder / "a.sock").ask(b"hello", 5.0) == b"a:hello"
        assert SocketRelay(folder / "b.sock").ask(b"hello", 5.0) == b"b:hello"
    finally:
        stop.set()
        thread.join(5)
    assert list(folder.iterdir()) == []


def test_if_one_socket_cannot_open_none_stays(folder, echo_worker):
    (folder / "b.sock").write_text("precious")

    with pytest.raises(TransportError, match="not a socket"):
        socket_server.serve_worker({"a": echo_worker(), "b": echo_worker()}, folder)

    assert [path.name for path in folder.iterdir()] == ["b.sock"]


def test_a_socket_path_in_the_node_config_wins(serve, echo_worker):
    path = serve(echo_worker("by-socket"))

    with registered_workers({"st-anna": echo_worker("in-process")}):
        found = resolve_relay({"worker": str(path), "site": "st-anna", "partition-id": 0}, 1)
        assert found.ask(b"x", 5.0) == b"by-socket:x"


def test_a_registered_site_comes_second(echo_worker):
    with registered_workers({"st-anna": echo_worker("in-process")}):
        found = resolve_relay({"site": "st-anna", "partition-id": 0}, 1)
        assert found.ask(b"x", 5.0) == b"in-process:x"


def test_a_partition_comes_third(monkeypatch, folder, echo_worker):
    monkeypatch.setattr(relay.tempfile, "gettempdir", lambda: str(folder))
    path = simulation_socket(2**64 - 1, 5)
    assert path == folder / f"fedmvc-{os.getuid()}" / "18446744073709551615" / "5.sock"

    class Recorder(SocketRelay):
        def ask(self, body, timeout):
            return os.fsencode(self._path)

    monkeypatch.setattr(relay, "SocketRelay", Recorder)
    found = resolve_relay({"site": "not-registered", "partition-id": 5}, 2**64 - 1)
    assert found.ask(b"x", 1.0) == os.fsencode(path)


def test_a_node_without_a_worker_is_told_what_to_do():
    with pytest.raises(TransportError, match="--node-config"):
        resolve_relay({"site": "not-registered"}, 1)


def test_a_site_is_registered_once(echo_worker):
    register_worker("st-anna", echo_worker())
    try:
        with pytest.raises(TransportError, match="'st-anna' is already registered"):
            register_worker("st-anna", echo_worker())
        with (
            pytest.raises(TransportError, match="already registered"),
            registered_workers({"st-bertha": echo_worker(), "st-anna": echo_worker()}),
        ):
            pytest.fail("entered although one name was taken")
        with pytest.raises(TransportError):  # the first of the two was taken back
            resolve_relay({"site": "st-bertha"}, 1)
    finally:
        unregister_worker("st-anna")
