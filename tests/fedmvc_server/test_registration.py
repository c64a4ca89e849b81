"""What register, rotate and revoke do where the SuperLink or the disk fails half-way."""

import json
import os
from pathlib import Path

import pytest

from configs import flower_version
from configs.errors import ConfigError, ProtocolError, TransportError
from configs.federation import FederationConfig
from fedmvc_server import registration, server_kit
from fedmvc_server.new_site import add_site
from fedmvc_server.node_keys import NodeKey, node_fingerprint
from fedmvc_server.provision import provision
from fedmvc_server.registration import Registry
from fedmvc_server.server_kit import alone, read_nodes

FEDERATION = {
    "name": "cardio",
    "server": {"addresses": ["127.0.0.1"]},
    "sites": [{"name": "st-anna"}, {"name": "riverside"}],
}
DOWN = TransportError("the SuperLink is down")


class Flower:
    """A SuperLink's memory of nodes, with Flower's rules: a key is taken once and for all."""

    def __init__(self):
        self.keys, self.names, self.status = {}, {}, {}
        self.fails = set()

    def register(self, public, name):
        self._may("register")
        key = Path(public).read_bytes()
        if key in self.keys:
            raise TransportError("refused", local_detail="[code: 23] Public key already in use.")
        node_id = str(1000 + len(self.keys))
        self.keys[key], self.names[node_id] = node_id, name
        self.status[node_id] = "registered"
        return node_id

    def unregister(self, node_id):
        self._may("unregister")
        assert self.status[node_id] != "unregistered"
        self.status[node_id] = "unregistered"
        if "answer" in self.fails:
            raise DOWN

    def nodes(self):
        self._may("nodes")
        return dict(self.status)

    def accepted(self, key):
        """Whether a SuperNode with this public key would be let in."""
        return self.status.get(self.keys.get(key)) in ("registered", "online", "offline")

    def _may(self, command):
        if command in self.fails:
            raise DOWN


@pytest.fixture
def kit(tmp_path):
    provision(FederationConfig.model_validate(FEDERATION), tmp_path / "kits")
    return tmp_path / "kits" / "server"


@pytest.fixture
def flower(monkeypatch):
    superlink = Flower()
    monkeypatch.setattr(registration, "FlowerCli", lambda home, address, ca: superlink)
    monkeypatch.setattr(registration, "check_reachable", lambda address, ca: None)
    return superlink


@pytest.fixture
def registry(kit, flower):
    return Registry(kit, "127.0.0.1:8443")


def public(kit, site="st-anna"):
    return (kit / "nodes" / f"{site}.pub").read_bytes()


def files_of(kit):
    return {
        path.relative_to(kit.parent).as_posix(): path.read_bytes()
        for path in kit.parent.rglob("*")
        if path.is_file()
    }


def test_each_site_is_registered_once_under_its_name(kit, flower, registry):
    done = registry.register()
    assert done.new == {"st-anna": "1000", "riverside": "1001"}
    assert flower.names == {"1000": "st-anna", "1001": "riverside"}
    written = json.loads((kit / "nodes.json").read_text())
    assert set(written) == {"st-anna", "riverside"}
    assert set(written["st-anna"]) == {"node_id", "public_key_sha256", "registered_at"}
    assert written["st-anna"]["public_key_sha256"] == node_fingerprint(public(kit), "key")

    again = registry.register()
    assert (again.new, again.already) == ({}, ["st-anna", "riverside"])
    assert len(flower.status) == 2


def test_a_site_that_was_added_is_registered_beside_the_others(kit, flower):
    Registry(kit, "127.0.0.1:8443").register()
    add_site(kit, "mercy")
    done = Registry(kit, "127.0.0.1:8443").register()
    assert (done.new, done.already) == ({"mercy": "1002"}, ["st-anna", "riverside"])
    assert flower.accepted((kit.parent / "mercy" / "state" / "node.pub").read_bytes())


def test_a_superlink_that_lost_its_database_gets_the_keys_again(kit, flower, registry):
    registry.register()
    flower.__init__()
    assert list(registry.register().new) == ["st-anna", "riverside"]
    assert flower.accepted(public(kit))


def test_what_was_registered_before_a_failure_is_on_record(kit, flower, registry, monkeypatch):
    (kit / "nodes" / "riverside.pub").write_text("no key")
    with pytest.raises(ConfigError, match=r"key 'riverside\.pub' of site 'riverside' is no P-384"):
        registry.register()
    assert list(read_nodes(kit)) == ["st-anna"]
    assert list(flower.names.values()) == ["st-anna"]


