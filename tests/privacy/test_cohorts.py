import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import ConfigError, PolicyRefused
from privacy.cohorts import SeparateCohorts

IDENTITY = Ed25519PrivateKey.generate()
KEY = IDENTITY.public_key()
PAIRS = [("heart", "children"), ("heart", "eyes")]


def signed():
    return SeparateCohorts.sign("west", PAIRS, IDENTITY)


def test_it_says_of_each_cohort_which_others_share_nobody(tmp_path):
    signed().dump(tmp_path / "cohorts.json")
    stated = SeparateCohorts.load(tmp_path / "cohorts.json")
    assert stated == signed()
    assert stated.of("heart", "west", KEY) == {"children", "eyes"}
    assert stated.of("children", "west", KEY) == {"heart"}
    assert stated.of("", "west", KEY) == set()
    assert json.loads((tmp_path / "cohorts.json").read_text())["separate"] == [
        ["children", "heart"],
        ["eyes", "heart"],
    ]


def test_without_a_statement_there_is_none(tmp_path):
    assert SeparateCohorts.load(tmp_path / "cohorts.json") is None


@pytest.mark.parametrize("pair", [("heart", "heart"), ("heart", ""), ("", "")])
def test_a_cohort_cannot_be_separate_from_itself_or_from_everybody(pair):
    with pytest.raises(ConfigError, match="cannot be separate: give two different names"):
        SeparateCohorts.sign("west", [pair], IDENTITY)


@pytest.mark.parametrize(
    "other",
    [
        SeparateCohorts("west", (*signed().pairs, ("eyes", "mouth")), signed().signature),
        SeparateCohorts("west", signed().pairs[:1], signed().signature),
        SeparateCohorts("west", signed().pairs, bytes(64)),
        SeparateCohorts("west", signed().pairs, b""),
        SeparateCohorts.sign("west", PAIRS, Ed25519PrivateKey.generate()),
        SeparateCohorts.sign("east", PAIRS, IDENTITY),
    ],
)
def test_only_the_sites_own_signature_counts(other):
    with pytest.raises(PolicyRefused, match="its identity key did not sign"):
        other.of("heart", "west", KEY)


@pytest.mark.parametrize(
    "body",
    [
        *("{", "[]", "{}", "[" * 100_000),
        '{"site": "a", "separate": [["b"]], "signature": ""}',
        '{"site": "a", "separate": [], "signature": "*"}',
    ],
)
def test_a_file_that_does_not_fit_is_said(tmp_path, body):
    path = tmp_path / "cohorts.json"
    path.write_text(body)
    with pytest.raises(ConfigError) as caught:
        SeparateCohorts.load(path)
    assert "statement on cohorts 'cohorts.json' cannot be read" in caught.value.public_message
    assert str(tmp_path) not in caught.value.public_message
