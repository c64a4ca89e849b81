"""Listing, approving and rejecting plans at a site."""

import json

import pytest

from configs.plan import RunPlan
from configs.site import Policy, SiteConfig
from fedmvc_client.cli import app as client
from fedmvc_client.safe import FolderSafe
from tests.cli.commands import call, edit_text, files_in, write_plan

MASKED = """
method = "fedhk-mvfc"
n_clusters = 4
[privacy]
secure_aggregation = true
participants = {sites}
"""


@pytest.fixture
def site(sites):
    return sites / "st-anna"


def plans(*arguments):
    return call(client, "plans", *arguments)


def listed(site):
    ended = plans("list", "--site", site, "--json")
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out)


def test_nothing_was_seen_yet(site):
    before = files_in(site)
    assert listed(site) == {"site": "st-anna", "plans": []}
    assert plans("list", "--site", site).out == "site 'st-anna' has seen 0 plans\n"
    assert files_in(site) == before


def test_an_approved_plan_is_listed_with_its_runs(site, tmp_path):
    path = write_plan(tmp_path)
    plan = RunPlan.load(path)

    ended = plans("approve", path, "--runs", 3, "--days", 10, "--site", site)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"approved plan {plan.plan_id[:12]}: 3 runs may begin until 20")
    (entry,) = listed(site)["plans"]
    assert entry | {"seen": "", "expires": ""} == {
        "plan_id": plan.plan_id,
        "method": "fedhk-mvfc",
        "status": "approved",
        "seen": "",
        "approved_runs": 3,
        "runs_left": 3,
        "expires": "",
    }
    (line,) = plans("list", "--site", site).out.splitlines()[1:]
    assert line.startswith(f"  {plan.plan_id[:12]}  fedhk-mvfc, seen 20")
    assert ": approved, 3 of 3 runs left, until 20" in line
    register = FolderSafe(site, SiteConfig.load(site)).register
    register.begin("a" * 32, plan, Policy(approval="required"))
    assert listed(site)["plans"][0]["runs_left"] == 2


def test_a_seen_plan_is_approved_and_rejected_by_its_id(site, tmp_path):
    plan = RunPlan.load(write_plan(tmp_path))
    FolderSafe(site, SiteConfig.load(site)).register.see(plan)
    assert listed(site)["plans"][0]["status"] == "seen"

    told = json.loads(plans("approve", plan.plan_id[:8], "--site", site, "--json").out)
    assert (told["plan_id"], told["status"], told["refusal"]) == (plan.plan_id, "approved", None)
    told = json.loads(plans("reject", plan.plan_id, "--site", site, "--json").out)
    assert (told["site"], told["status"], told["approved_runs"]) == ("st-anna", "rejected", 0)
    assert plans("reject", plan.plan_id, "--site", site).out == (
        f"rejected plan {plan.plan_id[:12]}\n"
    )
    checked = call(client, "check", write_plan(tmp_path), "--site", site)
    assert checked.code == 4
    assert "has rejected plan" in checked.sentence


def test_decisions_stand_in_the_audit_log(site, tmp_path):
    path = write_plan(tmp_path)
    plans("approve", path, "--site", site)
    plans("reject", path, "--site", site)
    entries = FolderSafe(site, SiteConfig.load(site)).audit.entries()
    assert [entry.event for entry in entries] == ["plan seen", "plan approved", "plan rejected"]


def test_an_approval_says_what_still_stands_against_the_plan(site, tmp_path):
    edit_text(site / "site.toml", "require = []", 'require = ["dp"]')
    ended = plans("approve", write_plan(tmp_path), "--site", site)
    assert ended.code == 0
    assert "note: site 'st-anna' requires dp (policy.require)" in ended.words

    register = FolderSafe(site, SiteConfig.load(site)).register
    first = MASKED.format(sites=["st-anna", "a", "b", "c"])
    register.begin("a" * 32, RunPlan.load(write_plan(tmp_path, first)), Policy(approval="auto"))
    second = write_plan(tmp_path, MASKED.format(sites=["st-anna", "a", "b"]))
    ended = plans("approve", second, "--site", site)
    assert "note: site 'st-anna' took part in run aaaaaaaa with other participants" in ended.words
    assert max(map(len, ended.out.splitlines())) <= 96
    shown = plans("show", second, "--site", site)
    assert "note: site 'st-anna' took part in run aaaaaaaa" in shown.words


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("approve", "no.toml"), 2, "plan 'no.toml' does not exist"),
        (("approve", "012345"), 2, "has seen no plan whose id begins with '012345'"),
        (("approve", "0123"), 2, "'0123' is too short for the id of a plan: give 6 characters"),
        (("reject", "012345"), 2, "has seen no plan whose id begins with '012345'"),
    ],
)
def test_an_unknown_plan_is_said(site, arguments, code, words):
    before = files_in(site)
    ended = plans(*arguments, "--site", site)
    assert ended.code == code
    assert words in ended.sentence
    assert files_in(site) - before <= {"state/register.db", "state/audit.jsonl"}


def test_wrong_usage_is_said_in_words(site, tmp_path):
    for arguments in (("--runs", 0), ("--days", 0), ("--runs", "two")):
        ended = plans("approve", write_plan(tmp_path), *arguments, "--site", site)
        assert ended.code == 2
        assert "range" in ended.words or "'two' is not a valid" in ended.words
    assert plans("list", "--site", tmp_path).code == 2


def test_help_teaches():
    for command, words in {
        (): ["list", "show", "approve", "reject"],
        ("list",): ["--site", "--json", "used up", "expired"],
        ("approve",): ["PLAN", "--runs", "--days", "--site", "--json", "another plan"],
        ("reject",): ["PLAN", "--site", "--json", "cannot go on"],
    }.items():
        ended = plans(*command, "--help")
        assert ended.code == 0
        assert [word for word in words if word not in ended.words] == []
