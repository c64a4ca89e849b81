"""The signed key message of a secure sum: one from each site, once a set-up.

It names the version, the run, the plan and the first exchange that it has keys for, so that none
can stand in for one of another run, or of another set-up of the same run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from configs.errors import ProtocolError
from privacy.canonical import pack, unpack
from privacy.key_agreement import KEY_BYTES
from privacy.roster import Roster
from privacy.secagg_terms import RunTerms

__all__ = [
    "KeyMessage",
    "read_keys",
    "seed_commitment",
    "transcript_of",
    "verified_key_list",
    "write_keys",
]

_HEAD = ("version", "run", "plan", "roster", "name", "n", "t", "d", "c", "E", "first exchange")


@dataclass(frozen=True)
class KeyMessage:
    """What a site publishes in a set-up.

    Attributes
    ----------
    name : str
    first : int
        First exchange that the keys are for, from 1; the last is E.
    envelope_key : bytes
        X25519 public key that shares are sent under.
    masking_keys : tuple of bytes
        S_{u,e}: one X25519 public key an exchange, from ``first`` on.
    seed_commitments : tuple of bytes
        One an exchange, see `seed_commitment`.
    nonce : bytes
        32 random bytes: no two messages are alike.
    """

    name: str
    first: int
    envelope_key: bytes
    masking_keys: tuple[bytes, ...]
    seed_commitments: tuple[bytes, ...]
    nonce: bytes

    def masking_key(self, exchange: int) -> bytes:
        """Return S_{u,e}."""
        return self.masking_keys[exchange - self.first]

    def commitment(self, exchange: int) -> bytes:
        """Return what the site committed to of b_{u,e}."""
        return self.seed_commitments[exchange - self.first]


def seed_commitment(seed: bytes) -> bytes:
    """Commit to the seed b_{u,e} of a self-mask."""
    return hashlib.sha256(b"fedmvc b" + seed).digest()


def write_keys(run: RunTerms, keys: KeyMessage, identity: Ed25519PrivateKey) -> bytes:
    """Encode and sign a site's keys."""
    body = pack(
        *run.head(keys.name),
        keys.first,
        keys.envelope_key,
        pack(*keys.masking_keys),
        pack(*keys.seed_commitments),
        keys.nonce,
    )
    return pack(body, identity.sign(body))


def read_keys(run: RunTerms, message: bytes, first: int) -> KeyMessage:
    """Read a key message; its signature is another matter, see `verified_key_list`.

    Raises
    ------
    ProtocolError
        If it is malformed, or of another version, run, plan, roster, terms or first exchange.
    """
    parts = unpack(message)
    fields = unpack(parts[0]) if len(parts) == 2 else ()
    if len(fields) != len(_HEAD) + 4:
        raise ProtocolError("a key message is malformed: its sender runs another version")
    name = fields[_HEAD.index("name")].decode(errors="replace")
    if name not in run.names:
        raise ProtocolError(
            f"a key message comes from {name[:64]!r}, which is not among the plan's "
            f"{run.terms.n_sites} participants: check privacy.participants"
        )
    expected = unpack(pack(*run.head(name), first))
    differing = [
        what for what, sent, ours in zip(_HEAD, fields, expected, strict=False) if sent != ours
    ]
    if differing:
        raise ProtocolError(
            f"site '{name}' sent keys for another {differing[0]}: all sites must hold the same "
            "plan, roster and version"
        )
    envelope_key, masking_keys, commitments, nonce = fields[len(_HEAD) :]
    keys = KeyMessage(name, first, envelope_key, unpack(masking_keys), unpack(commitments), nonce)
    lists = (keys.masking_keys, keys.seed_commitments)
    lengths = {len(value) for value in (envelope_key, nonce, *lists[0], *lists[1])}
    if lengths != {KEY_BYTES} or {len(each) for each in lists} != {run.terms.exchanges - first + 1}:
        raise ProtocolError(f"site '{name}' sent malformed keys: it runs another version")
    return keys


def verified_key_list(
    run: RunTerms, key_messages: Sequence[bytes], first: int, roster: Roster
) -> tuple[bytes, ...]:
    """Check that every participant stands in a key list once, signed by its identity.

    Parameters
    ----------
    run : RunTerms
    key_messages : sequence of bytes
        In any order.
    first : int
        First exchange of the set-up.
    roster : Roster
        Of the site that checks.

    Returns
    -------
    tuple of bytes
        The messages in name order.

    Raises
    ------
    ProtocolError
        If a participant is missing, unknown, doubled, of another run or set-up, or not signed.
    """
    found: dict[str, bytes] = {}
    for message in key_messages:
        name = read_keys(run, message, first).name
        if name in found:
            raise ProtocolError(
                f"site '{name}' stands twice in the key list: each site sends one message",
                local_detail="doubled",
            )
        _verify(message, name, roster.key_of(name))
        found[name] = message
    missing = [name for name in run.names if name not in found]
    if missing:
        raise ProtocolError(
            f"the key list holds {len(found)} of {run.terms.n_sites} participants; missing: "
            f"{', '.join(missing)}: a run begins with all of them",
            local_detail="missing",
        )
    return tuple(found[name] for name in run.names)


def _verify(message: bytes, name: str, identity: Ed25519PublicKey) -> None:
    body, signature = unpack(message)
    try:
        identity.verify(signature, body)
    except InvalidSignature:
        raise ProtocolError(
            f"the keys of site '{name}' are not signed by the identity in this site's roster: "
            "somebody stands between, or the roster is old; compare rosters before another run",
            local_detail="signature",
        ) from None


def transcript_of(key_messages: Sequence[bytes]) -> bytes:
    """Hash all signed key messages, given in name order."""
    return hashlib.sha256(pack(*key_messages)).digest()
