"""A second set-up of the same run, as after a resume: fresh keys for the exchanges to come."""

import numpy as np
import pytest

from configs.errors import ProtocolError, QuorumLost
from privacy.secagg import KeyRelay
from privacy.secagg_keys import read_keys
from tests.privacy.secure_sums import Federation, clear_sum, digest_of, names_of, random_vectors

NAMES = FIRST, SECOND, THIRD, FOURTH, FIFTH = names_of(5)
VECTORS = random_vectors(NAMES, 6)
OPENED = clear_sum(VECTORS, NAMES).tolist()
EXCHANGES = 5


@pytest.fixture
def federation(tmp_path):
    federation = Federation(5, EXCHANGES, folder=tmp_path).set_up()
    yield federation
    federation.close()


def refusal(word):
    return pytest.raises(ProtocolError, check=lambda error: error.local_detail == word)


def keys_of(relay):
    keys = relay.keys.values()
    return {part for k in keys for part in (k.envelope_key, *k.masking_keys, *k.seed_commitments)}


def test_later_sums_are_masked_by_keys_that_were_not_there_before(federation):
    first = federation.server.setup
    assert federation.exchange(1, VECTORS).tolist() == OPENED
    second = federation.set_up_again(2)
    assert len(keys_of(first)) == 5 * (1 + 2 * EXCHANGES)
    assert len(keys_of(second)) == 5 * (1 + 2 * (EXCHANGES - 1))
    assert not keys_of(first) & keys_of(second)
    assert federation.exchange(2, VECTORS).tolist() == OPENED
    assert federation.exchange(3, VECTORS, missing=[FIFTH]).tolist() == (
        clear_sum(VECTORS, NAMES[:4]).tolist()
    )
    third = federation.set_up_again(4)
    assert not keys_of(third) & (keys_of(first) | keys_of(second))
    assert federation.exchange(5, VECTORS).tolist() == OPENED
    for site in federation.sites.values():
        site.close(*federation.server.named)


def test_the_masks_of_an_exchange_are_those_of_the_newest_set_up(federation):
    """Seeds and pair keys by hand: the second set-up's open it, the first one's do not."""
    federation.exchange(1, VECTORS)
    before = {n: s._setup_of(2).own_secrets(2) for n, s in federation.sites.items()}
    federation.set_up_again(2)
    after = {n: s._setup_of(2).own_secrets(2) for n, s in federation.sites.items()}
    assert all(before[n] != after[n] for n in NAMES)
    federation.upload(2, VECTORS, missing=[FIFTH])
    federation.answer(2)
    server = federation.server
    survivors = server.survivors()
    for name in NAMES:
        secret = after[name][0] if name in survivors else after[name][1]
        assert server._recombined(name) == secret


def test_what_was_answered_before_is_repeated_as_it_was(federation):
    federation.upload(1, VECTORS, missing=[FIFTH])
    survivors = federation.server.survivors()
    sent = federation.sites[FIRST].answered(1, digest_of(1), ())
    answer = federation.sites[FIRST].unmask(1, survivors)
    federation.set_up_again(2)
    site = federation.restart(FIRST)
    assert site.answered(1, digest_of(1), ()).tolist() == sent.tolist()
    assert site.unmask(1, survivors) == answer
    with refusal("second set"):
        site.unmask(1, NAMES)
    with refusal("second request"):
        site.answered(1, digest_of(1, body=b"other"), ())


def test_a_site_that_is_killed_at_any_step_goes_on(federation):
    """The secret that opens the envelopes outlives a restart, and not the set-up."""
    federation.exchange(1, VECTORS)
    federation.exchange(2, VECTORS)
    relay = KeyRelay(federation.run, 3)
    for name in NAMES:
        message = federation.restart(name).keys(3)
        assert federation.restart(name).keys(3) == message
        relay.take_keys(name, message)
    for name in NAMES:
        dealt = federation.restart(name).shares(relay.key_list(), 3)
        assert federation.restart(name).shares(relay.key_list(), 3) == dealt
        relay.take_shares(name, dealt)
    federation.server.renew(relay)
    for name in NAMES:
        envelopes = relay.envelopes_for(name)
        assert federation.vaults[name].unseal("envelope secret from 3", 0)
        federation.restart(name).receive(envelopes)
        assert federation.vaults[name].unseal("envelope secret from 3", 0) is None
        federation.restart(name).receive(envelopes)
    assert federation.exchange(3, VECTORS).tolist() == OPENED


