import dataclasses
import logging
from datetime import UTC, datetime, timedelta

import pytest

from configs.errors import (
    BudgetExceeded,
    ConfigError,
    DataRefused,
    InternalError,
    ProtocolError,
)
from configs.plan import RunPlan
from configs.site import Policy, SiteConfig
from fedmvc_client.faults import Declined
from fedmvc_client.refusal_notes import MOST_A_DAY, RefusalNotes
from fedmvc_client.refusals import refusal
from fedmvc_client.safe import FolderSafe, MemorySafe
from fedmvc_server.site_keys import draw_keys, write_keys
from privacy.identity import PASSPHRASE, make_identity
from strategies import messages as m

RUN = "0" * 32


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "st-anna").mkdir()
    write_keys(tmp_path, ["st-anna"])
    return tmp_path / "st-anna"


def safe_of(folder, **fields):
    config = SiteConfig.parse({"name": "st-anna", "data": {"ecg": "ecg.csv"}, **fields})
    return FolderSafe(folder, config)


def test_nothing_is_made_before_it_is_used(folder):
    safe = safe_of(folder)
    assert safe.roster().key_of("st-anna") == safe.identity().public_key()
    keys = {"identity.pem", "identity.pub"}
    assert {path.name for path in (folder / "state").iterdir()} == keys
    assert safe.register.list() == ()
    assert safe.ledger.open_runs() == ()
    safe.audit.write("plan seen")
    names = {path.name for path in (folder / "state").iterdir()}
    assert {"register.db", "ledger.db", "audit.jsonl"} <= names


def test_a_vault_lies_in_its_runs_folder_and_is_closed_to_others(folder):
    vault = safe_of(folder).vault(RUN)
    with vault.transaction():
        vault.seal("own", {1: b"secret"})
    secure = folder / "state" / "runs" / RUN / "secure"
    assert {path.name for path in secure.glob("*.key")} == {"exchange-1.key"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in [secure, *secure.iterdir()])
    assert safe_of(folder).vault(RUN).unseal("own", 1) == b"secret"


def test_keys_lie_where_site_toml_says(folder):
    (folder / "elsewhere").mkdir()
    for name, file in (("key.pem", "state/identity.pem"), ("names.json", "roster.json")):
        (folder / file).rename(folder / "elsewhere" / name)
    with pytest.raises(ConfigError, match="does not exist"):
        safe_of(folder).identity()
    with pytest.raises(ConfigError, match="roster"):
        safe_of(folder).roster()
    keys = {"identity": "elsewhere/key.pem", "roster": "elsewhere/names.json"}
    safe = safe_of(folder, keys=keys)
    assert safe.roster().key_of("st-anna") == safe.identity().public_key()


def test_a_locked_key_is_opened_by_the_passphrase_in_the_environment(folder, monkeypatch):
    path = folder / "state" / "identity.pem"
    path.unlink()
    make_identity(path, b"correct horse")
    monkeypatch.delenv(PASSPHRASE, raising=False)
    with pytest.raises(ConfigError, match="passphrase"):
        safe_of(folder).identity()
    monkeypatch.setenv(PASSPHRASE, "correct horse")
    assert safe_of(folder).identity().public_key()


def test_a_budget_survives_the_process_with_its_key(folder):
    head = safe_of(folder).ledger.head()
    again = safe_of(folder)
    again.ledger.verify([head])
    assert again.ledger.head() == head


def test_in_memory_keys_are_given_and_a_vault_stays_the_same():
    keys, roster = draw_keys(["st-anna"])
    bare = MemorySafe("st-anna", Policy())
    whole = MemorySafe("st-anna", Policy(), keys["st-anna"], roster)
    for missing in (bare.identity, bare.roster):
        with pytest.raises(ConfigError, match="was given no"):
            missing()
    assert whole.identity() is keys["st-anna"]
    assert whole.roster() is roster
    assert whole.vault(RUN) is whole.vault(RUN)
    assert whole.vault(RUN) is not whole.vault("1" * 32)
    assert whole.state is None


# -- refusals --------------------------------------------------------------------------------


def refusals(safe):
    return [e.facts for e in safe.audit.entries() if e.event == "request refused"]


def test_a_refusal_is_noted_with_its_run_its_code_and_its_sentence(folder):
    safe = safe_of(folder)
    error = BudgetExceeded("no budget", local_detail="4711")
    safe.note_refusal(m.KeysRequest(RUN, "0" * 64, 1), error)
    safe.note_refusal(None, ProtocolError("not a message"))
    assert refusals(safe) == [
        {"run_id": RUN, "request": "KeysRequest", "code": 5, "sentence": "no budget"},
        {"run_id": "", "request": "", "code": 8, "sentence": "not a message"},
    ]
    assert "4711" not in (folder / "state" / "audit.jsonl").read_text()


def test_what_a_request_names_itself_cannot_fill_the_log(folder):
    safe = safe_of(folder)
    request = dataclasses.replace(m.KeysRequest(RUN, "", 1), run_id="x" * 10**6)
    safe.note_refusal(request, ProtocolError("y" * 10**6))
    (facts,) = refusals(safe)
    assert (len(facts["run_id"]), len(facts["sentence"])) == (64, 1000)


