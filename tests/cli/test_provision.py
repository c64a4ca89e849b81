"""Kits as the operator makes them and a hospital engineer finds them."""

import json
import re
import shlex
import socket
import stat
import tomllib

import pytest

from configs.connection import Connection
from configs.errors import ConfigError
from configs.federation import FederationConfig
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.cli import app as client
from fedmvc_server import kits
from fedmvc_server.cli import app as server
from privacy.roster import Roster
from tests.cli.commands import call, edit_text, files_in, run_script, write_plan

SITES = ("st-anna", "riverside")
FEDERATION = """
name = "cardio"
[server]
names = ["fl.example.org"]
addresses = ["192.0.2.7"]
[[sites]]
name = "st-anna"
[[sites]]
name = "riverside"
"""
SITE_KIT = {
    ".env",
    "README.md",
    "ca.crt",
    "connection.toml",
    "schema.toml",
    "site.toml",
    "state/node.key",
    "state/node.pub",
}
SERVER_KIT = {
    "ca.crt",
    "federation.toml",
    "nodes/riverside.pub",
    "nodes/st-anna.pub",
    "server.key",
    "server.pem",
    "superexec.secret",
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    path = tmp_path_factory.mktemp("federation") / "federation.toml"
    path.write_text(FEDERATION)
    return path


@pytest.fixture(autouse=True)
def no_compose(monkeypatch, tmp_path):
    """Make kits as an installation without docker does; a test may write the file."""
    monkeypatch.setattr(kits, "_ROOTS", (tmp_path / "installation",))


@pytest.fixture
def made(federation, tmp_path):
    ended = call(server, "provision", federation, "--out", tmp_path / "kits")
    assert (ended.code, ended.err) == (0, "")
    return tmp_path / "kits"


def secrets_in(folder):
    names = ("*.key", "*.secret", "*.pem")
    found = {path for name in names for path in folder.rglob(name)}
    return sorted(path for path in found if path.name != "server.pem")


def test_what_the_kits_hold(made, federation):
    assert files_in(made) == {
        ".gitignore",
        "ca/README.md",
        "ca/ca.key",
        *(f"server/{name}" for name in SERVER_KIT),
        *(f"{site}/{name}" for site in SITES for name in SITE_KIT),
    }
    assert FederationConfig.load(made / "server" / "federation.toml") == FederationConfig.load(
        federation
    )
    for site in SITES:
        assert Connection.load(made / site) == Connection(
            server="fl.example.org:8443", ca="ca.crt", site=site
        )
        assert (
            f"\nCOMPOSE_PROJECT_NAME=fedmvc-cardio-{site}\n" in (made / site / ".env").read_text()
        )
        for name, other in (("ca.crt", "ca.crt"), ("state/node.pub", f"nodes/{site}.pub")):
            assert (made / site / name).read_bytes() == (made / "server" / other).read_bytes()
    keys = {path.read_bytes() for path in secrets_in(made)}
    assert len(keys) == 5  # no two are equal
    assert len((made / "server" / "superexec.secret").read_bytes()) == 64


def test_secrets_and_folders_are_their_owners(made):
    assert [path.relative_to(made).as_posix() for path in secrets_in(made)] == [
        "ca/ca.key",
        "riverside/state/node.key",
        "server/server.key",
        "server/superexec.secret",
        "st-anna/state/node.key",
    ]
    for path in secrets_in(made):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in [made, *(path for path in made.rglob("*") if path.is_dir())]:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_the_authoritys_key_is_in_its_own_folder_only(made):
    key = (made / "ca" / "ca.key").read_bytes()
    assert [p for p in made.rglob("*") if p.is_file() and key in p.read_bytes()] == [
        made / "ca" / "ca.key"
    ]
    assert "offline" in (made / "ca" / "README.md").read_text()
    assert (made / ".gitignore").read_text().splitlines()[-1] == "*"


def fill(kit):
    """Do what the templates ask for: name the view, its file, its column and the id column."""
    edit_text(kit / "site.toml", 'VIEW = "data/FILE.csv"', 'ecg = "data/ecg.csv"')
    edit_text(kit / "schema.toml", '"ID"', '"patient_id"')
    edit_text(kit / "schema.toml", '"VIEW"', '"ecg"')
    edit_text(kit / "schema.toml", '"COLUMN"', '"rr"')
    rows = "".join(f"p{i},{i}.5\n" for i in range(60))
    (kit / "data" / "ecg.csv").write_text(f"patient_id,rr\n{rows}")


def test_templates_are_valid_before_and_after_they_are_filled(made):
    kit = made / "st-anna"
    SiteConfig.load(kit)
    DataSchema.load(kit / "schema.toml")

    fill(kit)

    config = SiteConfig.load(kit)
    assert config == SiteConfig.parse({"name": "st-anna", "data": {"ecg": "data/ecg.csv"}})
    assert config.policy.approval == "required"
    assert DataSchema.load(kit / "schema.toml").view_names == ("ecg",)
    # every key of [policy] and [keys] but two is shown with its default
    shown = tomllib.loads((kit / "site.toml").read_text())
    assert set(shown["policy"]) == set(config.policy.model_dump()) - {"cohort", "auto_runs_a_month"}
    assert set(shown["keys"]) == set(config.keys.model_dump())


def commands_of(page):
    for block in re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("fedmvc-client "):
                yield shlex.split(line)[1:]


def test_the_commands_of_its_page_run_in_the_filled_kit(made, monkeypatch):
    kit = made / "st-anna"
    fill(kit)
    write_plan(kit, 'method = "fedhk-mvfc"\nn_clusters = 2\n')
    monkeypatch.chdir(kit)
    page = (kit / "README.md").read_text()
    commands = list(commands_of(page))
    assert [" ".join(command[:2]) for command in commands] == [
        "keygen",
        "doctor",
        "check",
        "plans show",
        "plans approve",
        "worker --socket",
        "executor --runtime",
        "join --runtime",
        "budget show",
        "log verify",
    ]
    for command in commands:
        if command[0] not in ("doctor", "worker", "executor", "join"):  # these need the server
            ended = call(client, *command)
            assert ended.code == 0, f"{command}\n{ended.err}"
    assert "fl.example.org:8443" in page
    named = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert [name for name in named if not (kit / name).exists()] == []
    assert "compose" not in page


def test_the_page_leads_to_a_roster(made, tmp_path):
    for site in SITES:
        assert call(client, "keygen", "--site", made / site).code == 0
    out = tmp_path / "roster.json"
    ended = call(server, "roster", "build", "--federation", "cardio", "--keys", made, "--out", out)
    assert ended.code == 0, ended.err
    assert Roster.load(out).names == ("riverside", "st-anna")


def test_a_trial_gets_identity_keys_and_the_roster(federation, tmp_path):
    out = tmp_path / "kits"
    ended = call(server, "provision", federation, "--out", out, "--with-identity-keys")
    assert ended.code == 0, ended.err
    assert "keygen" not in ended.out
    for site in SITES:
        new = {"state/identity.pem", "state/identity.pub", "roster.json"}
        assert files_in(out / site) == SITE_KIT | new
        assert stat.S_IMODE((out / site / "state" / "identity.pem").stat().st_mode) == 0o600
        checked = call(server, "roster", "check", out / site / "roster.json", "--site", out / site)
        assert checked.code == 0, checked.err
        assert "Before\nreal patients' data" in (out / site / "README.md").read_text()


def test_the_compose_file_is_copied_where_there_is_one(federation, tmp_path):
    docker = tmp_path / "installation" / "docker"
    docker.mkdir(parents=True)
    (docker / "compose.site.yaml").write_text("services: {}\n")
    ended = call(server, "provision", federation, "--out", tmp_path / "kits", "--json")
    assert json.loads(ended.out)["compose"] is True
    for site in SITES:
        kit = tmp_path / "kits" / site
        assert files_in(kit) == {*SITE_KIT, "compose.yaml"}
        assert (kit / "compose.yaml").read_text() == "services: {}\n"
        assert "docker compose up --detach" in (kit / "README.md").read_text()


def test_what_it_says(federation, tmp_path):
    out = tmp_path / "kits"
    ended = run_script("fedmvc-server", "provision", federation, "--out", out, "--days", "30")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == f"federation 'cardio', server fl.example.org:8443, 2 sites: {out}"
    assert lines[-1] == (
        f"next: start the SuperLink, then fedmvc-server register --kit {out}/server --server "
        "127.0.0.1:8443"
    )
    for path in secrets_in(out):
        assert max(path.read_text().splitlines(), key=len) not in ended.out


def test_behind_a_proxy_the_superlinks_own_address_is_said(federation, tmp_path):
    text = federation.read_text().replace("[server]", "[server]\nproxy = true\nport = 443")
    (tmp_path / "federation.toml").write_text(text)
    out = tmp_path / "kits"

    ended = call(server, "provision", tmp_path / "federation.toml", "--out", out)
    added = add(out, "mercy")

    assert "server fl.example.org:443" in ended.out  # what the sites connect to
    for said in (ended.out, added.out):
        assert f"register --kit {out}/server --server 127.0.0.1:8000" in said
    # there the server has 8443, whatever the key says
    assert "127.0.0.1:8000 (in the operator's container localhost:8443), and hand" in added.out


def test_json(federation, tmp_path):
    out = tmp_path / "kits"
    ended = call(server, "provision", federation, "--out", out, "--json")
    told = json.loads(ended.out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", told.pop("certificate_expires"))
    assert told == {
        "out": str(out),
        "federation": "cardio",
        "server": "fl.example.org:8443",
        "sites": ["st-anna", "riverside"],
        "identity_keys": False,
        "compose": False,
    }


def test_an_empty_folder_is_taken(federation, tmp_path):
    (tmp_path / "kits").mkdir()
    assert call(server, "provision", federation, "--out", tmp_path / "kits").code == 0
    assert (tmp_path / "kits" / "server").is_dir()


def test_what_is_there_is_never_overwritten(made, federation):
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    ended = call(server, "provision", federation, "--out", made, "--json")
    assert ended.code == json.loads(ended.out)["exit_code"] == 2
    assert "'kits' already exists and is no empty folder, and keys are never" in ended.sentence
    after = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert after == before
    assert list(made.parent.iterdir()) == [made]


def test_a_file_or_a_link_is_no_folder_to_write(federation, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        ended = call(server, "provision", federation, "--out", tmp_path / name)
        assert ended.code == 2
        assert f"'{name}' already exists and is no empty folder" in ended.sentence
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_partial_is_left(federation, tmp_path, monkeypatch, error):
    from fedmvc_server import provision

    real, calls = provision.write_site_kit, []

    def fail_at_the_second(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(provision, "write_site_kit", fail_at_the_second)
    ended = call(server, "provision", federation, "--out", tmp_path / "new" / "kits")
    assert len(calls) == 2
    assert list((tmp_path / "new").iterdir()) == []
    if isinstance(error, OSError):
        assert ended.code == 2
        assert "'kits' cannot be written: No space left on device" in ended.sentence
    else:
        assert ended.code == 130


@pytest.mark.parametrize(
    ("days", "words"), [("0", "0 is not in the range"), ("3651", "days is 3651: give at most 3650")]
)
def test_days_that_make_no_sense(federation, tmp_path, days, words):
    ended = call(server, "provision", federation, "--out", tmp_path / "kits", "--days", days)
    assert ended.code == 2
    assert words in ended.words
    assert not (tmp_path / "kits").exists()


def test_a_federation_file_that_does_not_fit_is_named(tmp_path):
    bad = tmp_path / "federation.toml"
    bad.write_text(FEDERATION.replace('"riverside"', '"st-anna"'))
    ended = call(server, "provision", bad, "--out", tmp_path / "kits")
    assert ended.code == 2
    assert "federation.toml: the federation lists site 'st-anna' twice" in ended.sentence
    assert files_in(tmp_path) == {"federation.toml"}


def add(made, name, *options):
    return call(server, "add", name, "--kit", made / "server", *options)


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_site_that_joins_later_gets_a_kit_like_the_others(made):
    before = contents(made)
    (made / "ca" / "ca.key").unlink()  # offline, as it should be
    ended = add(made, "mercy")
    assert (ended.code, ended.err) == (0, "")
    kit, after = made / "mercy", contents(made)
    assert files_in(kit) == SITE_KIT
    for path in [kit, *kit.rglob("*")]:
        like = made / "st-anna" / path.relative_to(kit)
        assert path.stat().st_mode == like.stat().st_mode, path
    for name in SITE_KIT - {"state/node.key", "state/node.pub"}:
        other = before[f"st-anna/{name}"].replace(b"st-anna", b"mercy")
        assert after[f"mercy/{name}"] == other, name
    assert after["server/nodes/mercy.pub"] == after["mercy/state/node.pub"]
    assert after["mercy/state/node.key"] not in before.values()
    grown = FederationConfig.load(made / "server" / "federation.toml")
    assert grown.site_names == (*SITES, "mercy")
    # what was there is as it was, but for the list of sites
    changed = {name for name, body in before.items() if after.get(name) != body}
    assert changed == {"server/federation.toml", "ca/ca.key"}


def test_what_is_to_be_done_for_a_new_site_is_said(made, tmp_path):
    ended = add(made, "mercy", "--kits", tmp_path / "elsewhere")
    kit = tmp_path / "elsewhere" / "mercy"
    lines = ended.out.splitlines()
    assert lines[0] == f"federation 'cardio' has 3 sites now; the kit of 'mercy': {kit}"
    assert f"fedmvc-server register --kit {made}/server --server 127.0.0.1:8443" in ended.out
    assert "build a new roster of all 3 sites (`fedmvc-server roster build`)" in lines[-1]
    assert files_in(kit) == SITE_KIT
    assert not (made / "mercy").exists()
    told = json.loads(add(made, "elm", "--json").out)
    assert told == {
        "federation": "cardio",
        "site": "elm",
        "kit": str(made / "elm"),
        "compose": False,
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("st-anna", "federation 'cardio' has a site 'st-anna' already; its sites: st-anna, river"),
        ("St-Anna", "lists site 'St-Anna' twice (upper and lower case count as one)"),
        ("../x", "sites[2].name is '../x'; allowed: 1 to 64 letters"),
        ("server", "a site is named 'server', and folder 'server' of the kits is the operator's"),
        ("taken", "'taken' already exists and is no empty folder, and keys are never overwritten"),
        ("former", "nodes.json of the server kit has a node key of an earlier site 'former'"),
    ],
)
def test_a_site_that_cannot_be_added_is_said(made, name, words):
    (made / "taken").mkdir()
    (made / "taken" / "notes").touch()
    record = {"node_id": "7", "public_key_sha256": "SHA256:x", "registered_at": "2026-01-01"}
    (made / "server" / "nodes.json").write_text(json.dumps({"former": record}))
    before = contents(made)
    ended = add(made, name)
    assert ended.code == 2
    assert words in ended.sentence
    assert contents(made) == before


def test_a_site_is_added_to_a_server_kit_only(made):
    for kit, name in ((made / "st-anna", "st-anna"), (made / "nowhere", "nowhere")):
        ended = call(server, "add", "mercy", "--kit", kit)
        assert ended.code == 2
        assert f"folder '{name}' is no server kit (it has no federation.toml)" in ended.sentence


@pytest.mark.parametrize("file", ["mercy.pub", "federation.toml"])
def test_a_site_is_added_whole_or_not_at_all(made, monkeypatch, file):
    from fedmvc_server import new_site

    real = new_site.replace_file

    def full(path, *arguments, **options):
        if path.name == file:
            raise ConfigError("no space left on device")
        real(path, *arguments, **options)

    before, folders = contents(made), set(made.iterdir())
    monkeypatch.setattr(new_site, "replace_file", full)
    assert (ended := add(made, "mercy")).code == 2
    assert "no space left on device" in ended.sentence
    assert (contents(made), set(made.iterdir())) == (before, folders)
    monkeypatch.undo()
    assert add(made, "mercy").code == 0


def certificate_of(kit):
    from cryptography import x509

    return x509.load_pem_x509_certificate((kit / "server.pem").read_bytes())


def test_renew_makes_another_certificate_of_the_same_authority(made):
    kit, ca = made / "server", made / "ca"
    before, authority = certificate_of(kit), (kit / "ca.crt").read_bytes()
    ended = call(server, "renew", "--kit", kit, "--ca", ca, "--days", "400", "--json")
    assert (ended.code, ended.err) == (0, "")
    after = certificate_of(kit)
    assert json.loads(ended.out)["certificate_expires"] == after.not_valid_after_utc.isoformat()
    assert (after.not_valid_after_utc - before.not_valid_after_utc).days in (34, 35)
    assert (after.issuer, after.subject) == (before.issuer, before.subject)
    assert (kit / "ca.crt").read_bytes() == authority
    assert stat.S_IMODE((kit / "server.key").stat().st_mode) == 0o600
    assert files_in(kit) == SERVER_KIT

    import ssl

    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(kit / "server.pem", kit / "server.key")


def test_renew_takes_no_other_authority_and_no_open_key(made, federation, tmp_path):
    other = tmp_path / "other"
    call(server, "provision", federation, "--out", other)
    before = certificate_of(made / "server")
    ended = call(server, "renew", "--kit", made / "server", "--ca", other / "ca")
    assert (ended.code, "ca.key is not the key of ca.crt" in ended.sentence) == (2, True)
    ended = call(server, "renew", "--kit", made / "server", "--ca", tmp_path)
    assert (ended.code, "CA key 'ca.key' does not exist" in ended.sentence) == (2, True)
    (made / "ca" / "ca.key").chmod(0o644)
    ended = call(server, "renew", "--kit", made / "server", "--ca", made / "ca")
    assert (ended.code, "run chmod 600 on it" in ended.sentence) == (2, True)
    assert certificate_of(made / "server") == before


COMMANDS = [("register", "--site", "st-anna"), ("rotate", "st-anna"), ("revoke", "st-anna")]


def at(command, kit, address="127.0.0.1:1"):
    return call(server, *command, "--kit", kit, "--server", address)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_no_server_kit_is_said(made, command):
    ended = at(command, made / "st-anna")
    assert ended.code == 2
    assert "folder 'st-anna' is no server kit (it has no federation.toml)" in ended.sentence


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_site_is_said_with_those_that_are_known(made, command):
    ended = at([*command[:-1], "nowhere"], made / "server")
    assert ended.code == 2
    assert "federation 'cardio' has no site 'nowhere'; its sites: st-anna, riverside" in (
        ended.sentence
    )


@pytest.mark.parametrize("command", [("register",), *COMMANDS])
def test_a_superlink_that_does_not_answer_is_exit_code_7(made, command, monkeypatch):
    from fedmvc_server import deployment

    monkeypatch.setattr(deployment, "CONNECT_TIMEOUT", 0.2)
    with socket.socket() as probe:  # bound, and nobody listens
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
        ended = at(command, made / "server", address)
    assert ended.code == 7
    assert f"no SuperLink answers at {address}" in ended.sentence
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


def test_an_address_without_a_port_is_said(made):
    ended = at(("register",), made / "server", "localhost")
    assert ended.code == 2
    assert "'localhost' is not HOST:PORT" in ended.sentence


def test_help_teaches():
    for command, words in {
        (): ["provision", "add", "renew", "register", "rotate", "revoke"],
        ("add",): ["SITE", "--kit", "--kits", "--json", "new roster"],
        ("provision",): ["FEDERATION", "--out", "--days", "--with-identity-keys", "offline"],
        ("renew",): ["--kit", "--ca", "--days", "sites need nothing new"],
        ("register",): ["--kit", "--server", "--site", "HOST:PORT", "nodes.json", "code 7"],
        ("rotate",): ["SITE", "--kit", "--server", "hand it over"],
        ("revoke",): ["SITE", "--kit", "--server", "never be registered again"],
    }.items():
        ended = call(server, *command, "--help")
        assert ended.code == 0
        assert [word for word in words if word not in ended.words] == []
