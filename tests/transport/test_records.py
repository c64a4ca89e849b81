import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from configs.errors import ProtocolError
from strategies import records
from strategies.records import SMALL, from_record, to_record


@pytest.mark.parametrize("body", [b"\x00", b"abc", bytes(SMALL), bytes(SMALL + 1)])
def test_bytes_come_back_as_they_went(body):
    assert from_record(to_record(body)) == body


def test_a_small_message_is_one_object_of_flowers():
    assert not to_record(bytes(SMALL))["fedmvc"].children
    assert to_record(bytes(SMALL + 1))["fedmvc"].children


@pytest.mark.parametrize("size", [1000, SMALL + 1])
def test_bytes_survive_flowers_own_wire_format(size):
    body = bytes(i % 251 for i in range(size))
    sent = get_all_nested_objects(to_record(body))

    received = inflate_object_from_contents(
        to_record(body).object_id, {name: each.deflate() for name, each in sent.items()}
    )

    assert from_record(received) == body


def _with(array, record="fedmvc", name="message"):
    return RecordDict({record: ArrayRecord({name: array})})


RAW = {"dtype": "uint8", "shape": (3,), "stype": "fedmvc.bytes", "data": b"abc"}


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"fedmvc": ConfigRecord({"message": "abc"})}),
        RecordDict({"fedmvc": ConfigRecord({"message": [b"abc"]})}),
        RecordDict({"fedmvc": ConfigRecord({"message": b""})}),
        RecordDict({"fedmvc": ConfigRecord({"message": b"abc", "more": b"abc"})}),
        RecordDict({"fedmvc": MetricRecord({"message": 1})}),
        RecordDict({"fedmvc": ArrayRecord()}),
        _with(Array(**RAW), record="other"),
        _with(Array(**RAW), name="other"),
        _with(Array(**{**RAW, "dtype": "float64"})),
        _with(Array(**{**RAW, "shape": (4,)})),
        _with(Array(**{**RAW, "shape": (3, 1)})),
        _with(Array(**{**RAW, "stype": "numpy.ndarray"})),
        _with(Array(**{**RAW, "shape": (0,), "data": b""})),
        _with(Array(np.zeros(3, dtype=np.uint8))),
    ],
)
def test_anything_else_is_refused(content):
    with pytest.raises(ProtocolError):
        from_record(content)


def test_a_second_record_beside_the_right_one_is_refused():
    content = to_record(b"abc")
    content["extra"] = ConfigRecord({"a": 1})

    with pytest.raises(ProtocolError, match="holds 2 records"):
        from_record(content)


def test_size_cap_names_both_numbers(monkeypatch):
    content = to_record(b"abcde")
    monkeypatch.setattr(records, "MAX_BYTES", 4)

    with pytest.raises(ProtocolError, match=r"5 bytes; at most 4"):
        to_record(b"abcde")
    with pytest.raises(ProtocolError, match=r"5 bytes; at most 4"):
        from_record(content)


def test_empty_message_is_refused():
    with pytest.raises(ProtocolError, match="0 bytes"):
        to_record(b"")
