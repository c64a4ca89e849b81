import json

from configs.plan import RunPlan
from fedmvc_client.cli import app as client
from privacy.disclosure import disclosures
from tests.cli.commands import call, edit_text, files_in, write_plan

PLAN = """
method = "tensor-fmvc"
profile = "plus"
n_clusters = 4
max_rounds = 30
[quorum]
min_sites = 3
timeout_s = 90
"""


def test_says_what_runs_and_who_learns_what(tmp_path):
    path = write_plan(tmp_path, PLAN)
    plan = RunPlan.load(path)

    ended = call(client, "plans", "show", path)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[:7] == [
        f"plan      {plan.plan_id}",
        "method    tensor-fmvc, profile plus",
        "clusters  4",
        "rounds    at most 30",
        "quorum    3 sites or more, 90 s an exchange; where one does not answer: stop",
        "",
        "what leaves this site, and who learns what:",
    ]
    assert [s for s in disclosures(plan) if f"- {s}" not in ended.words] == []
    assert max(map(len, ended.out.splitlines())) <= 96
    assert files_in(tmp_path) == {"plan.toml"}


def test_json_is_one_object_and_nothing_else(tmp_path):
    path = write_plan(tmp_path, PLAN)
    plan = RunPlan.load(path)

    ended = call(client, "plans", "show", path, "--json")

    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == {
        "plan_id": plan.plan_id,
        "method": "tensor-fmvc",
        "profile": "plus",
        "n_clusters": 4,
        "max_rounds": 30,
        "quorum": {"min_sites": 3, "timeout_s": 90.0, "on_missing": "stop"},
        "disclosures": list(disclosures(plan)),
        "site": None,
        "refusal": None,
    }


def test_another_method_discloses_other_things(tmp_path):
    ended = call(client, "plans", "show", write_plan(tmp_path))

    assert ended.code == 0
    assert "method    fedhk-mvfc\n" in ended.out
    assert "memberships and labels stay at the site" in ended.words
    assert "token" not in ended.out


def test_a_sites_policy_is_asked(sites, tmp_path):
    path = write_plan(tmp_path, PLAN)
    site = sites / "st-anna"

    ended = call(client, "plans", "show", path, "--site", site)
    assert "policy    site 'st-anna' would take part" in ended.out.splitlines()

    edit_text(site / "site.toml", 'approval = "auto"', 'approval = "required"')
    ended = call(client, "plans", "show", path, "--site", site)
    assert ended.code == 0
    assert "policy    site 'st-anna' wants every plan approved" in ended.out
    told = json.loads(call(client, "plans", "show", path, "--site", site, "--json").out)
    assert told["site"] == "st-anna"
    assert told["refusal"].startswith("site 'st-anna' wants every plan approved")


def test_a_plan_that_does_not_fit_names_the_key(tmp_path):
    ended = call(client, "plans", "show", write_plan(tmp_path, PLAN.replace("plus", "best")))

    assert ended.code == 2
    assert "plan.toml: profile is 'best'" in ended.sentence


def test_a_plan_that_is_not_there_is_said(tmp_path):
    ended = call(client, "plans", "show", tmp_path / "plan.toml")

    assert ended.code == 2
    assert "plan 'plan.toml' does not exist" in ended.sentence
