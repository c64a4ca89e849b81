import hashlib
import math
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import BudgetExceeded, PolicyRefused, ProtocolError
from privacy.accountant import epsilon_of_rho
from privacy.audit import EMPTY, AuditLog
from privacy.budget import Budget, Cost, Loss
from privacy.ledger import LEDGER_HEAD, Ledger
from privacy.ledger_keys import data_fingerprint, ledger_key

KEY = bytes(range(32))
DELTA = 1e-4


def ledger(path=None, *, key=KEY, cohort="", budget=8.0, delta=DELTA, **options):
    return Ledger(
        path,
        key,
        cohort=cohort,
        epsilon_budget=budget,
        delta_budget=delta,
        site="west",
        **options,
    )


def cost(releases=10, rho=0.01, alone=None, delta=0.0):
    return Cost("gaussian", releases, rho, rho if alone is None else alone, 3.0, 1.5, delta)


def request(number):
    return hashlib.sha256(str(number).encode()).digest()


def refused(error, call, *arguments):
    with pytest.raises(error) as caught:
        call(*arguments)
    return caught.value.public_message


def run(book, run_id, releases=3, rho=0.01):
    book.reserve(run_id, "plan", cost(releases, rho))
    for exchange in range(releases):
        assert book.spend(run_id, exchange, request(exchange)) is None
        book.answered(run_id, exchange, f"reply {exchange}".encode())
    book.give_back(run_id)


# -- arithmetic ------------------------------------------------------------------------------


def test_a_new_ledger_has_all_of_its_budget_left():
    status = ledger().status()
    assert (status.spent, status.reserved, status.left) == (0.0, 0.0, 8.0)
    assert (status.epsilon_budget, status.delta_budget, status.cohort) == (8.0, DELTA, "")


def test_rho_adds_and_is_converted_once():
    book = ledger()
    run(book, "first", releases=4, rho=0.02)
    book.reserve("second", "plan", cost(releases=5, rho=0.03, alone=0.07))
    book.spend("second", 0, request(0))

    status = book.status()

    assert status.rho_spent == pytest.approx(4 * 0.02 + 0.03)
    assert status.rho_reserved == pytest.approx(4 * 0.03)
    assert status.spent == epsilon_of_rho(status.rho_spent, DELTA)
    assert status.spent + status.reserved == pytest.approx(epsilon_of_rho(0.08 + 0.15, DELTA))
    assert status.spent + status.reserved + status.left == pytest.approx(8.0)
    assert status.if_others_collude == pytest.approx(epsilon_of_rho(0.08 + 5 * 0.07, DELTA))


def test_pure_epsilon_counts_half_its_square():
    assert Cost.of_pure("randomised-response", 2, 0.5) == Cost(
        "randomised-response", 2, 0.125, 0.125, 0.0, 0.0, 0.0
    )


def test_tails_are_taken_off_the_sites_delta():
    book = ledger()
    book.reserve("run", "plan", cost(releases=10, rho=0.01, delta=4e-6))
    assert book.status().reserved == epsilon_of_rho(0.1, DELTA - 4e-5)


def test_tails_that_leave_no_delta_are_refused():
    sentence = refused(
        BudgetExceeded, ledger().reserve, "run", "plan", cost(releases=10, delta=1e-5)
    )
    assert "policy.delta_budget" in sentence
    assert "0.0001" in sentence


def test_a_site_without_delta_pays_for_nothing():
    assert "policy.delta_budget" in refused(
        BudgetExceeded, ledger(delta=0.0).reserve, "run", "plan", cost()
    )
    assert ledger(delta=0.0).status().left == 8.0


