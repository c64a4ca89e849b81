"""Which method, aggregation and privacy combinations exist, with the reason of each refusal."""

from __future__ import annotations

from configs.errors import DataRefused

__all__ = ["one_view_only", "refusal"]

_USE_EXACT = 'use aggregation = "exact"'
_SINGLE_UPDATES = (
    'aggregation = "{aggregation}" needs the update of every single site, which '
    f"privacy.secure_aggregation hides: {_USE_EXACT} or leave secure aggregation out"
)
_RATIO = (
    'aggregation = "{aggregation}" sends centres, which are ratios of unbounded sensitivity, so '
    f'privacy.mechanism = "{{mechanism}}" would protect nothing: {_USE_EXACT}'
)

_ROW_LABELS = (
    'method = "tensor-fmvc" needs one label a row from every single site, which '
    "privacy.secure_aggregation hides: leave secure aggregation out"
)
_LABEL_PRIVACY_ONLY = (
    'privacy.mechanism = "{mechanism}" does not exist for method = "tensor-fmvc", which sends '
    'labels, not sums: it knows label privacy only, "randomised-response"'
)

_SITE_LEVEL = (
    'privacy.mechanism = "gaussian" with method = "fed-mufsht" would hide whole sites, not '
    "patients, which destroys the selection below hundreds of sites, and is not available in this "
    'version: use "none" or leave it out'
)
_NEVER_WITH_WEIGHTS = {
    "randomised-response": 'privacy.mechanism = "randomised-response" protects labels and method = '
    '"fed-mufsht" sends none: use "none" or leave it out',
    "paper": 'privacy.mechanism = "paper" of method = "fed-mufsht" scales its noise to the largest '
    "update of the sites (Eq. 20), which is read from the data, so it would guarantee nothing: use "
    '"none" or leave it out',
}

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
_NEVER_PRIVATE_LABELS = ("gaussian", "paper")
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
        The plan's method and FedHK-MVFC's aggregation.
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
    reasons: list[str | None] = []
    if method == "tensor-fmvc":
        reasons.append(_ROW_LABELS if secure_aggregation else None)
        reasons.append(_LABEL_PRIVACY_ONLY if mechanism in _NEVER_PRIVATE_LABELS else None)
    if method == "fed-mufsht":
        reasons.append(_NEVER_WITH_WEIGHTS.get(mechanism))
    if secure_aggregation:
        reasons.append(_NEVER_SECURE.get(combination))
    if mechanism != "none":
        reasons.append(_NEVER_PRIVATE.get(combination))
    if secure_aggregation:
        reasons.append(_NO_SECURE_YET)
    if method == "fed-mufsht" and mechanism == "gaussian":
        reasons.append(_SITE_LEVEL)
    if mechanism != "none":
        reasons.append(_NO_MECHANISM_YET)
    for reason in reasons:
        if reason is not None:
            return reason.format(aggregation=aggregation, mechanism=mechanism)
    return None


def one_view_only(site: str, n_views: int) -> None:
    """Refuse a site that a vertical run cannot place.

    Raises
    ------
    DataRefused
        Where the site holds another number of views than one.
    """
    if n_views != 1:
        raise DataRefused(
            f"site '{site}' holds {n_views} views and a vertical run takes 1 from each site: name "
            "one file in its [data], with all its columns"
        )
