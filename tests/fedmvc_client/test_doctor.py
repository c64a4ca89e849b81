"""Each problem that a site's doctor finds."""

import shutil
from pathlib import Path

import pytest

from configs import diagnosis, flower_version
from configs.connection import Connection
from configs.schema import DataSchema
from fedmvc_client import doctor
from fedmvc_client.doctor import diagnose
from fedmvc_client.node_key import Standing
from tests.transport.kits import answering, days_ago, make_kits

ROWS = "patient_id,rr\n" + "".join(f"p{i},{800 + i}.5\n" for i in range(60))
SCHEMA = """
id = "patient_id"
[[views]]
name = "ecg"
columns = [{name = "rr", dtype = "float", unit = "ms", bounds = [300, 2000]}]
"""


def fill(folder):
    (folder / "site.toml").write_text('name = "st-anna"\n[data]\necg = "ecg.csv"\n')
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "ecg.csv").write_text(ROWS)
    return folder


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("kits") / "kits", with_identity_keys=True)


@pytest.fixture
def kits(pristine, tmp_path):
    copied = shutil.copytree(pristine, tmp_path / "kits")
    fill(copied / "st-anna")
    return copied


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(doctor, "ask_standing", lambda *ignored: Standing.REGISTERED)


def connect(kits, server):
    Connection(server=server, ca="ca.crt").dump(kits / "st-anna")
    return kits / "st-anna"


def finding(folder, check):
    (found,) = [each for each in diagnose(folder) if each.check == check]
    return found


@pytest.mark.usefixtures("registered")
def test_a_site_that_is_right(kits):
    with answering(kits / "server") as server:
        site = connect(kits, server)
        found = diagnose(site)

    assert {each.check: each.status for each in found} == dict.fromkeys(
        [
            *("versions", "site", "data", "state", "disk", "identity", "roster", "connection"),
            *("CA certificate", "node key", "reachability", "server certificate", "clock"),
            "registration",
        ],
        "ok",
    )
    said = {each.check: each.finding for each in found}
    digest = DataSchema.load(site / "schema.toml").schema_hash("ecg")
    assert said["data"] == f"60 rows; views ecg (schema {digest[:12]})"
    assert "127.0.0.1" in said["server certificate"]
    assert "p0" not in "".join(said.values())


def test_without_site_toml_there_is_nothing_else_to_look_at(tmp_path):
    found = diagnose(tmp_path)

    assert [each.check for each in found] == ["versions", "site"]
    assert (found[-1].status, found[-1].code) == ("problem", 2)


