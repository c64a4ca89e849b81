"""A server that asks honest sites in any order for anything, with the colluders' shares in hand."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from configs.errors import ProtocolError
from privacy.secagg import KeyRelay, SecureSumSite
from privacy.secagg_shares import read_answer
from tests.privacy.secure_sums import Federation, digest_of

#: Number of sites, colluders, dropouts (None: the most that are safe) and threshold.
TERMS = [
    (3, 1, None, None),
    (4, 1, None, None),
    (5, 1, None, None),
    (6, 2, None, None),
    (8, 1, None, None),
    (8, 1, 1, 6),
]
EXCHANGES = 8
places = st.integers(0, 7)
#: Beyond the last exchange before the newest set-up.
steps = st.sampled_from([1, 2, 0])


class LyingServer(RuleBasedStateMachine):
    """Drive honest sites; after every step look at what the server holds.

    For one (site, exchange) of one set-up it may never hold t shares of both secrets: with both it
    could take the masks off that site's numbers. Nor may it hold t shares of the masking secrets of
    more than d sites: with them it could open a sum that leaves these out.
    """

    #: Answers taken by all runs of this machine.
    answers: ClassVar[int] = 0
    #: Makes the site under test; the tests put a faulty one here.
    site_type: ClassVar[type[SecureSumSite]] = SecureSumSite

    @initialize(terms=st.sampled_from(TERMS))
    def begin(self, terms):
        n, c, d, t = terms
        numbers = {"colluders": c}
        if d is not None:
            numbers |= {"dropouts": d, "threshold": t}
        self.federation = Federation(n, EXCHANGES, site_type=self.site_type, **numbers).set_up()
        self.terms = self.federation.terms
        self.honest = self.federation.names[c:]
        colluders = set(self.federation.names[:c])
        # (site, exchange, set-up) -> kind -> whose shares of it the server holds
        self.held = defaultdict(lambda: {"seed": set(colluders), "masking": set(colluders)})
        self.uploads = {}
        self.under = {}  # (site, exchange) -> set-up
        self.named = ()
        self.before = 0  # the newest set-up is for exchanges after this one

    def _site(self, place):
        return self.federation.sites[self.honest[place % len(self.honest)]]

    @rule(place=places, step=steps, body=st.sampled_from([b"a", b"b"]), honest=st.booleans())
    def ask_for_upload(self, place, step, body, honest):
        previous = self.named if honest else ()
        self._upload(self._site(place), self.before + step, body, previous)

    @rule(step=steps, body=st.sampled_from([b"a", b"b"]))
    def ask_all_for_upload(self, step, body):
        for place in range(len(self.honest)):
            self._upload(self._site(place), self.before + step, body, self.named)

    def _upload(self, site, exchange, body, previous):
        digest = digest_of(exchange, previous, body)
        try:
            vector = site.upload(exchange, digest, previous, np.zeros(1, np.uint64))
        except ProtocolError:
            return
        # a second, different vector under one self-mask would show the difference of the inputs
        assert self.uploads.setdefault((site.name, exchange), vector.tobytes()) == vector.tobytes()
        self.under.setdefault((site.name, exchange), site._setup_of(exchange).first)

    @rule(place=places, step=steps, left_out=st.sets(places, max_size=3))
    def ask_to_unmask(self, place, step, left_out):
        self._unmask(self._site(place), self.before + step, left_out)

    @rule(step=steps, sets=st.lists(st.sets(places, max_size=2), min_size=1, max_size=3))
    def ask_all_to_unmask(self, step, sets):
        """Ask every site for one of the sets, all for the same one or by turns."""
        for place in range(len(self.honest)):
            self._unmask(self._site(place), self.before + step, sets[place % len(sets)])

    def _unmask(self, site, exchange, left_out):
        if (site.name, exchange) not in self.uploads:
            self._upload(site, exchange, b"a", self.named)
        names = self.federation.names
        survivors = tuple(name for i, name in enumerate(names) if i not in left_out)
        try:
            answer = site.unmask(exchange, survivors)
        except ProtocolError:
            return
        type(self).answers += 1
        self.named = survivors
        shares = read_answer(self.federation.run, site.name, exchange, survivors, answer)
        setup = site._setup_of(exchange)
        assert setup.first == self.under[site.name, exchange]
        held = setup.held_shares(exchange)
        for other, share in shares.items():
            kind = "seed" if share == held[other][0] else "masking"
            self.held[other, exchange, setup.first][kind].add(site.name)

    @rule(place=places)
    def kill_and_restart(self, place):
        self.federation.restart(self._site(place).name)

    @rule(place=places, step=steps, chance=st.integers(0, 9))
    def ask_to_close(self, place, step, chance):
        if chance:
            return  # a site that is closed has nothing more to give
        try:
            self._site(place).close(self.before + step, self.named)
        except ProtocolError:
            return

    @rule(place=places)
    def ask_for_the_set_up_again(self, place):
        site = self._site(place)
        if not site.over and site._vault.last("keys") == 1:
            server = self.federation.server
            assert site.keys() == server.setup.key_list()[server.run.names.index(site.name)]
            site.receive(server.setup.envelopes_for(site.name))

    @precondition(lambda self: hasattr(self, "held"))
    @invariant()
    def no_site_is_opened(self):
        t = self.terms.threshold
        for kinds in self.held.values():
            assert not (len(kinds["seed"]) >= t and len(kinds["masking"]) >= t)

    @precondition(lambda self: hasattr(self, "held"))
    @invariant()
    def at_most_d_sites_are_left_out(self):
        left_out = defaultdict(set)
        for (name, *which), kinds in self.held.items():
            if len(kinds["masking"]) >= self.terms.threshold:
                left_out[tuple(which)].add(name)
        assert all(len(names) <= self.terms.tolerated_dropouts for names in left_out.values())


class RenewingServer(LyingServer):
    """Asks for further set-ups too, and completes them where and when it likes."""

    answers: ClassVar[int] = 0
    #: Sites at which another set-up was completed, in all runs of this machine.
    renewed: ClassVar[int] = 0

    @rule(told=st.sets(places, min_size=1), late=st.booleans())
    def ask_for_another_set_up(self, told, late):
        """Ask all for fresh keys, and complete the set-up at some, perhaps after an upload."""
        first = 1 + max((exchange for _, exchange in self.uploads), default=1)
        sites, relay = self.federation.sites, KeyRelay(self.federation.run, first)
        try:
            for name, site in sites.items():
                relay.take_keys(name, site.keys(first))
            for name, site in sites.items():
                relay.take_shares(name, site.shares(relay.key_list(), first))
        except ProtocolError:
            return
        for place in told:
            site = self._site(place)
            if late:
                self._upload(site, first, b"a", self.named)
            try:
                site.receive(relay.envelopes_for(site.name))
            except ProtocolError:
                continue
            type(self).renewed += 1
            self.before = first - 1
