"""Checks of single values: what passes comes back as a plain number, what does not is named."""

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.values import check_name, check_number, check_whole, counted


def test_a_known_name_passes_and_another_is_told_what_is_known():
    check_name("rank", "row_norm", ("gated_pivot", "row_norm"))
    with pytest.raises(ConfigError) as caught:
        check_name("rank", "norm", ("gated_pivot", "row_norm"))
    assert str(caught.value) == "rank is 'norm'; allowed: 'gated_pivot', 'row_norm'."


@pytest.mark.parametrize("value", [3, np.int64(3)])
def test_a_whole_number_comes_back_as_an_int(value):
    found = check_whole("sweeps", value, 3)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize("value", [2, 3.0, "3", True, None, np.float64(3)])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        check_whole("sweeps", value, 3)
    assert str(caught.value) == f"sweeps is {value!r}: give a whole number, 3 or more."


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_a_number_inside_its_range_comes_back_as_a_float(value):
    found = check_number("mix", value, least=0.0, most=1.0)
    assert (found, type(found)) == (float(value), float)


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (0.0, {"above": 0.0}),
        (-0.1, {"least": 0.0}),
        (1.0, {"below": 1.0}),
        (1.1, {"most": 1.0}),
        (float("nan"), {"least": 0.0}),
        (float("inf"), {"least": 0.0}),
        ("0.5", {"least": 0.0}),
        (True, {"least": 0.0}),
        (None, {"least": 0.0}),
        (0.5 + 0j, {"least": 0.0}),
    ],
)
def test_a_number_outside_its_range_is_refused(value, limits):
    with pytest.raises(ConfigError, match="mix is "):
        check_number("mix", value, **limits)


def test_the_range_is_said_in_words():
    with pytest.raises(ConfigError) as caught:
        check_number("ratio", 1.5, above=0.0, most=1.0)
    assert str(caught.value) == "ratio is 1.5: give a number above 0 and at most 1."
    with pytest.raises(ConfigError) as caught:
        check_number("kappa", 1.0, least=0.25, below=1.0)
    assert str(caught.value) == "kappa is 1.0: give a number at least 0.25 and below 1."


def test_a_number_agrees_with_its_noun():
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
