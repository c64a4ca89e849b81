"""Cohorts that share no patient, as the site states under its own signature.

A privacy budget belongs to a cohort's name, and another name alone renews nothing: runs of all
cohorts count together until whoever holds the site's identity key has signed that no patient is in
both of two. A missing or broken statement therefore only ever makes budgets smaller.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from configs.errors import ConfigError, PolicyRefused
from privacy.canonical import pack
from privacy.key_files import replace_file

__all__ = ["FILE_NAME", "SeparateCohorts"]

#: Where a site keeps its statement, in its own folder.
FILE_NAME = "cohorts.json"
_WHAT = "statement on cohorts"
_MEANING = "no patient is in both cohorts of any of these pairs"


@dataclass(frozen=True)
class SeparateCohorts:
    """Pairs of cohorts of one site, and the site's signature under them.

    Attributes
    ----------
    site : str
    pairs : tuple of (str, str)
        Sorted, the names in a pair too.
    signature : bytes
        Ed25519, by the site's identity key.
    """

    site: str
    pairs: tuple[tuple[str, str], ...]
    signature: bytes

    @classmethod
    def sign(
        cls, site: str, pairs: Iterable[tuple[str, str]], identity: Ed25519PrivateKey
    ) -> SeparateCohorts:
        """State that no patient is in both cohorts of any pair.

        Raises
        ------
        ConfigError
            If a pair names one cohort twice, or the site's default cohort, which has no name and
            holds everybody.
        """
        ordered = tuple(sorted({(min(pair), max(pair)) for pair in pairs}))
        for first, second in ordered:
            if first == second or not (first and second):
                raise ConfigError(
                    f"cohorts '{first}' and '{second}' cannot be separate: give two different "
                    "names as policy.cohort has them"
                )
        return cls(site, ordered, identity.sign(_signed(site, ordered)))

    @classmethod
    def load(cls, path: Path) -> SeparateCohorts | None:
        """Read a statement; None where there is no file. The signature is not checked.

        Raises
        ------
        ConfigError
            If the file does not fit.
        """
        try:
            fields = json.loads(path.read_bytes())
            pairs = tuple((str(first), str(second)) for first, second in fields["separate"])
            return cls(
                str(fields["site"]), pairs, base64.b64decode(fields["signature"], validate=True)
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"{_WHAT} '{path.name}' cannot be read: remove it and sign again with "
                "`fedmvc-client budget separate`",
                local_detail=f"{path}: {error}",
            ) from None

    def dump(self, path: Path) -> None:
        """Write the statement, in place of an earlier one.

        Raises
        ------
        ConfigError
            If the file cannot be written.
        """
        body = {
            "site": self.site,
            "meaning": _MEANING,
            "separate": [list(pair) for pair in self.pairs],
            "signature": base64.b64encode(self.signature).decode(),
        }
        replace_file(path, (json.dumps(body, indent=2) + "\n").encode(), _WHAT, mode=0o644)

    def of(self, cohort: str, site: str, key: Ed25519PublicKey) -> frozenset[str]:
        """Return the cohorts that share no patient with one.

        Parameters
        ----------
        cohort : str
        site : str
            Whose statement it must be.
        key : Ed25519PublicKey
            The site's identity.

        Raises
        ------
        PolicyRefused
            If the site's identity key did not sign it.
        """
        try:
            key.verify(self.signature, _signed(site, self.pairs))
        except InvalidSignature:
            raise PolicyRefused(
                f"site '{site}' has a {_WHAT} that its identity key did not sign: remove "
                f"{FILE_NAME}, or sign again with `fedmvc-client budget separate`"
            ) from None
        return frozenset(
            other
            for first, second in self.pairs
            for one, other in ((first, second), (second, first))
            if one == cohort
        )


def _signed(site: str, pairs: tuple[tuple[str, str], ...]) -> bytes:
    names = [name for pair in pairs for name in pair]
    return pack("fedmvc cohorts", _MEANING, site, len(pairs), *names)
