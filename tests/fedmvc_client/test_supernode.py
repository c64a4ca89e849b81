"""Flower's loop sends a reply that lies there also when no message came."""

import ast
import importlib
import inspect

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory

from fedmvc_client.supernode import LOOP, PULL, send_late_replies


def message(run_id, reply_to=None):
    """Return a message of a run, or the reply to one, as a SuperNode keeps it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, 1
    content = RecordDict({"c": ConfigRecord({"run": str(run_id)})})
    if reply_to is None:
        made = Message(content, 1, "train", ttl=60.0)
    else:
        made = Message(content, reply_to=reply_to)
    made.metadata.__dict__["_message_id"] = made.object_id
    made.metadata.__dict__["_run_id"] = run_id
    return made


@pytest.fixture
def state():
    """Give the state that a SuperNode really has."""
    found = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    found.set_node_id(1)
    return found


@pytest.fixture
def look(monkeypatch):
    """Give Flower's look for a message, replaced, and what it finds: nothing at first."""
    loop, found = importlib.import_module(LOOP), []
    monkeypatch.setattr(loop, PULL, lambda *, state, receive: found.pop() if found else None)
    send_late_replies()
    return lambda state, *pulled: (found.extend(pulled), getattr(loop, PULL))[1](
        state=state, receive=None
    )


def test_canary_the_loop_sends_only_after_it_received():
    tree = ast.parse(inspect.getsource(importlib.import_module(LOOP).start_client_internal))
    (call,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == PULL
    ]
    assert not call.args
    assert "state" in {keyword.arg for keyword in call.keywords}
    (branch,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "run_id is None"
    ]
    assert isinstance(branch.body[-1], ast.Continue)


def test_nothing_came_and_nothing_lies_there(state, look):
    assert look(state) is None


def test_a_message_that_came_is_passed_on(state, look):
    assert look(state, 7) == 7


def test_a_request_that_lies_there_is_none_of_ours(state, look):
    state.store_message(message(5))
    assert look(state) is None


def test_a_reply_that_lies_there_is_sent_once(state, look):
    request = message(5)
    state.store_message(request)
    state.store_message(message(5, reply_to=request))

    assert look(state) == 5

    (sent,) = state.get_messages_legacy(is_reply=True)  # as Flower's loop takes it
    assert sent.metadata.reply_to_message_id == request.metadata.message_id
    assert look(state) is None
