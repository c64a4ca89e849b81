"""What a site checks of a run before it takes part: plan, protection, and then its records."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from configs.errors import ConfigError, DataRefused, PolicyRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.faults import Declined
from fedmvc_client.feature_choice import load_chosen
from fedmvc_client.participants.declared import declared_bounds
from fedmvc_client.policy import enforce_cohort, without_count
from fedmvc_client.safe import Safe
from fedmvc_client.sources import Records, Source
from privacy.protection import cost_of
from strategies.messages import HelloRequest, ViewDescription

__all__ = ["check_protection", "load_records", "read_plan"]

log = logging.getLogger("fedmvc.site")


def read_plan(site: str, request: HelloRequest) -> RunPlan:
    """Return the plan that a hello carries.

    Raises
    ------
    ConfigError
        Where it is none, or none that may run: in the plan's own words.
    ProtocolError
        Where it is another than the hello says.
    """
    way_out = "run the same FedMVC version at both ends"
    try:
        fields = json.loads(request.plan)
        if not isinstance(fields, dict):
            raise TypeError(f"a {type(fields).__name__}, not an object")
        plan = RunPlan.parse(fields)
    except ConfigError as error:
        raise ConfigError(
            f"site '{site}' refuses the plan ({error.public_message.rstrip('.')}): change it, or "
            f"{way_out}",
            local_detail=error.local_detail,
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"site '{site}' cannot read the plan: {way_out}", local_detail=str(error)
        ) from error
    if plan.plan_id != request.plan_id:
        raise ProtocolError(f"site '{site}': the plan does not match its id {request.plan_id[:12]}")
    return plan


def check_protection(
    safe: Safe, run_id: str, plan: RunPlan, views: Sequence[ViewDescription]
) -> str:
    """Refuse early what keys, bounds or budget would not allow; return the roster's hash."""
    if plan.needs_bounds:
        declared_bounds(views)
    cost = cost_of(plan, [len(view.columns) for view in views])
    if cost is not None:
        safe.ledger.refuse_dear(run_id, cost)
    if plan.secure_terms() is None:
        return ""
    safe.identity()
    return safe.roster().hash.hex()


def load_records(source: Source, plan: RunPlan) -> Records:
    """Read the site's records, where they and its policy allow a run of the plan.

    Raises
    ------
    DataRefused, PolicyRefused
        Without counts where the plan hides them, and without any reason under noise.
    """
    try:
        records = load_chosen(source, plan)
        enforce_cohort(source.name, source.policy, len(records.ids))
    except (DataRefused, PolicyRefused) as error:
        if plan.private:
            raise Declined(source.name, error) from error
        if not plan.protected:
            raise
        raise without_count(error) from error
    for note in records.notes:
        log.info("%s", note)
    return records
