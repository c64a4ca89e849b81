"""The roster: which sites are in a federation, and the identity key of each.

The operator builds it and hands it to every site outside the network, in its start kit. A site
trusts no key that is not in its own copy, so a server cannot put another key, or another site, in
the place of one that the roster names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from configs.errors import ConfigError, ProtocolError
from configs.site import SITE_NAME
from privacy.canonical import pack
from privacy.identity import PUBLIC_BYTES, fingerprint, read_public_text
from privacy.key_files import write_new

__all__ = ["Roster"]

_VERSION = 1
_WHAT = "roster"
_WAY_OUT = "get it again from the operator, who makes it with `fedmvc-server roster build`"


@dataclass(frozen=True)
class Roster:
    """Sites of a federation and their public identity keys.

    Attributes
    ----------
    federation : str
        Name of the federation.
    keys : mapping of str to bytes
        The 32 bytes of each site's Ed25519 public key.

    Raises
    ------
    ConfigError
        If a name or a key does not fit, no site is named, or two sites have one key.
    """

    federation: str
    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        for what, name in [("federation", self.federation), *(("site", n) for n in self.keys)]:
            if not re.fullmatch(SITE_NAME, name):
                raise ConfigError(
                    f"{_WHAT}: {what} is named {name[:64]!r}: give 1 to 64 letters, digits, '.', "
                    "'_' or '-', the first a letter or digit"
                )
        if not self.keys:
            raise ConfigError(f"{_WHAT} of federation '{self.federation}' names no site: add some")
        owner: dict[bytes, str] = {}
        for name, key in self.keys.items():
            if len(key) != PUBLIC_BYTES:
                raise ConfigError(
                    f"{_WHAT}: the key of site '{name}' has {len(key)} bytes and an Ed25519 key "
                    f"has {PUBLIC_BYTES}: {_WAY_OUT}"
                )
            if key in owner:
                raise ConfigError(
                    f"{_WHAT}: sites '{owner[key]}' and '{name}' have one key, so that one of them "
                    "could speak for both: let each make its own with `fedmvc-client keygen`"
                )
            owner[key] = name
        object.__setattr__(self, "keys", {name: self.keys[name] for name in sorted(self.keys)})

    @classmethod
    def load(cls, path: Path) -> Roster:
        """Read a roster file.

        Raises
        ------
        ConfigError
            If the file cannot be read or does not fit; with the way out.
        """
        path = Path(path)
        named, detail = f"{_WHAT} '{path.name}'", str(path)
        try:
            fields = json.loads(path.read_bytes(), object_pairs_hook=_without_repeats)
        except FileNotFoundError:
            raise ConfigError(f"{named} does not exist: {_WAY_OUT}", local_detail=detail) from None
        except OSError as error:
            raise ConfigError(
                f"{named} cannot be read: {error.strerror}", local_detail=detail
            ) from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{named} is damaged (no JSON object, or a name stands in it twice): {_WAY_OUT}",
                local_detail=f"{detail}: {error}",
            ) from None
        if (
            not isinstance(fields, dict)
            or set(fields) != {"version", "federation", "sites"}
            or fields["version"] != _VERSION
            or not isinstance(fields["federation"], str)
            or not isinstance(fields["sites"], dict)
            or not all(isinstance(key, str) for key in fields["sites"].values())
        ):
            raise ConfigError(
                f"{named} is none of version {_VERSION} (keys version, federation, sites): "
                f"{_WAY_OUT}",
                local_detail=detail,
            )
        try:
            return cls(
                fields["federation"],
                {
                    name: read_public_text(key, f"site '{name[:64]}'")
                    for name, key in fields["sites"].items()
                },
            )
        except ConfigError as error:
            raise ConfigError(f"{named}: {error.public_message}", local_detail=detail) from None

    def dump(self, path: Path) -> None:
        """Write a roster file that is not there yet.

        Raises
        ------
        ConfigError
            If the file exists or cannot be written.
        """
        sites = {name: base64.b64encode(key).decode() for name, key in self.keys.items()}
        body = {"version": _VERSION, "federation": self.federation, "sites": sites}
        write_new(
            path,
            (json.dumps(body, indent=2) + "\n").encode(),
            _WHAT,
            "name another file, or remove it first where every site is to get a new one",
            mode=0o644,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites, sorted."""
        return tuple(self.keys)

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of the federation's name and of all names and keys in name order (32 bytes)."""
        fields = [field for name, key in self.keys.items() for field in (name, key)]
        body = pack("fedmvc roster", _VERSION, self.federation, len(self.keys), *fields)
        return hashlib.sha256(body).digest()

    def key_of(self, name: str) -> Ed25519PublicKey:
        """Return a site's key.

        Raises
        ------
        ProtocolError
            If the roster does not name the site.
        """
        return Ed25519PublicKey.from_public_bytes(self._raw(name))

    def fingerprint(self, name: str) -> str:
        """Return the fingerprint of a site's key (see `privacy.identity.fingerprint`).

        Raises
        ------
        ProtocolError
            If the roster does not name the site.
        """
        return fingerprint(self._raw(name))

    def _raw(self, name: str) -> bytes:
        if name not in self.keys:
            raise ProtocolError(
                f"{_WHAT} of federation '{self.federation}' names no site '{name[:64]}': let the "
                "operator build a roster with it and hand that to every site"
            )
        return self.keys[name]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("a key stands twice")
    return dict(pairs)
