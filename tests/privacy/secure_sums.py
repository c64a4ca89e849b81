"""Sites and a server of a secure sum on one machine, for the tests and the trust figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from configs.secure_terms import SecureTerms, default_dropouts
from privacy.roster import Roster
from privacy.secagg import KeyRelay, RunTerms, SecureSumServer, SecureSumSite, request_digest
from privacy.vault import Vault

Ring = NDArray[np.uint64]

RUN, PLAN = "run-1", "plan-1"


def names_of(n_sites: int) -> tuple[str, ...]:
    return tuple(f"site-{i:02d}" for i in range(n_sites))


def terms_of(
    n_sites: int,
    exchanges: int = 3,
    *,
    colluders: int = 1,
    dropouts: int | None = None,
    threshold: int | None = None,
) -> SecureTerms:
    d = default_dropouts(n_sites, colluders) if dropouts is None else dropouts
    t = n_sites - d if threshold is None else threshold
    return SecureTerms(names_of(n_sites), colluders, d, t, exchanges, 1000)


def digest_of(exchange: int, previous: Sequence[str] = (), body: bytes = b"centres") -> bytes:
    return request_digest(RUN, PLAN, exchange, previous, body)


class Federation:
    """A run of honest sites; a test plays the server, honest or not, over them."""

    def __init__(
        self,
        n_sites: int = 4,
        exchanges: int = 3,
        *,
        folder: Path | None = None,
        site_type: type[SecureSumSite] = SecureSumSite,
        **terms: int,
    ) -> None:
        self.site_type = site_type
        self.terms = terms_of(n_sites, exchanges, **terms)
        self.names = self.terms.participants
        self.identities = {name: Ed25519PrivateKey.generate() for name in self.names}
        self.roster = Roster(
            "cardio",
            {name: key.public_key().public_bytes_raw() for name, key in self.identities.items()},
        )
        self.run = RunTerms(RUN, PLAN, self.roster.hash, self.terms)
        self.folder = folder
        self.vaults = {name: self._vault(name) for name in self.names}
        self.sites = {name: self.site(name) for name in self.names}
        self.server = SecureSumServer(self.run)

    def _vault(self, name: str) -> Vault:
        return Vault(None if self.folder is None else self.folder / name)

    def site(self, name: str, run: RunTerms | None = None) -> SecureSumSite:
        return self.site_type(
            run or self.run, name, self.identities[name], self.roster, self.vaults[name]
        )

    def restart(self, name: str) -> SecureSumSite:
        """Kill a site and start it again over what it wrote."""
        if self.folder is not None:
            self.vaults[name].close()
            self.vaults[name] = self._vault(name)
        self.sites[name] = self.site(name)
        return self.sites[name]

    def close(self) -> None:
        for vault in self.vaults.values():
            vault.close()

    def publish(self) -> tuple[bytes, ...]:
        """Run the first exchange of the set-up; return the key list."""
        for name, site in self.sites.items():
            self.server.setup.take_keys(name, site.keys())
        return self.server.setup.key_list()

    def set_up(self) -> Federation:
        """Run the whole set-up."""
        key_list = self.publish()
        for name, site in self.sites.items():
            self.server.setup.take_shares(name, site.shares(key_list))
        self.deliver()
        return self

    def deliver(self) -> None:
        """Hand every site the envelopes of the set-up in force."""
        for name, site in self.sites.items():
            site.receive(self.server.setup.envelopes_for(name))

    def set_up_again(self, first: int, *, deliver: bool = True) -> KeyRelay:
        """Run a set-up for the exchanges from one on, as after a resume."""
        relay = KeyRelay(self.run, first)
        for name, site in self.sites.items():
            relay.take_keys(name, site.keys(first))
        for name, site in self.sites.items():
            relay.take_shares(name, site.shares(relay.key_list(), first))
        self.server.renew(relay)
        if deliver:
            self.deliver()
        return relay

    def upload(
        self,
        exchange: int,
        vectors: dict[str, Ring],
        missing: Iterable[str] = (),
        body: bytes = b"centres",
    ) -> None:
        """Ask for the vectors of one exchange and take what comes."""
        previous = self.server.previous
        digest = digest_of(exchange, previous, body)
        self.server.begin(exchange, digest, next(iter(vectors.values())).size)
        for name, site in self.sites.items():
            if name not in set(missing):
                vector = site.upload(exchange, digest, previous, vectors[name])
                self.server.take_upload(name, vector)

    def answer(self, exchange: int, silent: Iterable[str] = ()) -> None:
        """Ask the survivors for their shares and take what comes."""
        survivors = self.server.survivors()
        for name in survivors:
            if name not in set(silent):
                self.server.take_answer(name, self.sites[name].unmask(exchange, survivors))

    def exchange(self, number: int, vectors: dict[str, Ring], missing: Iterable[str] = ()) -> Ring:
        """Run one exchange to its end."""
        self.upload(number, vectors, missing)
        self.answer(number)
        return self.server.open()


def random_vectors(names: Sequence[str], n_numbers: int, seed: int = 0) -> dict[str, Ring]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 2**64, n_numbers, np.uint64) for name in names}


def clear_sum(vectors: dict[str, Ring], names: Iterable[str]) -> Ring:
    """Sum mod 2^64, one number after the other in Python's integers."""
    columns = zip(*(vectors[name].tolist() for name in names), strict=True)
    return np.array([sum(column) % 2**64 for column in columns], np.uint64)
