"""One site's half of secure aggregation: what it sends, and everything that it refuses.

The server may lie. A site therefore counts on nothing but its own vault: each exchange is answered
once, for one request, and opened for one set of survivors; the thresholds of the plan make sure
that no choice of sets opens a sum of fewer than n - d sites. A refused request changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from configs.errors import ProtocolError
from privacy.canonical import pack, unpack
from privacy.masking import mask, pair_key
from privacy.roster import Roster
from privacy.secagg_binding import bind_site
from privacy.secagg_setup import SiteSetup, forget_envelope_secret, sealed
from privacy.secagg_shares import write_answer
from privacy.secagg_terms import RunTerms, is_survivor_set
from privacy.vault import Vault

__all__ = ["SecureSumSite", "end_run"]

Ring = NDArray[np.uint64]

_DIGEST_BYTES = 32


class SecureSumSite:
    """The state machine of one site in one run. Everything it knows is in the vault.

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
        The run's. A second site over the same vault goes on where the first was killed.

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
        bind_site(run, name, roster, vault)
        self.run = run
        self.name = name
        self._identity = identity
        self._roster = roster
        self._vault = vault
        self._setups: dict[int, SiteSetup] = {}
        # a crash may have come between what made secrets useless and their end
        forget_envelope_secret(vault)
        vault.forget(vault.last("request"), since=1)
        if self.over:
            vault.forget()

    def _setup(self, first: int) -> SiteSetup:
        """Return the set-up of the exchanges from one on."""
        last = self.run.terms.exchanges
        if not 1 <= first <= last:
            raise self._refused("order", f"no set-up begins with exchange {first} of {last}")
        if first not in self._setups:
            self._setups[first] = SiteSetup(
                self.run, first, self.name, self._identity, self._roster, self._vault
            )
        return self._setups[first]

    def _setup_of(self, exchange: int) -> SiteSetup:
        """Return the newest complete set-up that has keys of an exchange."""
        first = self._vault.last("received", exchange)
        if first == 0:
            raise self._refused("order", "sums are asked for before the set-up is complete")
        return self._setup(first)

    @property
    def over(self) -> bool:
        """Whether the run was closed or aborted; its secrets are gone."""
        return self._vault.get("over") is not None

    def keys(self, first: int = 1) -> bytes:
        """Publish this site's keys: the first step of a set-up.

        Parameters
        ----------
        first : int
            First exchange that they are for: 1, and above the last one answered where a run that
            was resumed is set up again. Until the new set-up is complete the one before is in
            force, and whatever was answered under it stays bound to it.

        Returns
        -------
        bytes
            The signed key message; the same bytes whenever it is asked.

        Raises
        ------
        ProtocolError
            If the exchange was answered, keys from a later one on were sent, or the run is over.
        """
        self._refuse_over()
        return self._setup(first).keys()

    def shares(self, key_messages: Sequence[bytes], first: int = 1) -> dict[str, bytes]:
        """Check all participants' keys, and deal shares of every secret to them.

        Parameters
        ----------
        key_messages : sequence of bytes
            Signed key messages of all participants, this site's among them.
        first : int
            As for `keys`.

        Returns
        -------
        dict of str to bytes
            One envelope for each other participant; the same bytes whenever it is asked.

        Raises
        ------
        ProtocolError
            If a participant is missing, unknown, doubled or unsigned, a message is of another
            version, run, plan, roster, terms or set-up, the site's own is not what it sent, another
            list was shown before, the set-up is late, or the run is over.
        """
        self._refuse_over()
        return self._setup(first).shares(key_messages)

    def receive(self, envelopes: Mapping[str, bytes]) -> None:
        """Open the shares that the others dealt in the newest set-up, which is complete then.

        The same envelopes may come again.

        Parameters
        ----------
        envelopes : mapping of str to bytes
            The envelope of each other participant for this site.

        Raises
        ------
        ProtocolError
            If one is missing, cannot be opened or differs from before, the set-up is late, or the
            run is over.
        """
        self._refuse_over()
        self._setup(self._vault.last("keys")).receive(envelopes)

    def answered(self, exchange: int, digest: bytes, previous: Sequence[str]) -> Ring | None:
        """Say whether a request was answered before; called before any work or noise is spent.

        Parameters
        ----------
        exchange, digest, previous
            See `upload`.

        Returns
        -------
        ndarray of shape (k,), uint64, or None
            What was sent for this very request; None if it is new and may be answered.

        Raises
        ------
        ProtocolError
            If the request must be refused.
        """
        self._refuse_over()
        newest = self._setup_of(self.run.terms.exchanges)
        last = self._vault.last("request")
        if exchange == last > 0 and self._vault.get("request", exchange) == digest:
            return np.frombuffer(sealed(self._vault, self.name, "upload", exchange), "<u8")
        if exchange == last > 0:
            raise self._refused(
                "second request", f"exchange {exchange} was asked for with another request before"
            )
        if not max(last, newest.first - 1) < exchange <= self.run.terms.exchanges:
            raise self._refused(
                "exchange",
                f"exchange {exchange} is asked for after exchange {last} of "
                f"{self.run.terms.exchanges}, under keys from exchange {newest.first} on",
            )
        if len(digest) != _DIGEST_BYTES:
            raise self._refused("digest", f"a request's hash has {len(digest)} bytes, not 32")
        self._check_named(exchange - 1, previous)
        return None

    def upload(self, exchange: int, digest: bytes, previous: Sequence[str], values: Ring) -> Ring:
        """Mask one exchange's numbers.

        Once the request is accepted, the secrets of all earlier exchanges are destroyed.

        Parameters
        ----------
        exchange : int
            e, above the last one, at most E.
        digest : bytes
            Hash of the whole request, see `request_digest`; bound into the masks.
        previous : sequence of str
            The survivors that the server named last, none before the first time. A site that
            has sent nothing since its last answer must find the set that it answered, or one
            without itself that was named while it was away.
        values : ndarray of shape (k,), uint64
            The site's numbers, see `privacy.fixed_point`.

        Returns
        -------
        ndarray of shape (k,), uint64
            The masked numbers, stored before they are returned; for a repeated request the stored
            ones, whatever the values.

        Raises
        ------
        ProtocolError
            If the request must be refused.
        """
        with self._vault.transaction():
            stored = self.answered(exchange, digest, previous)
            if stored is None:
                stored = self._masked(exchange, digest, values)
                self._vault.put("request", digest, exchange)
                self._vault.seal("upload", {exchange: stored.astype("<u8").tobytes()})
        forget_envelope_secret(self._vault)
        self._vault.forget(exchange, since=1)
        return stored

    def _masked(self, exchange: int, digest: bytes, values: Ring) -> Ring:
        setup = self._setup_of(exchange)
        seed, secret = setup.own_secrets(exchange)
        keys = {
            other: pair_key(
                secret,
                setup.peers[other].masking_key(exchange),
                transcript=setup.transcript,
                exchange=exchange,
                digest=digest,
                pair=(self.name, other),
            )
            for other in self.run.others(self.name)
        }
        return mask(values, self.name, seed, keys)

    def unmask(self, exchange: int, survivors: Sequence[str]) -> bytes:
        """Help to open a sum.

        Parameters
        ----------
        exchange : int
            The exchange of the last upload.
        survivors : sequence of str
            U_e: the sites whose upload the server holds, in name order.

        Returns
        -------
        bytes
            Shares of the seeds of the survivors and of the masking secrets of the others; that
            this set was answered is stored before. The same bytes whenever it is asked.

        Raises
        ------
        ProtocolError
            If this site sent nothing for the exchange, the set is smaller than n - d, lacks this
            site or names strangers, another set was answered before, or the run is over.
        """
        self._refuse_over()
        terms = self.run.terms
        with self._vault.transaction():
            last = self._vault.last("request")
            if exchange != last or last == 0:
                raise self._refused(
                    "exchange", f"exchange {exchange} is to be opened and its last one is {last}"
                )
            if not is_survivor_set(self.run, survivors):
                raise self._refused(
                    "survivors",
                    f"the set of {len(survivors)} survivors must name at least "
                    f"{terms.least_contributors} of the {terms.n_sites} participants, each once, "
                    "in name order",
                )
            if self.name not in survivors:
                raise self._refused("without itself", "the survivors do not include this site")
            asked, before = pack(*survivors), self._vault.get("answer", exchange)
            if before is None:
                self._vault.put("answer", asked, exchange)
            elif before != asked:
                raise self._refused(
                    "second set", f"exchange {exchange} was opened for another set of survivors"
                )
        held = self._setup_of(exchange).held_shares(exchange)
        shares = {
            other: seed if other in survivors else secret for other, (seed, secret) in held.items()
        }
        return write_answer(self.run, self.name, exchange, survivors, shares)

    def close(self, exchange: int, survivors: Sequence[str]) -> None:
        """End the run and destroy all secrets.

        Parameters
        ----------
        exchange : int
            The exchange for which survivors were named last, 0 if there is none.
        survivors : sequence of str
            Those survivors.

        Raises
        ------
        ProtocolError
            If this site answered another set for that exchange or a later one.
        """
        with self._vault.transaction():
            if not self.over:
                self._check_named(exchange, survivors)
        end_run(self._vault)

    def abort(self) -> None:
        """End the run at this site, now, and destroy all secrets."""
        end_run(self._vault)

    def _check_named(self, exchange: int, named: Sequence[str]) -> None:
        """Refuse survivors, named last in this exchange or before, that this site knows better.

        They are those that it answered last, unless others were named since. A set with this site
        in it can only be of an exchange that it sent its numbers in, and one without it only of an
        exchange that it missed. Of such a set it has answered nothing: that it could have been is
        all that it can check.
        """
        last, sent = self._vault.last("answer"), self._vault.last("request")
        answered = [name.decode() for name in unpack(self._vault.get("answer", last) or b"")]
        could_be = sent > last if self.name in named else exchange > last
        newer = could_be and exchange > last and is_survivor_set(self.run, named)
        if not (newer or list(named) == answered):
            raise self._refused(
                "previous survivors",
                f"the {len(named)} survivors that the server names are not those that this site "
                f"answered in exchange {last}",
            )

    def _refuse_over(self) -> None:
        if self.over:
            raise self._refused("over", "the run is over and its secrets are destroyed")

    def _refused(self, word: str, why: str) -> ProtocolError:
        return ProtocolError(
            f"site '{self.name}' refuses: {why}; start a new run, and find out why the server "
            "asked",
            local_detail=word,
        )


def end_run(vault: Vault) -> None:
    """Mark a run as over and destroy its secrets; also without the run's keys and plan."""
    with vault.transaction():
        if vault.get("over") is None:
            vault.put("over", b"")
    vault.forget()
