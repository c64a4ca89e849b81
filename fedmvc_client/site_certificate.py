"""The privacy certificate that a run leaves at the site, with the heads of the site's books."""

from __future__ import annotations

from typing import Any

from configs.plan import RunPlan
from configs.version import own_version
from fedmvc_client.books import AUDIT_HEAD
from fedmvc_client.run_rules import utc_text
from fedmvc_client.safe import Safe
from privacy.certificate import certificate
from privacy.ledger import LEDGER_HEAD
from privacy.mechanisms import GaussianNoise

__all__ = ["site_certificate"]


def site_certificate(
    safe: Safe, run_id: str, plan: RunPlan, noise: GaussianNoise | None
) -> dict[str, Any]:
    """Say what a finished run guarantees to the site's patients.

    Parameters
    ----------
    safe : Safe
        The heads of its ledger and audit log make it show later if one was cut or edited.
    run_id : str
    plan : RunPlan
    noise : GaussianNoise or None
        What the site added to each of its sums.
    """
    # without masks a site is not told who else takes part
    participants = plan.privacy.participants or None
    return {
        "site": safe.site,
        "cohort": safe.policy.cohort,
        "finished_at": utc_text(None),
        "fedmvc": own_version(),
        "run_id": run_id,
        "plan_id": plan.plan_id,
        **certificate(plan, participants, noise=noise),
        LEDGER_HEAD: safe.ledger.head() if plan.private else "",
        AUDIT_HEAD: safe.audit.head(),
    }
