"""Where a site finds its server."""

import pytest

from configs.connection import Connection, parse_address
from configs.errors import ConfigError


def test_file_round_trip(tmp_path):
    connection = Connection(server="fl.example.org:8443")
    connection.dump(tmp_path)
    assert (tmp_path / "connection.toml").read_text() == (
        'server = "fl.example.org:8443"\nca = "ca.crt"\n'
    )
    assert Connection.load(tmp_path) == connection


def test_a_kit_names_its_site_and_an_older_one_does_not(tmp_path):
    Connection(server="fl.example.org:8443", site="st-anna").dump(tmp_path)
    connection = Connection.load(tmp_path)

    connection.check_site("st-anna")
    with pytest.raises(ConfigError) as caught:
        connection.check_site("anna")

    assert "site.toml calls this site 'anna'" in str(caught.value)
    assert 'write name = "st-anna" into site.toml' in str(caught.value)
    Connection(server="fl.example.org:8443").check_site("anna")  # who knows


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('ca = "ca.crt"', "connection.toml: 'server' is missing: add it (the server's HOST:PORT"),
        (
            'server = "x"',
            "connection.toml: server 'x' is not HOST:PORT with a port from 1 to 65535",
        ),
        ("server = 8443", "connection.toml: server is 8443; allowed: the server's HOST:PORT"),
        ('server = "x:1"\nca = ""', "connection.toml: ca is ''; allowed: a file name"),
        (
            'server = "x:1"\nsite = "a/b"',
            "connection.toml: site is 'a/b'; allowed: the site's",
        ),
        ('server = "x:1"\ncertificate = ""', "connection.toml: unknown key 'certificate'"),
        ("server", "connection file 'connection.toml' is not valid TOML"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(tmp_path, text, sentence):
    (tmp_path / "connection.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Connection.load(tmp_path)
    assert str(caught.value).startswith(sentence)


def test_an_absent_file_says_where_it_comes_from(tmp_path):
    with pytest.raises(ConfigError) as caught:
        Connection.load(tmp_path)
    assert "`fedmvc-server provision`" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("fl.example.org:8443", ("fl.example.org", 8443)),
        ("192.0.2.7:1", ("192.0.2.7", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_addresses_are_split(address, parts):
    assert parse_address(address) == parts


@pytest.mark.parametrize("address", ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "https://a:1"])
def test_what_is_no_address_is_said(address):
    with pytest.raises(ConfigError, match="is not HOST:PORT with a port from 1 to 65535"):
        parse_address(address)