def test_until_it_is_complete_the_one_before_is_in_force(federation):
    """Where not all sites take part in it, sums go on, and another set-up may follow."""
    federation.exchange(1, VECTORS)
    relay = KeyRelay(federation.run, 2)
    for name in NAMES[:4]:
        relay.take_keys(name, federation.sites[name].keys(2))
    with pytest.raises(QuorumLost, match="1 of 5 participants sent no keys: site-04"):
        federation.server.renew(relay)
    assert federation.exchange(2, VECTORS).tolist() == OPENED
    federation.set_up_again(3)
    assert federation.exchange(3, VECTORS).tolist() == OPENED


def test_a_site_that_was_away_gets_its_envelopes_with_a_later_sum(federation):
    federation.exchange(1, VECTORS)
    relay = federation.set_up_again(2, deliver=False)
    for name in NAMES[:4]:
        federation.sites[name].receive(relay.envelopes_for(name))
    federation.exchange(2, VECTORS, missing=[FIFTH])
    federation.restart(FIFTH).receive(relay.envelopes_for(FIFTH))
    assert federation.exchange(3, VECTORS).tolist() == OPENED


@pytest.mark.parametrize("first", [0, -1, 2, EXCHANGES + 1, 2**70])
def test_a_set_up_is_for_exchanges_to_come(federation, first):
    federation.exchange(1, VECTORS)
    federation.exchange(2, VECTORS)
    site = federation.sites[FIRST]
    counter = federation.vaults[FIRST].counter
    with refusal("order"):
        site.keys(first)
    assert federation.vaults[FIRST].counter == counter


def test_set_ups_go_forward_only(federation):
    site = federation.sites[FIRST]
    message = site.keys(3)
    with refusal("order"):
        site.keys(2)
    assert site.keys(1) == federation.server.setup.key_list()[0]  # as it was sent
    assert site.keys(3) == message


def test_shares_and_envelopes_come_before_the_exchange_is_answered(federation):
    """Else an answer could be given under one set-up to a question of the other."""
    relay = KeyRelay(federation.run, 2)
    for name, site in federation.sites.items():
        relay.take_keys(name, site.keys(2))
    for name in NAMES:
        relay.take_shares(name, federation.sites[name].shares(relay.key_list(), 2))
    federation.exchange(1, VECTORS)
    federation.exchange(2, VECTORS)
    for name in NAMES:
        with refusal("order"):
            federation.sites[name].receive(relay.envelopes_for(name))
    with pytest.raises(ProtocolError, match="from exchange 2 on comes after exchange 2 was begun"):
        federation.server.renew(relay)
    assert federation.exchange(3, VECTORS).tolist() == OPENED


def test_messages_of_one_set_up_do_not_fit_another(federation):
    relay = KeyRelay(federation.run, 2)
    old = federation.server.setup
    for name, site in federation.sites.items():
        message = site.keys(2)
        with pytest.raises(ProtocolError, match="keys for another first exchange"):
            old.take_keys(name, message)
        with pytest.raises(ProtocolError, match="keys for another first exchange"):
            read_keys(federation.run, old.key_list()[0], 2)
        relay.take_keys(name, message)
    mixed = (old.key_list()[0], *relay.key_list()[1:])
    with pytest.raises(ProtocolError, match="another first exchange"):
        federation.sites[SECOND].shares(mixed, 2)
    federation.sites[FIRST].shares(relay.key_list(), 2)
    with refusal("envelope"):
        federation.sites[FIRST].receive(old.envelopes_for(FIRST))


def test_sites_of_different_set_ups_do_not_cancel(federation):
    """A server that completes a set-up at some sites only learns nothing of their sum."""
    federation.exchange(1, VECTORS)
    relay = federation.set_up_again(2, deliver=False)
    for name in NAMES[:2]:
        federation.sites[name].receive(relay.envelopes_for(name))
    federation.upload(2, VECTORS)
    federation.answer(2)
    with pytest.raises(ProtocolError, match="nothing was opened"):
        federation.server.open()


def test_all_secrets_of_all_set_ups_are_gone_at_the_end(federation, tmp_path):
    federation.exchange(1, VECTORS)
    federation.set_up_again(2)
    federation.exchange(2, VECTORS)
    federation.set_up_again(4)
    federation.sites[FIRST].close(2, NAMES)
    vault = federation.vaults[FIRST]
    kinds = [f"{kind} from {k}" for kind in ("own", "own shares", "shares") for k in (1, 2, 4)]
    assert not [k for k in kinds for e in range(EXCHANGES + 1) if vault.unseal(k, e)]
    assert not list((tmp_path / FIRST).glob("*.key"))


def test_one_upload_a_number_whatever_the_set_up(federation):
    site = federation.sites[FIRST]
    relay = KeyRelay(federation.run, 2)
    for name, each in federation.sites.items():
        relay.take_keys(name, each.keys(2))
    sent = site.upload(2, digest_of(2), (), VECTORS[FIRST])
    with refusal("order"):
        site.shares(relay.key_list(), 2)
    zeros = np.zeros(6, np.uint64)
    assert site.upload(2, digest_of(2), (), zeros).tolist() == sent.tolist()


