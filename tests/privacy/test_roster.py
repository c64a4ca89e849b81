import base64
import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import ConfigError, ProtocolError
from privacy.roster import Roster

A, B = bytes([1]) * 32, bytes([2]) * 32


def roster(**keys):
    return Roster("cardio", keys or {"west": B, "east": A})


def refused(call, *arguments, error=ConfigError):
    with pytest.raises(error) as caught:
        call(*arguments)
    return caught.value.public_message


def test_it_is_written_and_read_back(tmp_path):
    path = tmp_path / "roster.json"
    roster().dump(path)

    assert json.loads(path.read_text()) == {
        "version": 1,
        "federation": "cardio",
        "sites": {"east": base64.b64encode(A).decode(), "west": base64.b64encode(B).decode()},
    }
    assert Roster.load(path) == roster()
    assert Roster.load(path).hash == roster().hash
    assert roster().names == ("east", "west")
    assert "'roster.json' already exists and is not overwritten" in refused(roster().dump, path)


def test_the_hash_is_over_length_prefixed_fields_in_name_order():
    def field(body):
        return len(body).to_bytes(4, "big") + body

    body = b"".join(
        map(
            field,
            [
                b"fedmvc roster",
                (1).to_bytes(8, "big"),
                b"cardio",
                (2).to_bytes(8, "big"),
                b"east",
                A,
                b"west",
                B,
            ],
        )
    )
    assert roster().hash == hashlib.sha256(body).digest()
    assert Roster("cardio", {"east": A, "west": B}).hash == roster().hash


@pytest.mark.parametrize(
    "other",
    [
        Roster("cardio2", {"east": A, "west": B}),
        Roster("cardio", {"east": B, "west": A}),
        Roster("cardio", {"east": A}),
        Roster("cardio", {"east": A, "west": bytes([3]) * 32}),
        Roster("cardio", {"east": A, "north": B}),
    ],
)
def test_any_change_changes_the_hash(other):
    assert other.hash != roster().hash


def test_a_key_verifies_its_sites_signatures():
    own = Ed25519PrivateKey.generate()
    found = roster(east=own.public_key().public_bytes_raw()).key_of("east")
    found.verify(own.sign(b"message"), b"message")


def test_an_unknown_site_is_named():
    for call in (roster().key_of, roster().fingerprint):
        assert "names no site 'north'" in refused(call, "north", error=ProtocolError)


@pytest.mark.parametrize(
    ("federation", "keys", "words"),
    [
        ("cardio", {}, "names no site"),
        ("", {"east": A}, "federation is named ''"),
        ("cardio", {"../east": A}, "site is named '../east'"),
        ("cardio", {"east\n": A}, "site is named 'east\\n'"),
        ("cardio", {"east": A[:31]}, "the key of site 'east' has 31 bytes"),
        ("cardio", {"east": A, "west": A}, "sites 'east' and 'west' have one key"),
    ],
)
def test_what_does_not_fit_is_refused(federation, keys, words):
    assert words in refused(Roster, federation, keys)


KEY = base64.b64encode(A).decode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("\xff", "is damaged"),
        ("[]", "is none of version 1"),
        ("{}", "is none of version 1"),
        (json.dumps({"version": 2, "federation": "c", "sites": {"a": KEY}}), "none of version 1"),
        (json.dumps({"version": 1, "federation": 3, "sites": {"a": KEY}}), "none of version 1"),
        (json.dumps({"version": 1, "federation": "c", "sites": {"a": 7}}), "none of version 1"),
        (
            json.dumps({"version": 1, "federation": "c", "sites": {"a": "x"}}),
            "site 'a': its public",
        ),
        (f'{{"version": 1, "federation": "c", "sites": {{"a": "{KEY}", "a": "{KEY}"}}}}', "twice"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, body, words):
    path = tmp_path / "roster.json"
    path.write_bytes(body.encode("latin-1"))
    sentence = refused(Roster.load, path)
    assert sentence.startswith("roster 'roster.json'")
    assert words in sentence
    assert str(tmp_path) not in sentence


def test_a_missing_file_is_said(tmp_path):
    assert "does not exist: get it again" in refused(Roster.load, tmp_path / "roster.json")
    assert "cannot be read" in refused(Roster.load, tmp_path)
