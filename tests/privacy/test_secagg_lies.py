"""Servers that lie: a property test over all that they may ask, and the lies one by one."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from benchmarks.trust_secure_sum import (
    lying_server,
    same_exchange_twice,
    two_broadcasts,
)
from privacy.masking import add_keystream, add_pair_masks, pair_key
from privacy.secagg import SecureSumSite
from privacy.secagg_shares import read_answer
from privacy.secret_sharing import recombine
from tests.privacy.lying_server import LyingServer
from tests.privacy.secure_sums import Federation, digest_of, random_vectors


class ForgetfulSite(SecureSumSite):
    """Forgets which survivors it answered for: what a site without a vault would do."""

    def unmask(self, exchange, survivors):
        self._vault._database.execute("DELETE FROM records WHERE kind = 'answer'")
        return super().unmask(exchange, survivors)


class ForgetfulServer(LyingServer):
    site_type = ForgetfulSite


def test_no_lie_opens_a_site_or_leaves_out_too_many():
    row = lying_server(examples=15, steps=30)
    assert row.passed, row.figure


def test_the_property_test_finds_a_site_that_forgets_its_answers():
    budget = settings(
        max_examples=300,
        stateful_step_count=30,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=True,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ForgetfulServer, settings=budget)


def test_two_broadcasts_give_a_uniform_sum():
    assert two_broadcasts(n_numbers=1024).passed


def test_one_exchange_is_answered_for_one_request():
    assert same_exchange_twice().passed


def test_unsafe_terms_would_open_one_site(monkeypatch):
    """With t = 3 of n = 5, two sets and one colluder give both secrets of a site; see check_terms.

    That is why a site refuses such a plan; here it is made not to.
    """
    monkeypatch.setattr("privacy.secagg_binding.check_terms", lambda *_: None)
    federation = Federation(5, exchanges=1, dropouts=2, threshold=3).set_up()
    colluder, *honest, victim = federation.names
    vectors = random_vectors(federation.names, 4)
    federation.upload(1, vectors)
    sent = federation.sites[victim].answered(1, digest_of(1), ())
    without = tuple(name for name in federation.names if name != victim)
    run, indices = federation.run, federation.run.share_index

    def answered(name, survivors):
        answer = federation.sites[name].unmask(1, survivors)
        return {indices(name): read_answer(run, name, 1, survivors, answer)[victim]}

    seeds = answered(honest[2], federation.names) | answered(victim, federation.names)
    masking = answered(honest[0], without) | answered(honest[1], without)
    own_seed, own_masking = federation.sites[colluder]._setup_of(1).held_shares(1)[victim]
    seeds[indices(colluder)], masking[indices(colluder)] = own_seed, own_masking
    keys = federation.sites[colluder]._setup_of(1)
    pair_keys = {
        other: pair_key(
            recombine(masking),
            keys.peers[other].masking_key(1),
            transcript=keys.transcript,
            exchange=1,
            digest=digest_of(1),
            pair=(victim, other),
        )
        for other in without
    }
    read = sent.copy()
    add_keystream(read, recombine(seeds), sign=-1)
    add_pair_masks(read, victim, pair_keys, sign=-1)
    assert read.tolist() == vectors[victim].tolist()
