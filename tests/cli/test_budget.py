import hashlib
import json
import sqlite3

import pytest

from configs.site import SiteConfig
from fedmvc_client.cli import app as client
from fedmvc_client.safe import FolderSafe
from privacy.accountant import epsilon_of_rho
from privacy.ledger import Cost
from tests.cli.commands import call, edit_text, files_in

COST = Cost("gaussian", 4, 0.05, 0.1, 3.0, 1.0, 0.0)
RUN, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def site(sites):
    return sites / "st-anna"


def safe_of(site):
    return FolderSafe(site, SiteConfig.load(site))


def spend(site, run_id=RUN, releases=2, end=True):
    ledger = safe_of(site).ledger
    ledger.reserve(run_id, "plan", COST)
    for exchange in range(releases):
        ledger.spend(run_id, exchange, hashlib.sha256(bytes([exchange])).digest())
        ledger.answered(run_id, exchange, b"noisy sums")
    if end:
        ledger.give_back(run_id)
    return ledger.head()


def budget(*arguments):
    return call(client, "budget", *arguments)


def told(*arguments):
    ended = budget(*arguments, "--json")
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out)


def test_a_site_that_spent_nothing_has_all_left_and_no_file_is_made(site):
    before = files_in(site)
    assert told("show", "--site", site) == {
        "site": "st-anna",
        "cohort": "",
        "epsilon_budget": 8.0,
        "delta_budget": 1e-4,
        "spent": 0.0,
        "reserved": 0.0,
        "left": 8.0,
        "rho_spent": 0.0,
        "rho_reserved": 0.0,
        "if_others_collude": 0.0,
        "open_runs": [],
    }
    assert budget("verify", "--site", site).code == 0
    assert files_in(site) == before


def test_what_is_spent_reserved_and_left(site):
    spend(site)
    spend(site, OTHER, releases=1, end=False)

    status = told("show", "--site", site)

    assert status["spent"] == epsilon_of_rho(3 * 0.05, 1e-4)
    assert status["spent"] + status["reserved"] == pytest.approx(epsilon_of_rho(0.3, 1e-4))
    assert status["left"] == pytest.approx(8.0 - epsilon_of_rho(0.3, 1e-4))
    assert status["open_runs"] == [OTHER]
    ended = budget("show", "--site", site)
    assert ended.code == 0
    assert ended.out.splitlines()[0] == (
        "site 'st-anna', the whole site: epsilon 8 at delta 0.0001; spent "
        f"{status['spent']:.4g}, reserved {status['reserved']:.4g}, left {status['left']:.4g}"
    )
    assert f"  run {OTHER} is not over" in ended.out.splitlines()


def test_a_ledger_in_order_is_said_with_its_head(site):
    head = spend(site)
    assert told("verify", "--site", site) == {"site": "st-anna", "certificates": 0, "head": head}
    ended = budget("verify", "--site", site)
    assert ended.out == (
        f"the privacy ledger of site 'st-anna' is in order (0 certificates asked); its head is "
        f"{head}\n"
    )


def tamper(site, *statements):
    connection = sqlite3.connect(site / "state" / "ledger.db")
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_an_edited_row_is_named(site):
    spend(site)
    tamper(site, "UPDATE entries SET rho = 0.001 WHERE number = 2")
    for command in (("verify",), ("show",)):
        ended = budget(*command, "--site", site)
        assert ended.code == 4
        assert "privacy ledger of site 'st-anna' breaks at row 2" in ended.sentence


def test_a_ledger_put_back_shows_in_the_audit_log(site):
    spend(site)
    old = {p.name: p.read_bytes() for p in (site / "state").iterdir() if "ledger" in p.name}
    spend(site, OTHER)
    for name, body in old.items():
        (site / "state" / name).write_bytes(body)
    ended = budget("verify", "--site", site)
    assert ended.code == 4
    assert "lacks some that the audit log or a certificate vouches for" in ended.sentence


def test_a_whole_folder_put_back_shows_in_the_certificates(site, tmp_path):
    spend(site)
    old = {path.name: path.read_bytes() for path in (site / "state").iterdir()}
    head, audit_head = spend(site, OTHER), safe_of(site).audit.head()
    for name, body in old.items():
        (site / "state" / name).write_bytes(body)
    assert budget("verify", "--site", site).code == 0  # both are old, and agree
    certificate = {"epsilon": 1.0, "ledger_head": head, "audit_head": audit_head}
    elsewhere = tmp_path / "certificate.json"
    elsewhere.write_text(json.dumps(certificate))
    for command in ("budget", "log"):
        ended = call(client, command, "verify", "--site", site, "--certificate", elsewhere)
        assert ended.code == 4
        assert "vouche" in ended.sentence
    kept = site / "results" / OTHER / "certificate.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(certificate))
    assert budget("verify", "--site", site).code == 4


