import json
import stat

import pytest

from fedmvc_client.cli import app as client
from privacy.alignment import read_linkage_key
from tests.cli.commands import call, edit_text, files_in, run_script


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
    assert not (site / "state").exists()


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


def test_other_keys_come_later(tmp_path):
    ended = call(client, "keygen", "--out", tmp_path / "identity.pem")

    assert ended.code == 2
    assert "identity keys come in a later version: say keygen --linkage" in ended.sentence
    assert files_in(tmp_path) == set()


def test_a_folder_that_is_no_site_is_named(tmp_path):
    ended = call(client, "keygen", "--linkage", "--site", tmp_path)

    assert ended.code == 2
    assert "site file 'site.toml' does not exist" in ended.sentence
    assert files_in(tmp_path) == set()
