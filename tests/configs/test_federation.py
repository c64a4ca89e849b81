"""The operator's federation file."""

import pytest

from configs.errors import ConfigError
from configs.federation import FederationConfig

TEXT = """
name = "cardio"
[server]
names = ["fl.example.org"]
addresses = ["192.0.2.7", "2001:db8::7"]
[[sites]]
name = "st-anna"
[[sites]]
name = "riverside"
"""


def load(folder, text):
    path = folder / "federation.toml"
    path.write_text(text)
    return FederationConfig.load(path)


def test_a_file_as_documented(tmp_path):
    read = load(tmp_path, TEXT)
    assert read.name == "cardio"
    assert read.server.model_dump() == {
        "names": ("fl.example.org",),
        "addresses": ("192.0.2.7", "2001:db8::7"),
        "port": 8443,
        "proxy": False,
    }
    assert read.site_names == ("st-anna", "riverside")
    assert load(tmp_path, read.dumps()) == read


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ('names = ["a.b", "c"]\naddresses = ["192.0.2.7"]', "a.b:8443"),
        ('addresses = ["192.0.2.7"]\nport = 443', "192.0.2.7:443"),
        ('addresses = ["2001:db8::7"]', "[2001:db8::7]:8443"),
        ('names = ["super_link"]', "super_link:8443"),
    ],
)
def test_sites_connect_to_the_first_name_or_else_address(tmp_path, server, address):
    text = f'name = "c"\n[server]\n{server}\n[[sites]]\nname = "a"\n'
    assert load(tmp_path, text).server.address == address


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "cardio"\n', "", "'name' is missing: add it (1 to 64 letters, digits"),
        ('"cardio"', '"a b"', "name is 'a b'; allowed: 1 to 64 letters, digits"),
        ('name = "st-anna"', 'name = "../x"', "sites[0].name is '../x'; allowed: 1 to 64"),
        ('name = "st-anna"', 'nam = "x"', "unknown key 'sites[0].nam': did you mean 'name'?"),
        ('"riverside"', '"St-Anna"', "the federation lists site 'St-Anna' twice"),
        ('"riverside"', '"Server"', "a site is named 'Server', and folder 'server' of the kits"),
        ('"riverside"', '"ca"', "a site is named 'ca', and folder 'ca' of the kits"),
        ('"fl.example.org"', '"10.0.0.1"', "server.names holds '10.0.0.1', an IP address: put it"),
        ('"fl.example.org"', '"10.0.0.300"', "server.names holds '10.0.0.300', which is no host"),
        ('"fl.example.org"', '"a..b"', "server.names holds 'a..b', which is no host name"),
        ('"fl.example.org"', '"a/b"', "server.names holds 'a/b', which is no host name"),
        ('"fl.example.org"', '"*.b"', "server.names holds '*.b', which is no host name"),
        ('"fl.example.org"', '"a", "A"', "server.names lists 'A' twice"),
        ('"192.0.2.7"', '"x.org"', "server.addresses holds 'x.org', which is no IP address"),
        ('"192.0.2.7"', '"fe80::1%eth0"', "server.addresses holds 'fe80::1%eth0', which is no"),
        ('"192.0.2.7"', "7", "server.addresses[0] is 7; allowed: a list of IP addresses"),
        ("[[sites]]", "port = 0\n[[sites]]", "server.port is 0; allowed: a whole number from 1"),
        ("[[sites]]", 'port = "8443"\n[[sites]]', "server.port is '8443'; allowed: a whole"),
        ("[[sites]]", "proxy = 1\n[[sites]]", "server.proxy is 1; allowed: true or false."),
        ("[[sites]]", "prot = 1\n[[sites]]", "unknown key 'server.prot': did you mean 'port'?"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(tmp_path, old, new, sentence):
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, TEXT.replace(old, new, 1))
    assert str(caught.value).startswith("federation.toml: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('name = "c"\nsites = []\n[server]\nnames = ["a"]', "sites is []; allowed: a list of at"),
        ('name = "c"\n[server]\nnames = ["a"]', "'sites' is missing: add it (a list of at least"),
        ('name = "c"\n[[sites]]\nname = "a"', "'server' is missing: add it (a table)."),
        (
            'name = "c"\n[server]\nport = 1\n[[sites]]\nname = "a"',
            "server.names and server.addresses are both empty: name at least one",
        ),
        ("name = ", "federation file 'federation.toml' is not valid TOML"),
    ],
)
def test_what_is_missing_is_said(tmp_path, text, sentence):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert sentence in str(caught.value)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"federation file 'f\.toml' does not exist"):
        FederationConfig.load(tmp_path / "f.toml")
