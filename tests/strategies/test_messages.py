"""Messages: round trips, and every way in which bytes can be wrong."""

import dataclasses
import json
import struct
import typing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from configs.errors import ProtocolError
from strategies import codec, messages
from strategies.messages import from_bytes, to_bytes
from tests.strategies.samples import RUN, assert_same, every_message, moments, scaling

EVERY = every_message()


def name(message):
    return type(message).__name__


def pick(kind):
    return next(message for message in EVERY if name(message) == kind)


def rewritten(message, change):
    """Return the bytes of a message after `change` was applied to its JSON header."""
    body = to_bytes(message)
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    changed = change(header)
    text = json.dumps(header if changed is None else changed).encode()
    return struct.pack("<I", len(text)) + text + body[4 + length :]


def as_raw(text, arrays=b""):
    return struct.pack("<I", len(text)) + text + arrays


def test_samples_cover_every_kind():
    assert {type(message) for message in EVERY} == set(typing.get_args(messages.Message))


@pytest.mark.parametrize("message", EVERY, ids=name)
def test_round_trip(message):
    assert_same(from_bytes(to_bytes(message)), message)


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.dtype("<f8"), np.dtype("<f4"), np.dtype(">f8")]),
        hnp.array_shapes(min_dims=2, max_dims=3, min_side=0, max_side=4),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_arrays_keep_values_and_shape(array):
    sent = messages.SeedReply(RUN, (array,), array, ())
    found = from_bytes(to_bytes(sent))
    assert found.counts.shape == array.shape
    assert np.array_equal(found.centers[0], array)
    assert found.centers[0].dtype == array.dtype.newbyteorder("<")


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.dtype(np.int8), np.dtype(np.int16)]),
        hnp.array_shapes(max_dims=3, max_side=4),
    )
)
def test_codes_keep_their_small_type(array):
    sent = messages.CodedStatistics(RUN, 1, -1, (array,), np.ones((1, 1), dtype=np.float32))
    found = from_bytes(to_bytes(sent)).codes[0]
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_array_layout_does_not_travel():
    array = np.arange(6.0).reshape(2, 3)
    strided = messages.SeedReply(RUN, (np.asfortranarray(array),), array.T, ())
    found = from_bytes(to_bytes(strided))
    assert np.array_equal(found.centers[0], array)
    assert np.array_equal(found.counts, array.T)


def test_received_arrays_are_read_only_views_of_the_message():
    found = from_bytes(to_bytes(pick("SeedReply")))
    with pytest.raises(ValueError, match="read-only"):
        found.counts[0, 0] = 7.0


def test_infinity_marks_a_constant_column_and_nothing_else():
    request = pick("SeedRequest")
    found = from_bytes(to_bytes(request))
    assert np.isinf(found.scaling[0].delta_b).all()
    view = dataclasses.replace(scaling(), delta_b=np.array([np.nan, 1.0]))
    with pytest.raises(ProtocolError, match="field delta_b"):
        from_bytes(to_bytes(dataclasses.replace(request, scaling=(view,))))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("kind", "field", "changes"),
    [
        ("SeedReply", "counts", lambda v: {"counts": np.array([[4711.25, v]])}),
        ("SeedReply", "centers", lambda v: {"centers": (np.array([[[4711.25, v]]]),)}),
        ("LocalModelReply", "objective", lambda v: {"objective": np.array([4711.25, v])}),
        (
            "PrepareReply",
            "mean",
            lambda v: {"moments": (dataclasses.replace(moments(), mean=np.array([4711.25, v])),)},
        ),
    ],
)
def test_a_number_that_is_not_finite_is_refused_by_field_and_never_by_value(
    value, kind, field, changes
):
    message = dataclasses.replace(pick(kind), **changes(value))
    with pytest.raises(ProtocolError) as caught:
        from_bytes(to_bytes(message))
    assert field in str(caught.value)
    for secret in ("4711", "nan", "inf"):
        assert secret not in str(caught.value).lower().replace("infinite", "")


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_single_number_that_is_not_finite_is_refused(token):
    def change(header):
        header["m"]["partition_coefficient"] = "TOKEN"

    body = rewritten(pick("FinishReply"), change).replace(b'"TOKEN"', b"%s" % token.encode())
    (length,) = struct.unpack_from("<I", body)
    body = struct.pack("<I", length - len('"TOKEN"') + len(token)) + body[4:]
    with pytest.raises(ProtocolError):
        from_bytes(body)


def test_a_whole_number_above_64_bits_is_refused_by_field():
    def change(header):
        header["m"]["code"] = 10**40

    with pytest.raises(ProtocolError, match="field code"):
        from_bytes(rewritten(pick("Refusal"), change))


def test_a_single_number_that_is_not_finite_is_not_sent():
    message = dataclasses.replace(pick("FinishReply"), partition_coefficient=float("nan"))
    with pytest.raises(ValueError, match="JSON compliant"):
        to_bytes(message)


@pytest.mark.parametrize("message", EVERY, ids=name)
def test_cut_anywhere_the_bytes_are_refused(message):
    body = to_bytes(message)
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            from_bytes(body[:end])


