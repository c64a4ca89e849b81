"""What a site checks of a run before it takes part, and before any data are read."""

from __future__ import annotations

import json
from collections.abc import Sequence

from configs.errors import ConfigError, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.participants.declared import declared_bounds
from fedmvc_client.safe import Safe
from privacy.protection import cost_of
from strategies.messages import HelloRequest, ViewDescription

__all__ = ["check_protection", "read_plan"]


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
