"""The federation's own certificate authority, and the server's certificate.

TLS proves the server to the sites, which trust this authority and no other. The sites prove
themselves by node keys (`fedmvc_server.node_keys`).
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from configs.errors import ConfigError

__all__ = [
    "AUTHORITY_DAYS",
    "Issued",
    "issue_server",
    "make_authority",
    "read_authority",
]

#: How long the authority is valid; a server certificate may be valid as long, and no longer.
AUTHORITY_DAYS = 3650
#: Certificates are valid from a little before they are made: the sites' clocks differ.
_BEFORE = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Issued:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key as PKCS8 PEM: a secret."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def expires(self) -> datetime.datetime:
        """The end of its validity, in UTC."""
        return self.certificate.not_valid_after_utc


def make_authority(federation: str, *, now: datetime.datetime | None = None) -> Issued:
    """Make a certificate authority (P-384), valid for `AUTHORITY_DAYS` days.

    Parameters
    ----------
    federation : str
        Name of the federation, at most 64 characters.
    now : datetime, optional
        When it is made, in UTC; now where left out.

    Returns
    -------
    Issued
        Its self-signed certificate, which may sign servers but no other authority, and its key.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name(federation, "FedMVC authority")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key, AUTHORITY_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA384())
    )
    return Issued(certificate, key)


def issue_server(
    authority: Issued,
    names: Sequence[str],
    addresses: Sequence[str],
    *,
    days: int,
    now: datetime.datetime | None = None,
) -> Issued:
    """Make the server's certificate (P-256), signed by the authority.

    Parameters
    ----------
    authority : Issued
        As `make_authority` made it.
    names, addresses : sequence of str
        Host names and IP addresses by which sites reach the server: its subject alternative names.
    days : int
        Its validity from `now` on, 1 or more; it never outlives the authority.
    now : datetime, optional
        When it is made, in UTC; now where left out.

    Returns
    -------
    Issued
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    (federation,) = issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    subject = _name(str(federation.value), "FedMVC server")
    named: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    named += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    signer = authority.key.public_key()
    certificate = (
        _builder(subject, issuer, key, days, now, latest=authority.expires)
        .add_extension(x509.SubjectAlternativeName(named), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        .sign(authority.key, hashes.SHA384())
    )
    return Issued(certificate, key)


def read_authority(certificate: bytes, key: bytes) -> Issued:
    """Read an authority that `make_authority` made from its two PEM files.

    Raises
    ------
    ConfigError
        If one of them is damaged, or the key is not the certificate's.
    """
    try:
        read = x509.load_pem_x509_certificate(certificate)
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError):
        raise ConfigError(
            "ca.crt or ca.key is damaged: restore them from the offline copy"
        ) from None
    if (
        not isinstance(private, ec.EllipticCurvePrivateKey)
        or private.public_key() != read.public_key()
    ):
        raise ConfigError(
            "ca.key is not the key of ca.crt: give the folder ca that was made with this server kit"
        )
    return Issued(read, private)


def _name(federation: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    now: datetime.datetime | None,
    latest: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = now or datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(until if latest is None else min(until, latest))
    )


def _usage(**granted: bool) -> x509.KeyUsage:
    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{**dict.fromkeys(every, False), **granted})
