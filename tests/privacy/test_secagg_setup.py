"""The set-up: whose keys a site takes, whose envelopes it opens, and what it repeats."""

import dataclasses
import hashlib
import itertools

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from configs.errors import ConfigError, ProtocolError, QuorumLost
from privacy.canonical import pack, unpack
from privacy.roster import Roster
from privacy.secagg import SecureSumSite
from privacy.secagg_keys import read_keys, write_keys
from privacy.secagg_shares import Envelope
from privacy.secagg_terms import VERSION, is_survivor_set, request_digest
from privacy.secret_sharing import recombine
from privacy.vault import Vault
from tests.privacy.secure_sums import Federation, clear_sum, names_of, random_vectors

FIRST, SECOND, THIRD, LAST = names_of(4)


@pytest.fixture
def federation():
    return Federation(4)


def signed_anew(federation, name, **change):
    """Return a site's keys with something changed, signed by the site itself."""
    run = federation.run
    message = federation.sites[name].keys()
    return write_keys(
        run, dataclasses.replace(read_keys(run, message, 1), **change), federation.identities[name]
    )


def refusal(word):
    return pytest.raises(ProtocolError, check=lambda error: error.local_detail == word)


def test_a_key_message_signs_the_run_and_all_keys(federation):
    message = federation.sites[FIRST].keys()
    body, signature = unpack(message)
    run, terms = federation.run, federation.terms
    head = (VERSION, run.run_id, run.plan_id, run.roster_hash, FIRST)
    assert body.startswith(pack(*head, 4, terms.threshold, terms.tolerated_dropouts, 1, 3, 1))
    federation.identities[FIRST].public_key().verify(signature, body)
    keys = read_keys(run, message, 1)
    assert len(keys.masking_keys) == len(keys.seed_commitments) == terms.exchanges
    values = {keys.envelope_key, keys.nonce, *keys.masking_keys, *keys.seed_commitments}
    assert len(values) == 2 + 2 * terms.exchanges


@pytest.mark.parametrize("folder", [True, False])
def test_a_restarted_site_repeats_its_set_up_byte_for_byte(tmp_path, folder):
    federation = Federation(4, folder=tmp_path if folder else None)
    key_list = federation.publish()
    assert federation.restart(FIRST).keys() == key_list[0]
    dealt = federation.sites[FIRST].shares(key_list)
    assert federation.restart(FIRST).shares(key_list) == dealt
    assert federation.sites[FIRST].shares(key_list[::-1]) == dealt
    for name, site in federation.sites.items():
        federation.server.setup.take_shares(name, site.shares(key_list))
    envelopes = federation.server.setup.envelopes_for(FIRST)
    federation.sites[FIRST].receive(envelopes)
    restarted = federation.restart(FIRST)
    restarted.receive(envelopes)
    assert restarted.keys() == key_list[0]
    assert restarted.shares(key_list) == dealt
    federation.close()


def test_envelopes_are_one_for_each_other_site_and_none_is_like_another(federation):
    federation.set_up()
    sent = [
        envelope
        for name in federation.names
        for envelope in federation.server.setup.envelopes_for(name).values()
    ]
    assert len({envelope[:12] for envelope in sent}) == 12
    # nonce, two shares an exchange, tag
    assert {len(envelope) for envelope in sent} == {12 + 64 * 3 + 16}


def test_an_envelope_by_hand(federation):
    key_list = federation.publish()
    run = federation.run
    secret = federation.vaults[SECOND].unseal("envelope secret from 1", 0)
    envelope = federation.sites[FIRST].shares(key_list)[SECOND]
    sender, receiver = (read_keys(run, message, 1).envelope_key for message in key_list[:2])
    transcript = hashlib.sha256(pack(*key_list)).digest()
    key = HKDF(
        hashes.SHA256(),
        length=32,
        salt=transcript,
        info=pack("envelope", FIRST, SECOND, sender, receiver),
    ).derive(
        X25519PrivateKey.from_private_bytes(secret).exchange(
            X25519PublicKey.from_public_bytes(sender)
        )
    )
    associated = pack(VERSION, run.run_id, run.plan_id, transcript, FIRST, SECOND, 1, 3)
    shares = ChaCha20Poly1305(key).decrypt(envelope[:12], envelope[12:], associated)
    assert len(shares) == 3 * 2 * 32


