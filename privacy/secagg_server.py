"""The server's half of secure aggregation: it opens sums, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError, QuorumLost
from privacy.key_agreement import public_of
from privacy.masking import add_keystream, add_pair_masks, pair_key
from privacy.secagg_keys import seed_commitment, transcript_of
from privacy.secagg_relay import KeyRelay
from privacy.secagg_shares import read_answer
from privacy.secagg_terms import RunTerms
from privacy.secret_sharing import recombine

__all__ = ["SecureSumServer"]

Ring = NDArray[np.uint64]


class SecureSumServer:
    """The state machine of the server in one run.

    An exchange is `begin`, `take_upload` of each site, `survivors`, `take_answer` until `ready`,
    `open`. One that fails is left where it stands: the next takes the next number.

    Parameters
    ----------
    run : RunTerms

    Attributes
    ----------
    setup : KeyRelay
        Whose keys are in force.
    last : int
        Highest exchange that was begun; 0 before the first.
    named : tuple of (int, tuple of str)
        The exchange for which survivors were named last, and those: a site that answered them takes
        no others.
    """

    def __init__(self, run: RunTerms) -> None:
        self.run = run
        self.last = 0
        self.named: tuple[int, tuple[str, ...]] = (0, ())
        self.setup = KeyRelay(run, 1)
        self._forget_exchange()

    def _forget_exchange(self) -> None:
        self._digest = b""
        self._total: Ring | None = None
        self._uploads: dict[str, bytes] = {}
        self._survivors: tuple[str, ...] = ()
        self._answers: dict[str, dict[str, bytes]] = {}

    @property
    def previous(self) -> tuple[str, ...]:
        """Survivors that were named last: what the next request must carry."""
        return self.named[1]

    def renew(self, setup: KeyRelay) -> None:
        """Put a later set-up in force for its exchanges.

        Raises
        ------
        ProtocolError
            If one of its exchanges was begun.
        QuorumLost
            If a participant's keys or shares are missing.
        """
        setup.require_all()
        if setup.first <= self.last:
            raise ProtocolError(
                f"a set-up from exchange {setup.first} on comes after exchange {self.last} was "
                "begun: begin it before"
            )
        self.setup = setup

    def begin(self, exchange: int, digest: bytes, n_numbers: int) -> None:
        """Begin an exchange; one that is under way is given up.

        Parameters
        ----------
        exchange : int
            e, above every earlier one, at most E.
        digest : bytes
            Hash of the request that all sites get, see `request_digest`.
        n_numbers : int
            Length k of each upload.

        Raises
        ------
        ProtocolError
            If the counter was used before, or the plan's exchanges are used up.
        QuorumLost
            If a participant's keys are missing.
        """
        self.setup.key_list()
        exchanges = self.run.terms.exchanges
        if not self.last < exchange <= exchanges:
            raise ProtocolError(
                f"exchange {exchange} cannot follow exchange {self.last} of {exchanges}: raise "
                "privacy.spare_exchanges and start a new run"
            )
        self._forget_exchange()
        self.last = exchange
        self._digest = digest
        self._total = np.zeros(n_numbers, np.uint64)

    def take_upload(self, site: str, vector: Ring) -> None:
        """Take a masked vector; the same one may come again.

        Raises
        ------
        ProtocolError
            If it has another shape, differs from what the site sent before, or is late: survivors
            are named. Names the site.
        """
        total = self._under_way()
        if vector.shape != total.shape or vector.dtype.kind != "u" or vector.dtype.itemsize != 8:
            raise ProtocolError(
                f"site '{site}' sent {vector.dtype} of shape {vector.shape} in exchange "
                f"{self.last}; expected uint64 of shape {total.shape}: it runs another version"
            )
        if site not in self.run.names:
            raise ProtocolError(f"site '{site}' is not among the participants: leave it out")
        seen = hashlib.sha256(np.ascontiguousarray(vector, "<u8").data).digest()
        if site in self._uploads:
            if self._uploads[site] != seen:
                raise ProtocolError(
                    f"site '{site}' sent two different vectors in exchange {self.last}: it lost "
                    "its state; start a new run"
                )
            return
        if self._survivors:
            raise ProtocolError(
                f"site '{site}' sent its vector after the survivors of exchange {self.last} were "
                "named: it takes part in the next"
            )
        self._uploads[site] = seen
        total += vector

    def survivors(self) -> tuple[str, ...]:
        """Name the sites whose upload is here; from now on this exchange takes no other.

        Raises
        ------
        QuorumLost
            If they are fewer than n - d: nothing may be opened. More uploads may still come.
        """
        self._under_way()
        terms = self.run.terms
        if len(self._uploads) < terms.least_contributors:
            missing = [name for name in self.run.names if name not in self._uploads]
            raise QuorumLost(
                f"exchange {self.last} has the vectors of {len(self._uploads)} of {terms.n_sites} "
                f"sites and needs {terms.least_contributors}; missing: {', '.join(missing)}"
            )
        if not self._survivors:
            self._survivors = tuple(name for name in self.run.names if name in self._uploads)
            self.named = (self.last, self._survivors)
        return self._survivors

    def take_answer(self, site: str, answer: bytes) -> None:
        """Take a survivor's shares.

        Raises
        ------
        ProtocolError
            If they are malformed, answer another question, or the site is no survivor. Names the
            site.
        """
        if site not in self._survivors:
            raise ProtocolError(
                f"site '{site}' answered for exchange {self.last} and is not among its survivors"
            )
        self._answers[site] = read_answer(self.run, site, self.last, self._survivors, answer)

    @property
    def ready(self) -> bool:
        """Whether the exchange holds the t answers that open it."""
        return len(self._answers) >= self.run.terms.threshold

    def open(self) -> Ring:
        """Open the sum over the survivors.

        Returns
        -------
        ndarray of shape (k,), uint64
            See `privacy.fixed_point.FixedPoint.decode`.

        Raises
        ------
        QuorumLost
            If fewer than t answers are in.
        ProtocolError
            If recombined shares do not give what a site committed to; names the site. The exchange
            is over then, and nothing of it was decoded.
        """
        total, digest = self._under_way(), self._digest
        threshold = self.run.terms.threshold
        if not self.ready:
            raise QuorumLost(
                f"exchange {self.last} has the answers of {len(self._answers)} sites and needs "
                f"{threshold}; answered: {', '.join(sorted(self._answers)) or 'none'}"
            )
        survivors = self._survivors
        try:
            secrets = {name: self._recombined(name) for name in self.run.names}
        finally:
            self._forget_exchange()
        for name, secret in secrets.items():
            if name in survivors:
                add_keystream(total, secret, sign=-1)
            else:
                add_pair_masks(total, name, self._pair_keys(name, secret, survivors, digest))
        return total

    def _recombined(self, name: str) -> bytes:
        """Return a survivor's seed or a lost site's masking secret, checked against its keys."""
        chosen = sorted(self._answers)[: self.run.terms.threshold]
        secret = recombine(
            {self.run.share_index(site): self._answers[site][name] for site in chosen}
        )
        keys = self.setup.keys[name]
        if name in self._survivors:
            fits = seed_commitment(secret) == keys.commitment(self.last)
        else:
            fits = public_of(secret) == keys.masking_key(self.last)
        if not fits:
            raise ProtocolError(
                f"the shares of site '{name}' do not give the secret that it committed to in "
                f"exchange {self.last}: it dealt wrong shares, or one of {', '.join(chosen)} "
                "answered wrongly; nothing was opened"
            )
        return secret

    def _pair_keys(
        self, lost: str, secret: bytes, survivors: Sequence[str], digest: bytes
    ) -> dict[str, bytes]:
        """Return the keys that a lost site shares with the survivors."""
        transcript = transcript_of(self.setup.key_list())
        return {
            other: pair_key(
                secret,
                self.setup.keys[other].masking_key(self.last),
                transcript=transcript,
                exchange=self.last,
                digest=digest,
                pair=(lost, other),
            )
            for other in survivors
        }

    def _under_way(self) -> Ring:
        if self._total is None:
            raise ProtocolError(
                f"no exchange is under way (the last was {self.last}): begin one first"
            )
        return self._total