@pytest.mark.parametrize(
    ("spoil", "check", "code", "words"),
    [
        (lambda s: (s / "ecg.csv").unlink(), "data", 3, "ecg"),
        (lambda s: (s / "schema.toml").unlink(), "data", 2, "'schema.toml' does not exist"),
        (lambda s: (s / "ca.crt").unlink(), "CA certificate", 2, "'ca.crt' does not exist"),
        (lambda s: (s / "connection.toml").unlink(), "connection", 2, "start kit"),
        (lambda s: (s / "state/node.key").unlink(), "node key", 2, "does not exist"),
        (lambda s: (s / "state/node.key").chmod(0o640), "node key", 2, "mode 0640"),
        (lambda s: (s / "state/identity.pem").chmod(0o604), "identity", 2, "mode 0604"),
    ],
)
def test_each_file_that_is_wrong(kits, spoil, check, code, words):
    spoil(kits / "st-anna")

    found = finding(kits / "st-anna", check)

    assert (found.status, found.code) == ("problem", code)
    assert words in found.finding


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_an_identity_key_that_another_user_owns_does_not_end_the_report(
    kits, monkeypatch, passphrase
):
    """It was an internal error, and nothing else was told."""
    key, really = kits / "st-anna" / "state" / "identity.pem", Path.open

    def refuse(path, *arguments, **options):
        if path == key:
            raise PermissionError(13, "Permission denied")
        return really(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    if passphrase:
        monkeypatch.setenv("FEDMVC_PASSPHRASE", passphrase)
    else:
        monkeypatch.delenv("FEDMVC_PASSPHRASE", raising=False)

    found = {each.check: each for each in diagnose(kits / "st-anna")}

    assert (found["identity"].status, found["identity"].code) == ("problem", 2)
    assert "'identity.pem' cannot be read: Permission denied" in found["identity"].finding
    assert "node key" in found


def test_a_folder_of_keys_that_cannot_be_entered_does_not_end_the_report(kits, monkeypatch):
    key, stat, opened = kits / "st-anna" / "state" / "identity.pem", Path.stat, Path.open

    def refuse(really):
        def refused(path, *arguments, **options):
            if path == key:
                raise PermissionError(13, "Permission denied")
            return really(path, *arguments, **options)

        return refused

    monkeypatch.setattr(Path, "stat", refuse(stat))
    monkeypatch.setattr(Path, "open", refuse(opened))

    assert "cannot be read: Permission denied" in finding(kits / "st-anna", "identity").finding


def test_a_roster_with_another_key_and_one_without_this_site(kits):
    site = kits / "st-anna"
    shutil.copy(kits / "riverside" / "state" / "identity.pem", site / "state" / "identity.pem")
    found = finding(site, "roster")
    assert (found.status, found.code) == ("problem", 2)
    assert "has another identity key of site 'st-anna'" in found.finding

    site.joinpath("site.toml").write_text('name = "other"\n[data]\necg = "ecg.csv"\n')
    assert "names no site 'other'" in finding(site, "roster").finding


def test_no_roster_yet_is_a_warning(kits):
    (kits / "st-anna" / "roster.json").unlink()
    assert finding(kits / "st-anna", "roster").status == "warning"

    (kits / "st-anna" / "state" / "identity.pem").unlink()
    assert finding(kits / "st-anna", "identity").status == "warning"


def test_a_state_folder_that_cannot_be_written(kits, monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: path.name != "state")

    found = finding(kits / "st-anna", "state")

    assert (found.status, found.code) == ("problem", 2)
    assert "folder 'state' cannot be written" in found.finding


def test_a_full_disk_and_another_release(kits, monkeypatch):
    monkeypatch.setattr(diagnosis, "_LEAST_FREE", 2**62)
    monkeypatch.setattr(flower_version, "installed", lambda name: "1.41.2")

    assert finding(kits / "st-anna", "disk").status == "problem"
    assert finding(kits / "st-anna", "versions").code == 8


@pytest.mark.usefixtures("registered")
def test_a_server_that_is_not_there(kits):
    with answering(kits / "server") as server:
        pass
    site = connect(kits, server)

    found = diagnose(site)

    assert found[-1].check == "reachability"  # what needs an answer is left out
    assert (found[-1].status, found[-1].code) == ("problem", 7)
    assert diagnosis.worst(found) == 7


def test_a_server_of_another_authority(kits, tmp_path):
    other = make_kits(tmp_path / "other")

    with answering(other / "server") as server:
        assert "did not sign" in finding(connect(kits, server), "reachability").finding


@pytest.mark.usefixtures("registered")
def test_a_clock_that_is_off(kits):
    with answering(kits / "server", clock_s=600) as server:
        found = finding(connect(kits, server), "clock")

    assert (found.status, found.code) == ("problem", 7)
    assert "600 s behind the server's" in found.finding


@pytest.mark.usefixtures("registered")
def test_a_certificate_that_ends_soon(tmp_path):
    kits = make_kits(tmp_path / "kits", days=30, made=days_ago(10))
    fill(kits / "st-anna")

    with answering(kits / "server") as server:
        found = finding(connect(kits, server), "server certificate")

    assert found.status == "warning"
    assert "in 19 days" in found.finding


@pytest.mark.parametrize(
    ("standing", "status", "words"),
    [
        (Standing.UNKNOWN, "problem", "fedmvc-server register"),
        (Standing.REJECTED, "problem", "set this machine's clock"),
        (Standing.UNCLEAR, "warning", "no clear answer"),
    ],
)
def test_what_the_server_says_of_the_key(kits, monkeypatch, standing, status, words):
    monkeypatch.setattr(doctor, "ask_standing", lambda *ignored: standing)

    with answering(kits / "server") as server:
        found = finding(connect(kits, server), "registration")

    assert found.status == status
    assert words in found.finding