def test_a_lowered_budget_leaves_nothing_rather_than_less(tmp_path):
    path = tmp_path / "ledger.db"
    run(ledger(path), "run", rho=0.3)
    assert ledger(path, budget=0.1).status().left == 0.0
    status = ledger(path, delta=0.0).status()
    assert (status.spent, status.reserved, status.left) == (math.inf, 0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
@pytest.mark.parametrize("name", ["rho", "rho_if_others_collude", "sigma", "sensitivity", "delta"])
def test_no_cost_is_made_of_what_no_budget_can_compare(name, bad):
    good = {"rho": 0.1, "rho_if_others_collude": 0.1, "sigma": 1.0, "sensitivity": 1.0, "delta": 0}
    with pytest.raises(ValueError, match="no cost"):
        Cost("gaussian", 1, **{**good, name: bad})
    with pytest.raises(ValueError, match="no cost"):
        Cost("gaussian", 0, **good)


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6), st.floats(0.1, 10.0))
def test_what_is_spent_reserved_asked_and_left_is_the_budget(rhos, epsilon):
    budget = Budget("", epsilon, DELTA)
    losses = [Loss.of([(cost(1, rho), 1)]) for rho in rhos]
    total = Loss.of([(cost(1, rho), 1) for rho in rhos])
    status = budget.status(losses[0], total)
    assert status.spent + status.reserved == pytest.approx(budget.epsilon_of(total))
    assert status.left == pytest.approx(max(epsilon - budget.epsilon_of(total), 0.0), abs=1e-9)


# -- reserve ---------------------------------------------------------------------------------


def test_a_run_over_the_budget_is_refused_with_all_four_numbers():
    book = ledger(budget=2.0)
    run(book, "a" * 32, releases=2, rho=0.01)
    book.reserve("b" * 32, "plan", cost(releases=2, rho=0.01))
    status = book.status()
    after = epsilon_of_rho(0.02 + 0.02 + 0.5, DELTA)

    sentence = refused(BudgetExceeded, book.reserve, "c" * 32, "plan", cost(50, rho=0.01))

    assert sentence == (
        "site 'west': the privacy budget of its patients (epsilon 2 at delta 0.0001) does not "
        f"cover run cccccccc: spent {status.spent:.4g}, reserved {status.reserved:.4g}, asked "
        f"{after - status.spent - status.reserved:.4g}, left {status.left:.4g}; lower "
        "privacy.epsilon in the plan, or let the site raise policy.epsilon_budget"
    )
    assert book.status() == status
    assert book.open_runs() == ("b" * 32,)


def test_asking_beforehand_changes_nothing():
    book = ledger(budget=2.0)
    head = book.head()
    book.refuse_dear("run", cost(2))
    assert "does not cover run" in refused(BudgetExceeded, book.refuse_dear, "run", cost(200))
    assert book.head() == head
    book.reserve("run", "plan", cost(10))
    book.refuse_dear("run", cost(10))  # its own reservation does not stand in its way


def test_a_price_is_what_the_run_adds():
    book = ledger()
    book.reserve("first", "plan", cost(10))
    before = book.status()
    price = book.price(cost(20))
    assert book.status() == before
    book.reserve("second", "plan", cost(20))
    assert book.status().reserved == pytest.approx(before.reserved + price)
    assert ledger(delta=0.0).price(cost()) == math.inf


def test_the_same_reservation_again_is_free():
    book = ledger()
    book.reserve("run", "plan", cost())
    before = book.status()
    book.reserve("run", "plan", cost())
    assert book.status() == before
    for plan, other in [("other", cost()), ("plan", cost(11))]:
        assert "another cost" in refused(ProtocolError, book.reserve, "run", plan, other)


def test_what_is_returned_can_be_spent_again_and_what_is_forfeited_cannot():
    for end, left in [(Ledger.give_back, 9), (Ledger.forfeit, 0)]:
        book = ledger()
        book.reserve("run", "plan", cost(releases=10, rho=0.01))
        book.spend("run", 0, request(0))
        end(book, "run")
        end(book, "run")
        status = book.status()
        assert status.rho_spent == pytest.approx((10 - left) * 0.01)
        assert (status.reserved, book.open_runs()) == (0.0, ())


def test_a_run_that_has_ended_may_come_again_but_one_that_died_may_not():
    book = ledger()
    book.reserve("run", "plan", cost())
    book.give_back("run")
    before = book.status()
    book.reserve("run", "plan", cost())
    assert book.status() == before
    book.reserve("dead", "plan", cost())
    book.forfeit("dead")
    assert "closed the account" in refused(ProtocolError, book.reserve, "dead", "plan", cost())


def test_the_first_end_counts():
    for first, then in [(Ledger.forfeit, Ledger.give_back), (Ledger.give_back, Ledger.forfeit)]:
        book = ledger()
        book.reserve("run", "plan", cost())
        first(book, "run")
        head = book.head()
        then(book, "run")
        assert book.head() == head


