"""The vault: nothing half written, nothing written twice, and what is forgotten stays so."""

import sqlite3
import stat

import pytest

from configs.errors import ConfigError
from privacy.vault import Vault


@pytest.fixture(params=["folder", "memory"])
def vault(request, tmp_path):
    vault = Vault(tmp_path / "runs" / "1" if request.param == "folder" else None)
    yield vault
    vault.close()


def fill(vault):
    with vault.transaction():
        vault.put("keys", b"public")
        vault.put("request", b"one", exchange=1)
        vault.put("request", b"two", exchange=2)
        vault.seal("own", {e: b"secret %d" % e for e in range(4)})


def test_records_and_secrets_come_back(vault):
    fill(vault)
    assert vault.get("keys") == b"public"
    assert vault.get("request", 2) == b"two"
    assert vault.last("request") == 2
    assert vault.unseal("own", 3) == b"secret 3"
    assert (vault.get("request", 3), vault.unseal("own", 9), vault.last("answer")) == (
        None,
        None,
        0,
    )


def test_a_transaction_is_written_whole_or_not_at_all(vault):
    fill(vault)
    before = vault.counter
    with pytest.raises(ZeroDivisionError), vault.transaction():
        vault.put("answer", b"x")
        vault.seal("shares", {1: b"y"})
        raise ZeroDivisionError
    assert vault.get("answer") is None
    assert vault.unseal("shares", 1) is None
    assert vault.counter == before
    with vault.transaction():
        vault.put("answer", b"z")
    assert vault.get("answer") == b"z"


def test_nothing_is_written_twice(vault):
    fill(vault)
    for write in (lambda: vault.put("keys", b"others"), lambda: vault.seal("own", {1: b"x"})):
        with pytest.raises(sqlite3.IntegrityError), vault.transaction():
            write()
    assert vault.get("keys") == b"public"
    assert vault.unseal("own", 1) == b"secret 1"


def test_the_counter_counts_what_was_written(vault):
    assert vault.counter == 0
    fill(vault)
    assert vault.counter == 1
    with vault.transaction():
        vault.get("keys")
    assert vault.counter == 1
    vault.forget(2)
    assert vault.counter == 2
    vault.forget(2)
    assert vault.counter == 2


def test_forgotten_secrets_are_gone_and_later_ones_are_not(vault):
    fill(vault)
    vault.forget(2)
    assert [vault.unseal("own", e) for e in range(4)] == [None, None, b"secret 2", b"secret 3"]
    assert vault.get("request", 1) == b"one"
    vault.forget()
    assert vault.unseal("own", 3) is None


def test_a_commit_is_on_the_disk_before_it_returns(tmp_path):
    vault = Vault(tmp_path)
    settings = {
        name: vault._database.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    }
    assert settings == {"journal_mode": "truncate", "synchronous": 2}  # 2 is FULL
    vault.close()


def test_another_process_goes_on_where_the_first_was_killed(tmp_path):
    first = Vault(tmp_path)
    fill(first)
    second = Vault(tmp_path)  # the first was not closed
    assert second.unseal("own", 2) == b"secret 2"
    assert second.counter == 1
    second.forget(2)
    assert first.unseal("own", 1) is None
    first.close()
    second.close()


def key_files(folder):
    return sorted(path.name for path in folder.glob("*.key"))


def test_each_exchange_has_a_key_file_that_goes_with_it(tmp_path):
    vault = Vault(tmp_path / "run")
    fill(vault)
    assert key_files(tmp_path / "run") == [f"exchange-{e}.key" for e in range(4)]
    vault.forget(3)
    assert key_files(tmp_path / "run") == ["exchange-3.key"]
    vault.close()


def test_a_copy_of_the_database_is_worth_nothing_once_the_key_file_is_gone(tmp_path):
    vault = Vault(tmp_path / "run")
    fill(vault)
    database = tmp_path / "run" / "vault.sqlite"
    copy = database.read_bytes()
    assert b"secret 1" not in copy
    assert b"public" in copy
    vault.forget(2)
    vault.close()
    database.write_bytes(copy)
    restored = Vault(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"'exchange-1.key' does not exist"):
        restored.unseal("own", 1)
    # and its counter tells that it is older than what was written since
    assert restored.counter == 1
    restored.close()


def test_only_the_owner_may_read_what_is_written(tmp_path):
    vault = Vault(tmp_path / "run")
    fill(vault)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    for path in (tmp_path / "run").iterdir():
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path.name
    vault.close()


def test_a_key_that_a_crash_left_behind_is_used(tmp_path):
    vault = Vault(tmp_path)
    with pytest.raises(ZeroDivisionError), vault.transaction():
        vault.seal("own", {1: b"secret"})
        raise ZeroDivisionError
    with vault.transaction():
        vault.seal("own", {1: b"another"})
    assert vault.unseal("own", 1) == b"another"
    vault.close()


def test_files_that_do_not_fit_are_refused_with_the_way_out(tmp_path):
    vault = Vault(tmp_path)
    fill(vault)
    (tmp_path / "exchange-1.key").write_bytes(bytes(32))
    (tmp_path / "exchange-2.key").write_bytes(b"short")
    for exchange in (1, 2):
        with pytest.raises(ConfigError, match=r"does not fit .* `fedmvc-client abort`"):
            vault.unseal("own", exchange)
    vault.close()
    (tmp_path / "vault.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match="secure state cannot be used") as caught:
        Vault(tmp_path)
    assert str(tmp_path) not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        Vault(tmp_path / "file" / "run")