def test_a_certificate_that_cannot_be_read_is_said(site, tmp_path):
    spend(site)
    path = tmp_path / "certificate.json"
    for body in ("{", "[1]", None):
        if body is None:
            path.unlink()
        else:
            path.write_text(body)
        ended = budget("verify", "--site", site, "--certificate", path)
        assert ended.code == 2
        assert "certificate 'certificate.json' cannot be read" in ended.sentence


def test_a_lost_key_and_a_broken_file_are_said(site):
    spend(site)
    key = (site / "state" / "ledger.key").read_bytes()
    (site / "state" / "ledger.key").unlink()
    ended = budget("show", "--site", site)
    assert ended.code == 4
    assert "ledger key 'ledger.key' does not exist: restore it" in ended.sentence
    (site / "state" / "ledger.key").write_bytes(key)
    (site / "state" / "ledger.key").chmod(0o600)
    (site / "state" / "ledger.db").write_bytes(b"nothing" * 1000)
    ended = budget("show", "--site", site)
    assert ended.code == 4
    assert "privacy ledger of site 'st-anna' was altered (file is not a database)" in ended.sentence


@pytest.mark.parametrize("gone", [("ledger.db",), ("ledger.db", "audit.jsonl")])
def test_a_ledger_that_is_gone_is_not_a_budget_that_is_whole(site, gone):
    folder = site / "results" / RUN
    folder.mkdir(parents=True)
    (folder / "certificate.json").write_text(json.dumps({"ledger_head": spend(site)}))
    for name in gone:
        (site / "state" / name).unlink()
    ended = budget("show", "--site", site)
    assert ended.code == 4
    assert "restore" in ended.sentence


def test_a_budget_without_delta_is_still_json(site):
    spend(site)
    edit_text(site / "site.toml", "delta_budget = 0.0001", "delta_budget = 0.0")
    status = told("show", "--site", site)
    assert (status["spent"], status["left"]) == (None, 0.0)
    assert "spent more than any, reserved 0, left 0" in budget("show", "--site", site).out


# -- cohorts of their own --------------------------------------------------------------------


def test_two_cohorts_are_separate_once_that_is_signed(site):
    edit_text(site / "site.toml", 'cohort = ""', 'cohort = "heart"')

    ended = budget("separate", "heart", "children", "--yes", "--site", site)

    assert ended.code == 0
    assert ended.out.startswith("cohorts 'heart' and 'children' have budgets of their own")
    told_now = told("separate", "heart", "eyes", "--yes", "--site", site)
    assert told_now["separate"] == [["children", "heart"], ["eyes", "heart"]]
    entries = safe_of(site).audit.entries()
    assert [entry.event for entry in entries] == ["cohorts stated separate"] * 2


def test_a_new_name_shares_the_budget_until_the_statement_is_signed(site):
    edit_text(site / "site.toml", 'cohort = ""', 'cohort = "heart"')
    spend(site)
    spent = told("show", "--site", site)["spent"]
    edit_text(site / "site.toml", 'cohort = "heart"', 'cohort = "children"')
    assert told("show", "--site", site)["spent"] == spent > 0.0

    assert budget("separate", "heart", "children", "--yes", "--site", site).code == 0
    assert told("show", "--site", site)["spent"] == 0.0

    edit_text(site / "cohorts.json", '"heart"', '"lung"')
    ended = budget("show", "--site", site)
    assert ended.code == 4
    assert "its identity key did not sign" in ended.sentence


def test_without_a_yes_nothing_is_signed(site, monkeypatch):
    monkeypatch.setattr("typer.confirm", lambda question, **options: False)
    ended = budget("separate", "heart", "children", "--site", site)
    assert ended.code == 2
    assert "nothing was signed: both cohorts go on sharing one budget" in ended.sentence
    assert not (site / "cohorts.json").exists()


def test_a_forged_statement_is_not_added_to(site):
    assert budget("separate", "heart", "children", "--yes", "--site", site).code == 0
    edit_text(site / "cohorts.json", '"children"', '"adults"')
    ended = budget("separate", "heart", "eyes", "--yes", "--site", site)
    assert ended.code == 4
    assert "its identity key did not sign" in ended.sentence


def test_help_teaches():
    for command, words in {
        (): ["show", "verify", "separate"],
        ("show",): ["--site", "--json", "renews nothing"],
        ("verify",): ["--site", "--certificate", "--json", "cut off"],
        ("separate",): ["FIRST", "SECOND", "--site", "--yes", "--json", "no patient"],
    }.items():
        ended = budget(*command, "--help")
        assert ended.code == 0
        assert [word for word in words if word not in ended.words] == []
