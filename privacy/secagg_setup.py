"""A site's set-up for masked sums: its keys, the check of all others' keys, and dealt shares.

Done once a run, in two exchanges, for all masked exchanges of the run. Each message is stored
before it is sent, so that a restarted site repeats it byte for byte.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import ProtocolError
from configs.secure_terms import check_terms
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

__all__ = ["SiteSetup"]

#: Secrets that belong to no exchange.
_SETUP = 0


class SiteSetup:
    """One site's half of the set-up.

    Parameters
    ----------
    run : RunTerms
    name : str
        The site's own name.
    identity : Ed25519PrivateKey
        Its identity key.
    roster : Roster
        Of the site's own start kit.
    vault : Vault
        The run's; a vault with an earlier set-up of the same run resumes it.

    Raises
    ------
    ConfigError
        If the terms would let a lying server open too small a sum.
    ProtocolError
        If the site is no participant, its roster is another, or the vault is another run's.
    """

    def __init__(
        self, run: RunTerms, name: str, identity: Ed25519PrivateKey, roster: Roster, vault: Vault
    ) -> None:
        terms = run.terms
        check_terms(terms.n_sites, terms.colluders, terms.tolerated_dropouts, terms.threshold)
        if name not in run.names:
            raise ProtocolError(
                f"site '{name}' is not among the plan's {terms.n_sites} participants: check "
                "privacy.participants",
                local_detail="participant",
            )
        if roster.hash != run.roster_hash:
            raise ProtocolError(
                f"site '{name}' holds another roster than this run's: get the newest from the "
                "operator by the way that start kits come, never from the server",
                local_detail="roster",
            )
        self.run = run
        self.name = name
        self._identity = identity
        self._roster = roster
        self._vault = vault
        self._peers: dict[str, KeyMessage] = {}
        self._transcript = b""
        self._bind()
        if self.complete:
            vault.forget(_SETUP + 1)  # a crash may have come between

    def _bind(self) -> None:
        """Tie a new vault to the run, and refuse one that is tied to another."""
        bound = pack(*self.run.head(self.name), *self.run.names)
        with self._vault.transaction():
            found = self._vault.get("run")
            if found is None:
                self._vault.put("run", bound)
        if found not in (None, bound):
            raise ProtocolError(
                f"site '{self.name}' holds secrets of another plan, roster or participant list "
                "under this run's id: start a new run",
                local_detail="run",
            )

    def keys(self) -> bytes:
        """Return the signed key message, see `SecureSumSite.keys`."""
        with self._vault.transaction():
            message = self._vault.get("keys")
            if message is None:
                message = self._draw()
                self._vault.put("keys", message)
        return message

    def _draw(self) -> bytes:
        exchanges = range(1, self.run.terms.exchanges + 1)
        envelope_secret = new_secret()
        seeds = {e: secrets.token_bytes(KEY_BYTES) for e in exchanges}
        masking = {e: new_secret() for e in exchanges}
        self._vault.seal("envelope secret", {_SETUP: envelope_secret})
        self._vault.seal("own", {e: seeds[e] + masking[e] for e in exchanges})
        keys = KeyMessage(
            name=self.name,
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
            own = self._vault.get("keys")
            if own is None:
                raise self._out_of_order("its own keys are asked for after those of all sites")
            messages = verified_key_list(self.run, key_messages, self._roster)
            if own not in messages:
                raise ProtocolError(
                    f"the key list holds other keys of site '{self.name}' than it sent: start a "
                    "new run, and find out who stands between",
                    local_detail="own keys",
                )
            key_list = pack(*messages)
            stored = self._vault.get("key list")
            if stored is None:
                self._vault.put("key list", key_list)
                self._deal()
            elif stored != key_list:
                raise ProtocolError(
                    f"site '{self.name}' was shown two different key lists in one run: start a new "
                    "run, and find out who stands between",
                    local_detail="key list",
                )
            sealed = unpack(self._vault.get("envelopes") or b"")
        return dict(zip(self.run.others(self.name), sealed, strict=True))

    def _deal(self) -> None:
        """Share both secrets of every exchange, and seal each receiver's shares for it."""
        terms = self.run.terms
        exchanges = range(1, terms.exchanges + 1)
        dealt: dict[int, list[bytes]] = {}
        for e in exchanges:
            seed, masking = (
                split_secret(secret, terms.threshold, terms.n_sites)
                for secret in self.own_secrets(e)
            )
            dealt[e] = [b + s for b, s in zip(seed, masking, strict=True)]
        place = {name: i for i, name in enumerate(self.run.names)}
        self._vault.seal("own shares", {e: dealt[e][place[self.name]] for e in exchanges})
        secret = self.secret("envelope secret", _SETUP)
        envelopes = [
            self._envelope(self.name, other).seal(
                secret, b"".join(dealt[e][place[other]] for e in exchanges)
            )
            for other in self.run.others(self.name)
        ]
        self._vault.put("envelopes", pack(*envelopes))

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
            if self._vault.get("envelopes") is None:
                raise self._out_of_order("envelopes come after the key list")
            received = self._vault.get("received")
            if received is None:
                self._open(envelopes)
                self._vault.put("received", seen)
            elif received != seen:
                raise ProtocolError(
                    f"site '{self.name}' was handed other envelopes than before: start a new run",
                    local_detail="envelopes",
                )
        # nobody can read what travelled any more
        self._vault.forget(_SETUP + 1)

    def _open(self, envelopes: Mapping[str, bytes]) -> None:
        terms = self.run.terms
        secret = self.secret("envelope secret", _SETUP)
        opened = {
            name: self._envelope(name, self.name).open(secret, envelope)
            for name, envelope in envelopes.items()
        }
        size = 2 * SHARE_BYTES
        shares = {}
        for e in range(1, terms.exchanges + 1):
            held = {name: body[size * (e - 1) : size * e] for name, body in opened.items()}
            held[self.name] = self.secret("own shares", e)
            shares[e] = b"".join(held[name] for name in self.run.names)
        self._vault.seal("shares", shares)

    @property
    def complete(self) -> bool:
        """Whether all envelopes are opened, so that masked exchanges may begin."""
        return self._vault.get("received") is not None

    def held_shares(self, exchange: int) -> dict[str, tuple[bytes, bytes]]:
        """Return this site's shares of each participant's seed and masking secret."""
        body = self.secret("shares", exchange)
        shares = [body[i : i + SHARE_BYTES] for i in range(0, len(body), SHARE_BYTES)]
        return dict(zip(self.run.names, zip(shares[::2], shares[1::2], strict=True), strict=True))

    def secret(self, kind: str, exchange: int) -> bytes:
        """Return what the vault sealed; refuse where it is forgotten."""
        body = self._vault.unseal(kind, exchange)
        if body is None:
            raise ProtocolError(
                f"site '{self.name}' holds no secrets of exchange {exchange} any more: start a new "
                "run",
                local_detail="forgotten",
            )
        return body

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
        messages = unpack(self._vault.get("key list") or b"")
        self._peers = {keys.name: keys for keys in (read_keys(self.run, m) for m in messages)}
        self._transcript = transcript_of(messages)

    def _envelope(self, sender: str, receiver: str) -> Envelope:
        return Envelope(self.run, self.transcript, self.peers[sender], self.peers[receiver])

    def _out_of_order(self, why: str) -> ProtocolError:
        return ProtocolError(
            f"site '{self.name}' is asked out of order: {why}; start a new run",
            local_detail="order",
        )
