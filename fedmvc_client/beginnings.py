"""What a run begins with at a site: the plan that the server shows, and the site's records."""

from __future__ import annotations

import json
import logging

from configs.errors import ConfigError, DataRefused, PolicyRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.feature_choice import load_chosen
from fedmvc_client.participants.paid_releases import declined
from fedmvc_client.policy import enforce_cohort
from fedmvc_client.sources import Records, Source
from strategies.messages import HelloRequest

__all__ = ["load_records", "read_plan"]

log = logging.getLogger("fedmvc.site")


def read_plan(site: str, request: HelloRequest) -> RunPlan:
    """Read the plan of a hello.

    Raises
    ------
    ConfigError
        Where this version cannot read it.
    ProtocolError
        Where it is not the plan whose id the hello names.
    """
    try:
        plan = RunPlan.parse(json.loads(request.plan))
    except (ConfigError, ValueError, TypeError) as error:
        raise ConfigError(
            f"site '{site}' cannot read the plan: run the same FedMVC version at both ends",
            local_detail=str(error),
        ) from error
    if plan.plan_id != request.plan_id:
        raise ProtocolError(f"site '{site}': the plan does not match its id {request.plan_id[:12]}")
    return plan


def load_records(source: Source, plan: RunPlan) -> Records:
    """Read the site's records, where they and its policy allow a run of the plan.

    Raises
    ------
    DataRefused, PolicyRefused
        Under a private plan with the one sentence that says nothing of the data.
    """
    try:
        records = load_chosen(source, plan)
        enforce_cohort(source.name, source.policy, len(records.ids))
    except (DataRefused, PolicyRefused) as error:
        if not plan.private:
            raise
        raise declined(source.name, error) from error
    for note in records.notes:
        log.info("%s", note)
    return records
