"""Each problem that the server's doctor finds."""

import json
import shutil

import pytest

from configs import diagnosis, flower_version
from fedmvc_server.doctor import diagnose
from fedmvc_server.kit import ServerKit
from tests.transport.kits import answering, days_ago, make_kits


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("kits") / "kits")


@pytest.fixture
def kit(pristine, tmp_path):
    """Copy the server's kit alone, as the operator should keep it."""
    return ServerKit.at(shutil.copytree(pristine / "server", tmp_path / "kits" / "server"))


def finding(kit, check, server=None):
    (found,) = [each for each in diagnose(kit, server) if each.check == check]
    return found


def test_a_kit_that_is_right(kit):
    nodes = {
        name: {"node_id": "1", "public_key_sha256": "SHA256:x", "registered_at": "2026-01-01"}
        for name in ("st-anna", "riverside")
    }
    (kit.folder / "nodes.json").write_text(json.dumps(nodes))

    found = diagnose(kit)

    assert {each.check: each.status for each in found} == dict.fromkeys(
        [
            *("versions", "federation", "certificate", "CA certificate", "CA key", "secrets"),
            *("nodes", "disk"),
        ],
        "ok",
    )
    assert diagnosis.worst(found) == 0
    assert "127.0.0.1" in finding(kit, "certificate").finding
    assert "2 of 2 sites" in finding(kit, "nodes").finding


def test_a_key_that_others_may_read(kit):
    kit.key.chmod(0o644)

    found = finding(kit, "secrets")

    assert (found.status, found.code) == ("problem", 2)
    assert "'server.key' is open to other users of this machine (mode 0644)" in found.finding


def test_a_secret_that_is_too_short(kit):
    kit.secret.write_bytes(b"short")

    assert "has 5 bytes and needs 32" in finding(kit, "secrets").finding


def test_files_of_two_kits(kit, tmp_path):
    other = make_kits(tmp_path / "other") / "server"
    shutil.copy(other / "server.key", kit.key)
    assert "server.key is not the key of server.pem" in finding(kit, "secrets").finding

    shutil.copy(other / "ca.crt", kit.ca)
    assert "server.pem is not signed by the CA" in finding(kit, "certificate").finding


@pytest.mark.parametrize(("made", "status"), [(345, "warning"), (366, "problem")])
def test_a_certificate_that_ends(tmp_path, made, status):
    kit = ServerKit.at(make_kits(tmp_path / "kits", made=days_ago(made)) / "server")

    found = finding(kit, "certificate")

    assert found.status == status
    assert "fedmvc-server renew" in found.finding


def test_a_name_that_the_certificate_lacks(kit):
    path = kit.folder / "federation.toml"
    path.write_text(path.read_text().replace("127.0.0.1", "192.0.2.9"))

    assert "server.pem is not for '192.0.2.9'" in finding(kit, "certificate").finding


def test_the_authoritys_key_beside_the_kit_is_a_warning(pristine):
    found = finding(ServerKit.at(pristine / "server"), "CA key")

    assert found.status == "warning"
    assert "'ca/ca.key' is on this machine" in found.finding


def test_sites_that_are_not_registered(kit):
    found = finding(kit, "nodes")

    assert found.status == "warning"
    assert "not yet: st-anna, riverside" in found.finding


def test_a_full_disk(kit, monkeypatch):
    monkeypatch.setattr(diagnosis, "_LEAST_FREE", 2**62)

    found = finding(kit, "disk")

    assert (found.status, found.code) == ("problem", 2)
    assert "GiB free where 'state' is" in found.finding


def test_another_release_of_flower(kit, monkeypatch):
    monkeypatch.setattr(flower_version, "installed", lambda name: "1.41.2")

    found = finding(kit, "versions")

    assert (found.status, found.code) == ("problem", 8)
    assert "flwr 1.41.2 is installed and fedmvc needs 1.42" in found.finding


def test_a_server_that_answers_with_the_kits_certificate(kit):
    with answering(kit.folder) as server:
        found = {each.check: each.status for each in diagnose(kit, server)}

    assert [found[name] for name in ("reachability", "served certificate", "clock")] == ["ok"] * 3


def test_a_clock_that_is_off(kit):
    with answering(kit.folder, clock_s=-600) as server:
        found = finding(kit, "clock", server)

    assert (found.status, found.code) == ("problem", 7)
    assert "600 s ahead of" in found.finding


def test_a_server_that_is_not_there_and_one_of_another_kit(kit, tmp_path):
    other = make_kits(tmp_path / "other") / "server"

    with answering(other) as server:
        found = finding(kit, "reachability", server)
    assert (found.status, found.code) == ("problem", 7)
    assert "did not sign" in found.finding

    found = finding(kit, "reachability", server)  # it is gone
    assert (found.status, found.code) == ("problem", 7)
    assert "does not answer" in found.finding
