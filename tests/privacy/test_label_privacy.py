"""What is promised of labels drawn by chance, in numbers and in words."""

import math

import pytest

from configs.errors import PolicyRefused
from configs.plan import RunPlan
from configs.site import Policy
from fedmvc_client.policy import enforce_plan
from privacy.certificate import certificate
from privacy.disclosure import disclosures
from privacy.label_privacy import label_epsilon, label_messages
from privacy.protection import cost_of
from privacy.randomised_response import CHANGES_ARE_SEEN

SITES = ["anna", "mercy", "north"]


def plan(max_rounds=0, epsilon=2.0, n_clusters=4):
    return RunPlan.parse(
        {
            "method": "tensor-fmvc",
            "n_clusters": n_clusters,
            "max_rounds": max_rounds,
            "privacy": {"mechanism": "randomised-response", "epsilon": epsilon},
        }
    )


@pytest.mark.parametrize("max_rounds", [0, 1, 7])
def test_epsilon_is_split_over_the_lists_that_the_plan_sends(max_rounds):
    assert label_messages(plan(max_rounds)) == 1 + max_rounds
    assert label_epsilon(plan(max_rounds)) * (1 + max_rounds) == pytest.approx(2.0)
    cost = cost_of(plan(max_rounds), [3])
    assert (cost.releases, cost.delta) == (1 + max_rounds, 0.0)
    assert cost.rho == cost.rho_if_others_collude == label_epsilon(plan(max_rounds)) ** 2 / 2


def test_the_certificate_is_of_a_label_and_not_of_a_patient():
    found = certificate(plan(max_rounds=1), SITES)
    assert found["relation"] == "change one label before it is sent"
    assert found["unit"].startswith("one label of one row of one site, given all rows; not a pat")
    assert (found["epsilon"], found["epsilon_if_others_collude"], found["delta"]) == (2.0, 2.0, 0.0)
    assert found["exchanges"] == 2
    assert "1 for each of at most 2 lists of labels" in found["accountant"]
    sites = "adds over labellings, rounds and sites: 6 for the labels of one row at all 3 sites"
    assert sites in found["accountant"]
    assert "policy.share_labels" in found["assumptions"]
    assert "this is label privacy" in found["not_covered"]
    assert "536 of 999 measured" in found["not_covered"]
    assert "no differential privacy" not in found["not_covered"].lower()


@pytest.mark.parametrize(("max_rounds", "seen"), [(0, False), (1, True)])
def test_changes_are_named_where_there_can_be_any(max_rounds, seen):
    assert (CHANGES_ARE_SEEN in certificate(plan(max_rounds), SITES)["not_covered"]) == seen
    text = " ".join(disclosures(plan(max_rounds)))
    assert ("which shows that it did" in text) == seen
    assert ("Each round every site receives Z (int8)" in text) == seen


def test_who_approves_reads_how_often_the_truth_is_told():
    text = " ".join(disclosures(plan(epsilon=2.0)))
    truth = math.exp(2) / (math.exp(2) + 3)
    assert f"its own with probability {truth:.2g}, each other with {(1 - truth) / 3:.2g}" in text
    assert "(epsilon 2)" in text
    assert "(epsilon 0.5 for each of 4 lists, epsilon 2 in all)" in " ".join(disclosures(plan(3)))
    for words in (
        "gaps do not show",
        "not a patient: one changed row may move most labels of its site (536 of 999 measured)",
        "in several lists and runs tell adds up",
        "does not replace the site's consent (policy.share_labels)",
        "what all sites sent for it",
    ):
        assert words in text
    open_labels = " ".join(disclosures(RunPlan.parse({"method": "tensor-fmvc", "n_clusters": 4})))
    for words in ("one number on how tight", "which common rows it has no measurement of"):
        assert words not in text
        assert words in open_labels


def test_consent_is_needed_with_it_too():
    with pytest.raises(PolicyRefused, match="shares no labels"):
        enforce_plan("anna", Policy(require=("dp",)), plan())
    enforce_plan("anna", Policy(require=("dp",), share_labels=True), plan())
