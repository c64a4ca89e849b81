import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from configs.errors import ProtocolError
from strategies import records
from strategies.records import from_record, to_record


@pytest.mark.parametrize("body", [b"\x00", b"abc", bytes(range(256)) * 5000])
def test_bytes_come_back_as_they_went(body):
    assert from_record(to_record(body)) == body


def test_bytes_survive_flowers_own_wire_format():
    record = to_record(b"abc" * 1000)
    array = record.array_records["fedmvc"]["message"]

    inflated = Array.inflate(array.deflate(), array.children)

    assert from_record(RecordDict({"fedmvc": ArrayRecord({"message": inflated})})) == b"abc" * 1000


def _with(array, record="fedmvc", name="message"):
    return RecordDict({record: ArrayRecord({name: array})})


RAW = {"dtype": "uint8", "shape": (3,), "stype": "fedmvc.bytes", "data": b"abc"}


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"fedmvc": ConfigRecord({"message": b"abc"})}),
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
