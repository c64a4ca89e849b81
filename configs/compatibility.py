"""Which method, aggregation and privacy combinations exist, with the reason of each refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

__all__ = ["refusal"]

_USE_EXACT = 'use aggregation = "exact"'
_SINGLE_UPDATES = (
    'aggregation = "{aggregation}" needs the update of every single site, which '
    f"privacy.secure_aggregation hides: {_USE_EXACT} or leave secure aggregation out"
)
_RATIO = (
    'aggregation = "{aggregation}" sends centres, which are ratios of unbounded sensitivity, so '
    f'privacy.mechanism = "{{mechanism}}" would protect nothing: {_USE_EXACT}'
)

# (method, aggregation) -> why secure aggregation can never be combined with it
_NEVER_SECURE = {
    ("fedhk-mvfc", "median"): _SINGLE_UPDATES,
    ("fedhk-mvfc", "quality"): _SINGLE_UPDATES,
}
# (method, aggregation) -> why a patient-level mechanism can never be combined with it
_NEVER_PRIVATE = {
    ("fedhk-mvfc", aggregation): _RATIO
    for aggregation in ("weighted", "fedavg", "median", "quality", "nmi_softmax")
}
_NO_SECURE_YET = (
    "privacy.secure_aggregation is not available in this version: set it to false or leave it out"
)
_NO_MECHANISM_YET = (
    'privacy.mechanism = "{mechanism}" is not available in this version: use "none" or leave it out'
)


def refusal(
    method: str, aggregation: str, *, secure_aggregation: bool, mechanism: str
) -> str | None:
    """Say why a combination does not exist.

    Parameters
    ----------
    method, aggregation : str
        The plan's method and aggregation.
    secure_aggregation : bool
        Whether the server may see sums only.
    mechanism : str
        The plan's noise mechanism, ``"none"`` for no noise.

    Returns
    -------
    str or None
        One sentence with the way out, or None where the combination can run. A reason that lies
        in the method comes before one that only lies in this version.
    """
    combination = (method, aggregation)
    reasons = []
    if secure_aggregation:
        reasons.append(_NEVER_SECURE.get(combination))
    if mechanism != "none":
        reasons.append(_NEVER_PRIVATE.get(combination))
    if secure_aggregation:
        reasons.append(_NO_SECURE_YET)
    if mechanism != "none":
        reasons.append(_NO_MECHANISM_YET)
    for reason in reasons:
        if reason is not None:
            return reason.format(aggregation=aggregation, mechanism=mechanism)
    return None