def test_a_commitment_by_hand(federation):
    site = federation.sites[FIRST]
    keys = read_keys(federation.run, site.keys(), 1)
    for exchange in (1, 2, 3):
        seed, secret = site._setup(1).own_secrets(exchange)
        assert len(seed) == 32
        committed = hashlib.sha256(b"fedmvc b" + seed).digest()
        assert keys.seed_commitments[exchange - 1] == committed
        public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        assert keys.masking_keys[exchange - 1] == public


def test_any_t_sites_hold_what_gives_each_secret_at_their_index(federation):
    federation.set_up()
    held = {
        i: federation.sites[name]._setup(1).held_shares(2)
        for i, name in enumerate(federation.names, 1)
    }
    for name in federation.names:
        own = federation.sites[name]._setup(1).own_secrets(2)
        for chosen in itertools.combinations(held, federation.terms.threshold):
            for kind, secret in enumerate(own):
                assert recombine({i: held[i][name][kind] for i in chosen}) == secret


def test_a_key_list_must_hold_every_participant_once(federation):
    key_list = federation.publish()
    site = federation.sites[FIRST]
    with refusal("missing"):
        site.shares(key_list[:3])
    with refusal("doubled"):
        site.shares((*key_list, key_list[1]))
    with refusal("missing"):
        site.shares(())
    site.shares(key_list)  # a refused list changes nothing


def test_a_swapped_public_key_is_refused(federation):
    key_list = federation.publish()
    body, signature = unpack(key_list[1])
    stranger = Ed25519PrivateKey.generate()
    swapped = body[:-40] + bytes(4) + body[-36:]
    for forged in (
        pack(swapped, signature),
        pack(body, stranger.sign(body)),
        pack(body, b""),
        pack(body, federation.identities[FIRST].sign(body)),
    ):
        with pytest.raises(ProtocolError):
            federation.sites[FIRST].shares((key_list[0], forged, *key_list[2:]))
    with refusal("signature"):
        federation.sites[FIRST].shares((key_list[0], pack(body, bytes(64)), *key_list[2:]))


def test_a_site_refuses_other_keys_of_its_own_and_a_second_key_list(federation):
    key_list = federation.publish()
    other = signed_anew(federation, FIRST, nonce=bytes(32))
    with refusal("own keys"):
        federation.sites[FIRST].shares((other, *key_list[1:]))
    federation.sites[FIRST].shares(key_list)
    other = signed_anew(federation, SECOND, nonce=bytes(32))
    with refusal("key list"):
        federation.sites[FIRST].shares((key_list[0], other, *key_list[2:]))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("run", {"run_id": "run-2"}),
        ("plan", {"plan_id": "plan-2"}),
        ("roster", {"roster_hash": bytes(32)}),
        ("n", {"participants": (*names_of(4), "site-04")}),
        ("t", {"threshold": 4}),
        ("d", {"tolerated_dropouts": 0}),
        ("c", {"colluders": 2}),
        ("E", {"exchanges": 4}),
        ("first exchange", {"first": 2}),
    ],
)
def test_keys_of_another_run_plan_roster_or_terms_are_refused(federation, what, change):
    key_list = federation.publish()
    run, keys = federation.run, read_keys(federation.run, key_list[1], 1)
    if set(change) <= {"run_id", "plan_id", "roster_hash"}:
        run = dataclasses.replace(run, **change)
    elif set(change) <= {"first"}:
        keys = dataclasses.replace(keys, **change)
    else:
        run = dataclasses.replace(run, terms=dataclasses.replace(run.terms, **change))
    elsewhere = write_keys(run, keys, federation.identities[SECOND])
    with pytest.raises(ProtocolError, match=rf"'{SECOND}' sent keys for another {what}:"):
        federation.sites[FIRST].shares((key_list[0], elsewhere, *key_list[2:]))
    with pytest.raises(ProtocolError, match=rf"another {what}:"):
        federation.server.setup.take_keys(SECOND, elsewhere)


