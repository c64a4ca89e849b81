"""Packed labels and encoded blends: what a vertical round puts on the wire."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError, ProtocolError
from strategies.label_coding import (
    BLOCK,
    encode_blend,
    encode_with,
    label_bits,
    pack_labels,
    packed_length,
    unpack_labels,
)


@pytest.mark.parametrize(
    ("n_clusters", "bits"),
    [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (10, 4), (16, 4), (17, 5), (257, 9)],
)
def test_a_label_takes_the_fewest_bits(n_clusters, bits):
    assert label_bits(n_clusters) == bits


def test_literal_bytes():
    """Most significant bit first, the last byte filled with zeros."""
    assert pack_labels(np.array([1, 2, 0, 3, 2]), 4).tolist() == [0b01100011, 0b10000000]
    assert pack_labels(np.array([5, 6, 7]), 8).tolist() == [0b10111011, 0b10000000]
    assert unpack_labels(np.array([0b10111011, 0b10000000], np.uint8), 3, 8).tolist() == [5, 6, 7]


def test_ten_clusters_cost_half_a_byte_a_row():
    assert pack_labels(np.arange(10_000) % 10, 10).nbytes == 5_000


@settings(deadline=None)
@given(
    st.integers(2, 700).flatmap(lambda k: st.tuples(st.just(k), st.lists(st.integers(0, k - 1))))
)
def test_unpacking_undoes_packing(case):
    n_clusters, labels = case
    packed = pack_labels(np.array(labels, dtype=np.int64), n_clusters)
    assert packed.dtype == np.uint8
    assert packed.shape == (packed_length(len(labels), n_clusters),)
    found = unpack_labels(packed, len(labels), n_clusters)
    assert found.dtype == np.int64
    assert found.tolist() == labels


@pytest.mark.parametrize("n_clusters", [2, 5, 10, 300])
def test_blocks_of_rows_join_without_a_seam(n_clusters):
    labels = np.random.default_rng(0).integers(0, n_clusters, 2 * BLOCK + 3)
    packed = pack_labels(labels, n_clusters)
    assert np.array_equal(unpack_labels(packed, labels.size, n_clusters), labels)


@pytest.mark.parametrize("label", [-1, 3])
def test_packing_refuses_what_is_no_label(label):
    with pytest.raises(ProtocolError, match=f"{label}.*3 clusters are numbered 0 to 2"):
        pack_labels(np.array([label]), 3)


@pytest.mark.parametrize(
    ("packed", "n", "n_clusters", "words"),
    [
        (np.zeros(2, np.uint8), 9, 4, "9 labels of 2 bits are 3 bytes"),
        (np.zeros(4, np.uint8), 9, 4, "9 labels of 2 bits are 3 bytes"),
        (np.zeros((3, 1), np.uint8), 9, 4, "3 bytes of uint8"),
        (np.zeros(3, np.int64), 9, 4, "int64"),
        (np.array([0b11000000], np.uint8), 1, 3, "label is 3, but 3 clusters"),
        (np.array([0b01000001], np.uint8), 3, 3, "last 2 bits"),
        (np.array([1], np.uint8), 0, 2, "0 labels"),
    ],
)
def test_unpacking_refuses_other_bytes(packed, n, n_clusters, words):
    with pytest.raises(ProtocolError, match=words):
        unpack_labels(packed, n, n_clusters)


# -- blends ---------------------------------------------------------------------------------------


def blend(seed=0, size=1.0):
    return size * np.random.default_rng(seed).normal(size=(50, 4))


def test_float64_is_exact():
    z = blend()
    array, scale = encode_blend(z, "float64")
    assert scale == 1.0
    assert np.array_equal(array, z)


@pytest.mark.parametrize("size", [1e-300, 1e-6, 1.0, 1e9])
def test_int8_is_within_half_a_step(size):
    z = blend(size=size)
    array, scale = encode_blend(z, "int8")
    assert array.dtype == np.int8
    assert scale == pytest.approx(np.abs(z).max() / 127)
    assert np.abs(array.astype(int)).max() == 127
    assert np.abs(array * scale - z).max() <= scale / 2 * (1 + 1e-12)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e9])
def test_float16_is_within_its_relative_step(size):
    z = blend(size=size)
    array, scale = encode_blend(z, "float16")
    assert array.dtype == np.float16
    assert np.isfinite(array).all()
    bound = np.maximum(2.0**-11 * np.abs(z), 2.0**-25 * scale)
    assert (np.abs(array.astype(float) * scale - z) <= bound * (1 + 1e-12)).all()


def test_float16_keeps_scale_one_where_nothing_overflows():
    assert encode_blend(np.array([[65504.0]]), "float16")[1] == 1.0


@pytest.mark.parametrize("z", [np.zeros((3, 2)), np.full((3, 2), 5e-322), np.zeros((0, 2))])
def test_a_blend_of_nothing_is_zero_with_scale_one(z):
    """A scale of 0, or one without digits, would make the codes not a number or overflow."""
    array, scale = encode_blend(z, "int8")
    assert scale == 1.0
    assert not array.any()


@pytest.mark.parametrize("encoding", ["float64", "float16", "int8"])
def test_a_blend_can_be_encoded_in_parts(encoding):
    z = blend()
    whole, scale = encode_blend(z, encoding)
    parts = [encode_with(z[start : start + 7], scale, encoding) for start in range(0, 50, 7)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ConfigError, match="int4"):
        encode_blend(blend(), "int4")
