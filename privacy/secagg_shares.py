"""Shares on their way: from site to site in envelopes, and from a site to the server as answers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from configs.errors import ProtocolError
from privacy.canonical import pack, unpack
from privacy.key_agreement import derive_key
from privacy.secagg_keys import KeyMessage
from privacy.secagg_terms import VERSION, RunTerms
from privacy.secret_sharing import SHARE_BYTES

__all__ = ["Envelope", "read_answer", "write_answer"]

_NONCE_BYTES = 12


@dataclass(frozen=True)
class Envelope:
    """A directed pair of sites and the transcript that both must have seen.

    Attributes
    ----------
    run : RunTerms
    transcript : bytes
    sender, receiver : KeyMessage
    """

    run: RunTerms
    transcript: bytes
    sender: KeyMessage
    receiver: KeyMessage

    def seal(self, secret: bytes, shares: bytes) -> bytes:
        """Encrypt the sender's shares for the receiver.

        Parameters
        ----------
        secret : bytes
            The sender's envelope secret.
        shares : bytes
            For every exchange of the set-up the shares of the seed and of the masking secret.

        Returns
        -------
        bytes
            A random nonce of 12 bytes, then ChaCha20-Poly1305's output.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        cipher = ChaCha20Poly1305(self._key(secret, self.receiver.envelope_key))
        return nonce + cipher.encrypt(nonce, shares, self._associated)

    def open(self, secret: bytes, envelope: bytes) -> bytes:
        """Decrypt what the sender closed.

        Parameters
        ----------
        secret : bytes
            The receiver's envelope secret.
        envelope : bytes

        Raises
        ------
        ProtocolError
            If it was closed by another site, for another site, or under another key list.
        """
        cipher = ChaCha20Poly1305(self._key(secret, self.sender.envelope_key))
        try:
            shares = cipher.decrypt(
                envelope[:_NONCE_BYTES], envelope[_NONCE_BYTES:], self._associated
            )
        except (InvalidTag, ValueError):
            shares = b""
        if len(shares) != 2 * SHARE_BYTES * (self._last - self.sender.first + 1):
            raise ProtocolError(
                f"site '{self.receiver.name}' cannot open the envelope of site "
                f"'{self.sender.name}': both must have been shown the same key list; start the "
                "run again",
                local_detail="envelope",
            )
        return shares

    def _key(self, secret: bytes, public: bytes) -> bytes:
        info = pack(
            "envelope",
            self.sender.name,
            self.receiver.name,
            self.sender.envelope_key,
            self.receiver.envelope_key,
        )
        return derive_key(secret, public, salt=self.transcript, info=info)

    @property
    def _associated(self) -> bytes:
        run = self.run
        names = (self.sender.name, self.receiver.name)
        exchanges = self.sender.first, self._last
        return pack(VERSION, run.run_id, run.plan_id, self.transcript, *names, *exchanges)

    @property
    def _last(self) -> int:
        return self.run.terms.exchanges


def write_answer(
    run: RunTerms, name: str, exchange: int, survivors: Sequence[str], shares: Mapping[str, bytes]
) -> bytes:
    """Encode a site's answer to the question who is in the sum.

    Parameters
    ----------
    run : RunTerms
    name : str
        The answering site.
    exchange : int
    survivors : sequence of str
        The set that it was asked for.
    shares : mapping of str to bytes
        For every participant one share of 32 bytes: of the seed where it survived, else of the
        masking secret.
    """
    body = b"".join(shares[other] for other in run.names)
    return pack(*_answer_head(run, name, exchange, survivors), body)


def read_answer(
    run: RunTerms, name: str, exchange: int, survivors: Sequence[str], answer: bytes
) -> dict[str, bytes]:
    """Read an answer, see `write_answer`.

    Raises
    ------
    ProtocolError
        If it is malformed or answers another question; names the site.
    """
    *head, body = unpack(answer) or (b"",)
    if tuple(head) != unpack(pack(*_answer_head(run, name, exchange, survivors))):
        raise ProtocolError(
            f"site '{name}' answered another question than who is in exchange {exchange}: it runs "
            "another version, or its message was swapped"
        )
    if len(body) != SHARE_BYTES * run.terms.n_sites:
        raise ProtocolError(
            f"site '{name}' sent {len(body)} bytes of shares in exchange {exchange}; "
            f"{SHARE_BYTES * run.terms.n_sites} are due: it runs another version"
        )
    return {
        other: body[SHARE_BYTES * i : SHARE_BYTES * (i + 1)] for i, other in enumerate(run.names)
    }


def _answer_head(
    run: RunTerms, name: str, exchange: int, survivors: Sequence[str]
) -> tuple[bytes | str | int, ...]:
    return VERSION, "answer", run.run_id, run.plan_id, exchange, name, pack(*survivors)
