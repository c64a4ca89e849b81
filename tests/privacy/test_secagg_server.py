"""The server: sums over whoever is left, and shares that do not fit."""

import numpy as np
import pytest

from benchmarks.trust_secure_sum import dropout_matrix, masked_sum
from configs.errors import ProtocolError, QuorumLost
from tests.privacy.secure_sums import Federation, clear_sum, digest_of, names_of, random_vectors

NAMES = FIRST, SECOND, THIRD, FOURTH, FIFTH = names_of(5)
VECTORS = random_vectors(NAMES, 6)


@pytest.fixture
def federation():
    return Federation(5, exchanges=4).set_up()


def test_a_masked_sum_is_the_clear_sum():
    row = masked_sum([(2, 1000), (3, 1000), (4, 1), (8, 40_000)])
    assert row.passed, row.figure


def test_lost_and_restarted_sites():
    row = dropout_matrix((3, 4, 5))
    assert row.passed, row.figure


@pytest.mark.parametrize("n_numbers", [0, 1])
def test_short_vectors_are_summed_too(federation, n_numbers):
    vectors = {name: np.full(n_numbers, 7, np.uint64) for name in NAMES}
    assert federation.exchange(1, vectors).tolist() == [35] * n_numbers


def test_each_exchange_names_its_own_survivors(federation):
    server = federation.server
    assert (server.previous, server.named) == ((), (0, ()))
    federation.exchange(1, VECTORS, missing=[THIRD])
    without_third = (FIRST, SECOND, FOURTH, FIFTH)
    assert server.named == (1, without_third)
    # the lost site is told of a set that it never answered, and is back in the next sum
    opened = federation.exchange(2, VECTORS)
    assert opened.tolist() == clear_sum(VECTORS, NAMES).tolist()
    assert server.named == (2, NAMES)
    for site in federation.sites.values():
        site.close(*server.named)


def test_an_exchange_without_enough_uploads_opens_nothing_and_the_next_one_works(federation):
    server = federation.server
    federation.upload(1, VECTORS, missing=NAMES)
    with pytest.raises(QuorumLost, match=r"vectors of 0 of 5 sites and needs 4; missing: site-00"):
        server.survivors()
    with pytest.raises(QuorumLost, match=r"answers of 0 sites and needs 4; answered: none"):
        server.open()
    federation.upload(2, VECTORS, missing=[FIRST, SECOND])
    with pytest.raises(QuorumLost, match=r"vectors of 3 of 5 sites and needs 4"):
        server.survivors()
    # one more comes late
    late = federation.sites[FIRST].upload(2, digest_of(2), (), VECTORS[FIRST])
    server.take_upload(FIRST, late)
    federation.answer(2)
    left = [FIRST, THIRD, FOURTH, FIFTH]
    assert server.open().tolist() == clear_sum(VECTORS, left).tolist()


def test_an_exchange_without_enough_answers_opens_nothing_and_the_next_one_works(federation):
    server = federation.server
    federation.upload(1, VECTORS, missing=[FIFTH])
    federation.answer(1, silent=[FIRST])
    assert not server.ready
    with pytest.raises(QuorumLost, match=r"answers of 3 sites and needs 4; answered: site-01"):
        server.open()
    # some sites answered for its survivors, so these are what the next request names
    assert server.previous == NAMES[:4]
    assert federation.exchange(2, VECTORS).tolist() == clear_sum(VECTORS, NAMES).tolist()


def test_exchanges_are_not_used_twice_and_end(federation):
    server = federation.server
    server.begin(3, digest_of(3), 1)
    for exchange in (0, 2, 3, 5):
        with pytest.raises(ProtocolError, match=r"cannot follow exchange 3 of 4.*spare_exchanges"):
            server.begin(exchange, digest_of(exchange), 1)


def test_nothing_happens_outside_an_exchange(federation):
    server = federation.server
    for act in (
        server.survivors,
        server.open,
        lambda: server.take_upload(FIRST, VECTORS[FIRST]),
    ):
        with pytest.raises(ProtocolError, match="no exchange is under way"):
            act()
    federation.exchange(1, VECTORS)
    with pytest.raises(ProtocolError, match="no exchange is under way"):
        server.open()


