"""What a site's policy allows, as one sentence where it does not."""

from __future__ import annotations

from configs.errors import PolicyRefused
from configs.plan import RunPlan
from configs.site import Policy

__all__ = ["enforce_cohort", "enforce_plan", "enforce_view"]


def enforce_plan(site: str, policy: Policy, plan: RunPlan) -> None:
    """Refuse a plan that the policy does not allow.

    Parameters
    ----------
    site : str
        The site's name, for the message.
    policy : Policy
    plan : RunPlan

    Raises
    ------
    PolicyRefused
    """
    if policy.approval == "required":
        raise PolicyRefused(
            f"site '{site}' wants every plan approved (policy.approval = 'required') and no "
            f"approval of plan {plan.plan_id[:12]} is there: set policy.approval = 'auto' in its "
            "site.toml"
        )
    if policy.require:
        raise PolicyRefused(
            f"site '{site}' requires {', '.join(policy.require)} (policy.require) and the plan "
            "has none of it: lower the policy or leave the run"
        )


def enforce_cohort(site: str, policy: Policy, n_rows: int) -> None:
    """Refuse to take part with fewer rows than ``policy.min_cohort``.

    Raises
    ------
    PolicyRefused
    """
    if n_rows < policy.min_cohort:
        raise PolicyRefused(
            f"site '{site}' has {n_rows} rows; policy.min_cohort is {policy.min_cohort}: "
            "lower it or leave the run"
        )


def enforce_view(site: str, min_cell: int, view: str, n_holding: int) -> None:
    """Refuse to send the moments of a view that fewer than ``policy.min_cell`` records hold.

    A view that no record holds has no moments and is no reason to refuse.

    Raises
    ------
    PolicyRefused
    """
    if 0 < n_holding < min_cell:
        raise PolicyRefused(
            f"site '{site}' has {n_holding} records that hold view '{view}'; policy.min_cell is "
            f"{min_cell}: leave the view out of [data], lower it or leave the run"
        )