@pytest.mark.parametrize("message", EVERY, ids=name)
def test_bytes_behind_the_end_are_refused(message):
    with pytest.raises(ProtocolError, match="behind"):
        from_bytes(to_bytes(message) + b"\0")


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([to_bytes(message) for message in EVERY]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_flipped_bytes_give_a_message_or_a_protocol_error(body, flips):
    damaged = bytearray(body)
    for place, value in flips:
        damaged[place % len(body)] = value
    try:
        found = from_bytes(bytes(damaged))
    except ProtocolError:
        return
    assert isinstance(found, typing.get_args(messages.Message))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    with pytest.raises(ProtocolError):
        from_bytes(noise)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"null",
        b"7",
        b'{"m": 1}',
        b'{"m": {"@": "Refusal"}, "a": 3}',
        b'{"m": {"$": 0}, "a": []}',
        b'{"m": {"$": "x"}, "a": []}',
        b'{"m": {"@": ["Refusal"]}, "a": []}',
        b'{"m": {"@": {}}, "a": []}',
        b'{"m": [], "a": []}',
        b'{"m": {}, "a": []}',
        b'{"m": {"@": "int"}, "a": []}',
        b'{"m": {"@": "Moments"}, "a": []}',
        b"\xff\xfe",
        b"[" * 5000,
        b'{"m":' * 5000,
    ],
)
def test_a_hostile_header_is_refused(text):
    with pytest.raises(ProtocolError):
        from_bytes(as_raw(text))


@pytest.mark.parametrize(
    "spec",
    [
        ["<f8", [-1]],
        ["<f8", [10**30]],
        ["<f8", [0, 10**30]],
        ["<f8", [2**40, 2**40]],
        ["<f8", [1.5]],
        ["<f8", ["1"]],
        ["<f8", 3],
        ["<f8", None],
        ["|O", [1]],
        ["<c16", [1]],
        ["<M8[s]", [1]],
        ["<U4", [1]],
        [None, [1]],
        [["<f8"], [1]],
        ["<f8"],
        {},
    ],
)
def test_a_hostile_array_is_refused(spec):
    def change(header):
        header["a"][0] = spec

    with pytest.raises(ProtocolError):
        from_bytes(rewritten(pick("SeedReply"), change))


def test_an_array_of_a_part_is_not_a_message():
    tree = {"@": "Moments", **{f: {"$": 0} for f in moments().__dataclass_fields__}}
    text = json.dumps({"m": tree, "a": [["<f8", [1]]]}).encode()
    with pytest.raises(ProtocolError, match="not a message"):
        from_bytes(as_raw(text, np.ones(1).tobytes()))


def test_an_unknown_kind_is_refused():
    def change(header):
        header["m"]["@"] = "Order66"

    with pytest.raises(ProtocolError):
        from_bytes(rewritten(pick("Refusal"), change))


@pytest.mark.parametrize("message", EVERY, ids=name)
def test_an_unknown_or_lacking_field_is_refused(message):
    def more(header):
        header["m"]["__class__"] = "x"

    def fewer(header):
        header["m"].pop(next(iter(message.__dataclass_fields__)))

    for change in (more, fewer):
        with pytest.raises(ProtocolError, match=f"a {name(message)} must hold exactly"):
            from_bytes(rewritten(message, change))


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("Refusal", "code", "4"),
        ("Refusal", "code", True),
        ("Refusal", "code", 4.0),
        ("Refusal", "message", 4),
        ("Refusal", "message", None),
        ("HelloRequest", "run_id", ["a"]),
        ("FinishReply", "partition_coefficient", "half"),
        ("FinishReply", "partition_coefficient", True),
        ("FinishReply", "dispersion", [1.0, 2.0]),
        ("PrepareRequest", "views", "ecg"),
        ("PrepareRequest", "views", [1]),
        ("PrepareReply", "moments", [{"$": 0}]),
        ("SeedRequest", "cell_mass", [1]),
        ("HelloReply", "views", {"$": 0}),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(kind, field, value):
    def change(header):
        header["m"][field] = value

    with pytest.raises(ProtocolError, match=f"field {field} of a {kind} has the wrong type"):
        from_bytes(rewritten(pick(kind), change))


@pytest.mark.parametrize(
    ("kind", "field", "array"),
    [
        ("SeedReply", "counts", np.ones((2, 3), dtype=np.int64)),
        ("SeedReply", "counts", np.ones((2, 3), dtype=bool)),
        ("PrepareReply", "holding", np.ones(1)),
        ("PrepareReply", "holding", np.ones(1, dtype=np.int16)),
        ("RoundRequest", "starts", np.ones(2)),
        ("CodedStatistics", "scales", np.ones((2, 1))),
    ],
)
def test_an_array_of_another_kind_is_refused_by_name(kind, field, array):
    message = dataclasses.replace(pick(kind), **{field: array})
    with pytest.raises(ProtocolError, match=f"field {field} of a {kind} has the wrong type"):
        from_bytes(to_bytes(message))


@pytest.mark.parametrize("dtype", [object, complex, "U3", "M8[s]"])
def test_an_array_that_cannot_travel_is_not_sent(dtype):
    message = dataclasses.replace(pick("SeedReply"), counts=np.zeros((1, 1), dtype=dtype))
    with pytest.raises(ProtocolError, match="do not travel"):
        to_bytes(message)


def test_a_message_above_the_cap_is_neither_sent_nor_parsed(monkeypatch):
    body = to_bytes(pick("SeedReply"))
    monkeypatch.setattr(messages, "MAX_BYTES", len(body) - 1)
    with pytest.raises(ProtocolError, match=f"{len(body)} bytes is above the limit"):
        to_bytes(pick("SeedReply"))
    with pytest.raises(ProtocolError, match=f"{len(body)} bytes is above the limit"):
        from_bytes(body)


def test_a_header_longer_than_allowed_is_refused(monkeypatch):
    body = to_bytes(pick("Refusal"))
    (length,) = struct.unpack_from("<I", body)
    monkeypatch.setattr(codec, "_MAX_HEADER", length - 1)
    with pytest.raises(ProtocolError):
        from_bytes(body)
