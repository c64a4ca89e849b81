import base64
import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from configs.errors import ConfigError
from privacy import identity
from privacy.identity import (
    fingerprint,
    make_identity,
    public_text,
    read_identity,
    read_public_text,
)
from privacy.key_files import own_secret


def refused(call, *arguments):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return caught.value.public_message


def test_a_key_is_made_once_and_signs(tmp_path):
    path = tmp_path / "state" / "identity.pem"

    made = make_identity(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = read_identity(path)
    assert public_text(made) == public_text(key)
    key.public_key().verify(key.sign(b"message"), b"message")
    assert base64.b64decode(public_text(key)) == key.public_key().public_bytes_raw()
    assert path.with_suffix(".pub").read_text() == f"{public_text(key)}\n"
    assert sorted(os.listdir(path.parent)) == ["identity.pem", "identity.pub"]  # no draft is left
    sentence = refused(make_identity, path)
    assert "identity key 'identity.pem' already exists and is not overwritten" in sentence
    assert public_text(read_identity(path)) == public_text(key)


def test_two_keys_differ(tmp_path):
    make_identity(tmp_path / "a.pem")
    make_identity(tmp_path / "b.pem")
    assert public_text(read_identity(tmp_path / "a.pem")) != public_text(
        read_identity(tmp_path / "b.pem")
    )


def test_a_passphrase_locks_the_file(tmp_path):
    path = tmp_path / "identity.pem"
    make_identity(path, b"correct horse")

    assert b"ENCRYPTED" in path.read_bytes()
    assert read_identity(path, b"correct horse")
    assert "FEDMVC_PASSPHRASE" in refused(read_identity, path)
    assert "the passphrase is not the one" in refused(read_identity, path, b"wrong")


def test_a_file_that_none_locks_needs_no_passphrase(tmp_path):
    make_identity(tmp_path / "identity.pem")
    assert read_identity(tmp_path / "identity.pem", b"whatever the worker was given")


def test_a_file_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "identity.pem"
    make_identity(path)
    path.chmod(0o640)
    assert "mode 0640): run chmod 600" in refused(read_identity, path)


def test_missing_damaged_and_other_keys_are_refused_with_the_way_out(tmp_path):
    path = tmp_path / "identity.pem"
    assert "does not exist: run `fedmvc-client keygen`" in refused(read_identity, path)

    path.touch(mode=0o600)
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert "is damaged: restore it" in refused(read_identity, path)

    other = X25519PrivateKey.generate()
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert "a key of another kind, not Ed25519" in refused(read_identity, path)


def test_no_message_holds_a_path_or_a_key(tmp_path):
    path = tmp_path / "identity.pem"
    make_identity(path)
    for call in (make_identity, lambda p: read_identity(p.with_name("none.pem"))):
        with pytest.raises(ConfigError) as caught:
            call(path)
        assert str(tmp_path) not in caught.value.public_message
        assert str(tmp_path) in caught.value.local_detail


def test_the_public_text_is_read_back(tmp_path):
    make_identity(tmp_path / "identity.pem")
    key = read_identity(tmp_path / "identity.pem")
    assert (
        read_public_text(f" {public_text(key)}\n", "site 'a'")
        == key.public_key().public_bytes_raw()
    )


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 43 + "B=", "é" * 44, "*" * 44, "A" * 88])
def test_other_texts_are_no_public_key(text):
    sentence = refused(read_public_text, text, "site 'a'")
    assert sentence.startswith("site 'a': its public key is not the base64 text of 32 bytes")


P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def plus(a, b):
    """Add two points of Ed25519's curve, the slow obvious way."""
    (x, y), (u, v) = a, b
    t = D * x * u * y * v
    return (
        (x * v + y * u) * pow(1 + t, -1, P) % P,
        (y * v + x * u) * pow(1 - t, -1, P) % P,
    )


def point_at(y):
    """Return a point of the curve at height y."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    assert x * x % P == square
    return x, y


@pytest.mark.parametrize("height", sorted(identity._WEAK_HEIGHTS))
def test_keys_of_small_order_are_refused_whatever_their_sign(height):
    point = point_at(height % P)
    for _ in range(3):
        point = plus(point, point)
    assert point == (0, 1)  # eight times any of them is nothing
    for sign in (0, 2**255):
        text = base64.b64encode((height | sign).to_bytes(32, "little")).decode()
        assert "site 'a': under its public key anybody could sign" in refused(
            read_public_text, text, "site 'a'"
        )


def test_no_other_point_has_a_small_order():
    points = {(0, 1)}
    eighth = point_at(identity._ORDER_8)
    for _ in range(8):
        points |= {plus(point, eighth) for point in points}
    assert {y for _, y in points} == {height % P for height in identity._WEAK_HEIGHTS}


def test_a_fingerprint_can_be_read_aloud():
    # SHA-256 of 32 zero bytes
    assert fingerprint(bytes(32)) == "6668 7aad f862 bd77 6c8f c18b 8e9f 8e20"


def test_an_own_secret_is_drawn_once(tmp_path):
    path = tmp_path / "state" / "ledger.key"
    key = own_secret(path, "ledger key", "restore it")
    assert len(key) == 32
    assert own_secret(path, "ledger key", "restore it") == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("zz")
    sentence = refused(own_secret, path, "ledger key", "restore it")
    assert "is damaged (it is not 64 hexadecimal digits): restore it" in sentence


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    sentence = refused(make_identity, tmp_path / "file" / "identity.pem")
    assert "'identity.pem' cannot be written" in sentence
    sentence = refused(own_secret, tmp_path / "file" / "ledger.key", "ledger key", "restore it")
    assert "'ledger.key' cannot be written" in sentence
