"""What a site's policy allows, as one sentence where it does not."""

from __future__ import annotations

from configs.errors import FedMVCError, PolicyRefused
from configs.plan import RunPlan
from configs.secure_terms import SecureTerms
from configs.site import Policy

__all__ = ["CountRefused", "enforce_cohort", "enforce_plan", "enforce_view", "without_count"]


#: Mechanisms that guarantee something about a patient, or about a label.
_PRIVATE = ("gaussian", "randomised-response")


def enforce_plan(site: str, policy: Policy, plan: RunPlan) -> None:
    """Refuse a plan that the policy does not allow, whoever approves it.

    Whether the site's staff approved the plan is up to `fedmvc_client.approvals`.

    Parameters
    ----------
    site : str
        The site's name, for the message.
    policy : Policy
    plan : RunPlan

    Raises
    ------
    PolicyRefused
        One sentence with what the site wants, what the plan says and the way out.
    """
    privacy = plan.privacy
    found = {
        "secure_aggregation": (
            privacy.secure_aggregation,
            f"privacy.secure_aggregation = {str(privacy.secure_aggregation).lower()}",
        ),
        "dp": (privacy.mechanism in _PRIVATE, f"privacy.mechanism = '{privacy.mechanism}'"),
    }
    lacking = [wanted for wanted in policy.require if not found[wanted][0]]
    if lacking:
        raise PolicyRefused(
            f"site '{site}' requires {', '.join(lacking)} (policy.require) and the plan has "
            f"{', '.join(found[wanted][1] for wanted in lacking)}: change the plan (dp is "
            f"{' or '.join(map(repr, _PRIVATE))}), lower the policy or leave the run"
        )
    if plan.method == "tensor-fmvc" and not policy.share_labels:
        raise PolicyRefused(
            f"site '{site}' shares no labels (policy.share_labels = false) and method "
            "'tensor-fmvc' sends one for each common row: set policy.share_labels = true, or leave "
            "the run"
        )
    terms = plan.secure_terms()
    if terms is not None:
        _enforce_sums(site, policy, plan, terms)


def _enforce_sums(site: str, policy: Policy, plan: RunPlan, terms: SecureTerms) -> None:
    """Refuse sums that this site is not in, or that may hold too few sites."""
    if site not in terms.participants:
        raise PolicyRefused(
            f"site '{site}' is none of the {terms.n_sites} sites that privacy.participants lists "
            f"({', '.join(terms.participants)}): add it to the plan, or leave it out of the run"
        )
    for which, count in (
        ("lets a sum hold", terms.least_contributors),
        ("has privacy.min_contributors =", plan.privacy.min_contributors),
    ):
        if count < policy.min_contributors:
            raise PolicyRefused(
                f"site '{site}' wants {policy.min_contributors} sites or more in every sum "
                f"(policy.min_contributors) and the plan {which} {count}: raise it, name more "
                "sites or fewer dropouts, or lower the policy"
            )


class CountRefused(PolicyRefused):
    """A refusal that says how many records there are, and can be said without it.

    Parameters
    ----------
    counted, uncounted : str
        The sentence with the number, and without.
    """

    def __init__(self, counted: str, uncounted: str) -> None:
        super().__init__(counted)
        self.uncounted = uncounted


def without_count(error: FedMVCError) -> FedMVCError:
    """Return a refusal as a server may read it from which sums hide every count."""
    if isinstance(error, CountRefused):
        return PolicyRefused(error.uncounted, local_detail=error.public_message)
    return error


def enforce_cohort(site: str, policy: Policy, n_rows: int) -> None:
    """Refuse to take part with fewer rows than ``policy.min_cohort``.

    Raises
    ------
    CountRefused
    """
    if n_rows < policy.min_cohort:
        way_out = "lower it or leave the run"
        raise CountRefused(
            f"site '{site}' has {n_rows} rows; policy.min_cohort is {policy.min_cohort}: {way_out}",
            f"site '{site}' has fewer rows than policy.min_cohort, {policy.min_cohort}: {way_out}",
        )


def enforce_view(site: str, min_cell: int, view: str, n_holding: int) -> None:
    """Refuse to send the moments of a view that fewer than ``policy.min_cell`` records hold.

    A view that no record holds has no moments and is no reason to refuse.

    Raises
    ------
    CountRefused
    """
    if 0 < n_holding < min_cell:
        way_out = "leave the view out of [data], lower it or leave the run"
        raise CountRefused(
            f"site '{site}' has {n_holding} records that hold view '{view}'; policy.min_cell is "
            f"{min_cell}: {way_out}",
            f"site '{site}' has fewer records that hold view '{view}' than policy.min_cell, "
            f"{min_cell}: {way_out}",
        )
