"""A site in its exchanges: what it repeats, refuses, remembers and forgets."""

import numpy as np
import pytest

from configs.errors import ProtocolError
from privacy.secagg import end_run
from privacy.vault import Vault
from tests.privacy.secure_sums import Federation, clear_sum, digest_of, names_of, random_vectors

NAMES = FIRST, SECOND, THIRD, FOURTH, FIFTH = names_of(5)
VECTORS = random_vectors(NAMES, 6)
WITHOUT_FIFTH, WITHOUT_FIRST = NAMES[:4], NAMES[1:]


@pytest.fixture
def federation():
    return Federation(5, exchanges=4).set_up()


def refusal(word):
    return pytest.raises(ProtocolError, check=lambda error: error.local_detail == word)


def upload(site, exchange=1, previous=(), body=b"centres"):
    digest = digest_of(exchange, previous, body)
    return site.upload(exchange, digest, previous, VECTORS[site.name])


def test_an_upload_hides_the_values_and_is_repeated_as_it_was(federation):
    site = federation.sites[FIRST]
    sent = upload(site)
    assert not np.any(sent == VECTORS[FIRST])
    assert site.answered(1, digest_of(1), ()).tolist() == sent.tolist()
    again = federation.restart(FIRST)
    assert again.answered(1, digest_of(1), ()).tolist() == sent.tolist()
    zeros = np.zeros(6, np.uint64)
    assert again.upload(1, digest_of(1), (), zeros).tolist() == sent.tolist()


def test_a_new_request_is_not_answered_yet(federation):
    site = federation.sites[FIRST]
    assert site.answered(1, digest_of(1), ()) is None
    upload(site)
    assert site.answered(3, digest_of(3), ()) is None


@pytest.mark.parametrize("restarted", [False, True])
def test_one_exchange_has_one_request(federation, restarted):
    upload(federation.sites[FIRST])
    site = federation.restart(FIRST) if restarted else federation.sites[FIRST]
    with refusal("second request"):
        upload(site, body=b"other centres")
    with refusal("second request"):
        site.answered(1, digest_of(1, body=b"other centres"), ())


@pytest.mark.parametrize("exchange", [0, 1, 5])
def test_an_exchange_counts_upwards_to_the_last_of_the_plan(federation, exchange):
    site = federation.sites[FIRST]
    upload(site, 2)
    with refusal("exchange"):
        upload(site, exchange)
    upload(site, 4)


def test_a_hash_of_another_length_is_refused(federation):
    with refusal("digest"):
        federation.sites[FIRST].upload(1, b"short", (), VECTORS[FIRST])


def test_sums_before_the_set_up_are_refused():
    federation = Federation(5)
    key_list = federation.publish()
    federation.sites[FIRST].shares(key_list)
    with refusal("order"):
        upload(federation.sites[FIRST])
    with refusal("exchange"):
        federation.sites[FIRST].unmask(1, NAMES)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_set_is_answered_with_the_same_bytes_and_no_other_set_is(federation, restarted):
    upload(federation.sites[FIRST])
    answer = federation.sites[FIRST].unmask(1, NAMES)
    site = federation.restart(FIRST) if restarted else federation.sites[FIRST]
    assert site.unmask(1, NAMES) == answer
    with refusal("second set"):
        site.unmask(1, WITHOUT_FIFTH)


@pytest.mark.parametrize(
    ("survivors", "word"),
    [
        (WITHOUT_FIRST, "without itself"),
        ((FIRST, SECOND, THIRD), "survivors"),
        ((), "survivors"),
        ((*NAMES, "site-99"), "survivors"),
        ((*WITHOUT_FIFTH, FOURTH), "survivors"),
        ((SECOND, FIRST, THIRD, FOURTH), "survivors"),
    ],
)
def test_a_set_that_cannot_be_is_refused_and_not_remembered(federation, survivors, word):
    site = federation.sites[FIRST]
    upload(site)
    with refusal(word):
        site.unmask(1, survivors)
    assert site.unmask(1, WITHOUT_FIFTH)


