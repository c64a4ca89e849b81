"""Fields with their lengths: literal bytes, and no two lists that look alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ProtocolError
from privacy.canonical import pack, unpack

fields = st.lists(st.binary(max_size=5), max_size=5)


def test_a_field_follows_its_length():
    assert pack(b"ab", "é", 258) == (
        b"\0\0\0\2ab" + b"\0\0\0\2\xc3\xa9" + b"\0\0\0\x08\0\0\0\0\0\0\1\2"
    )
    assert pack() == b""


@given(fields)
def test_what_was_packed_comes_back(values):
    assert unpack(pack(*values)) == tuple(values)


@given(fields, fields)
def test_two_lists_never_give_the_same_bytes(first, second):
    assert (pack(*first) == pack(*second)) == (first == second)


def test_joined_text_would_not_tell_these_apart():
    assert pack("a", "bc") != pack("ab", "c")
    assert pack("a", "") != pack("", "a")
    assert pack(pack("a"), "b") != pack("a", "b")


@given(fields.filter(bool), st.integers(1, 8))
def test_a_message_that_was_cut_short_is_refused_or_ends_at_a_field(values, cut):
    encoded = pack(*values)[:-cut]
    try:
        read = unpack(encoded)
    except ProtocolError as error:
        assert "cut short" in str(error)
    else:
        assert pack(*read) == encoded


def test_a_length_beyond_the_message_is_refused():
    with pytest.raises(ProtocolError, match=r"6 bytes ends within field 1"):
        unpack(b"\xff\xff\xff\xffab")


@pytest.mark.parametrize("value", [-1, 2**64])
def test_integers_are_64_bits_without_sign(value):
    assert unpack(pack(2**64 - 1)) == (b"\xff" * 8,)
    with pytest.raises(OverflowError):
        pack(value)
