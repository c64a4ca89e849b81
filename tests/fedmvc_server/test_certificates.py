"""The authority, the server's certificate, and node keys as other programs see them."""

import datetime
import ipaddress
import socket
import ssl
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from configs.errors import ConfigError
from fedmvc_server.certificates import issue_server, make_authority, read_authority
from fedmvc_server.node_keys import NodeKey, node_fingerprint

NAMES, ADDRESSES = ["fl.example.org", "localhost"], ["127.0.0.1", "2001:db8::7"]
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def authority():
    return make_authority("cardio")


@pytest.fixture(scope="module")
def issued(authority):
    return issue_server(authority, NAMES, ADDRESSES, days=30)


def verify(authority, server, subject, at=NOW):
    trust = Store([authority.certificate])
    verifier = PolicyBuilder().store(trust).time(at).build_server_verifier(subject)
    return verifier.verify(server.certificate, [])


@pytest.mark.parametrize(
    "subject",
    [
        *map(x509.DNSName, NAMES),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES),
    ],
)
def test_every_name_and_address_verifies_against_the_authority(authority, issued, subject):
    assert verify(authority, issued, subject) == [issued.certificate, authority.certificate]


@pytest.mark.parametrize(
    "subject", [x509.DNSName("x.org"), x509.IPAddress(ipaddress.ip_address("127.0.0.2"))]
)
def test_no_other_name_does(authority, issued, subject):
    with pytest.raises(VerificationError):
        verify(authority, issued, subject)


def test_nor_does_another_authority_of_the_same_name(issued):
    with pytest.raises(VerificationError):
        verify(make_authority("cardio"), issued, x509.DNSName("localhost"))


def test_it_ends_after_the_days_asked_for(authority, issued):
    subject, day = x509.DNSName("localhost"), datetime.timedelta(days=1)
    verify(authority, issued, subject, NOW + 29 * day)
    for late_or_early in (NOW + 31 * day, NOW - day):
        with pytest.raises(VerificationError):
            verify(authority, issued, subject, late_or_early)
    whole = issued.expires - issued.certificate.not_valid_before_utc
    assert whole == datetime.timedelta(days=30, hours=1)  # an hour for clocks that differ


def test_it_never_outlives_the_authority(authority):
    later = NOW + datetime.timedelta(days=3000)
    long = issue_server(authority, NAMES, [], days=3650, now=later)
    assert long.expires == authority.expires


def test_curves_and_what_each_may_do(authority, issued):
    assert isinstance(authority.key.curve, ec.SECP384R1)
    assert isinstance(issued.key.curve, ec.SECP256R1)

    def extension(issued, kind):
        return issued.certificate.extensions.get_extension_for_class(kind)

    signs = extension(authority, x509.BasicConstraints)
    assert signs.critical
    assert signs.value == x509.BasicConstraints(ca=True, path_length=0)
    assert extension(authority, x509.KeyUsage).value.key_cert_sign
    assert not extension(issued, x509.BasicConstraints).value.ca
    assert not extension(issued, x509.KeyUsage).value.key_cert_sign


def handshake(server, authority, host, tmp_path):
    """Shake hands over loopback, strictly; return the client's error, or None."""
    (tmp_path / "server.pem").write_bytes(server.certificate_pem)
    (tmp_path / "server.key").write_bytes(server.key_pem)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    trusting = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            connection.settimeout(20)
            try:
                serving.wrap_socket(connection, server_side=True).close()
            except (OSError, ssl.SSLError):
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=20) as plain,
                trusting.wrap_socket(plain, server_hostname=host),
            ):
                return None
        except ssl.SSLCertVerificationError as error:
            return error
        finally:
            thread.join()


def test_openssl_shakes_hands_strictly(authority, issued, tmp_path):
    assert handshake(issued, authority, "localhost", tmp_path) is None
    assert handshake(issued, authority, "127.0.0.1", tmp_path) is None
    assert "mismatch" in str(handshake(issued, authority, "x.org", tmp_path))


def test_an_expired_one_is_refused_by_openssl(authority, tmp_path):
    past = NOW - datetime.timedelta(days=10)
    expired = issue_server(make_authority("c", now=past), NAMES, [], days=5, now=past)
    ours = issue_server(authority, NAMES, [], days=5, now=past)
    assert "certificate has expired" in str(handshake(ours, authority, "localhost", tmp_path))
    assert "unable to get local issuer" in str(handshake(expired, authority, "localhost", tmp_path))


def test_an_authority_is_read_back_and_signs_on(authority):
    read = read_authority(authority.certificate_pem, authority.key_pem)
    again = issue_server(read, NAMES, ADDRESSES, days=1)
    verify(authority, again, x509.DNSName("localhost"))


def test_a_key_of_another_authority_is_refused(authority):
    with pytest.raises(ConfigError, match=r"ca\.key is not the key of ca\.crt"):
        read_authority(authority.certificate_pem, make_authority("cardio").key_pem)
    with pytest.raises(ConfigError, match=r"ca\.crt or ca\.key is damaged"):
        read_authority(authority.certificate_pem, b"-----BEGIN")


def test_a_node_key_is_p384_in_openssh_form():
    key = NodeKey()
    assert key.private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert key.public.startswith(b"ecdsa-sha2-nistp384 ")
    private, public = load_ssh_private_key(key.private, None), load_ssh_public_key(key.public)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public
    assert key.private.decode() not in repr(key)


def test_a_fingerprint_is_that_of_ssh_keygen():
    # the line and what `ssh-keygen -lf` printed of it
    line = (
        b"ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBEqT2NRHEA7Xeovd"
        b"76BO564kdskO7lFrued/Ow17CNC+TcLUYJJ9V8cILDQFtWn7crVaCVXhtxTM4dVwE8AgyYjhjmjB5QRHSQOtgQFX"
        b"/mg3QaxpAYEvIo80rsnj+hsnQw== st-anna\n"
    )
    assert node_fingerprint(line, "k") == "SHA256:COVGLtutBHp9cJlhIzai9JEeigiu8DPStmc0JCP/UmY"


@pytest.mark.parametrize(
    "line", [b"", b"ecdsa-sha2-nistp384 AAAA", b"ssh-x AAAA", b"-----BEGIN PUBLIC KEY-----"]
)
def test_what_is_no_node_key_is_said(line):
    with pytest.raises(ConfigError, match=r"^the key is no P-384 public key in OpenSSH's form"):
        node_fingerprint(line, "the key")


def test_a_key_on_another_curve_is_refused():
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    line = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    with pytest.raises(ConfigError, match="is no P-384 public key"):
        node_fingerprint(line, "the key")