def test_a_record_that_cannot_be_written_lets_nobody_in(kit, flower, registry, monkeypatch):
    def full(*arguments):
        raise ConfigError("no space left on device")

    monkeypatch.setattr(registration, "write_nodes", full)
    with pytest.raises(ConfigError, match="no space left"):
        registry.register("st-anna")
    assert not flower.accepted(public(kit))


def test_another_key_for_a_registered_site_is_not_passed_over(kit, registry):
    registry.register()
    (kit / "nodes" / "st-anna.pub").write_bytes(NodeKey().public)
    with pytest.raises(ConfigError, match=r"'st-anna' is registered with key SHA256:.* holds SHA"):
        registry.register()


def test_rotate_ends_the_old_key_and_writes_the_new_one(kit, flower, registry):
    registry.register()
    old = public(kit)
    record, path = registry.rotate("st-anna")
    new = public(kit)
    assert (flower.accepted(old), flower.accepted(new)) == (False, True)
    assert flower.names[record.node_id] == "st-anna"
    assert read_nodes(kit)["st-anna"] == record
    assert path == kit.parent / "st-anna" / "state" / "node.key"
    assert path.with_suffix(".pub").read_bytes() == new
    assert path.stat().st_mode & 0o777 == 0o600
    from cryptography.hazmat.primitives.serialization import (
        load_ssh_private_key,
        load_ssh_public_key,
    )

    private = load_ssh_private_key(path.read_bytes(), None)
    assert private.public_key() == load_ssh_public_key(new)


def test_the_new_key_may_go_elsewhere(kit, flower, registry, tmp_path):
    registry.register()
    in_kit = kit.parent / "st-anna" / "state" / "node.key"
    before = in_kit.read_bytes()
    (tmp_path / "new").mkdir()
    _, path = registry.rotate("st-anna", tmp_path / "new")
    assert path == tmp_path / "new" / "st-anna" / "state" / "node.key"
    assert in_kit.read_bytes() == before
    assert flower.accepted(public(kit))
    with pytest.raises(ConfigError, match=r"site 'st-anna' cannot be written: No such .* --kits"):
        registry.rotate("st-anna", tmp_path / "nowhere")
    assert flower.accepted(public(kit))


@pytest.mark.parametrize("command", ["register", "nodes", "unregister"])
def test_a_rotation_that_fails_changes_nothing(kit, flower, registry, command):
    registry.register()
    before = files_of(kit)
    flower.fails.add(command)
    with pytest.raises(TransportError, match="down"):
        registry.rotate("st-anna")
    assert files_of(kit) == before
    assert flower.accepted(public(kit))
    flower.fails.clear()
    registry.rotate("st-anna")
    assert flower.accepted(public(kit))


def test_a_full_disk_costs_no_site_its_key(kit, flower, registry, monkeypatch):
    registry.register()
    before = files_of(kit)

    def full(path, body, what, **options):
        raise ConfigError("no space left on device")

    monkeypatch.setattr(registration, "replace_file", full)
    with pytest.raises(ConfigError, match="no space left"):
        registry.rotate("st-anna")
    assert files_of(kit) == before
    assert flower.accepted(public(kit))
    assert len(flower.status) == 2


