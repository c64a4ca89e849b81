"""Flower's waits for the parts of a message: what is changed, and that it is where they are."""

import ast
import importlib
import inspect

import pytest

from configs.flower_waits import FIRST_S, LONGEST_S, WAITING, ask_again_soon

PULLING = [
    "flwr.supernode.start_client_internal",
    "flwr.supernode.runtime.run_clientapp",
    "flwr.superlink.grid.http_grid",
]


@pytest.fixture
def functions():
    """Give Flower's functions; their waits are put back afterwards."""
    found = {n: getattr(importlib.import_module(m), n) for m, ns in WAITING.items() for n in ns}
    before = {name: dict(function.__kwdefaults__) for name, function in found.items()}
    yield found
    for name, function in found.items():
        function.__kwdefaults__.update(before[name])


def test_missing_parts_are_asked_for_again_soon(functions):
    ask_again_soon()

    for function in functions.values():
        waits = inspect.signature(function).parameters
        assert waits["initial_backoff"].default == FIRST_S
        assert waits["backoff_cap"].default == LONGEST_S


def test_a_flower_without_such_waits_is_left_alone(functions):
    waits = functions["pull_objects"].__kwdefaults__
    del waits["initial_backoff"]
    waits["backoff_cap"] = 10

    ask_again_soon()

    assert waits["backoff_cap"] == 10


@pytest.mark.parametrize("module", PULLING)
def test_canary_flower_pulls_by_these_functions_and_sets_no_waits_of_its_own(module, functions):
    found = importlib.import_module(module)
    tree = ast.parse(inspect.getsource(found))
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in functions
    ]
    assert calls
    for call in calls:
        assert getattr(found, call.func.id) is functions[call.func.id]
        assert not {"initial_backoff", "backoff_cap"} & {k.arg for k in call.keywords}