def test_only_the_exchange_of_the_last_upload_is_opened(federation):
    site = federation.sites[FIRST]
    with refusal("exchange"):
        site.unmask(0, NAMES)
    with refusal("exchange"):
        site.unmask(1, NAMES)
    upload(site)
    upload(site, 2)
    for exchange in (1, 3):
        with refusal("exchange"):
            site.unmask(exchange, NAMES)


def test_an_answer_holds_one_kind_of_share_for_each_site(federation):
    site = federation.sites[FIRST]
    upload(site)
    held = federation.sites[FIRST]._setup_of(1).held_shares(1)
    answer = site.unmask(1, WITHOUT_FIFTH)
    for name, (seed, masking) in held.items():
        given, kept = (masking, seed) if name == FIFTH else (seed, masking)
        assert given in answer
        assert kept not in answer


class TestPreviousSurvivors:
    """The set that a request names last has to be the one that the site answered."""

    def answered(self, federation, survivors=WITHOUT_FIFTH):
        site = federation.sites[FIRST]
        upload(site)
        site.unmask(1, survivors)
        return site

    @pytest.mark.parametrize("previous", [(), NAMES, (*NAMES[:3], FIFTH)])
    def test_another_set_than_the_answered_one_is_refused(self, federation, previous):
        site = self.answered(federation)
        with refusal("previous survivors"):
            upload(site, 2, previous)
        with refusal("previous survivors"):
            federation.restart(FIRST).answered(2, digest_of(2, previous), previous)
        upload(site, 2, WITHOUT_FIFTH)

    def test_no_set_can_be_named_before_the_first_exchange(self, federation):
        with refusal("previous survivors"):
            upload(federation.sites[FIRST], 1, NAMES)

    def test_a_site_that_was_down_takes_the_set_that_was_named_without_it(self, federation):
        site = self.answered(federation, NAMES)
        upload(site, 3, WITHOUT_FIRST)

    def test_a_site_that_uploaded_and_was_not_asked_takes_the_set_too(self, federation):
        site = self.answered(federation, NAMES)
        upload(site, 2, NAMES)
        upload(site, 3, WITHOUT_FIFTH)

    def test_a_site_that_never_answered_takes_any_set_that_could_have_been(self, federation):
        site = federation.sites[FIRST]
        for previous in (NAMES[:3], (SECOND, FIRST, THIRD, FOURTH), (*NAMES, "site-99")):
            with refusal("previous survivors"):
                upload(site, 2, previous)
        upload(site, 2, WITHOUT_FIRST)

    @pytest.mark.parametrize("previous", [NAMES, (FIRST, *NAMES[2:])])
    def test_a_skipped_number_hides_no_other_set_with_the_site_in_it(self, federation, previous):
        """It has sent nothing since its answer, so it can be in no set but that one."""
        site = self.answered(federation)
        with refusal("previous survivors"):
            upload(site, 3, previous)
        with refusal("previous survivors"):
            site.close(2, previous)
        upload(site, 3, WITHOUT_FIFTH)

    def test_an_exchange_that_opened_nothing_changes_nothing(self, federation):
        site = self.answered(federation)
        upload(site, 2, WITHOUT_FIFTH)
        upload(site, 3, WITHOUT_FIFTH)


