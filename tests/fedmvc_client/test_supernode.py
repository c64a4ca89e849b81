"""Flower's loop sends a reply that lies there also when no message came, and outlives bundles."""

import ast
import hashlib
import importlib
import inspect
import os
import sys

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory

from fedmvc_client import supernode
from fedmvc_client.supernode import LOOP, PULL, SETTINGS, outlive_bundles, send_late_replies
from tests.fedmvc_client.bundles import bundle, ours, packed, project


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


@pytest.fixture
def loop(monkeypatch):
    """Give Flower's loop as it is; what a test replaces in it is put back."""
    found = importlib.import_module(LOOP)
    monkeypatch.setattr(found, SETTINGS, getattr(found, SETTINGS))
    return found


def pulled(loop, state, fab, override=None):
    """Let Flower's loop receive a message of run 5, which has this bundle; return its run."""
    run = Run.create_empty(5)
    run.fab_hash, run.override_config = hashlib.sha256(fab).hexdigest(), override or {}
    sent = message(5)
    return getattr(loop, PULL)(
        state=state,
        object_store=ObjectStoreFactory().store(),
        node_config={},
        receive=lambda: (sent, get_object_tree(sent)),
        get_run=lambda run_id: run,
        get_fab=lambda fab_hash, run_id: Fab(fab_hash, fab, {}),
        pull_object=lambda run_id, object_id: get_all_nested_objects(sent)[object_id].deflate(),
        confirm_message_received=lambda run_id, message_id: None,
        trusted_entities=None,
    )


def settings_table(text):
    return project().replace("[tool.flwr.app.config]", text)


HOSTILE = {
    "no zip": lambda: b"no zip",
    "nothing": lambda: b"",
    "no project": lambda: packed(("x", b"y")),
    "no TOML": lambda: bundle("x ="),
    "a number of 5000 digits": lambda: bundle(f"a = {'1' * 5000}\n"),
    "a bomb": lambda: bundle("#" * 2**20),
    # these check_bundle takes: Flower cannot read their settings
    "a list among the settings": lambda: bundle(settings_table("[tool.flwr.app.config]\nx = [1]")),
    "settings that are no table": lambda: bundle(
        project()
        .partition("[tool.flwr.app.config]")[0]
        .replace("[tool.flwr.app]", "[tool.flwr.app]\nconfig = 3")
    ),
}


def test_canary_the_loop_reads_the_settings_by_that_name_from_the_bundle_and_the_run(loop):
    tree = ast.parse(inspect.getsource(getattr(loop, PULL)))
    (call,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == SETTINGS
    ]
    assert [ast.unparse(each) for each in call.args] == ["fab.content", "run_info"]
    assert not call.keywords
    assert list(inspect.signature(getattr(loop, SETTINGS)).parameters) == ["fab_file", "run"]


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_bundle_ends_nothing_and_its_message_goes_on(loop, state, kind):
    """The SuperNode died of it, the message was lost, and the site's audit log had no line."""
    outlive_bundles()

    fab = HOSTILE[kind]()

    assert pulled(loop, state, fab) == 5

    assert state.get_run_series_context(0).run_config == {}
    assert len(state.get_messages_legacy(is_reply=False)) == 1
    # for the process that refuses it
    assert state.get_fab(hashlib.sha256(fab).hexdigest()).content == fab


def test_settings_that_the_bundle_does_not_know_end_nothing(loop, state):
    outlive_bundles()
    assert pulled(loop, state, ours(), {"unheard-of": 1}) == 5


def test_a_bundle_that_is_refused_is_not_unpacked_by_flower(loop, monkeypatch):
    asked = []
    monkeypatch.setattr(loop, SETTINGS, lambda fab, run: asked.append(fab) or {"x": 1})
    outlive_bundles()
    read = getattr(loop, SETTINGS)

    assert read(HOSTILE["a bomb"](), None) == {}
    assert asked == []
    assert read(ours(), None) == {"x": 1}


def test_a_bundle_of_ours_keeps_its_settings(loop, state):
    outlive_bundles()

    assert pulled(loop, state, ours(), {"plan": "p.toml"}) == 5

    found = state.get_run_series_context(0).run_config
    assert (found["plan"], found["out"]) == ("p.toml", "")


def test_the_process_outlives_bundles(loop, monkeypatch):
    before, seen = getattr(loop, SETTINGS), []
    monkeypatch.setattr(loop, PULL, getattr(loop, PULL))
    monkeypatch.setattr(
        "flwr.supernode.cli.flower_supernode", lambda: seen.append(getattr(loop, SETTINGS))
    )
    monkeypatch.setattr(sys, "argv", ["x"])
    monkeypatch.setattr(os, "_exit", lambda code: None)

    supernode.main()

    assert seen[0] is not before
