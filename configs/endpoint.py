"""Where a server stands: one TLS handshake and one question, and what is wrong with them.

Certificate, clock and reachability are told apart before Flower is started, because Flower's own
words for them are few: with a clock that is off it ends without any.
"""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cryptography import x509
from cryptography.x509.oid import ExtensionOID

from configs.connection import parse_address
from configs.errors import ConfigError, TransportError

if TYPE_CHECKING:
    import httpx

__all__ = [
    "CLOCK_AHEAD_S",
    "CLOCK_BEHIND_S",
    "CertificateFacts",
    "Reached",
    "Unreachable",
    "check_clock",
    "load_trust",
    "reach",
    "read_certificate",
    "untrusted",
    "unusable",
]

#: Seconds that a site's clock may be ahead of and behind the server's: Flower 1.42 takes a
#: signature that is 5 s from the future to 305 s old.
CLOCK_AHEAD_S, CLOCK_BEHIND_S = 5.0, 305.0
#: Fleet is all that a reverse proxy lets through; nothing answers at this path but an error.
_PATH = "/v1/fleet/"
_EXPIRED, _NOT_YET_VALID = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_Kind = TypeVar("_Kind", bound=ssl.SSLError)
_OTHER_NAME = (62, 63, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, _EMAIL_MISMATCH, _IP_ADDRESS_MISMATCH


class Unreachable(TransportError):
    """Nobody answers there now; it may pass."""


@dataclass(frozen=True)
class CertificateFacts:
    """What a certificate says.

    Parameters
    ----------
    names : tuple of str
        Host names and IP addresses that it is for.
    not_before, not_after : datetime
        From when until when it is valid.
    """

    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime

    @property
    def days_left(self) -> int:
        """Whole days until it ends; negative afterwards."""
        return (self.not_after - datetime.now(UTC)).days

    @classmethod
    def of(cls, certificate: x509.Certificate) -> CertificateFacts:
        """Read a certificate."""
        try:
            found = certificate.extensions.get_extension_for_oid(
                ExtensionOID.SUBJECT_ALTERNATIVE_NAME
            ).value
        except x509.ExtensionNotFound:
            names: list[str] = []
        else:
            assert isinstance(found, x509.SubjectAlternativeName)
            names = [
                *found.get_values_for_type(x509.DNSName),
                *map(str, found.get_values_for_type(x509.IPAddress)),
            ]
        return cls(tuple(names), certificate.not_valid_before_utc, certificate.not_valid_after_utc)


@dataclass(frozen=True)
class Reached:
    """A server that answered.

    Parameters
    ----------
    host, port : str, int
        Its address.
    certificate : CertificateFacts or None
        Its certificate, which the CA signed for this host.
    ahead_s : float or None
        Seconds that this machine's clock is ahead of the server's, to a second; None where the
        answer carries no date.
    """

    host: str
    port: int
    certificate: CertificateFacts | None
    ahead_s: float | None


def load_trust(ca: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts one CA alone.

    Raises
    ------
    ConfigError
        If the file cannot be read as PEM.
    """
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the CA certificate '{ca.name}' cannot be read as PEM: give the one that "
            "the SuperLink was started with",
            local_detail=f"{ca}: {error}",
        ) from error


def read_certificate(path: Path, what: str) -> x509.Certificate:
    """Read the first certificate of a PEM file.

    Raises
    ------
    ConfigError
        If there is none; the message calls the file `what`.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{what} '{path.name}' does not exist: take it from the kit that the operator made",
            local_detail=str(path),
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{what} '{path.name}' cannot be read as a PEM certificate: take it from the kit again",
            local_detail=f"{path}: {error}",
        ) from None


def untrusted(
    error: ssl.SSLCertVerificationError,
    server: str,
    host: str,
    ca: Path,
    certificate: CertificateFacts | None = None,
) -> TransportError:
    """Say why a certificate was not taken: its dates, its name, or its issuer.

    Parameters
    ----------
    error : ssl.SSLCertVerificationError
    server, host : str
        The address as given, and its host.
    ca : Path
        The CA certificate that was trusted.
    certificate : CertificateFacts, optional
        The certificate, for its dates and names.
    """
    whose = f"the certificate of the SuperLink at {server}"
    code, now = error.verify_code, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if code in (_EXPIRED, _NOT_YET_VALID):
        if code == _EXPIRED:
            when = "" if certificate is None else f" on {certificate.not_after:%Y-%m-%d %H:%M} UTC"
            fault = f"has expired{when}"
        else:
            when = "" if certificate is None else f" {certificate.not_before:%Y-%m-%d %H:%M} UTC"
            fault = f"is not valid before{when or ' a later day'}"
        sentence = (
            f"{whose} {fault} (this machine's clock says {now}): let the operator renew it with "
            "'fedmvc-server renew', or set this machine's clock"
        )
    elif code in _OTHER_NAME:
        names = "other names" if certificate is None else ", ".join(certificate.names) or "nothing"
        sentence = (
            f"{whose} is for {names} and not for '{host}': use one of its names, or let the "
            "operator add this one to federation.toml of its kit and run 'fedmvc-server renew'"
        )
    else:
        sentence = (
            f"the SuperLink at {server} has a certificate that this CA did not sign for "
            f"'{host}' ({error.verify_message}): give the CA certificate that the SuperLink "
            "was started with"
        )
    return TransportError(sentence, local_detail=str(ca))


def reach(server: str, ca: Path, *, timeout_s: float = 5.0, direct: bool = False) -> Reached:
    """Shake hands with a server and ask it for its date.

    Parameters
    ----------
    server : str
        ``HOST:PORT``.
    ca : Path
        The CA certificate.
    timeout_s : float
        Seconds for the whole.
    direct : bool
        Never through a proxy. Else ``HTTPS_PROXY`` and ``NO_PROXY`` count, as for a SuperNode.

    Raises
    ------
    ConfigError
        If the address, the CA certificate or a proxy of this environment is unusable.
    Unreachable
        If nobody answers in time, or not with TLS.
    TransportError
        If its certificate has expired, is for another name or from another CA.
    """
    import httpx

    host, port = parse_address(server)
    trust = load_trust(ca)
    try:
        with httpx.Client(verify=trust, timeout=timeout_s, trust_env=not direct) as client:
            before = time.time()
            with client.stream("HEAD", f"https://{server}{_PATH}") as answer:
                now = (before + time.time()) / 2
                date, certificate = answer.headers.get("date"), _shown(answer)
    except httpx.HTTPError as error:
        certificate_error = _cause(error, ssl.SSLCertVerificationError)
        if certificate_error is not None:
            shown = _peer_certificate(server, timeout_s, direct)
            raise untrusted(certificate_error, server, host, ca, shown) from error
        tls_error = _cause(error, ssl.SSLError)
        what = "does not speak TLS" if tls_error is not None else "does not answer"
        raise Unreachable(
            f"the SuperLink at {server} {what} ({_words(error)}): check the address, the "
            "firewall, and that 'fedmvc-server start' runs there",
            local_detail=str(error),
        ) from error
    except (httpx.InvalidURL, ImportError, ValueError) as error:
        raise unusable(error, server, direct=direct) from error
    ahead = None if date is None else now - parsedate_to_datetime(date).timestamp() - 0.5
    return Reached(host, port, certificate, ahead)


def unusable(error: Exception, server: str, *, direct: bool = False) -> ConfigError:
    """Say what was given that no call to a server can be made with: a proxy, or the address.

    Parameters
    ----------
    error : Exception
        What httpx raised.
    server : str
        ``HOST:PORT``.
    direct : bool
        The call was to go through no proxy.
    """
    given = () if direct else [name for name in sorted(os.environ) if name.upper() in _PROXIES]
    if given:
        sentence = (
            f"the proxy settings of this environment ({', '.join(given)}) cannot be used: give a "
            "proxy as http://HOST:PORT (SOCKS is not known here) and hosts without a proxy by "
            "name, or unset them"
        )
    else:
        sentence = f"the SuperLink's address '{server}' cannot be used: write HOST:PORT"
    return ConfigError(sentence, local_detail=f"{type(error).__name__}: {error}")


def check_clock(ahead_s: float, server: str) -> None:
    """Refuse a clock whose signatures the server will not take.

    Parameters
    ----------
    ahead_s : float
        As `Reached.ahead_s`.
    server : str
        ``HOST:PORT``.

    Raises
    ------
    TransportError
        If the clock is too far from the server's.
    """
    # what was measured may be off by most of a second
    if -CLOCK_BEHIND_S - 1 < ahead_s < CLOCK_AHEAD_S + 1:
        return
    way = "ahead of" if ahead_s > 0 else "behind"
    most = CLOCK_AHEAD_S if ahead_s > 0 else CLOCK_BEHIND_S
    raise TransportError(
        f"this machine's clock is {abs(ahead_s):.0f} s {way} the server's at {server}, which takes "
        f"at most {most:.0f} s: set it (NTP, for instance 'timedatectl set-ntp true'), then join "
        "again"
    )


def _peer_certificate(server: str, timeout_s: float, direct: bool) -> CertificateFacts | None:
    """Look at a certificate that was not taken, to say what is wrong with it; nothing is sent."""
    import httpx

    look = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    look.check_hostname = False
    look.verify_mode = ssl.CERT_NONE
    try:
        with (
            httpx.Client(verify=look, timeout=timeout_s, trust_env=not direct) as client,
            client.stream("HEAD", f"https://{server}{_PATH}") as answer,
        ):
            return _shown(answer)
    except (httpx.HTTPError, ValueError):  # the second of what is no certificate
        return None


def _shown(answer: httpx.Response) -> CertificateFacts | None:
    """Read the peer's certificate of a connection that is still open."""
    connection = answer.extensions["network_stream"].get_extra_info("ssl_object")
    encoded = None if connection is None else connection.getpeercert(True)
    if not encoded:
        return None
    return CertificateFacts.of(x509.load_der_x509_certificate(encoded))


def _cause(error: BaseException, kind: type[_Kind]) -> _Kind | None:
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, kind):
            return found
        found = found.__cause__ or found.__context__
    return None


def _words(error: httpx.HTTPError) -> str:
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.ProxyError):
        return "the proxy of HTTPS_PROXY refuses it"
    return str(error) or type(error).__name__