def test_a_run_that_reserved_nothing_has_nothing_to_end():
    book = ledger()
    book.give_back("run")
    book.forfeit("run")
    assert book.status().spent == 0.0


# -- spend -----------------------------------------------------------------------------------


def test_the_same_request_gets_the_stored_bytes_for_nothing():
    book = ledger()
    book.reserve("run", "plan", cost(2))
    assert book.spend("run", 1, request(1)) is None
    book.answered("run", 1, b"noisy sums")
    before = book.head()

    assert book.spend("run", 1, request(1)) == b"noisy sums"

    assert book.head() == before


@pytest.mark.parametrize(("exchange", "asked"), [(1, request(2)), (2, request(1))])
def test_anything_else_pays(exchange, asked):
    book = ledger()
    book.reserve("run", "plan", cost(2))
    book.spend("run", 1, request(1))
    book.answered("run", 1, b"noisy sums")
    assert book.spend("run", exchange, asked) is None
    assert book.status().rho_spent == pytest.approx(0.02)


def test_a_paid_request_without_an_answer_pays_again():
    book = ledger()
    book.reserve("run", "plan", cost(2))
    book.spend("run", 1, request(1))
    assert book.spend("run", 1, request(1)) is None
    assert book.status().rho_spent == pytest.approx(0.02)


def test_a_run_pays_no_more_than_it_reserved():
    book = ledger()
    book.reserve("run-1234-5678", "plan", cost(2))
    book.spend("run-1234-5678", 1, request(1))
    book.spend("run-1234-5678", 2, request(2))
    sentence = refused(BudgetExceeded, book.spend, "run-1234-5678", 3, request(3))
    assert "reserved 2 releases for run run-1234 and all are paid" in sentence
    assert book.status().rho_spent == pytest.approx(0.02)


def test_order_is_kept():
    book = ledger()
    assert "reserved nothing" in refused(ProtocolError, book.spend, "run", 1, request(1))
    assert "reserved nothing" in refused(ProtocolError, book.answered, "run", 1, b"")
    book.reserve("run", "plan", cost())
    assert "no paid and unanswered" in refused(ProtocolError, book.answered, "run", 1, b"")
    book.spend("run", 1, request(1))
    book.answered("run", 1, b"")
    book.answered("run", 1, b"")  # of a site that died before it knew
    assert "no paid and unanswered" in refused(ProtocolError, book.answered, "run", 1, b"other")
    book.give_back("run")
    for call, arguments in [
        (book.spend, ("run", 1, request(1))),
        (book.answered, ("run", 1, b"")),
    ]:
        assert "closed the account" in refused(ProtocolError, call, *arguments)


def test_a_payment_stands_where_nothing_was_sent_for_it():
    book = ledger()
    book.reserve("run", "plan", cost())
    for _ in range(3):
        assert book.spend("run", 1, request(1), unsent=True) is None
    assert book.status().rho_spent == pytest.approx(cost().rho)
    book.spend("run", 1, request(2), unsent=True)  # another request
    book.spend("run", 1, request(2))  # nobody knows what was sent
    assert book.status().rho_spent == pytest.approx(3 * cost().rho)
    book.answered("run", 1, b"reply")
    assert book.spend("run", 1, request(2), unsent=True) == b"reply"
    assert book.status().rho_spent == pytest.approx(3 * cost().rho)


def test_replies_are_kept_no_longer_than_the_run(tmp_path):
    path = tmp_path / "ledger.db"
    book = ledger(path)
    run(book, "run")
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM replies").fetchone() == (0,)
    connection.close()


# -- cohorts ---------------------------------------------------------------------------------


def test_another_name_renews_no_budget(tmp_path):
    path = tmp_path / "ledger.db"
    run(ledger(path, cohort="heart"), "run", releases=10, rho=0.05)

    renamed = ledger(path, cohort="cardiology").status()

    assert renamed.cohort == "cardiology"
    assert renamed.rho_spent == pytest.approx(0.5)


