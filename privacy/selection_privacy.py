"""What site-level noise promises of a selection, and how little of the selection it leaves."""

from __future__ import annotations

from configs.plan import RunPlan

__all__ = ["SITE_LEVEL_UTILITY", "site_level_disclosures"]

#: Measured; as a warning of a run, before a plan is approved, and in the certificate.
SITE_LEVEL_UTILITY = (
    "noise that hides a whole site leaves no usable selection at a meaningful epsilon with fewer "
    "than hundreds of sites: on planted data of 300 columns (0.98 of the right ones found without "
    "noise, 0.15 by chance) 5 sites found 0.17 of them and 20 sites 0.14 at epsilon 1 a round, "
    "0.19 and 0.20 at epsilon 8"
)


def site_level_disclosures(plan: RunPlan) -> tuple[str, ...]:
    """Say what the noise of a selection promises, and what is left of the selection.

    Parameters
    ----------
    plan : RunPlan
        Fed-MUFSHT with Gaussian noise.
    """
    privacy = plan.privacy
    placed = (
        "each site adds all of the noise, so this holds whatever the others do"
        if privacy.noise == "local"
        else "each site adds its part of the noise, so this holds as long as the sites named "
        "above add theirs"
    )
    return (
        "The noise hides the site as a whole: whatever its records are, what the server and the "
        "other sites see differs by at most a factor e^epsilon, epsilon = "
        f"{privacy.epsilon:g} over the whole run (but for a probability delta = "
        f"{privacy.delta:g}), as its update is never longer than privacy.clip = "
        f"{privacy.clip:g}; {placed}.",
        "The noise does not cover who takes part, which views a site declares, how long it takes, "
        "that it declines, or what somebody exports from its results.",
        f"{SITE_LEVEL_UTILITY[0].upper()}{SITE_LEVEL_UTILITY[1:]}.",
    )
