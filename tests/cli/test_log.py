import json

import pytest

from configs.site import SiteConfig
from fedmvc_client.cli import app as client
from fedmvc_client.safe import FolderSafe
from privacy.ledger import Cost
from tests.cli.commands import call, files_in, write_plan


@pytest.fixture
def site(sites):
    return sites / "st-anna"


@pytest.fixture
def path(site, tmp_path):
    """Write events of a decision and of a paid release."""
    assert call(client, "plans", "approve", write_plan(tmp_path), "--site", site).code == 0
    ledger = FolderSafe(site, SiteConfig.load(site)).ledger
    ledger.reserve("a" * 32, "plan", Cost("gaussian", 2, 0.05, 0.1, 3.0, 1.0, 0.0))
    ledger.spend("a" * 32, 1, bytes(32))
    return site / "state" / "audit.jsonl"


def verify(site):
    return call(client, "log", "verify", "--site", site)


def test_an_empty_log_is_in_order_and_stays_empty(site):
    before = files_in(site)
    ended = verify(site)
    assert ended.code == 0
    assert "is in order: 0 events" in ended.out
    assert files_in(site) == before


def test_a_log_in_order_is_said(site, path):
    ended = call(client, "log", "verify", "--site", site, "--json")
    assert (ended.code, ended.err) == (0, "")
    last = json.loads(path.read_text().splitlines()[-1])
    assert json.loads(ended.out) == {
        "site": "st-anna",
        "events": 4,
        "certificates": 0,
        "head": last["hash"],
    }
    assert "is in order: 4 events (0 certificates asked)" in verify(site).out


def test_an_edited_line_is_named(site, path):
    path.write_text(path.read_text().replace('"runs": 1', '"runs": 9'))
    ended = verify(site)
    assert ended.code == 4
    assert "audit log breaks at line 2 (it was edited" in ended.sentence


def test_a_cut_tail_shows_in_the_ledger(site, path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    ended = verify(site)
    assert ended.code == 4
    assert "breaks at line 3 (lines that the privacy ledger" in ended.sentence


def test_help_teaches():
    ended = call(client, "log", "verify", "--help")
    assert ended.code == 0
    for word in ("--site", "--certificate", "--json", "audit.jsonl"):
        assert word in ended.words