def test_cohorts_that_share_nobody_have_their_own_budgets(tmp_path):
    path = tmp_path / "ledger.db"
    run(ledger(path, cohort="heart"), "run", releases=10, rho=0.05)
    apart = ledger(path, cohort="children", separate=["heart", "children"])
    assert apart.status().rho_spent == 0.0
    run(apart, "other", releases=1, rho=0.01)
    assert apart.status().rho_spent == pytest.approx(0.01)
    assert ledger(path, cohort="heart", separate=["children"]).status().rho_spent == pytest.approx(
        0.5
    )


def test_a_cohort_is_named_where_its_budget_does_not_cover_a_run():
    assert "budget of cohort 'heart'" in refused(
        BudgetExceeded, ledger(cohort="heart", budget=0.1).reserve, "run", "plan", cost()
    )


# -- on disk ---------------------------------------------------------------------------------


def test_it_survives_a_restart_and_two_see_one_budget(tmp_path):
    path = tmp_path / "state" / "ledger.db"
    first = ledger(path)
    first.reserve("run", "plan", cost(2))
    first.spend("run", 1, request(1))
    first.answered("run", 1, b"noisy sums")
    second = ledger(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert second.status() == first.status()
    assert second.spend("run", 1, request(1)) == b"noisy sums"
    second.spend("run", 2, request(2))
    assert "all are paid" in refused(BudgetExceeded, first.spend, "run", 3, request(3))
    first.verify()
    assert first.head() == second.head()


def test_commits_are_durable(tmp_path):
    book = ledger(tmp_path / "ledger.db")
    with book._database.transaction() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_is_no_ledger_is_said(tmp_path):
    (tmp_path / "ledger.db").write_bytes(b"x" * 5000)
    with pytest.raises(PolicyRefused) as caught:
        ledger(tmp_path / "ledger.db")
    assert "privacy ledger of site 'west' was altered" in caught.value.public_message
    assert str(tmp_path) not in caught.value.public_message
    assert str(tmp_path) in caught.value.local_detail


def test_the_key_is_drawn_once_and_its_loss_is_said(tmp_path):
    key = ledger_key(tmp_path)
    assert ledger_key(tmp_path) == key
    ledger(tmp_path / "ledger.db", key=key)
    (tmp_path / "ledger.key").unlink()
    assert "ledger key 'ledger.key' does not exist: restore it" in refused(
        PolicyRefused, ledger_key, tmp_path
    )


# -- tampering -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write a ledger of two runs, 13 rows; nothing may change it."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    book = ledger(path)
    run(book, "one", releases=3, rho=0.05)
    book.reserve("two", "plan", cost(4))
    for exchange in range(2):
        book.spend("two", exchange, request(exchange))
        book.answered("two", exchange, f"reply {exchange}".encode())
    del book  # closed, so that all is in the one file
    return path


@pytest.fixture
def kept(pristine, tmp_path):
    """Copy the ledger for one test to spoil."""
    return Path(shutil.copy(pristine, tmp_path))


def tamper(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_an_untouched_ledger_is_in_order(kept):
    book = ledger(kept)
    book.verify()
    book.verify([book.head()])


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("UPDATE entries SET rho = 0.0 WHERE number = 2", 2),
        ("UPDATE entries SET releases = 1 WHERE number = 1", 1),
        ("UPDATE entries SET cohort = 'nobody' WHERE number = 9", 9),
        ("UPDATE entries SET event = 'return' WHERE number = 10", 10),
        ("UPDATE entries SET audit_head = '' WHERE number = 3", 3),
        ("UPDATE entries SET mac = zeroblob(32) WHERE number = 4", 4),
        ("UPDATE entries SET mac = 'x' WHERE number = 4", 4),
        ("UPDATE entries SET request_hash = 'text' WHERE number = 2", 2),
        # a whole number and these eight bytes as text have one encoding
        ("UPDATE entries SET exchange = CAST(x'0000000000000000' AS TEXT) WHERE number = 2", 2),
        ("DELETE FROM entries WHERE number = 5", 5),
        ("DELETE FROM entries WHERE number = 13", 13),
        ("DELETE FROM entries WHERE number > 10", 11),
        ("DELETE FROM entries", 1),
        ("DELETE FROM head", 14),
        ("UPDATE head SET seal = zeroblob(32)", 14),
        (
            "INSERT INTO entries SELECT 14, event, at, cohort, run_id, plan_id, exchange, "
            "request_hash, reply_hash, mechanism, releases, sigma, sensitivity, rho, "
            "rho_if_others_collude, delta, audit_head, mac FROM entries WHERE number = 8",
            14,
        ),
    ],
)
def test_a_change_is_found_where_it_is(kept, statement, row):
    running = ledger(kept)
    tamper(kept, statement)

    assert f"breaks at row {row} (" in refused(PolicyRefused, ledger(kept).verify)
    # whoever only wants to go on finds it too
    assert f"breaks at row {row} (" in refused(PolicyRefused, ledger(kept).status)
    assert f"breaks at row {row} (" in refused(PolicyRefused, running.reserve, "x", "p", cost())