def test_a_kit_that_was_handed_over_and_removed_is_made_for_the_new_key(kit, flower, registry):
    import shutil

    registry.register()
    shutil.rmtree(kit.parent / "st-anna")
    _, path = registry.rotate("st-anna")
    assert [p.name for p in sorted(path.parent.iterdir())] == ["node.key", "node.pub"]
    for folder in (path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_rotation_ended_between_superlink_and_disk_can_be_repeated(
    kit, flower, registry, monkeypatch
):
    registry.register()

    def killed(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr(registration, "replace_file", _put_open)
        with pytest.raises(KeyboardInterrupt):
            registry.rotate("st-anna")
    with pytest.raises(ConfigError, match="`fedmvc-server rotate st-anna` makes it another"):
        registry.register("st-anna")
    registry.rotate("st-anna")
    assert flower.accepted(public(kit))
    assert registry.register().already == ["st-anna", "riverside"]


AGAIN = r"; the old key may not be taken any more: run 'fedmvc-server rotate st-anna' again$"


def test_a_rotation_whose_answer_is_lost_says_that_it_must_be_repeated(kit, flower, registry):
    """The site had no key then, and the sentence was that the SuperLink did not answer."""
    registry.register()
    old = public(kit)
    flower.fails.add("answer")  # all is done, and nobody is told
    with pytest.raises(TransportError, match=f"down{AGAIN}"):
        registry.rotate("st-anna")
    assert not flower.accepted(old)
    flower.fails.clear()
    record, path = registry.rotate("st-anna")
    assert flower.accepted(path.with_suffix(".pub").read_bytes())
    assert public(kit) == path.with_suffix(".pub").read_bytes()
    assert flower.status[record.node_id] == "registered"
    assert list(flower.status.values()).count("registered") == 2


@pytest.mark.parametrize("step", ["key", "public key", "record of nodes"])
def test_a_disk_that_fills_after_the_old_key_ended_leaves_no_key_behind(
    kit, flower, registry, monkeypatch, step
):
    """The new key stayed registered, and its private half was gone."""
    registry.register()
    real, ended = registration.replace_file, OSError(28, os.strerror(28))

    def full(path, body, what, **options):
        if what == step and "unregistered" in flower.status.values():
            raise ConfigError(f"{what} '{path.name}' cannot be written: No space left on device")
        real(path, body, what, **options)

    def none_moved(source, target):
        raise ended

    with monkeypatch.context() as patch:
        patch.setattr(registration, "replace_file", full)
        if step == "record of nodes":
            patch.setattr(server_kit, "replace_file", full)
        if step == "key":
            patch.setattr(registration, "replace_file", _put_open)
            patch.setattr(os, "replace", none_moved)
        with pytest.raises(ConfigError, match=f"No space left on device.*{AGAIN}"):
            registry.rotate("st-anna")
    assert set(flower.status.values()) == {"registered", "unregistered"}
    assert list(flower.status.values()).count("registered") == 1  # riverside's

    record, path = registry.rotate("st-anna")
    assert flower.accepted(path.with_suffix(".pub").read_bytes())
    assert flower.status[record.node_id] == "registered"
    assert registry.register().already == ["st-anna", "riverside"]


def test_a_rotation_that_ended_nothing_asks_for_no_repetition(kit, flower, registry):
    registry.register()
    flower.fails.add("nodes")
    with pytest.raises(TransportError, match=r"down$"):
        registry.rotate("st-anna")


def test_another_release_of_flower_is_one_sentence(registry, monkeypatch):
    monkeypatch.setattr(flower_version, "installed", lambda distribution: "1.41.0")
    with pytest.raises(ProtocolError, match=r"flwr 1\.41\.0 is installed and fedmvc needs"):
        registry.register()


def _put_open(path, body, what, **options):
    _put(path, body)


def _put(path, body):
    path.write_bytes(body)


def test_revoke_shuts_out_until_rotate(kit, flower, registry):
    registry.register()
    old = public(kit)
    record = registry.revoke("st-anna")
    assert not flower.accepted(old)
    assert flower.accepted(public(kit, "riverside"))
    assert record.revoked_at is not None
    assert read_nodes(kit)["st-anna"] == record
    assert registry.revoke("st-anna") == record  # the first time counts

    done = registry.register()
    assert (done.new, done.already, done.revoked) == ({}, ["riverside"], ["st-anna"])
    with pytest.raises(ConfigError, match=r"site 'st-anna' was revoked at .*`fedmvc-server rotate"):
        registry.register("st-anna")

    record, _ = registry.rotate("st-anna")
    assert record.revoked_at is None
    assert (flower.accepted(old), flower.accepted(public(kit))) == (False, True)


def test_a_site_is_not_called_revoked_while_its_key_counts(kit, flower, registry):
    registry.register()
    flower.fails.add("unregister")
    with pytest.raises(TransportError):
        registry.revoke("st-anna")
    assert read_nodes(kit)["st-anna"].revoked_at is None


def test_a_site_without_a_key_at_the_superlink_cannot_be_revoked(registry):
    with pytest.raises(ConfigError, match="site 'st-anna' was never registered"):
        registry.revoke("st-anna")


def test_one_command_at_a_time(kit, registry):
    for change in (registry.register, lambda: add_site(kit, "mercy")):
        with alone(kit), pytest.raises(ConfigError, match="another command is changing this serv"):
            change()
    assert list(registry.register().new) == ["st-anna", "riverside"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "the record 'nodes.json' of the server kit cannot be read as JSON"),
        ("[]", "the record 'nodes.json' of the server kit cannot be read as JSON"),
        ('{"st-anna": {"node_id": 7}}', "nodes.json, site 'st-anna': node_id is 7; allowed: a"),
        ('{"st-anna": {"node_id": "x"}}', "nodes.json, site 'st-anna': node_id is 'x'; allowed"),
    ],
)
def test_a_damaged_record_is_said_before_anything_is_done(kit, flower, registry, text, sentence):
    (kit / "nodes.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        registry.register()
    assert sentence in str(caught.value)
    assert flower.status == {}