class TestForgetting:
    """Secrets of an exchange end with the next accepted request, the close, or an abort."""

    KINDS = ("own from 1", "own shares from 1", "shares from 1", "upload")

    def left(self, vault):
        return sorted({e for e in range(5) for kind in self.KINDS if vault.unseal(kind, e)})

    def test_the_next_accepted_request_ends_the_secrets_of_the_last(self, tmp_path):
        federation = Federation(5, exchanges=4, folder=tmp_path).set_up()
        site, vault = federation.sites[FIRST], federation.vaults[FIRST]
        upload(site)
        site.unmask(1, NAMES)
        assert self.left(vault) == [1, 2, 3, 4]
        with refusal("previous survivors"):
            upload(site, 3)
        assert self.left(vault) == [1, 2, 3, 4]
        upload(site, 3, NAMES)
        assert self.left(vault) == [3, 4]
        files = sorted(path.name for path in (tmp_path / FIRST).glob("*.key"))
        assert files == ["exchange-3.key", "exchange-4.key"]
        federation.close()

    def test_a_crash_before_the_end_of_the_secrets_is_made_good(self, federation, monkeypatch):
        site, vault = federation.sites[FIRST], federation.vaults[FIRST]
        monkeypatch.setattr(vault, "forget", lambda before, since=0: None)
        upload(site, 2)
        monkeypatch.undo()
        assert self.left(vault) == [1, 2, 3, 4]
        federation.restart(FIRST)
        assert self.left(vault) == [2, 3, 4]

    def test_the_closing_message_ends_all(self, federation):
        site, vault = federation.sites[FIRST], federation.vaults[FIRST]
        upload(site)
        site.unmask(1, WITHOUT_FIFTH)
        for exchange, survivors in [(0, ()), (1, NAMES), (1, ()), (2, NAMES[:3])]:
            with refusal("previous survivors"):
                site.close(exchange, survivors)
        assert self.left(vault) == [1, 2, 3, 4]
        site.close(1, WITHOUT_FIFTH)
        assert self.left(vault) == []
        site.close(1, WITHOUT_FIFTH)

    def test_a_site_that_was_down_at_the_end_takes_the_last_set(self, federation):
        site = federation.sites[FIRST]
        upload(site)
        site.unmask(1, NAMES)
        site.close(2, WITHOUT_FIRST)
        assert self.left(federation.vaults[FIRST]) == []

    @pytest.mark.parametrize("how", ["close", "abort", "abort without keys"])
    def test_a_run_that_is_over_answers_nothing(self, federation, how):
        site, vault = federation.sites[FIRST], federation.vaults[FIRST]
        key_list = federation.server.setup.key_list()
        upload(federation.sites[SECOND])
        if how == "close":
            site.close(0, ())
        elif how == "abort":
            site.abort()
        else:
            end_run(vault)
        assert self.left(vault) == []
        for each in (site, federation.restart(FIRST)):
            for ask in (
                each.keys,
                lambda each=each: each.shares(key_list),
                lambda each=each: each.receive({}),
                lambda each=each: upload(each),
                lambda each=each: each.unmask(1, NAMES),
            ):
                with refusal("over"):
                    ask()
            each.close(3, NAMES)
            each.abort()

    def test_a_run_may_be_aborted_before_anything_happened(self):
        federation = Federation(5)
        federation.sites[FIRST].abort()
        with refusal("over"):
            federation.sites[FIRST].keys()


@pytest.mark.parametrize("point", ["upload", "answer"])
def test_what_was_not_committed_was_not_sent(federation, monkeypatch, point):
    """A site that is killed before its commit is asked again as if nothing had been."""
    site, vault = federation.sites[FIRST], federation.vaults[FIRST]
    if point == "answer":
        upload(site)
    before = vault.counter

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("privacy.secagg_site.Vault.seal", killed)
    monkeypatch.setattr("privacy.secagg_site.Vault.put", killed)
    with pytest.raises(KeyboardInterrupt):
        upload(site) if point == "upload" else site.unmask(1, NAMES)
    monkeypatch.undo()
    assert vault.counter == before
    site = federation.restart(FIRST)
    if point == "upload":
        assert site.answered(1, digest_of(1), ()) is None
        upload(site, body=b"other centres")
    else:
        site.unmask(1, WITHOUT_FIFTH)


def test_a_folder_from_a_backup_is_behind_its_counter(tmp_path):
    federation = Federation(5, folder=tmp_path).set_up()
    database = tmp_path / FIRST / "vault.sqlite"
    backup = database.read_bytes()
    written = federation.vaults[FIRST].counter
    upload(federation.sites[FIRST])
    assert federation.vaults[FIRST].counter > written
    federation.close()
    database.write_bytes(backup)
    restored = Vault(tmp_path / FIRST)
    assert restored.counter == written
    restored.close()


def test_the_bytes_do_not_depend_on_where_the_vault_lies(tmp_path):
    federation = Federation(5, folder=tmp_path).set_up()
    opened = federation.exchange(1, VECTORS, missing=[THIRD])
    assert opened.tolist() == clear_sum(VECTORS, [n for n in NAMES if n != THIRD]).tolist()
    federation.close()
