"""How long a site is waited for before it is asked again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.gathering import ask_s


@pytest.mark.parametrize(
    ("left", "asked"),
    [(600.0, 300.0), (150.0, 75.0), (75.0, 37.5), (60.0, 60.0), (5.0, 5.0), (0.2, 1.0), (-3, 1.0)],
)
def test_half_of_what_is_left_where_it_is_long(left, asked):
    assert ask_s(left) == asked


@given(st.floats(61.0, 1e6))
def test_long_patience_is_for_several_askings_and_no_longer(patience):
    asked, left = [], patience
    while left >= 1.0:
        asked.append(ask_s(left))
        left -= asked[-1]
    assert len(asked) >= 2
    assert min(asked[:-1]) >= 30.0
    assert sum(asked) <= patience + 0.1 * len(asked)