def test_a_refused_key_list_leaves_nothing_behind(federation):
    key_list = federation.publish()
    unusable = signed_anew(federation, LAST, envelope_key=bytes(32))
    with pytest.raises(ProtocolError, match="not a usable X25519 key"):
        federation.sites[FIRST].shares((*key_list[:3], unusable))
    vectors = random_vectors(federation.names, 3)
    opened = federation.set_up().exchange(1, vectors)
    assert opened.tolist() == clear_sum(vectors, federation.names).tolist()


def test_malformed_or_foreign_key_messages_are_refused(federation):
    federation.publish()
    run, identity = federation.run, federation.identities[SECOND]
    keys = read_keys(run, federation.sites[SECOND].keys(), 1)
    stranger = dataclasses.replace(keys, name="site-99")
    for message, sentence in [
        (b"", "malformed"),
        (b"\0\0\0\5ab", "cut short"),
        (pack(b"", b""), "malformed"),
        (write_keys(run, stranger, identity), "'site-99', which is not among"),
        (signed_anew(federation, SECOND, masking_keys=keys.masking_keys[:2]), "malformed keys"),
        (signed_anew(federation, SECOND, nonce=b"short"), "malformed keys"),
    ]:
        with pytest.raises(ProtocolError, match=sentence):
            read_keys(run, message, 1)


def test_a_site_that_saw_another_key_list_cannot_open_an_envelope(federation):
    key_list = list(federation.publish())
    key_list[3] = signed_anew(federation, LAST, nonce=bytes(32))
    envelopes = {
        name: federation.sites[name].shares(federation.server.setup.key_list())
        for name in (SECOND, THIRD)
    }
    federation.sites[FIRST].shares(key_list)
    handed = {name: envelopes[name][FIRST] for name in (SECOND, THIRD)}
    with refusal("envelope"):
        federation.sites[FIRST].receive(handed | {LAST: bytes(220)})


@pytest.mark.parametrize("change", ["swapped", "short", "empty", "flipped"])
def test_envelopes_open_for_their_pair_and_direction_only(federation, change):
    key_list = federation.publish()
    for name, site in federation.sites.items():
        federation.server.setup.take_shares(name, site.shares(key_list))
    envelopes = federation.server.setup.envelopes_for(FIRST)
    wrong = {
        "swapped": envelopes[THIRD],
        "short": envelopes[SECOND][:-1],
        "empty": b"",
        "flipped": envelopes[SECOND][:-1] + bytes([envelopes[SECOND][-1] ^ 1]),
    }[change]
    with refusal("envelope"):
        federation.sites[FIRST].receive(envelopes | {SECOND: wrong})
    federation.sites[FIRST].receive(envelopes)
    with refusal("envelopes"):
        federation.sites[FIRST].receive(envelopes | {SECOND: wrong})


def test_a_site_waits_for_the_envelopes_of_all_others(federation):
    key_list = federation.publish()
    for name, site in federation.sites.items():
        federation.server.setup.take_shares(name, site.shares(key_list))
    envelopes = federation.server.setup.envelopes_for(FIRST)
    for handed in ({}, {SECOND: envelopes[SECOND]}, envelopes | {FIRST: b""}):
        with refusal("envelopes"):
            federation.sites[FIRST].receive(handed)


def test_a_set_up_out_of_order_is_refused(federation):
    other = Federation(4)
    site = federation.sites[FIRST]
    with refusal("order"):
        site.shares(other.publish())
    key_list = federation.publish()
    with refusal("order"):
        site.receive(dict.fromkeys(federation.run.others(FIRST), b""))
    assert site.shares(key_list)


