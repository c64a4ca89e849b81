"""The SuperNode with shorter waits; the canaries fail where Flower's loop is written anew."""

import ast
import importlib
import inspect
import os
import sys

import pytest

from fedmvc_client import fast_poll
from fedmvc_client.fast_poll import ShortWaits
from fedmvc_client.supernode import LOOP, LOST, PULL, SETTINGS


def uses_of_time():
    """Every use of the name ``time`` in Flower's loop, with the call's argument."""
    tree = ast.parse(inspect.getsource(importlib.import_module(LOOP)))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "time":
            attribute = parents[node]
            call = parents[attribute]
            yield attribute.attr, [each.value for each in call.args]


def test_canary_flowers_loop_sleeps_three_seconds_idle_and_half_a_second_for_a_reply():
    found = list(uses_of_time())

    assert {name for name, _ in found} == {"sleep"}  # nothing else of `time` may be missing
    assert sorted(waits for _, waits in found) == [[0.5], [0.5], [3]]
    assert importlib.import_module(LOOP).time.sleep


def test_canary_the_command_runs_that_loop():
    module = importlib.import_module("flwr.supernode.cli.flower_supernode")
    assert module.start_client_internal is importlib.import_module(LOOP).start_client_internal


def test_waits_are_short_while_a_run_is_under_way():
    now, slept = [0.0], []
    waits = ShortWaits(0.05, sleep=slept.append, clock=lambda: now[0])

    waits(3)
    now[0] = 59.0
    waits(3)
    waits(0.5)  # a message came
    now[0] = 118.0
    waits(3)
    now[0] = 120.0
    waits(3)  # nothing for a minute: Flower's own wait
    waits(0.5)
    waits(3)

    assert slept == [0.05, 0.0625, 0.05, 0.05, 3, 0.05, 0.05]


def test_waits_grow_while_nothing_comes_up_to_five_times():
    slept = []
    waits = ShortWaits(0.04, sleep=slept.append, clock=lambda: 0.0)

    for _ in range(10):
        waits(3)
    waits(0.5)  # a message came
    waits(3)

    assert slept[:3] == pytest.approx([0.04, 0.05, 0.0625])
    assert slept[8:10] == [0.2, 0.2]
    assert slept[10:] == [0.04, 0.04]


def test_another_flower_ends_with_8_and_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr("configs.flower_version.installed", lambda name: "1.43.0")

    with pytest.raises(SystemExit) as ended:
        fast_poll.main()

    assert ended.value.code == 8
    sentence = capsys.readouterr().err.strip()
    assert sentence == (
        "error: flwr 1.43.0 is installed and fedmvc needs 1.42.0: install 'flwr==1.42.0', the same "
        "at the server and at every site"
    )


@pytest.mark.parametrize("given", ["fast", "0", "-1", "nan", "3.5", ""])
def test_a_setting_that_is_no_wait_ends_with_2(monkeypatch, capsys, given):
    monkeypatch.setenv("FEDMVC_FAST_POLL", given)

    with pytest.raises(SystemExit) as ended:
        fast_poll.main()

    assert ended.value.code == 2
    assert f"FEDMVC_FAST_POLL is '{given}'" in capsys.readouterr().err


def test_the_loop_is_given_the_short_waits_and_its_process_ends_with_it(monkeypatch):
    """A SuperNode that had lost its server once stayed, doing nothing, and was not started anew."""
    seen, codes = [], []
    loop = importlib.import_module(LOOP)
    for name in ("time", PULL, SETTINGS):
        monkeypatch.setattr(loop, name, getattr(loop, name))  # put back afterwards
    flowers = getattr(loop, SETTINGS)
    monkeypatch.setattr(
        "flwr.supernode.cli.flower_supernode",
        lambda: seen.extend([loop.time.sleep, getattr(loop, SETTINGS)]),
    )
    monkeypatch.setattr(sys, "argv", ["flower-supernode"])
    monkeypatch.setattr(os, "_exit", codes.append)

    fast_poll.main()

    assert isinstance(seen[0], ShortWaits)
    assert seen[1] is not flowers  # outlives bundles too
    assert codes == [LOST]
