"""Masks: the algebra against a slow reference, what a key depends on, known answers."""

import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.trust_secure_sum import (
    distinct_seeds,
    known_answers,
    mask_quality,
    same_source_p,
    uniform_p,
)
from configs.errors import ProtocolError
from privacy.key_agreement import new_secret, public_of
from privacy.masking import _CHUNK, add_keystream, add_pair_masks, mask, pair_key
from privacy.secret_sharing import recombine, split_secret
from tests.privacy.secure_sums import clear_sum, names_of, random_vectors

SECRETS = {name: new_secret() for name in names_of(8)}


def stream_by_hand(key, n_numbers):
    body = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * n_numbers))
    return [number for (number,) in struct.iter_unpack("<Q", body)]


def key_between(first, second, **change):
    bound = {"transcript": b"t" * 32, "exchange": 1, "digest": b"d" * 32, "pair": (first, second)}
    return pair_key(SECRETS[first], public_of(SECRETS[second]), **{**bound, **change})


def keys_of(name, names):
    return {other: key_between(name, other) for other in names if other != name}


@pytest.mark.parametrize("n_numbers", [0, 1, 7, _CHUNK - 1, _CHUNK, _CHUNK + 1, 2 * _CHUNK + 3])
def test_the_keystream_is_that_of_one_call(n_numbers):
    total = np.full(n_numbers, 5, np.uint64)
    add_keystream(total, b"k" * 32)
    expected = stream_by_hand(b"k" * 32, n_numbers)
    assert total.tolist() == [(5 + number) % 2**64 for number in expected]
    add_keystream(total, b"k" * 32, sign=-1)
    assert total.tolist() == [5] * n_numbers


def test_a_masked_vector_by_hand():
    keys = {"a": b"1" * 32, "c": b"2" * 32}
    own, from_a, from_c = (stream_by_hand(key, 3) for key in (b"s" * 32, *keys.values()))
    expected = [
        (x + s - a + c) % 2**64 for x, s, a, c in zip([7, 8, 9], own, from_a, from_c, strict=True)
    ]
    values = np.array([7, 8, 9], np.uint64)
    assert mask(values, "b", b"s" * 32, keys).tolist() == expected
    assert values.tolist() == [7, 8, 9]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(0, 5), st.data())
def test_masks_vanish_in_the_sum_of_whoever_is_left(n_sites, n_numbers, data):
    names = names_of(n_sites)
    lost = data.draw(st.sets(st.sampled_from(names), max_size=n_sites - 1))
    vectors = random_vectors(names, n_numbers, seed=n_sites)
    total = np.zeros(n_numbers, np.uint64)
    left = [name for name in names if name not in lost]
    for name in left:
        total += mask(vectors[name], name, SECRETS[name], keys_of(name, names))
        add_keystream(total, SECRETS[name], sign=-1)
    for name in lost:
        keys = keys_of(name, names)
        add_pair_masks(total, name, {other: keys[other] for other in left})
    assert total.tolist() == clear_sum(vectors, left).tolist()


def test_a_pair_key_by_hand():
    first, second = names_of(2)
    secret = X25519PrivateKey.from_private_bytes(SECRETS[first])
    public = X25519PrivateKey.from_private_bytes(SECRETS[second]).public_key()
    # length-prefixed: "mask", e, SHA-256 of the request, both names in order
    info = b"\0\0\0\4mask" + b"\0\0\0\x08" + (7).to_bytes(8, "big")
    info += b"\0\0\0\x20" + b"d" * 32 + b"\0\0\0\7site-00" + b"\0\0\0\7site-01"
    by_hand = HKDF(hashes.SHA256(), length=32, salt=b"t" * 32, info=info)
    assert key_between(second, first, exchange=7) == by_hand.derive(secret.exchange(public))


def test_both_sites_of_a_pair_have_one_key_and_no_other_pair_has_it():
    names = names_of(4)
    keys = {(u, v): key_between(u, v) for u in names for v in names if u != v}
    assert all(key == keys[v, u] for (u, v), key in keys.items())
    assert len(set(keys.values())) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"transcript": b"T" * 32},
        {"exchange": 2},
        {"digest": b"D" * 32},
        {"pair": ("site-00", "site-02")},
    ],
)
def test_a_key_is_bound_to_what_it_is_for(change):
    assert key_between("site-00", "site-01", **change) != key_between("site-00", "site-01")


def test_a_public_key_of_small_order_is_refused():
    with pytest.raises(ProtocolError, match="not a usable X25519 key"):
        pair_key(
            SECRETS["site-00"],
            bytes(32),
            transcript=b"",
            exchange=1,
            digest=b"",
            pair=("site-00", "site-01"),
        )


def test_the_primitives_give_the_known_answers():
    row = known_answers(all_subsets=False)
    assert row.passed, row.figure


def test_fewer_shares_than_the_threshold_give_something_else():
    secret = bytes(range(32))
    shares = dict(enumerate(split_secret(secret, 4, 6), 1))
    assert recombine({i: shares[i] for i in (6, 2, 3, 5)}) == secret
    assert recombine({i: shares[i] for i in (2, 3, 5)}) != secret
    assert recombine({1: shares[2], 2: shares[1], 3: shares[3], 4: shares[4]}) != secret


def test_masked_vectors_look_uniform_and_do_not_tell_neighbours_apart():
    row = mask_quality(repeats=50)
    assert row.passed, row.figure


def test_the_quality_tests_find_a_mask_of_63_bits():
    rng = np.random.default_rng(0)
    good, bad = (rng.integers(0, top, 2048, np.uint64) for top in (2**64, 2**63))
    assert uniform_p(good) > 0.01 > uniform_p(bad)
    assert min(same_source_p(good, good[::-1].copy())) > 0.01 > max(same_source_p(good, bad))


def test_no_two_seeds_of_a_run_are_equal():
    row = distinct_seeds(n_sites=4, exchanges=5)
    assert row.passed, row.figure
