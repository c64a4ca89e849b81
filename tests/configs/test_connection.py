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


@pytest.mark.parametrize(
    "address",
    ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "a:８", f"a:{'1' * 5000}", "https://a:1"],
)
def test_what_is_no_address_is_said(address):
    with pytest.raises(ConfigError, match="is not HOST:PORT with a port from 1 to 65535"):
        parse_address(address)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("::1:8443", r"has a ':' in its host: .* for instance \[::1\]:8443"),
        ("[::1:8443", "has a ':' in its host"),
        ("[a:b]:8443", "no IPv6 address between its brackets"),
        ("[127.0.0.1]:8443", "no IPv6 address between its brackets"),
        ("fl..example.org:8443", "no host name or IP address before its port"),
        (".example.org:8443", "no host name or IP address before its port"),
        (f"{'a' * 64}.org:8443", "no host name or IP address before its port"),
        ("a b:8443", "no host name or IP address before its port"),
        ("a@b:8443", "no host name or IP address before its port"),
        ("\udcff:8443", "no host name or IP address before its port"),
        ("a\x00b:8443", "no host name or IP address before its port"),
    ],
)
def test_a_host_that_is_none_is_said(address, words):
    """Each of them went on to the resolver or to httpx, and was an internal error (70) once."""
    with pytest.raises(ConfigError, match=words):
        parse_address(address)


@pytest.mark.parametrize("host", ["localhost.", "fl_1.example.org", "bücher.example", "fe80::1%lo"])
def test_names_that_resolvers_take_are_left_alone(host):
    assert parse_address(f"[{host}]:1" if ":" in host else f"{host}:1") == (host, 1)