def test_the_envelope_secret_is_gone_once_the_envelopes_are_open(federation, tmp_path):
    federation = Federation(4, folder=tmp_path)
    key_list = federation.publish()
    federation.sites[FIRST].shares(key_list)
    secret = federation.vaults[FIRST].unseal("envelope secret from 1", 0)
    for name, site in federation.sites.items():
        federation.server.setup.take_shares(name, site.shares(key_list))
    handed = federation.server.setup.envelopes_for(FIRST)
    federation.sites[FIRST].receive(handed)
    peers = {keys.name: keys for keys in (read_keys(federation.run, m, 1) for m in key_list)}
    envelope = Envelope(
        federation.run,
        federation.sites[FIRST]._setup(1).transcript,
        peers[SECOND],
        peers[FIRST],
    )
    assert envelope.open(secret, handed[SECOND])  # whoever kept it could read all shares
    assert federation.vaults[FIRST].unseal("envelope secret from 1", 0) is None
    assert not (tmp_path / FIRST / "exchange-0.key").exists()
    federation.close()


def test_unsafe_terms_are_refused_by_the_site_itself():
    with pytest.raises(ConfigError, match=r"privacy\.threshold"):
        Federation(5, dropouts=2, threshold=3)


def test_a_site_refuses_to_stand_where_it_does_not_belong(federation):
    run, identity = federation.run, federation.identities[FIRST]
    with refusal("participant"):
        SecureSumSite(run, "site-99", identity, federation.roster, Vault(None))
    old = Roster("cardio", {FIRST: bytes(range(32))})
    with refusal("roster"):
        SecureSumSite(run, FIRST, identity, old, Vault(None))
    another = dataclasses.replace(run, plan_id="plan-2")
    with refusal("run"):
        federation.site(FIRST, another)
    with refusal("run"):
        SecureSumSite(run, SECOND, identity, federation.roster, federation.vaults[FIRST])


def test_the_server_keeps_what_it_was_sent_first(federation):
    server = federation.server
    with pytest.raises(QuorumLost, match=r"4 of 4 participants sent no keys"):
        server.setup.key_list()
    federation.publish()
    server.setup.take_keys(FIRST, federation.sites[FIRST].keys())
    for site, message in [
        (FIRST, signed_anew(federation, FIRST, nonce=bytes(32))),
        (SECOND, federation.sites[FIRST].keys()),
    ]:
        with pytest.raises(ProtocolError, match=f"site '{site}' sent keys of site '{FIRST}'"):
            server.setup.take_keys(site, message)
    dealt = federation.sites[FIRST].shares(server.setup.key_list())
    server.setup.take_shares(FIRST, dealt)
    server.setup.take_shares(FIRST, dealt)
    for wrong in ({}, dealt | {SECOND: b""}, dealt | {FIRST: b""}):
        with pytest.raises(ProtocolError, match=f"site '{FIRST}' sent {len(wrong)} envelopes"):
            server.setup.take_shares(FIRST, wrong)
    with pytest.raises(QuorumLost, match=r"3 of 4 participants sent no shares: site-01, "):
        server.setup.envelopes_for(FIRST)


@pytest.mark.parametrize(
    ("names", "holds"),
    [
        ((FIRST, SECOND, THIRD, LAST), True),
        ((FIRST, THIRD, LAST), True),
        ((FIRST, LAST), False),
        ((), False),
        ((THIRD, FIRST, LAST), False),
        ((FIRST, FIRST, LAST), False),
        ((FIRST, SECOND, THIRD, "site-99"), False),
    ],
)
def test_a_survivor_set_is_at_least_n_minus_d_participants_in_order(federation, names, holds):
    assert is_survivor_set(federation.run, names) is holds


def test_a_digest_depends_on_every_part_of_a_request():
    parts = [("r", "p", 1, ("a", "b"), b"body")]
    for i, other in enumerate(["R", "P", 2, ("ab",), b"Body"]):
        parts.append((*parts[0][:i], other, *parts[0][i + 1 :]))
    assert len({request_digest(*part) for part in parts}) == 6
