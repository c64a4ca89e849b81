import json

from configs.plan import RunPlan
from configs.site import SiteConfig
from fedmvc_client.cli import app as client
from fedmvc_client.safe import FolderSafe
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
NOISY = """
method = "fedhk-mvfc"
n_clusters = 4
max_rounds = 10
[fedhk]
heat_kernel = "one"
[privacy]
mechanism = "gaussian"
epsilon = 2.0
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
        "status": None,
        "refusal": None,
        "warning": None,
        "cost": None,
        "budget": None,
    }


def test_another_method_discloses_other_things(tmp_path):
    ended = call(client, "plans", "show", write_plan(tmp_path))

    assert ended.code == 0
    assert "method    fedhk-mvfc\n" in ended.out
    assert "memberships and labels stay at the site" in ended.words
    assert "token" not in ended.out


def test_a_sites_policy_and_staff_are_asked(sites, tmp_path):
    path = write_plan(tmp_path)
    site = sites / "st-anna"
    before = files_in(site)

    ended = call(client, "plans", "show", path, "--site", site)
    assert "policy    site 'st-anna' would take part" in ended.out.splitlines()
    assert "cost      nothing of the budget" in ended.out

    edit_text(site / "site.toml", 'approval = "auto"', 'approval = "required"')
    ended = call(client, "plans", "show", path, "--site", site)
    assert ended.code == 0
    assert "policy    site 'st-anna' wants every plan approved" in ended.out
    told = json.loads(call(client, "plans", "show", path, "--site", site, "--json").out)
    assert (told["site"], told["status"]) == ("st-anna", None)
    assert told["refusal"].startswith("site 'st-anna' wants every plan approved")
    assert files_in(site) == before

    assert call(client, "plans", "approve", path, "--site", site).code == 0
    told = json.loads(call(client, "plans", "show", path, "--site", site, "--json").out)
    assert (told["status"], told["refusal"]) == ("approved", None)


def test_the_cost_stands_beside_what_is_left(sites, tmp_path):
    path, site = write_plan(tmp_path, NOISY), sites / "st-anna"

    ended = call(client, "plans", "show", path, "--site", site)

    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert "policy    site 'st-anna' would take part" in lines
    (cost,) = [line for line in lines if line.startswith("cost")]
    assert cost.startswith("cost      epsilon 2 at delta 1e-05 in 10 releases (gaussian): takes 1.")
    assert cost.endswith(" of what is left")
    assert (
        "budget    the whole site: epsilon 8 at delta 0.0001; spent 0, reserved 0, left 8" in lines
    )
    told = json.loads(call(client, "plans", "show", path, "--site", site, "--json").out)
    assert 0.0 < told["cost"]["from_budget"] < 2.0
    assert told["cost"]["releases"] == 10
    assert (told["budget"]["left"], told["budget"]["spent"]) == (8.0, 0.0)


def test_a_plan_over_the_budget_is_said_before_any_run(sites, tmp_path):
    path, site = write_plan(tmp_path, NOISY), sites / "st-anna"
    edit_text(site / "site.toml", "epsilon_budget = 8.0", "epsilon_budget = 0.5")

    ended = call(client, "plans", "show", path, "--site", site)
    assert ended.code == 0
    assert "does not cover this plan: spent 0, reserved 0, asked 1." in ended.out
    checked = call(client, "check", path, "--site", site)
    assert checked.code == 5
    assert "left 0.5; lower privacy.epsilon in the plan" in checked.sentence

    edit_text(site / "site.toml", "delta_budget = 0.0001", "delta_budget = 0.0")
    told = json.loads(call(client, "plans", "show", path, "--site", site, "--json").out)
    assert told["cost"]["from_budget"] is None
    assert "policy.delta_budget" in told["refusal"]


def test_a_plan_seen_is_named_by_its_id(sites, tmp_path):
    site, plan = sites / "st-anna", RunPlan.load(write_plan(tmp_path))
    FolderSafe(site, SiteConfig.load(site)).register.see(plan)

    ended = call(client, "plans", "show", plan.plan_id[:12], "--site", site)

    assert ended.code == 0
    assert ended.out.startswith(f"plan      {plan.plan_id}\n")


def test_a_name_that_is_neither_file_nor_plan_is_said(sites, tmp_path, monkeypatch):
    ended = call(client, "plans", "show", "abcdef", "--site", sites / "st-anna")
    assert ended.code == 2
    assert "has seen no plan whose id begins with 'abcdef'" in ended.sentence
    monkeypatch.chdir(tmp_path)
    ended = call(client, "plans", "show", "abcdef")
    assert ended.code == 2
    assert "there is no plan file 'abcdef' here: name one, or say --site" in ended.sentence


def test_the_current_folder_is_the_site_if_it_is_one(sites, tmp_path, monkeypatch):
    path = write_plan(tmp_path)
    monkeypatch.chdir(sites / "st-anna")
    told = json.loads(call(client, "plans", "show", path, "--json").out)
    assert told["site"] == "st-anna"


def test_a_plan_that_does_not_fit_names_the_key(tmp_path):
    ended = call(client, "plans", "show", write_plan(tmp_path, PLAN.replace("plus", "best")))

    assert ended.code == 2
    assert "plan.toml: profile is 'best'" in ended.sentence


def test_a_plan_that_is_not_there_is_said(tmp_path):
    ended = call(client, "plans", "show", tmp_path / "plan.toml")

    assert ended.code == 2
    assert "plan 'plan.toml' does not exist" in ended.sentence
