"""Which site half a plan asks for, and which of them a request is meant for."""

from __future__ import annotations

from collections.abc import Mapping

from configs.plan import RunPlan
from fedmvc_client.participants.base import Participant
from fedmvc_client.participants.fed_mufsht import FedMUFSHTParticipant
from fedmvc_client.participants.fedhk_mvfc import FedHKParticipant
from fedmvc_client.participants.masked import MaskedParticipant
from fedmvc_client.participants.protected import NoisyParticipant
from fedmvc_client.participants.tensor_fmvc import TensorParticipant

__all__ = ["ends_a_run", "kind_of", "meant_for", "replies_of"]

#: The site half of each method where nothing hides its replies.
_PLAIN: dict[str, type[Participant]] = {
    "fedhk-mvfc": FedHKParticipant,
    "tensor-fmvc": TensorParticipant,
    "fed-mufsht": FedMUFSHTParticipant,
}
_KINDS: tuple[type[Participant], ...] = (*_PLAIN.values(), MaskedParticipant, NoisyParticipant)


def kind_of(plan: RunPlan) -> type[Participant]:
    """Return the site half that a plan asks for."""
    if not plan.protected:
        return _PLAIN[plan.method]
    return MaskedParticipant if plan.privacy.secure_aggregation else NoisyParticipant


def replies_of(plan: RunPlan) -> str:
    """Say what hides a site's replies in a run: "masked", "noisy" or "plain"."""
    if plan.privacy.secure_aggregation:
        return "masked"
    return "noisy" if plan.protected else "plain"


def meant_for(request: type) -> Mapping[type[Participant], str]:
    """Return the site halves that answer a kind of request, each with its action's name."""
    return {
        kind: action
        for kind in _KINDS
        for action, answered in kind.ACTIONS.items()
        if answered is request
    }


def ends_a_run(request: type) -> bool:
    """Say whether a kind of request is the last one of a run."""
    return any(request is list(kind.ACTIONS.values())[-1] for kind in _KINDS)
