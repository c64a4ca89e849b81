import hashlib
import json
import stat

import numpy as np
import pytest

from configs.errors import ConfigError, PolicyRefused
from privacy.audit import EMPTY, AuditLog


def refused(call, *arguments):
    with pytest.raises(PolicyRefused) as caught:
        call(*arguments)
    return caught.value.public_message


@pytest.fixture
def path(tmp_path):
    """Write four events."""
    path = tmp_path / "state" / "audit.jsonl"
    log = AuditLog(path)
    log.write("plan seen", plan_id="ab" * 32)
    log.write("plan approved", plan_id="ab" * 32, runs=1, days=30)
    log.write("release sent", run_id="r", exchange=1, bytes=800, sha256="00", epsilon=0.5)
    log.write("refused", sentence="zu spät", sites=["a", "b"], last=None)
    return path


def test_one_line_an_event_chained_by_its_hash(path):
    lines = path.read_text().splitlines()
    assert len(lines) == 4
    first = json.loads(lines[0])
    assert first | {"at": ""} == {
        "number": 1,
        "at": "",
        "event": "plan seen",
        "facts": {"plan_id": "ab" * 32},
        "previous": EMPTY,
        "hash": first["hash"],
    }
    assert json.loads(lines[1])["previous"] == first["hash"]
    unhashed = lines[0][: lines[0].index(', "hash"')] + "}"
    packed = b"\0\0\0\x0cfedmvc audit" + len(unhashed).to_bytes(4, "big") + unhashed.encode()
    assert first["hash"] == hashlib.sha256(packed).hexdigest()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("in_memory", [True, False])
def test_entries_come_back_checked(tmp_path, in_memory):
    log = AuditLog(None if in_memory else tmp_path / "audit.jsonl")
    assert (log.head(), log.entries()) == (EMPTY, ())
    log.verify([EMPTY])

    heads = [log.write("release sent", exchange=e, sites=("a", "b")) for e in range(3)]

    assert [entry.facts for entry in log.entries()] == [
        {"exchange": e, "sites": ["a", "b"]} for e in range(3)
    ]
    assert [entry.hash for entry in log.entries()] == heads
    assert [entry.number for entry in log.entries()] == [1, 2, 3]
    assert log.head() == heads[-1]
    log.verify(heads)


def test_what_was_checked_before_is_checked_by_its_hash(path):
    log = AuditLog(path)
    before = log.entries()
    log.write("event")
    assert log.entries()[:4] == before
    assert len(log.entries()) == 5
    whole = path.read_text()
    path.write_text(whole.replace('"runs": 1', '"runs": 9'))
    assert "at line 2 (it was edited" in refused(log.entries)
    path.write_text("".join(whole.splitlines(keepends=True)[:2]))
    assert len(log.entries()) == 2
    path.write_text(whole)
    assert len(log.entries()) == 5


def test_two_that_write_one_file_make_one_chain(tmp_path):
    first, second = AuditLog(tmp_path / "a.jsonl"), AuditLog(tmp_path / "a.jsonl")
    for log in (first, second, second, first):
        log.write("event")
    assert [entry.number for entry in first.entries()] == [1, 2, 3, 4]


@pytest.mark.parametrize("fact", [np.zeros(3), b"bytes", [1.5], {"a": 1}, np.float32(1.0)])
def test_data_cannot_be_written(fact):
    log = AuditLog(None)
    with pytest.raises(TypeError, match="fact 'x' of event 'release sent'"):
        log.write("release sent", x=fact)
    assert log.entries() == ()


@pytest.mark.parametrize(
    ("fact", "words"), [(float("nan"), "not JSON compliant"), ("x" * 70_000, "takes 70243 bytes")]
)
def test_what_no_line_can_hold_is_not_written(tmp_path, fact, words):
    log = AuditLog(tmp_path / "audit.jsonl")
    with pytest.raises(ValueError, match=words):
        log.write("event", x=fact)
    log.write("event")
    log.verify()


def edited(lines):
    return [lines[0], lines[1].replace('"runs": 1', '"runs": 9'), *lines[2:]]


def recomputed(lines):
    """Edit a line and give it its right hash: the next one no longer follows."""
    log = AuditLog(None)
    for line in lines[:1]:
        log._memory += (line + "\n").encode()
    log.write("plan approved", plan_id="ab" * 32, runs=9, days=30)
    return [*log._memory.decode().splitlines(), *lines[2:]]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (edited, 2),
        (recomputed, 3),
        (lambda lines: lines[:1] + lines[2:], 2),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [*lines, lines[3]], 5),
        (lambda lines: [*lines, "{}"], 5),
        (lambda lines: [*lines[:3], "no json"], 4),
        (lambda lines: [lines[0] + " ", *lines[1:]], 1),
        (lambda lines: [lines[0] + "\r", *lines[1:]], 1),
        (lambda lines: [lines[0].replace('"number": 1', '"number": NaN'), *lines[1:]], 1),
        (lambda lines: ["[" * 100_000, *lines[1:]], 1),
        (lambda lines: [lines[0].replace(": {", ': {"a": 1, "a": 2, '), *lines[1:]], 1),
    ],
)
def test_a_change_is_found_where_it_is(path, change, where):
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    assert f"audit log breaks at line {where} (" in refused(AuditLog(path).verify)


def test_a_cut_tail_and_a_new_chain_show_against_a_head_kept_elsewhere(path, tmp_path):
    head = AuditLog(path).head()
    lines = path.read_text().splitlines(keepends=True)

    path.write_text("".join(lines[:2]))
    cut = AuditLog(path)
    cut.verify()
    sentence = refused(cut.verify, [head])
    assert "breaks at line 3 (lines that the privacy ledger or a certificate vouches" in sentence
    path.unlink()
    assert "breaks at line 1 (" in refused(cut.verify, [head])

    forged = AuditLog(tmp_path / "forged.jsonl")
    for number in range(4):
        forged.write("event", number=number)
    forged.verify()
    assert "are gone" in refused(forged.verify, [head])


def test_half_a_line_that_a_dead_process_left_is_no_event(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:40])
    log = AuditLog(path)
    assert [entry.number for entry in log.entries()] == [1, 2, 3]
    assert log.head() == json.loads(lines[2])["hash"]

    log.write("went on")

    assert [entry.event for entry in log.entries()][-1] == "went on"
    assert len(path.read_text().splitlines()) == 4


def test_half_a_first_line_too(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_text('{"number": 1, "at')
    log = AuditLog(path)
    assert log.head() == EMPTY
    log.write("event")
    assert [entry.number for entry in log.entries()] == [1]


def test_a_folder_that_cannot_be_used_is_said(tmp_path):
    (tmp_path / "state").touch()
    log = AuditLog(tmp_path / "state" / "audit.jsonl")
    for call in (lambda: log.write("event"), AuditLog(tmp_path).entries, AuditLog(tmp_path).head):
        with pytest.raises(ConfigError) as caught:
            call()
        assert "audit log cannot be used (" in caught.value.public_message
        assert str(tmp_path) not in caught.value.public_message


@pytest.mark.parametrize("tail", ["garbage\n", "x" * 70_000, "x" * 70_000 + "\n"])
def test_nothing_is_added_to_a_damaged_log(path, tail):
    path.write_text(path.read_text() + tail)
    before = path.read_bytes()
    assert "audit log breaks in its last line" in refused(AuditLog(path).write, "event")
    assert path.read_bytes() == before