def test_an_upload_may_come_again_but_not_change_or_come_late(federation):
    server = federation.server
    federation.upload(1, VECTORS, missing=[FIFTH])
    again = federation.sites[FIRST].answered(1, digest_of(1), ())
    server.take_upload(FIRST, again)
    with pytest.raises(ProtocolError, match=rf"'{FIRST}' sent two different vectors"):
        server.take_upload(FIRST, again + np.uint64(1))
    survivors = server.survivors()
    server.take_upload(FIRST, again)
    with pytest.raises(ProtocolError, match=rf"'{FIFTH}' sent its vector after the survivors"):
        server.take_upload(FIFTH, VECTORS[FIFTH])
    assert server.survivors() == survivors == NAMES[:4]
    federation.answer(1)
    assert server.open().tolist() == clear_sum(VECTORS, survivors).tolist()


@pytest.mark.parametrize(
    "vector", [np.zeros(5, np.uint64), np.zeros((1, 6), np.uint64), np.zeros(6), np.zeros(6, int)]
)
def test_an_upload_of_another_form_is_refused(federation, vector):
    federation.server.begin(1, digest_of(1), 6)
    with pytest.raises(ProtocolError, match=rf"'{FIRST}' sent {vector.dtype} of shape"):
        federation.server.take_upload(FIRST, vector)


def test_a_stranger_is_refused(federation):
    federation.server.begin(1, digest_of(1), 6)
    with pytest.raises(ProtocolError, match="'site-99' is not among the participants"):
        federation.server.take_upload("site-99", VECTORS[FIRST])


def test_an_answer_of_another_question_site_or_form_is_refused(federation):
    server = federation.server
    federation.upload(1, VECTORS, missing=[FIFTH])
    survivors = server.survivors()
    answer = federation.sites[FIRST].unmask(1, survivors)
    other = Federation(5).set_up()
    other.upload(1, VECTORS)
    for site, wrong, sentence in [
        (SECOND, answer, f"'{SECOND}' answered another question"),
        (FIRST, other.sites[FIRST].unmask(1, NAMES), f"'{FIRST}' answered another question"),
        (FIRST, b"", f"'{FIRST}' answered another question"),
        (FIRST, answer[:-1], "cut short"),
        (FIFTH, answer, f"'{FIFTH}' answered .* not among its survivors"),
    ]:
        with pytest.raises(ProtocolError, match=sentence):
            server.take_answer(site, wrong)
    assert not server.ready


@pytest.mark.parametrize("kind", ["seed of a survivor", "masking secret of a lost site"])
def test_shares_that_do_not_fit_end_the_exchange_and_nothing_is_opened(federation, kind):
    server = federation.server
    federation.upload(1, VECTORS, missing=[FIFTH])
    survivors = server.survivors()
    for name in survivors:
        answer = bytearray(federation.sites[name].unmask(1, survivors))
        if name == SECOND:
            # five shares of 32 bytes stand at the end, in name order
            answer[-160 if kind == "seed of a survivor" else -32] ^= 1
        server.take_answer(name, bytes(answer))
    named = FIRST if kind == "seed of a survivor" else FIFTH
    with pytest.raises(ProtocolError, match=rf"shares of site '{named}' do not give the secret"):
        server.open()
    with pytest.raises(ProtocolError, match="no exchange is under way"):
        server.open()
    assert federation.exchange(2, VECTORS).tolist() == clear_sum(VECTORS, NAMES).tolist()


def test_what_the_server_holds_before_it_is_answered_is_not_the_sum(federation):
    federation.upload(1, VECTORS)
    held = federation.server._total
    assert not np.any(held == clear_sum(VECTORS, NAMES))


def test_a_vector_costs_eight_bytes_a_number_and_an_answer_32_a_peer(federation):
    sent = federation.sites[FIRST].upload(1, digest_of(1), (), VECTORS[FIRST])
    assert sent.nbytes == 8 * 6
    answer = federation.sites[FIRST].unmask(1, NAMES)
    assert len(answer) <= 200 * 5
