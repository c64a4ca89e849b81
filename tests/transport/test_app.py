import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from configs.errors import InternalError, ProtocolError, TransportError
from fedmvc_client import app as client
from fedmvc_client.relay import registered_workers
from fedmvc_server.local_grid import LocalGrid
from strategies.messages import Refusal, from_bytes
from strategies.records import from_record, to_record
from tests.transport.asking import exchange

ROOT = Path(__file__).resolve().parents[2]


def _ask(node_config, content, action="round"):
    LocalGrid(client.app, {})  # sets the identity that Message needs
    message = Message(content, 7, f"train.{action}", ttl=5.0)
    context = Context(
        run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config={}
    )
    return from_record(client.app(message, context).content)


@pytest.mark.parametrize("action", ["hello", "prepare", "seed", "round", "finish"])
def test_every_action_forwards_the_bytes(echo_worker, action):
    with registered_workers({"st-anna": echo_worker()}):
        assert _ask({"site": "st-anna"}, to_record(b"\x00hi"), action) == b"st-anna:\x00hi"


def test_the_worker_is_reached_over_its_socket(serve, echo_worker):
    path = serve(echo_worker())

    assert _ask({"worker": str(path)}, to_record(b"hi")) == b"st-anna:hi"


def test_an_unreachable_worker_gives_a_typed_refusal_without_the_path(tmp_path, caplog):
    reply = from_bytes(_ask({"worker": str(tmp_path / "none.sock")}, to_record(b"hi")))

    assert isinstance(reply, Refusal)
    assert reply.code == TransportError.code
    assert "is not running" in reply.message
    assert str(tmp_path) not in reply.message
    assert str(tmp_path) in caplog.text


def test_content_that_is_no_message_gives_a_typed_refusal(echo_worker):
    with registered_workers({"st-anna": echo_worker()}):
        reply = from_bytes(_ask({"site": "st-anna"}, RecordDict({"x": ArrayRecord()})))

    assert isinstance(reply, Refusal)
    assert reply.code == ProtocolError.code


def test_an_exception_text_never_leaves(raising_worker, caplog):
    with registered_workers({"st-anna": raising_worker()}):
        reply = from_bytes(_ask({"site": "st-anna"}, to_record(b"hi")))

    assert reply == Refusal(InternalError.code, "the ClientApp failed: look at the site's log")
    assert "4711" in caplog.text  # at the site it is logged


def test_an_unknown_action_is_an_error_of_the_node(echo_worker):
    grid = LocalGrid(client.app, {"st-anna": {"site": "st-anna"}})

    replies, failures = exchange(grid, {100: b"hi"}, "train.unheard", 5.0)

    assert replies == {}
    assert failures == {100: "raised an error in its ClientApp: look at the site's log"}


def test_the_client_app_loads_neither_torch_nor_data():
    code = (
        "import sys, fedmvc_client.app\n"
        "heavy = {'torch', 'sklearn', 'pyarrow', 'opacus', 'scipy', 'pandas', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print(sorted(m for m in sys.modules if m.startswith('fedmvc_')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    loaded, ours = done.stdout.splitlines()
    assert loaded == "[]"
    assert ours == str(
        ["fedmvc_client", "fedmvc_client.app", "fedmvc_client.frames", "fedmvc_client.relay"]
    )


def test_the_worker_side_of_the_socket_does_not_load_flower():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, fedmvc_client.socket_server; print('flwr' in sys.modules)",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "False\n"
