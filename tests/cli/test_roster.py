import json

import pytest

from fedmvc_client.cli import app as client
from fedmvc_server.cli import app as server
from privacy.identity import public_text, read_identity
from privacy.roster import Roster
from tests.cli.commands import call, edit_text, files_in


def roster(*arguments):
    return call(server, "roster", *arguments)


@pytest.fixture
def keyed(sites):
    """Give both sites a new identity key."""
    for name in ("st-anna", "charite-nord"):
        (sites / name / "state" / "identity.pem").unlink()
        assert call(client, "keygen", "--site", sites / name).code == 0
    return sites


def key_of(sites, name):
    return public_text(read_identity(sites / name / "state" / "identity.pem"))


def test_keys_named_on_the_command_line(keyed, tmp_path):
    out = tmp_path / "roster.json"
    named = [("--site", f"{n}={key_of(keyed, n)}") for n in ("st-anna", "charite-nord")]

    ended = roster("build", "--federation", "cardio", *named[0], *named[1], "--out", out)

    assert (ended.code, ended.err) == (0, "")
    built = Roster.load(out)
    assert built.names == ("charite-nord", "st-anna")
    assert ended.out.splitlines() == [
        f"roster of federation 'cardio', 2 sites: {out}",
        f"hash  {built.hash.hex()}",
        f"  {built.fingerprint('charite-nord')}  charite-nord",
        f"  {built.fingerprint('st-anna')}  st-anna",
        "warning: the roster names 2 sites and secure aggregation needs 3: build it again when "
        "more have sent their key",
    ]


def test_keys_of_a_folder_of_sites_or_of_files(keyed, tmp_path):
    by_site, by_file, out = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    assert roster("build", "--federation", "c", "--keys", keyed, "--out", by_site).code == 0
    folder = tmp_path / "keys"
    folder.mkdir()
    for name in ("st-anna", "charite-nord"):
        text = (keyed / name / "state" / "identity.pub").read_text()
        (folder / f"{name}.pub").write_text(text)
    ended = roster("build", "--federation", "c", "--keys", folder, "--out", by_file, "--json")
    told = json.loads(ended.out)
    built = Roster.load(by_site)
    assert built == Roster.load(by_file)
    assert told == {
        "roster": str(by_file),
        "federation": "c",
        "hash": built.hash.hex(),
        "sites": {name: built.fingerprint(name) for name in built.names},
        "warnings": [
            "the roster names 2 sites and secure aggregation needs 3: build it again when more "
            "have sent their key"
        ],
    }
    again = roster("build", "--federation", "c", "--keys", folder, "--out", by_file)
    assert again.code == 2
    assert "roster 'b.json' already exists and is not overwritten" in again.sentence
    assert not out.exists()


KEY = "B" * 42 + "A="


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no site is named: give --site NAME=PUBLIC_KEY or --keys FOLDER"),
        (("--site", "east"), "--site is 'east': write NAME=PUBLIC_KEY"),
        (("--site", "east=abc"), "site 'east': its public key is not the base64 text of 32 bytes"),
        (("--site", f"east={KEY}", "--site", f"east={KEY}"), "site 'east' is named twice"),
        (("--site", f"east={KEY}", "--site", f"west={KEY}"), "sites 'east' and 'west' have one"),
        (("--site", f"east={'A' * 43}="), "site 'east': under its public key anybody could sign"),
        (("--site", f"../x={KEY}"), "site is named '../x'"),
        (("--federation", "a b", "--site", f"east={KEY}"), "federation is named 'a b'"),
        (("--keys", "nowhere"), "--keys is 'nowhere', which is no folder"),
    ],
)
def test_what_makes_no_roster_is_said(tmp_path, arguments, words):
    ended = roster("build", "--federation", "c", "--out", tmp_path / "r.json", *arguments)
    assert ended.code == 2
    assert words in ended.sentence
    assert files_in(tmp_path) == set()


def test_synthesized_sites_have_what_a_roster_needs(sites, tmp_path):
    out = tmp_path / "roster.json"
    assert roster("build", "--federation", "cardio", "--keys", sites, "--out", out).code == 0
    for name in ("st-anna", "charite-nord"):
        assert roster("check", out, "--site", sites / name).code == 0
    assert Roster.load(out).keys == Roster.load(sites / "st-anna" / "roster.json").keys


def test_three_sites_are_enough(tmp_path):
    named = [f"--site={letter}={'B' * 42}{letter}=" for letter in "AEI"]
    out = tmp_path / "roster.json"
    ended = roster("build", "--federation", "c", *named, "--out", out)
    assert (ended.code, "warning" in ended.out) == (0, False)
    assert json.loads(roster("check", out, "--json").out)["warnings"] == []


def test_a_site_without_a_key_is_named(sites, tmp_path):
    (sites / "charite-nord" / "state" / "identity.pub").unlink()
    ended = roster("build", "--federation", "c", "--keys", sites, "--out", tmp_path / "r.json")
    assert ended.code == 2
    assert "site 'charite-nord' has no public key 'identity.pub': run `fedmvc-client keygen`" in (
        ended.sentence
    )


def test_check_prints_what_is_compared_by_telephone(keyed, tmp_path):
    out = tmp_path / "roster.json"
    built = roster("build", "--federation", "cardio", "--keys", keyed, "--out", out)
    ended = roster("check", out)
    assert (ended.code, ended.out) == (0, built.out)
    assert roster("check", out, "--site", keyed / "st-anna").out == built.out
    assert json.loads(roster("check", out, "--json").out)["federation"] == "cardio"


def test_a_site_with_another_key_is_told(keyed, tmp_path):
    out, site = tmp_path / "roster.json", keyed / "st-anna"
    roster("build", "--federation", "cardio", "--keys", keyed, "--out", out)
    named = Roster.load(out).fingerprint("st-anna")
    (site / "state" / "identity.pem").unlink()
    call(client, "keygen", "--site", site)

    ended = roster("check", out, "--site", site)

    assert ended.code == 2
    assert "site 'st-anna' has an identity key with fingerprint" in ended.sentence
    assert f"the roster names {named}: hand the operator identity.pub again" in ended.sentence
    edit_text(site / "site.toml", 'name = "st-anna"', 'name = "elsewhere"')
    assert "names no site 'elsewhere'" in roster("check", out, "--site", site).sentence


def test_a_damaged_or_missing_roster_is_said(tmp_path):
    ended = roster("check", tmp_path / "roster.json")
    assert ended.code == 2
    assert "roster 'roster.json' does not exist: get it again from the operator" in ended.sentence
    (tmp_path / "roster.json").write_text("{")
    assert "is damaged" in roster("check", tmp_path / "roster.json").sentence


def test_help_teaches():
    for command, words in {
        (): ["build", "check"],
        ("build",): ["--federation", "--site", "--keys", "--out", "--json", "telephone"],
        ("check",): ["FILE", "--site", "--json", "FEDMVC_PASSPHRASE"],
    }.items():
        ended = roster(*command, "--help")
        assert ended.code == 0
        assert [word for word in words if word not in ended.words] == []
