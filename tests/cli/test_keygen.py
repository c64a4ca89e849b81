import json
import stat
import subprocess

import pytest

from fedmvc_client.cli import app as client
from privacy.alignment import read_linkage_key
from privacy.identity import fingerprint, public_text, read_identity
from tests.cli.commands import call, edit_text, files_in, run_script, script


def test_makes_the_sites_linkage_key_and_says_what_to_do_next(sites):
    site = sites / "st-anna"

    ended = call(client, "keygen", "--linkage", "--site", site)

    key = site / "state" / "linkage.key"
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        f"made linkage key {key}",
        "next: every site of the run needs this same file where keys.linkage in its site.toml "
        "says, with mode 600: hand it to the others by a safe channel, never to the server",
    ]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(read_linkage_key(key)) == 32
    assert read_linkage_key(key).hex() not in ended.out


def test_the_current_folder_is_the_site(sites):
    ended = run_script("fedmvc-client", "keygen", "--linkage", "--json", cwd=sites / "st-anna")

    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert (told["kind"], told["out"]) == ("linkage", "state/linkage.key")
    assert "never to the server" in told["next"]
    assert (sites / "st-anna" / "state" / "linkage.key").is_file()


def test_the_name_in_site_toml_counts(sites):
    site = sites / "st-anna"
    edit_text(site / "site.toml", "state/linkage.key", "keys/shared.key")

    assert call(client, "keygen", "--linkage", "--site", site).code == 0

    assert (site / "keys" / "shared.key").is_file()
    assert not (site / "state" / "linkage.key").exists()


def test_a_file_can_be_named_without_a_site(tmp_path):
    ended = call(client, "keygen", "--linkage", "--out", tmp_path / "new.key")

    assert ended.code == 0
    assert files_in(tmp_path) == {"new.key"}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_an_existing_key_is_left_alone(tmp_path, as_json):
    key = tmp_path / "linkage.key"
    assert call(client, "keygen", "--linkage", "--out", key).code == 0
    before = key.read_bytes()

    ended = call(client, "keygen", "--linkage", "--out", key, *as_json)

    assert ended.code == 2
    assert "already exists and is not overwritten" in ended.sentence
    assert key.read_bytes() == before
    if as_json:
        assert json.loads(ended.out)["exit_code"] == 2


# -- the identity key ------------------------------------------------------------------------


def test_makes_the_sites_identity_key_and_prints_its_public_half(sites):
    site = sites / "st-anna"
    (site / "state" / "identity.pem").unlink()

    ended = call(client, "keygen", "--site", site)

    key = site / "state" / "identity.pem"
    identity = read_identity(key)
    raw = identity.public_key().public_bytes_raw()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        f"made identity key {key}",
        f"public key   {public_text(identity)}",
        f"fingerprint  {fingerprint(raw)}",
        "next: hand the operator the site's name and identity.pub, and compare the fingerprint by "
        "telephone; put the roster that comes back where keys.roster in site.toml says",
    ]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.with_suffix(".pub").read_text() == f"{public_text(identity)}\n"
    assert identity.private_bytes_raw().hex() not in ended.out

    again = call(client, "keygen", "--site", site)
    assert again.code == 2
    assert "identity key 'identity.pem' already exists and is not overwritten" in again.sentence


def test_json_tells_the_same(tmp_path):
    path = tmp_path / "west.pem"
    told = json.loads(call(client, "keygen", "--out", path, "--json").out)
    identity = read_identity(path)
    assert (told["kind"], told["out"], told["locked"]) == ("identity", str(path), False)
    assert told["public_key"] == public_text(identity)
    assert told["public_file"] == str(tmp_path / "west.pub")
    assert told["fingerprint"] == fingerprint(identity.public_key().public_bytes_raw())
    assert files_in(tmp_path) == {"west.pem", "west.pub"}


def test_a_passphrase_is_asked_for_or_taken_from_the_environment(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("typer.prompt", lambda text, **o: asked.append(o) or "correct horse")
    assert call(client, "keygen", "--passphrase", "--out", tmp_path / "a.pem").code == 0
    assert asked[0]["hide_input"]
    assert asked[0]["confirmation_prompt"]
    assert read_identity(tmp_path / "a.pem", b"correct horse")

    monkeypatch.setenv("FEDMVC_PASSPHRASE", "battery staple")
    ended = call(client, "keygen", "--out", tmp_path / "b.pem")
    assert ended.out.startswith(f"made identity key {tmp_path / 'b.pem'}, locked by the passphrase")
    assert read_identity(tmp_path / "b.pem", b"battery staple")

    for given in ("", "x" * 1024):
        monkeypatch.setenv("FEDMVC_PASSPHRASE", given)
        ended = call(client, "keygen", "--out", tmp_path / "c.pem")
        assert ended.code == 2
        assert f"the passphrase has {len(given)} bytes: give 1 to 1023" in ended.sentence
    assert not (tmp_path / "c.pem").exists()


def test_a_linkage_key_has_no_passphrase(tmp_path):
    ended = call(client, "keygen", "--linkage", "--passphrase", "--out", tmp_path / "l.key")
    assert ended.code == 2
    assert "a linkage key has no passphrase" in ended.sentence


def test_a_folder_that_is_no_site_is_named(tmp_path):
    ended = call(client, "keygen", "--linkage", "--site", tmp_path)

    assert ended.code == 2
    assert "site file 'site.toml' does not exist" in ended.sentence
    assert files_in(tmp_path) == set()


def test_without_a_terminal_a_passphrase_comes_from_the_environment(sites, monkeypatch):
    site = sites / "st-anna"
    monkeypatch.delenv("FEDMVC_PASSPHRASE", raising=False)

    done = subprocess.run(
        [script("fedmvc-client"), "keygen", "--passphrase", "--out", site / "new.pem"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,  # no terminal of ours either
        timeout=60,
    )

    assert done.returncode == 2
    words = " ".join(done.stderr.split())
    assert "no terminal to ask for a passphrase: give it in FEDMVC_PASSPHRASE" in words
    assert "Warning" not in words
    assert not (site / "new.pem").exists()