def test_a_row_recomputed_without_the_key_is_found(kept):
    other = ledger(kept.with_name("other.db"), key=bytes(32))
    run(other, "one", releases=3, rho=0.0001)
    connection = sqlite3.connect(kept)
    connection.execute(f"ATTACH '{kept.with_name('other.db')}' AS other")
    with connection:
        connection.execute("DELETE FROM entries")
        connection.execute("DELETE FROM head")
        connection.execute("INSERT INTO entries SELECT * FROM other.entries")
        connection.execute("INSERT INTO head SELECT * FROM other.head")
    connection.close()
    assert "breaks at row 1 (it was edited, or written without the site's ledger key)" in refused(
        PolicyRefused, ledger(kept).verify
    )


def test_an_edited_reply_is_found_and_never_sent(kept):
    tamper(kept, "UPDATE replies SET reply = 'clear sums'")
    book = ledger(kept)
    assert "a reply that it keeps was edited" in refused(PolicyRefused, book.verify)
    assert "was edited" in refused(PolicyRefused, book.spend, "two", 0, request(0))
    tamper(kept, "DELETE FROM replies")
    assert "is missing" in refused(PolicyRefused, book.spend, "two", 0, request(0))


def test_an_older_copy_shows_against_a_later_head(tmp_path):
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    book = ledger(path)
    run(book, "one")
    with sqlite3.connect(path) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()
    run(book, "two")
    certified = book.head()

    restored = ledger(copy)
    restored.verify()  # by itself an old copy is in order
    assert "lacks some that the audit log or a certificate" in refused(
        PolicyRefused, restored.verify, [certified]
    )


def test_a_ledger_put_back_under_a_running_worker_is_found(kept):
    running = ledger(kept)
    running.status()
    tamper(kept, "DELETE FROM entries", "DELETE FROM head")
    assert "breaks at row 14 (rows from there on are missing)" in refused(
        PolicyRefused, running.status
    )
    assert "lacks some" in refused(PolicyRefused, ledger(kept).verify, ["00" * 32])


def test_the_ledger_and_the_audit_log_vouch_for_each_other():
    audit = AuditLog(None)
    book = ledger(audit=audit)
    heads = [book.head()]
    book.reserve("run", "plan", cost(releases=3, rho=0.01))
    heads.append(book.head())
    book.spend("run", 0, request(0))
    heads.append(book.head())
    book.answered("run", 0, b"noisy sums")
    book.spend("run", 0, request(0))  # free, and no event
    book.give_back("run")
    heads.append(book.head())

    entries = audit.entries()
    assert [(entry.event, entry.facts["run_id"]) for entry in entries] == [
        ("budget reserved", "run"),
        ("release paid", "run"),
        ("budget returned", "run"),
    ]
    assert [entry.facts[LEDGER_HEAD] for entry in entries] == heads[1:]
    assert entries[1].facts["epsilon_spent"] == epsilon_of_rho(0.01, DELTA)
    assert entries[2].facts["releases"] == 2
    assert book.audit_heads() == (EMPTY, entries[0].hash, entries[1].hash)
    audit.verify(book.audit_heads())
    book.verify(entry.facts[LEDGER_HEAD] for entry in entries)


def test_a_fingerprint_depends_on_the_data_and_the_key():
    first = data_fingerprint(KEY, [b"ab", b"c"])
    assert data_fingerprint(KEY, [b"ab", b"c"]) == first
    assert first not in (
        data_fingerprint(KEY, [b"a", b"bc"]),
        data_fingerprint(bytes(32), [b"ab", b"c"]),
    )
