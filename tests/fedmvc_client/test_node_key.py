"""What a server says of a node key, without a change there."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from configs.errors import ConfigError
from fedmvc_client.node_key import NodeKey, Standing, ask_standing
from fedmvc_server.node_keys import node_fingerprint
from tests.transport.kits import answering, make_kits


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("kits") / "kits")


def refusal(code, message):
    return json.dumps({"code": code, "detail": message}).encode()


@pytest.mark.parametrize(
    ("answer", "standing"),
    [
        ((412, refusal(2004, "Failed to activate SuperNode.")), Standing.UNKNOWN),
        ((400, refusal(2003, "Invalid heartbeat interval.")), Standing.REGISTERED),
        ((401, b'{"detail": "Invalid SuperNode authentication"}'), Standing.REJECTED),
        ((502, b"<html>bad gateway</html>"), Standing.UNCLEAR),
        ((500, refusal(1, "odd")), Standing.UNCLEAR),
    ],
)
def test_each_answer(kits, answer, standing):
    asked = []

    def handler(path):
        asked.append(path)
        return answer

    key = NodeKey.load(kits / "st-anna" / "state" / "node.key")
    with answering(kits / "server", handler=handler) as server:
        assert ask_standing(server, kits / "st-anna" / "ca.crt", key) is standing
    assert asked == ["/v1/fleet/activate-node"]


def test_a_server_that_is_gone_says_nothing(kits):
    with answering(kits / "server") as server:
        pass
    key = NodeKey.load(kits / "st-anna" / "state" / "node.key")

    assert ask_standing(server, kits / "st-anna" / "ca.crt", key) is Standing.UNCLEAR


def test_the_fingerprint_is_the_one_that_the_operator_sees(kits):
    state = kits / "st-anna" / "state"

    shown = NodeKey.load(state / "node.key").fingerprint

    assert shown == node_fingerprint((state / "node.pub").read_bytes(), "node key")


def test_a_key_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "node.key"
    path.touch(mode=0o600)
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))

    with pytest.raises(ConfigError, match="is no elliptic-curve key"):
        NodeKey.load(path)
