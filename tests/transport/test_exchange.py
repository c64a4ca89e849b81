import time

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from configs.errors import ConfigError, ProtocolError, QuorumLost
from fedmvc_server.local_grid import LocalGrid
from strategies.exchange import wait_for_nodes
from strategies.records import from_record, to_record
from tests.transport.asking import exchange

NAMES = ("st-anna", "st-bertha", "st-clara")
A, B, C = 100, 101, 102


def _app():
    app = ClientApp()

    @app.train("round")
    def answer(message, context):
        state = context.state.setdefault("seen", ConfigRecord({"n": 0}))
        state["n"] += 1
        body = from_record(message.content)
        if body == b"raise":
            raise RuntimeError("patient 4711 weighs 82 kg")
        if body == b"garbage":
            return Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)
        name = context.node_config["site"]
        return Message(to_record(f"{name}:{state['n']}:".encode() + body), reply_to=message)

    return app


@pytest.fixture
def grid():
    return LocalGrid(_app(), {name: {"site": name} for name in NAMES})


class _LateGrid(LocalGrid):
    """Holds replies back: `delays` seconds by node id; a missing one never comes."""

    def __init__(self, delays):
        super().__init__(_app(), {name: {"site": name} for name in NAMES})
        self.delays = delays
        self.pushed = []
        self.ttls = []

    def push_messages(self, messages):
        messages = list(messages)
        self.started = time.monotonic()
        self.ttls += [message.metadata.ttl for message in messages]
        ids = super().push_messages(messages)
        self.pushed = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        return ids

    def pull_messages(self, message_ids):
        elapsed = time.monotonic() - self.started
        return super().pull_messages(
            [i for i in message_ids if elapsed >= self.delays.get(self.pushed[i], 1e9)]
        )


class _ErrorGrid(LocalGrid):
    """Every reply is a Flower error of one code, with a text that must not get out."""

    def __init__(self, code):
        super().__init__(_app(), {"st-anna": {"site": "st-anna"}})
        self.code = code

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        for reply in replies:
            reply.__dict__["_content"] = None
            reply.__dict__["_error"] = Error(self.code, "<'KeyError'>: 'patient 4711'")
        return replies


def test_each_node_gets_its_own_request(grid):
    replies, failures = exchange(grid, {C: b"c", A: b"a"}, "train.round", 5.0)

    assert replies == {C: b"st-clara:1:c", A: b"st-anna:1:a"}
    assert list(replies) == [C, A]
    assert failures == {}


def test_a_node_keeps_its_state_between_exchanges(grid):
    exchange(grid, {A: b"a"}, "train.round", 5.0)

    assert exchange(grid, {A: b"a", B: b"b"}, "train.round", 5.0)[0] == {
        A: b"st-anna:2:a",
        B: b"st-bertha:1:b",
    }


def test_every_node_is_either_answered_or_explained(grid):
    grid.disconnect("st-clara")

    replies, failures = exchange(
        grid, {A: b"raise", B: b"b", C: b"c", 999: b"?"}, "train.round", 5.0
    )

    assert replies == {B: b"st-bertha:1:b"}
    assert failures == {
        A: "raised an error in its ClientApp: look at the site's log",
        C: "is unavailable: its node stopped answering",
        999: "was given no message by the SuperLink",
    }


def test_a_node_cannot_answer_for_another(grid, monkeypatch):
    pull = grid.pull_messages

    def pull_forged(message_ids):
        replies = pull(message_ids)
        for reply in replies:
            reply.metadata.__dict__["_src_node_id"] = B
        return replies

    monkeypatch.setattr(grid, "pull_messages", pull_forged)

    assert exchange(grid, {A: b"a", B: b"b"}, "train.round", 5.0)[0] == {
        A: b"st-anna:1:a",
        B: b"st-bertha:1:b",
    }


def test_the_wait_ends_at_the_deadline_and_names_the_seconds():
    grid = _LateGrid({A: 0.0, B: 0.05})
    started = time.monotonic()

    replies, failures = exchange(grid, {A: b"a", B: b"b", C: b"c"}, "train.round", 0.3, poll_s=0.01)

    assert time.monotonic() - started == pytest.approx(0.3, abs=0.1)
    assert list(replies) == [A, B]
    assert failures == {C: "did not reply in 0.3 s"}
    assert grid.ttls == [0.3] * 3  # a late node does not work on a stale message


@pytest.mark.parametrize("timeout_s", [0, -1.0])
def test_a_wait_without_end_is_refused(grid, timeout_s):
    # Flower reads a ttl of 0 as its default of twelve hours.
    with pytest.raises(ConfigError, match="must be above 0 s"):
        exchange(grid, {A: b"a"}, "train.round", timeout_s)


def test_an_empty_request_is_refused_before_anything_is_sent(grid):
    with pytest.raises(ProtocolError, match="0 bytes"):
        exchange(grid, {A: b"a", B: b""}, "train.round", 5.0)
    assert exchange(grid, {A: b"a"}, "train.round", 5.0)[0] == {A: b"st-anna:1:a"}


def test_no_request_is_no_exchange(grid):
    assert exchange(grid, {}, "train.round", 5.0) == ({}, {})


def test_nodes_come_with_their_registered_names(grid):
    assert wait_for_nodes(grid, 3, 1.0) == {A: "st-anna", B: "st-bertha", C: "st-clara"}


def test_too_few_nodes_name_both_numbers_and_the_seconds(grid):
    grid.disconnect("st-clara")

    with pytest.raises(QuorumLost, match=r"2 of at least 3 sites connected in 0\.05 s"):
        wait_for_nodes(grid, 3, 0.05, poll_s=0.01)
    with pytest.raises(QuorumLost, match=r"2 of at least 3 .*: start st-clara, or change"):
        wait_for_nodes(grid, 3, 0.05, poll_s=0.01, wanted=("st-anna", "st-bertha", "st-clara"))


def test_a_node_that_comes_later_is_waited_for(grid, monkeypatch):
    grid.disconnect("st-clara")
    monkeypatch.setattr("strategies.exchange.time.sleep", lambda s: grid.reconnect("st-clara"))

    assert len(wait_for_nodes(grid, 3, 5.0)) == 3


def test_a_node_that_flower_lists_as_offline_does_not_count(grid, monkeypatch):
    nodes = list(grid.get_nodes())
    nodes[0].status = "offline"
    monkeypatch.setattr(grid, "get_nodes", lambda: nodes)

    assert wait_for_nodes(grid, 2, 0.05) == {B: "st-bertha", C: "st-clara"}


def test_neither_side_can_change_what_the_other_holds():
    app = ClientApp()

    @app.train("round")
    def spoil(message, context):
        message.content.clear()
        return Message(to_record(b"ok"), reply_to=message)

    grid = LocalGrid(app, {"st-anna": {}})
    content = to_record(b"mine")

    grid.send_and_receive([Message(content, A, "train.round")])

    assert from_record(content) == b"mine"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, "raised an error"),
        (1, "could not load its ClientApp"),
        (2, "raised an error"),
        (3, "did not reply in 5 s"),
        (4, "did not reply in 5 s"),
        (5, "its node stopped answering"),
        (6, "raised an error"),
        (7, "could not load its ClientApp"),
        (8, "lost its ClientApp process"),
        (99, "raised an error"),
    ],
)
def test_flower_errors_are_classified_and_never_quoted(code, reason):
    _, failures = exchange(_ErrorGrid(code), {A: b"a"}, "train.round", 5.0)

    assert reason in failures[A]
    assert "4711" not in failures[A]
