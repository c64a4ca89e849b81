"""A site's set-up for masked sums: its keys, the check of all others' keys, and dealt shares.

Done in two exchanges for all masked exchanges that are left of the run: once before the first, and
again after the server was lost and the run resumed, so that what is asked from then on is masked by
keys that were not there before. Each message is stored before it is sent, so that a restarted site
repeats it byte for byte.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import ProtocolError
from privacy.canonical import pack, unpack
from privacy.key_agreement import KEY_BYTES, new_secret, public_of
from privacy.roster import Roster
from privacy.secagg_keys import (
    KeyMessage,
    read_keys,
    seed_commitment,
    transcript_of,
    verified_key_list,
    write_keys,
)
from privacy.secagg_shares import Envelope
from privacy.secagg_terms import RunTerms
from privacy.secret_sharing import SHARE_BYTES, split_secret
from privacy.vault import Vault

__all__ = ["SiteSetup", "forget_envelope_secret", "sealed"]

#: Secrets that belong to no exchange.
_SETUP = 0
#: What a vault holds of a set-up, besides the mark that it was complete.
_RECORDS = ("keys", "key list", "envelopes")
_SECRETS = ("envelope secret", "own", "own shares", "shares")


class SiteSetup:
    """One site's half of one set-up. Everything it knows is in the vault.

    Parameters
    ----------
    run : RunTerms
    first : int
        First exchange that the set-up is for; the last is E. It tells set-ups of a run apart.
    name : str
        The site's own name.
    identity : Ed25519PrivateKey
        Its identity key.
    roster : Roster
        Of the site's own start kit.
    vault : Vault
        The run's.
    """

    def __init__(
        self,
        run: RunTerms,
        first: int,
        name: str,
        identity: Ed25519PrivateKey,
        roster: Roster,
        vault: Vault,
    ) -> None:
        self.run = run
        self.first = first
        self.name = name
        self._identity = identity
        self._roster = roster
        self._vault = vault
        self._peers: dict[str, KeyMessage] = {}
        self._transcript = b""

    @property
    def _exchanges(self) -> range:
        return range(self.first, self.run.terms.exchanges + 1)

    def keys(self) -> bytes:
        """Return the signed key message, see `SecureSumSite.keys`."""
        vault = self._vault
        pending = vault.last("keys") if vault.last("keys") > vault.last("received") else 0
        if pending and vault.get("keys", self.first) is None:
            self._refuse_late()
            vault.forget(_SETUP + 1)  # its envelopes are opened by nobody any more
        with vault.transaction():
            message = vault.get("keys", self.first)
            if message is None:
                self._refuse_late()
                self._drop(pending)
                message = self._draw()
                vault.put("keys", message, self.first)
        return message

    def _refuse_late(self) -> None:
        """Refuse to go on with a set-up for an exchange that was answered, or not the newest."""
        answered, newest = self._vault.last("request"), self._vault.last("keys")
        if not (answered < self.first and newest <= self.first):
            raise self._out_of_order(
                f"a set-up from exchange {self.first} on comes after exchange {answered} was "
                f"answered and keys from exchange {newest} on were sent"
            )

    def _drop(self, first: int, since: int = 0) -> None:
        """Remove what is held of another set-up, for exchanges that it is not used for.

        So a vault never holds more than two, however often a server asks for one.
        """
        for record in _RECORDS:
            self._vault.drop(record, first)
        for secret in _SECRETS:
            self._vault.drop_secrets(_kind(secret, first), since)

    def _draw(self) -> bytes:
        exchanges = self._exchanges
        envelope_secret = new_secret()
        seeds = {e: secrets.token_bytes(KEY_BYTES) for e in exchanges}
        masking = {e: new_secret() for e in exchanges}
        self._vault.seal(_kind("envelope secret", self.first), {_SETUP: envelope_secret})
        self._vault.seal(_kind("own", self.first), {e: seeds[e] + masking[e] for e in exchanges})
        keys = KeyMessage(
            name=self.name,
            first=self.first,
            envelope_key=public_of(envelope_secret),
            masking_keys=tuple(public_of(masking[e]) for e in exchanges),
            seed_commitments=tuple(seed_commitment(seeds[e]) for e in exchanges),
            nonce=secrets.token_bytes(KEY_BYTES),
        )
        return write_keys(self.run, keys, self._identity)

    def own_secrets(self, exchange: int) -> tuple[bytes, bytes]:
        """Return the seed b_{u,e} and the masking secret s_{u,e}."""
        own = self.secret("own", exchange)
        return own[:KEY_BYTES], own[KEY_BYTES:]

    def shares(self, key_messages: Sequence[bytes]) -> dict[str, bytes]:
        """Deal the shares under a key list, see `SecureSumSite.shares`."""
        self._peers = {}  # of a list that may have been refused
        with self._vault.transaction():
            own = self._vault.get("keys", self.first)
            if own is None:
                raise self._out_of_order("its own keys are asked for after those of all sites")
            messages = verified_key_list(self.run, key_messages, self.first, self._roster)
            if own not in messages:
                raise ProtocolError(
                    f"the key list holds other keys of site '{self.name}' than it sent: start a "
                    "new run, and find out who stands between",
                    local_detail="own keys",
                )
            key_list = pack(*messages)
            stored = self._vault.get("key list", self.first)
            if stored is None:
                self._refuse_late()
                self._vault.put("key list", key_list, self.first)
                self._deal()
            elif stored != key_list:
                raise ProtocolError(
                    f"site '{self.name}' was shown two different key lists in one set-up: start a "
                    "new run, and find out who stands between",
                    local_detail="key list",
                )
            envelopes = unpack(self._vault.get("envelopes", self.first) or b"")
        return dict(zip(self.run.others(self.name), envelopes, strict=True))

    def _deal(self) -> None:
        """Share both secrets of every exchange, and seal each receiver's shares for it."""
        terms, exchanges = self.run.terms, self._exchanges
        dealt: dict[int, list[bytes]] = {}
        for e in exchanges:
            seed, masking = (
                split_secret(secret, terms.threshold, terms.n_sites)
                for secret in self.own_secrets(e)
            )
            dealt[e] = [b + s for b, s in zip(seed, masking, strict=True)]
        place = {name: i for i, name in enumerate(self.run.names)}
        own = {e: dealt[e][place[self.name]] for e in exchanges}
        self._vault.seal(_kind("own shares", self.first), own)
        secret = self.secret("envelope secret", _SETUP)
        envelopes = [
            self._envelope(self.name, other).seal(
                secret, b"".join(dealt[e][place[other]] for e in exchanges)
            )
            for other in self.run.others(self.name)
        ]
        self._vault.put("envelopes", pack(*envelopes), self.first)

    def receive(self, envelopes: Mapping[str, bytes]) -> None:
        """Open the shares that others dealt, see `SecureSumSite.receive`."""
        others = self.run.others(self.name)
        if set(envelopes) != set(others):
            raise ProtocolError(
                f"site '{self.name}' was handed {len(envelopes)} envelopes; one of each of the "
                f"other {len(others)} participants is due: a run begins with all of them",
                local_detail="envelopes",
            )
        seen = hashlib.sha256(pack(*(envelopes[name] for name in others))).digest()
        with self._vault.transaction():
            if self._vault.get("envelopes", self.first) is None:
                raise self._out_of_order("envelopes come after the key list")
            received = self._vault.get("received", self.first)
            if received is None:
                self._refuse_late()
                self._open(envelopes)
                self._drop(self._vault.last("received"), since=self.first)
                self._vault.put("received", seen, self.first)
            elif received != seen:
                raise ProtocolError(
                    f"site '{self.name}' was handed other envelopes than before: start a new run",
                    local_detail="envelopes",
                )
        forget_envelope_secret(self._vault)

    def _open(self, envelopes: Mapping[str, bytes]) -> None:
        secret = self.secret("envelope secret", _SETUP)
        opened = {
            name: self._envelope(name, self.name).open(secret, envelope)
            for name, envelope in envelopes.items()
        }
        size = 2 * SHARE_BYTES
        shares = {}
        for i, e in enumerate(self._exchanges):
            held = {name: body[size * i : size * (i + 1)] for name, body in opened.items()}
            held[self.name] = self.secret("own shares", e)
            shares[e] = b"".join(held[name] for name in self.run.names)
        self._vault.seal(_kind("shares", self.first), shares)

    def held_shares(self, exchange: int) -> dict[str, tuple[bytes, bytes]]:
        """Return this site's shares of each participant's seed and masking secret."""
        body = self.secret("shares", exchange)
        shares = [body[i : i + SHARE_BYTES] for i in range(0, len(body), SHARE_BYTES)]
        return dict(zip(self.run.names, zip(shares[::2], shares[1::2], strict=True), strict=True))

    def secret(self, kind: str, exchange: int) -> bytes:
        """Return what this set-up sealed, see `sealed`."""
        return sealed(self._vault, self.name, _kind(kind, self.first), exchange)

    @property
    def peers(self) -> Mapping[str, KeyMessage]:
        """All participants' keys, once the key list is checked."""
        self._load()
        return self._peers

    @property
    def transcript(self) -> bytes:
        """Hash of the key list."""
        self._load()
        return self._transcript

    def _load(self) -> None:
        if self._peers:
            return
        messages = unpack(self._vault.get("key list", self.first) or b"")
        self._peers = {keys.name: keys for keys in map(self._read, messages)}
        self._transcript = transcript_of(messages)

    def _read(self, message: bytes) -> KeyMessage:
        return read_keys(self.run, message, self.first)

    def _envelope(self, sender: str, receiver: str) -> Envelope:
        return Envelope(self.run, self.transcript, self.peers[sender], self.peers[receiver])

    def _out_of_order(self, why: str) -> ProtocolError:
        return ProtocolError(
            f"site '{self.name}' is asked out of order: {why}; start a new run",
            local_detail="order",
        )


def _kind(kind: str, first: int) -> str:
    """Name secrets of one set-up: two may hold secrets of the same exchange."""
    return f"{kind} from {first}"


def sealed(vault: Vault, site: str, kind: str, exchange: int) -> bytes:
    """Return what a site's vault sealed.

    Raises
    ------
    ProtocolError
        Where it is forgotten.
    """
    body = vault.unseal(kind, exchange)
    if body is None:
        raise ProtocolError(
            f"site '{site}' holds no secrets of exchange {exchange} any more: start a new run",
            local_detail="forgotten",
        )
    return body


def forget_envelope_secret(vault: Vault) -> None:
    """Make what travelled unreadable to everybody, unless a set-up may still become complete."""
    newest = vault.last("keys")
    if newest == vault.last("received") or newest <= vault.last("request"):
        vault.forget(_SETUP + 1)
