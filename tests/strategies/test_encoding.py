"""Difference coding: literal codes, error feedback, lost replies, both ends in step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.encoding import LIMITS, ChangeCoder


def converging(rounds, rate=0.5, seed=0):
    """Two blocks of one start that approach a limit geometrically."""
    rng = np.random.default_rng(seed)
    limit = [rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 4))]
    away = [rng.normal(size=b.shape) for b in limit]
    return limit, [
        [b + rate**t * a for b, a in zip(limit, away, strict=True)] for t in range(rounds)
    ]


def test_int8_by_hand():
    coder = ChangeCoder("int8")
    codes, scales = coder.encode(1, [0], [np.array([[127.0, -254.0, 63.0]])])
    # the largest change is 254, so one step is 254 / 127 = 2 and 63 rounds to the even 32
    assert scales.dtype == np.float32
    assert scales.tolist() == [[2.0]]
    assert codes[0].dtype == np.int8
    assert codes[0].tolist() == [[64, -127, 32]]
    # 127 / 2 = 63.5 rounds to the even 64: both ends hold 128, so the change to 127 is -1
    codes, scales = coder.encode(2, [0], [np.array([[127.0, -254.0, 63.0]])])
    assert scales.tolist() == [[np.float32(1 / 127)]]
    assert codes[0].tolist() == [[-127, 0, -127]]


def test_decoding_by_hand():
    coder = ChangeCoder("int16")
    codes = (np.array([[2, -3]], dtype=np.int16),)
    (block,) = coder.decode(1, [0], codes, np.array([[0.5]], dtype=np.float32))
    assert block.tolist() == [[1.0, -1.5]]
    (block,) = coder.decode(2, [0], codes, np.array([[1.0]], dtype=np.float32))
    assert block.tolist() == [[3.0, -4.5]]
    assert coder.round == 2


def test_blocks_of_zeros_need_no_scale():
    codes, scales = ChangeCoder("int8").encode(1, [0], [np.zeros((1, 3))])
    assert not codes[0].any()
    assert not scales.any()


@pytest.mark.parametrize("encoding", sorted(LIMITS))
def test_error_feedback_leaves_less_than_one_step(encoding):
    _, sequence = converging(25)
    site, server = ChangeCoder(encoding), ChangeCoder(encoding)
    for number, blocks in enumerate(sequence, 1):
        codes, scales = site.encode(number, [0], blocks)
        found = server.decode(number, [0], codes, scales)
        for b, (block, exact) in enumerate(zip(found, blocks, strict=True)):
            # half a step, and what float32 loses of the step itself
            assert np.abs(block - exact).max() <= 0.5001 * scales[0, b]
    # the step follows the change, so the error vanishes with it: 0.5**24 = 6e-8
    assert scales.max() < 1e-6


def test_without_feedback_the_rounding_would_stay():
    """Coding every round against zero, as a plain int8 would, never gets better."""
    _, sequence = converging(25)
    coder = ChangeCoder("int8")
    for number, blocks in enumerate(sequence, 1):
        coder.restart()
        codes, scales = coder.encode(number, [0], blocks)
    assert np.abs(codes[0] * np.float64(scales[0, 0]) - sequence[-1][0]).max() > 1e-4


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(LIMITS)), st.floats(1e-12, 1e12))
def test_both_ends_stay_bit_equal(seed, encoding, size):
    rng = np.random.default_rng(seed)
    site, server = ChangeCoder(encoding), ChangeCoder(encoding)
    for number in range(1, 6):
        blocks = [size * rng.normal(size=(2, 3)), size * rng.normal(size=(2,))]
        codes, scales = site.encode(number, [0, 1], blocks)
        found = server.decode(number, [0, 1], codes, scales)
        for start in (0, 1):
            for own, other in zip(site._reference[start], server._reference[start], strict=True):
                assert np.array_equal(own, other)
        assert [a.shape for a in found] == [(2, 3), (2,)]
        assert site.round == server.round == number


def test_a_lost_reply_is_made_good_by_a_restart():
    """The site coded round 3, the reply was lost: the next one is coded against zero."""
    _, sequence = converging(5)
    site, server = ChangeCoder("int8"), ChangeCoder("int8")
    for number in (1, 2, 3):
        codes, scales = site.encode(number, [0], sequence[number - 1])
        if number < 3:
            server.decode(number, [0], codes, scales)
    assert site.round != server.round
    site.restart()
    assert site.round == -1
    codes, scales = site.encode(4, [0], sequence[3])
    server.restart()
    found = server.decode(4, [0], codes, scales)
    for b, (block, exact) in enumerate(zip(found, sequence[3], strict=True)):
        assert np.abs(block - exact).max() <= 0.5001 * scales[0, b]


def test_a_lost_reply_without_a_restart_would_corrupt_the_sums():
    _, sequence = converging(4)
    site, server = ChangeCoder("int8"), ChangeCoder("int8")
    for number in (1, 2, 3, 4):
        codes, scales = site.encode(number, [0], sequence[number - 1])
        if number != 3:
            found = server.decode(number, [0], codes, scales)
    assert np.abs(found[0] - sequence[3][0]).max() > 2 * scales.max()


def test_starts_have_their_own_reference():
    site, server = ChangeCoder("int16"), ChangeCoder("int16")
    blocks = [np.array([[1.0, 2.0], [100.0, 200.0], [-1.0, 5.0]])]
    server.decode(1, [0, 1, 2], *site.encode(1, [0, 1, 2], blocks))
    # start 1 was dropped; 0 and 2 go on from where they were
    later = [np.array([[1.5, 2.5], [-2.0, 6.0]])]
    (found,) = server.decode(2, [0, 2], *site.encode(2, [0, 2], later))
    np.testing.assert_allclose(found, later[0], atol=1e-4)
