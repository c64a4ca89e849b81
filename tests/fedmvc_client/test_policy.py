import pytest

from configs.errors import PolicyRefused
from configs.plan import RunPlan
from configs.site import Policy
from fedmvc_client.policy import enforce_cohort, enforce_plan, enforce_view, without_count

SITES = ["east", "north", "south", "west"]


def plan(method="fedhk-mvfc", **privacy):
    return RunPlan.parse({"method": method, "n_clusters": 3, "privacy": privacy})


def masked(n_sites=4, **privacy):
    return plan(secure_aggregation=True, participants=SITES[:n_sites], **privacy)


def noisy(**privacy):
    return RunPlan.parse(
        {
            "method": "fedhk-mvfc",
            "n_clusters": 3,
            "fedhk": {"heat_kernel": "one"},
            "privacy": {"mechanism": "gaussian", "epsilon": 1.0, **privacy},
        }
    )


def sentence(policy, checked, site="west"):
    with pytest.raises(PolicyRefused) as caught:
        enforce_plan(site, Policy(**policy), checked)
    return caught.value.public_message


@pytest.mark.parametrize(
    ("policy", "checked"),
    [
        ({}, plan()),
        ({"require": ["secure_aggregation"]}, masked()),
        ({"require": ["dp"]}, noisy()),
        (
            {"require": ["dp", "secure_aggregation"]},
            noisy(secure_aggregation=True, participants=SITES, min_contributors=3),
        ),
        ({"min_contributors": 4}, masked(min_contributors=4)),
        ({"min_contributors": 9}, plan()),  # it binds secure sums only
        ({"share_labels": True}, plan("tensor-fmvc")),
        (
            {"share_labels": True, "require": ["dp"]},
            plan("tensor-fmvc", mechanism="randomised-response", epsilon=1.0),
        ),
        ({"approval": "required"}, plan()),  # approvals are asked for elsewhere
    ],
)
def test_what_the_policy_allows_passes(policy, checked):
    enforce_plan("west", Policy(**policy), checked)


@pytest.mark.parametrize(
    ("policy", "checked", "words"),
    [
        (
            {"require": ["secure_aggregation"]},
            plan(),
            ["requires secure_aggregation (policy.require)", "secure_aggregation = false"],
        ),
        (
            {"require": ["dp"]},
            masked(),
            ["requires dp (policy.require)", "has privacy.mechanism = 'none'"],
        ),
        (
            {"require": ["dp"]},
            RunPlan.parse(
                {
                    "method": "fedhk-mvfc",
                    "n_clusters": 3,
                    "fedhk": {"aggregation": "weighted"},
                    "privacy": {"mechanism": "paper", "epsilon": 1.0},
                }
            ),
            ["has privacy.mechanism = 'paper': change the plan (dp is 'gaussian' or"],
        ),
        (
            {"require": ["secure_aggregation", "dp"]},
            noisy(),
            ["requires secure_aggregation (policy.require)"],
        ),
        (
            {"require": ["secure_aggregation", "dp"]},
            plan(),
            [
                "requires secure_aggregation, dp (policy.require) and the plan has "
                "privacy.secure_aggregation = false, privacy.mechanism = 'none'",
                "lower the policy or leave the run",
            ],
        ),
        (
            {},
            plan("tensor-fmvc"),
            ["shares no labels (policy.share_labels = false)", "set policy.share_labels = true"],
        ),
        (
            {"min_contributors": 4},
            noisy(secure_aggregation=True, participants=SITES, min_contributors=3),
            ["wants 4 sites or more in every sum", "lets a sum hold 3"],
        ),
        (
            {"min_contributors": 4},
            masked(min_contributors=3),
            ["wants 4 sites or more", "has privacy.min_contributors = 3"],
        ),
    ],
)
def test_a_refusal_names_both_sides_and_the_way_out(policy, checked, words):
    found = sentence(policy, checked)
    assert found.startswith("site 'west' ")
    assert ": " in found
    assert [each for each in words if each not in found] == []


def test_a_site_that_the_plan_does_not_list_is_named_with_those_it_lists():
    assert sentence({}, masked(3), site="west") == (
        "site 'west' is none of the 3 sites that privacy.participants lists (east, north, south): "
        "add it to the plan, or leave it out of the run"
    )


@pytest.mark.parametrize(
    ("call", "counted", "uncounted"),
    [
        (
            lambda: enforce_cohort("west", Policy(min_cohort=41), 40),
            "has 40 rows; policy.min_cohort is 41: lower it",
            "has fewer rows than policy.min_cohort, 41: lower it",
        ),
        (
            lambda: enforce_view("west", 10, "ecg", 4),
            "has 4 records that hold view 'ecg'; policy.min_cell is 10",
            "has fewer records that hold view 'ecg' than policy.min_cell, 10",
        ),
    ],
)
def test_a_count_can_be_left_out_of_a_refusal(call, counted, uncounted):
    with pytest.raises(PolicyRefused) as caught:
        call()
    hidden = without_count(caught.value)
    assert counted in caught.value.public_message
    assert uncounted in hidden.public_message
    assert hidden.local_detail == caught.value.public_message
    other = PolicyRefused("no")
    assert without_count(other) is other