def test_a_site_holds_two_set_ups_at_most_however_often_it_is_asked(tmp_path):
    """A server that begins one after the other makes no site fill its disk."""
    exchanges = 60
    federation = Federation(3, exchanges, folder=tmp_path).set_up()
    vectors = random_vectors(federation.names, 2)
    vault, site = federation.vaults[FIRST], federation.sites[FIRST]

    def rows(table):
        return vault._number(f"SELECT COUNT(*) FROM {table} WHERE kind NOT IN ('received')")

    federation.exchange(1, vectors)
    before = rows("secrets"), rows("records")
    for first in range(2, exchanges, 2):
        site.keys(first)  # begun, and never completed
    assert rows("secrets") == before[0] + 4  # of exchanges 58 to 60, and one for the envelopes
    assert rows("records") <= before[1] + 1
    federation.set_up_again(exchanges - 1)
    assert federation.exchange(exchanges - 1, vectors).tolist() == (
        clear_sum(vectors, federation.names).tolist()
    )
    assert rows("secrets") <= 2 * 3 + 1
    assert rows("records") <= before[1] + 2
    federation.close()


def test_an_exchange_before_the_newest_set_up_is_not_asked_for_any_more(federation):
    federation.exchange(1, VECTORS)
    federation.set_up_again(4)
    with refusal("exchange"):
        federation.sites[FIRST].answered(3, digest_of(3, NAMES), NAMES)
    assert federation.exchange(4, VECTORS).tolist() == OPENED


def test_the_last_sum_of_the_set_up_before_is_still_opened(federation):
    """A site may be asked for its shares again after the others have fresh keys."""
    federation.exchange(1, VECTORS)
    federation.upload(2, VECTORS)
    survivors = federation.server.survivors()
    answer = federation.sites[FIRST].unmask(2, survivors)
    federation.answer(2)
    assert federation.server.open().tolist() == OPENED
    federation.set_up_again(3)
    assert federation.restart(FIRST).unmask(2, survivors) == answer
    assert federation.exchange(3, VECTORS).tolist() == OPENED


def test_a_set_up_that_came_too_late_opens_nothing_any_more(federation, tmp_path):
    """Its envelopes hold shares of exchanges whose secrets are gone everywhere else."""
    federation.exchange(1, VECTORS)
    relay = federation.set_up_again(2, deliver=False)
    federation.sites[SECOND].receive(relay.envelopes_for(SECOND))  # at one site only
    federation.upload(2, VECTORS)
    for name in NAMES:
        vault = federation.vaults[name]
        assert vault.unseal("envelope secret from 2", 0) is None
        assert not (tmp_path / name / "exchange-0.key").exists()


def test_a_set_up_that_another_follows_opens_nothing_any_more(federation, tmp_path):
    federation.exchange(1, VECTORS)
    site, vault = federation.sites[FIRST], federation.vaults[FIRST]
    site.keys(2)
    key = (tmp_path / FIRST / "exchange-0.key").read_bytes()
    assert site.keys(2) == site.keys(2)
    assert (tmp_path / FIRST / "exchange-0.key").read_bytes() == key
    site.keys(4)
    assert (tmp_path / FIRST / "exchange-0.key").read_bytes() != key
    assert vault.unseal("envelope secret from 2", 0) is None
    assert vault.unseal("envelope secret from 4", 0)
    assert vault.unseal("own from 2", 3) is None
    assert vault.unseal("own from 1", 3)


def test_a_crash_before_the_envelope_secret_is_gone_is_made_good(federation, monkeypatch):
    federation.exchange(1, VECTORS)
    relay = federation.set_up_again(2, deliver=False)
    vault = federation.vaults[FIRST]
    monkeypatch.setattr("privacy.secagg_setup.forget_envelope_secret", lambda vault: None)
    federation.sites[FIRST].receive(relay.envelopes_for(FIRST))
    monkeypatch.undo()
    assert vault.unseal("envelope secret from 2", 0)
    federation.restart(FIRST)
    assert federation.vaults[FIRST].unseal("envelope secret from 2", 0) is None


def test_a_draft_of_a_key_that_a_crash_left_is_gone_with_the_keys(federation, tmp_path):
    draft = tmp_path / FIRST / ".draft-left"
    draft.hardlink_to(tmp_path / FIRST / "exchange-1.key")
    federation.exchange(1, VECTORS)
    federation.exchange(2, VECTORS)
    assert not draft.exists()