def test_a_refused_bundle_is_noted_with_its_hash_and_the_reason(folder):
    safe = safe_of(folder)
    safe.note_bundle(m.BundleRefused("0f" * 32, 4, "carries code\nand more " + "x" * 2000))
    (facts,) = [e.facts for e in safe.audit.entries() if e.event == "bundle refused"]
    assert facts["sha256"] == "0f" * 32
    assert facts["code"] == 4
    assert facts["sentence"].startswith("carries code and more xxx")
    assert len(facts["sentence"]) <= 1000


def test_why_a_site_declined_is_noted_for_the_site(folder):
    safe = safe_of(folder)
    safe.note_refusal(None, Declined("st-anna", DataRefused("site 'st-anna' has too few rows")))
    (facts,) = [e.facts for e in safe.audit.entries() if e.event == "request refused"]
    assert facts["sentence"] == "site 'st-anna' declined"
    assert facts["reason"] == "site 'st-anna' has too few rows"


def test_a_flood_of_one_kind_is_counted_and_hides_no_other(folder):
    notes, audit = RefusalNotes(safe_of(folder).audit), safe_of(folder).audit
    monday = datetime(2026, 3, 2, 12, tzinfo=UTC)
    for i in range(MOST_A_DAY + 30):
        request = m.KeysRequest(f"{i:032x}", "", 1)
        notes.note(request, ProtocolError(f"knows no run {i}"), monday)
    notes.note(m.UnmaskRequest(RUN, "", 1, ()), ProtocolError("a lie"), monday)
    lines = [(e.event, e.facts.get("request")) for e in audit.entries()]
    assert lines.count(("request refused", "KeysRequest")) == MOST_A_DAY
    assert lines[-2:] == [
        ("refusals only counted", "KeysRequest"),
        ("request refused", "UnmaskRequest"),
    ]
    notes.note(request, ProtocolError("again"), monday + timedelta(days=1))
    counted, again = audit.entries()[-2:]
    assert counted.event == "refusals counted"
    assert counted.facts == {
        "request": "KeysRequest", "code": 8, "day": "2026-03-02", "not_noted": 30,
    }  # fmt: skip
    assert again.facts["sentence"] == "again"


def test_a_flood_of_one_kind_stays_out_of_the_sites_own_log_too(folder, caplog):
    safe = safe_of(folder)
    secret = InternalError("met an internal error", local_detail="4711")
    with caplog.at_level(logging.ERROR, "fedmvc.site"):
        for i in range(MOST_A_DAY + 30):
            told = refusal(safe, ProtocolError(f"knows no run {i}"), None, None)
            assert told == m.Refusal(8, f"knows no run {i}")
        refusal(safe, ValueError("0.333"), None, None)
        refusal(safe, Declined("st-anna", secret), None, None)
    assert sum("knows no run" in line for line in caplog.messages) == MOST_A_DAY
    assert caplog.messages[MOST_A_DAY:] == [
        "site 'st-anna': an unexpected error",
        "site 'st-anna' met an internal error: its own log has the reason",
        "met an internal error 4711",
    ]
    assert "0.333" in caplog.text  # the exception's own words, for the site alone


def plans(number):
    fields = {"method": "fedhk-mvfc", "n_clusters": 3}
    return [RunPlan.parse({**fields, "seed": seed}) for seed in range(number)]


def test_a_flood_of_plans_fills_neither_the_register_nor_the_log(folder):
    safe = safe_of(folder)
    flood = plans(MOST_A_DAY + 30)
    for plan in flood:
        safe.see(plan)
    kept = [entry.plan_id for entry in safe.register.list()]
    assert set(kept) == {plan.plan_id for plan in flood[:MOST_A_DAY]}
    assert len(list((folder / "plans").iterdir())) == MOST_A_DAY
    events = [entry.event for entry in safe.audit.entries()]
    assert events == ["plan seen"] * MOST_A_DAY + ["new plans only counted"]
    # one that is known may come as often as it likes; the site itself may name any
    safe.see(flood[0])
    safe.register.see(flood[-1])
    assert len(safe.register.list()) == MOST_A_DAY + 1


def test_plans_that_were_not_kept_are_counted_the_next_day(folder):
    notes, audit = RefusalNotes(safe_of(folder).audit), safe_of(folder).audit
    monday = datetime(2026, 3, 2, 12, tzinfo=UTC)
    taken = [notes.takes_plan(monday) for _ in range(MOST_A_DAY + 3)]
    assert taken == [True] * MOST_A_DAY + [False] * 3
    assert notes.takes_plan(monday + timedelta(days=1))
    (counted,) = [entry.facts for entry in audit.entries() if entry.event == "new plans counted"]
    assert (counted["not_noted"], counted["day"]) == (3, "2026-03-02")


def test_a_log_that_cannot_be_written_stops_no_refusal(folder, caplog):
    safe = safe_of(folder)
    (folder / "state" / "audit.jsonl").mkdir()
    with caplog.at_level(logging.ERROR):
        safe.note_refusal(None, ProtocolError("not a message"))
    assert "audit log cannot be used" in caplog.text
