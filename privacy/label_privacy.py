"""What randomised response promises of the labels of a vertical run, in numbers and in words.

Epsilon is for all that a site sends of one row's label, given all rows: local privacy of a label.
It is split evenly over the lists of labels that the plan sends.
"""

from __future__ import annotations

import math

from configs.plan import RunPlan
from privacy.randomised_response import CHANGES_ARE_SEEN

__all__ = ["label_disclosures", "label_epsilon", "label_limits", "label_messages", "label_terms"]

_NO_PATIENT = (
    "privacy of a patient: this is label privacy, and one changed row may move most labels of its "
    "site (536 of 999 measured)"
)


def label_messages(plan: RunPlan) -> int:
    """Count the lists of labels that a site sends in a vertical run: the first, and one a round."""
    return 1 + plan.max_rounds


def label_epsilon(plan: RunPlan) -> float:
    """Return the share of a plan's epsilon that one list of labels has."""
    assert plan.privacy.epsilon is not None
    return plan.privacy.epsilon / label_messages(plan)


def label_terms(plan: RunPlan, n_sites: int | None) -> str:
    """Say how epsilon adds up, for the certificate; None where the number of sites is not told."""
    epsilon, lists = plan.privacy.epsilon, label_messages(plan)
    assert epsilon is not None
    at_all = (
        f"{epsilon:.4g} times the number of sites for the labels of one row at all of them"
        if n_sites is None
        else f"{n_sites * epsilon:.4g} for the labels of one row at all {n_sites} sites"
    )
    return (
        f"pure epsilon of k-ary randomised response, {label_epsilon(plan):.4g} for each of at most "
        f"{lists} lists of labels that a site sends; it adds over labellings, rounds and sites: "
        f"{at_all}"
    )


def label_limits(plan: RunPlan) -> tuple[str, ...]:
    """Say what label privacy does not cover, for the certificate."""
    seen = (CHANGES_ARE_SEEN,) if label_messages(plan) > 1 else ()
    return (
        _NO_PATIENT,
        "the labels of one row at several sites, whose epsilons add",
        *seen,
        "refusals that the data cause",
    )


def label_disclosures(plan: RunPlan) -> tuple[str, ...]:
    """Say what a site's drawn labels tell, for whoever approves the plan."""
    k, lists, epsilon = plan.n_clusters, label_messages(plan), label_epsilon(plan)
    other = 1.0 / (math.exp(epsilon) + k - 1)
    total = f"epsilon {plan.privacy.epsilon:g}"
    when, price = "Once, at the start,", total
    changes = blend = ""
    if lists > 1:
        when = f"At the start and in each round, at most {plan.max_rounds},"
        price = f"epsilon {epsilon:.3g} for each of {lists} lists, {total} in all"
        changes = (
            " A label that stays is not drawn again; one that changes is, which shows that it did."
        )
        encoding = plan.tensor_settings().z_encoding
        blend = (
            f" Each round every site receives Z ({encoding}), a blend of what all sites sent for "
            "each common row."
        )
    return (
        f"{when} the server gets from every site a label (1 of {k} clusters) for each common row, "
        f"drawn by chance at the site: its own with probability {1 - (k - 1) * other:.2g}, each "
        f"other with {other:.2g} ({price}).{changes}{blend}",
        "A row without a measurement gets a label at random, so gaps do not show; how tight the "
        "clusters are is not sent, so all sites have the same weight.",
        "This hides one label of one row and not a patient: one changed row may move most labels "
        "of its site (536 of 999 measured), and what the labels of a patient at all sites, in "
        "several lists and runs tell adds up. It does not replace the site's consent "
        "(policy.share_labels).",
        "A server that breaks the protocol can name any rows of a list as shared and choose Z at "
        "will: epsilon limits what it reads from each label all the same.",
    )
