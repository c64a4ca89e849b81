"""The server's kit, as ``fedmvc-server provision`` writes it, read by the services."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from configs.endpoint import CertificateFacts, read_certificate
from configs.errors import ConfigError
from configs.federation import FederationConfig
from privacy.key_files import read_private

__all__ = ["ServerKit"]

_LEAST_SECRET = 32
_AGAIN = "make the kit with 'fedmvc-server provision'"


@dataclass(frozen=True)
class ServerKit:
    """The files in the kit's folder.

    Parameters
    ----------
    folder : Path
        The kit's folder, absolute.
    """

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> ServerKit:
        """Take a folder for a kit.

        Raises
        ------
        ConfigError
            If there is no such folder, or it is the one above.
        """
        if not folder.is_dir():
            raise ConfigError(
                f"--kit is '{folder.name}', which is no folder: {_AGAIN} and give its folder "
                "'server'",
                local_detail=str(folder),
            )
        if (folder / "server").is_dir() and not (folder / "ca.crt").exists():
            raise ConfigError(
                f"--kit is '{folder.absolute().name}', which holds kits and is none: give its "
                "folder 'server'",
                local_detail=str(folder),
            )
        return cls(folder.absolute())

    @property
    def ca(self) -> Path:
        """The CA certificate."""
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    @property
    def secret(self) -> Path:
        """What the executor proves itself with."""
        return self.folder / "superexec.secret"

    @property
    def state(self) -> Path:
        """Folder of the SuperLink's database and of Flower's own files."""
        return self.folder / "state"

    def federation(self) -> FederationConfig:
        """Read ``federation.toml``."""
        return FederationConfig.load(self.folder / "federation.toml")

    def certificate_facts(self) -> CertificateFacts:
        """Read whom the server's certificate is for, and until when.

        Raises
        ------
        ConfigError
            If it is missing, or the CA of this kit did not sign it.
        """
        own = read_certificate(self.certificate, "server certificate")
        try:
            own.verify_directly_issued_by(read_certificate(self.ca, "CA certificate"))
        except (ValueError, TypeError, InvalidSignature):
            raise _mixed("server.pem is not signed by the CA in ca.crt", self.folder) from None
        return CertificateFacts.of(own)

    def check_secrets(self) -> None:
        """Check that the two secrets are this user's alone, and that the key is the certificate's.

        Raises
        ------
        ConfigError
            If a file is missing, open to others or of no use.
        """
        secret = read_private(self.secret, "executor's secret", _AGAIN)
        if len(secret) < _LEAST_SECRET:
            raise ConfigError(
                f"executor's secret 'superexec.secret' has {len(secret)} bytes and needs "
                f"{_LEAST_SECRET}: {_AGAIN}",
                local_detail=str(self.secret),
            )
        body = read_private(self.key, "server key", _AGAIN)
        try:
            key = load_pem_private_key(body, None)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"server key 'server.key' is no unlocked PEM key: {_AGAIN}",
                local_detail=f"{self.key}: {error}",
            ) from None
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        certificate = read_certificate(self.certificate, "server certificate")
        if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
            raise _mixed("server.key is not the key of server.pem", self.folder)


def _mixed(fault: str, folder: Path) -> ConfigError:
    return ConfigError(
        f"the kit is mixed: {fault}: take both from one 'fedmvc-server provision'",
        local_detail=str(folder),
    )
