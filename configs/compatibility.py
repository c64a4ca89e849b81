"""Which method, aggregation and privacy combinations exist, with the reason of each refusal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from configs.errors import DataRefused

if TYPE_CHECKING:
    from configs.plan import RunPlan

__all__ = ["largest_weight", "one_view_only", "option_refusals", "refusal"]

_USE_EXACT = 'use aggregation = "exact"'
_SINGLE_UPDATES = (
    'aggregation = "{aggregation}" needs the update of every single site, which '
    f"privacy.secure_aggregation hides: {_USE_EXACT} or leave secure aggregation out"
)
_QUALITY_FIRST = (
    'aggregation = "{aggregation}" with privacy.secure_aggregation (each site\'s NMI in the clear, '
    f'then a masked weighted sum) is not available in this version: {_USE_EXACT} or "weighted"'
)
_RATIO = (
    'aggregation = "{aggregation}" sends centres, which are ratios of unbounded sensitivity, so '
    f'privacy.mechanism = "{{mechanism}}" would protect nothing: {_USE_EXACT}'
)
_SUMS = (
    'privacy.mechanism = "paper" puts the paper\'s noise on centres and aggregation = "exact" '
    'sends sums: use mechanism = "gaussian", which guarantees something, or aggregation = '
    '"weighted"'
)
_LABELS_ONLY = (
    'privacy.mechanism = "randomised-response" protects labels and method = "{method}" sends none: '
    'use "gaussian" or leave it out'
)

_ROW_LABELS = (
    'method = "tensor-fmvc" needs one label a row from every single site, which '
    "privacy.secure_aggregation hides: leave secure aggregation out"
)
_LABEL_PRIVACY_ONLY = (
    'privacy.mechanism = "{mechanism}" does not exist for method = "tensor-fmvc", which sends '
    'labels, not sums: it knows label privacy only, "randomised-response"'
)
_LARGEST_UPDATE = (
    'privacy.mechanism = "paper" of method = "fed-mufsht" scales its noise to the largest '
    "update of the sites (Eq. 20), which is read from the data, so it would guarantee nothing: use "
    '"gaussian" or leave it out'
)

_AVERAGES = ("weighted", "fedavg")
_SINGLE = ("median", "quality", "nmi_softmax")
#: (method, aggregation) -> why secure aggregation cannot be combined with it.
_NEVER_SECURE = {
    **{("fedhk-mvfc", aggregation): _SINGLE_UPDATES for aggregation in ("median", "quality")},
    ("fedhk-mvfc", "nmi_softmax"): _QUALITY_FIRST,
}
#: (method, aggregation, mechanism) -> why the mechanism cannot be combined with them.
_NEVER_NOISY = {
    **{("fedhk-mvfc", aggregation, "gaussian"): _RATIO for aggregation in (*_AVERAGES, *_SINGLE)},
    **{("fedhk-mvfc", aggregation, "paper"): _RATIO for aggregation in _SINGLE},
    ("fedhk-mvfc", "exact", "paper"): _SUMS,
    ("fed-mufsht", "exact", "paper"): _LARGEST_UPDATE,
    ("tensor-fmvc", "exact", "gaussian"): _LABEL_PRIVACY_ONLY,
    ("tensor-fmvc", "exact", "paper"): _LABEL_PRIVACY_ONLY,
}


def refusal(
    method: str, aggregation: str, *, secure_aggregation: bool, mechanism: str
) -> str | None:
    """Say why a combination does not exist.

    Parameters
    ----------
    method, aggregation : str
        The plan's method and FedHK-MVFC's aggregation ("exact" for the other methods).
    secure_aggregation : bool
        Whether the server may see sums only.
    mechanism : str
        The plan's noise mechanism, ``"none"`` for no noise.

    Returns
    -------
    str or None
        One sentence with the way out, or None where the combination can run.
    """
    reasons: list[str | None] = []
    if secure_aggregation:
        reasons.append(_ROW_LABELS if method == "tensor-fmvc" else None)
        reasons.append(_NEVER_SECURE.get((method, aggregation)))
    if mechanism == "randomised-response" and method != "tensor-fmvc":
        reasons.append(_LABELS_ONLY)
    reasons.append(_NEVER_NOISY.get((method, aggregation, mechanism)))
    for reason in reasons:
        if reason is not None:
            return reason.format(aggregation=aggregation, mechanism=mechanism, method=method)
    return None


def option_refusals(plan: RunPlan) -> list[tuple[bool, str]]:
    """List the options that masked or noisy sums cannot be combined with.

    Parameters
    ----------
    plan : RunPlan
        Its combination of method, aggregation and privacy exists.

    Returns
    -------
    list of (bool, str)
        Whether the plan breaks the rule, and the rule as one sentence with the way out.
    """
    rules: list[tuple[bool, str]] = []
    if plan.method == "fedhk-mvfc" and plan.protected:
        rules += _protected_sums(plan)
    if plan.method == "fed-mufsht" and plan.protected and plan.privacy.mechanism == "none":
        rules += _masked_selection(plan)
    if plan.privacy.mechanism == "gaussian":
        rules += _noisy_selection(plan) if plan.method == "fed-mufsht" else _noisy_sums(plan)
        rules.append(
            (
                bool(plan.features),
                f"features = '{plan.features}' are columns that other releases of the same "
                "patients chose, which privacy.epsilon does not count: leave features out, or "
                'use privacy.mechanism = "none"',
            )
        )
    if plan.method == "tensor-fmvc" and plan.privacy.mechanism == "randomised-response":
        rules += _random_labels(plan)
    else:
        rules.append((plan.max_rounds == 0, "max_rounds is 0; allowed: a whole number, 1 or more"))
    rules.append(
        (
            plan.privacy.clip is not None
            and (plan.method, plan.privacy.mechanism) != ("fed-mufsht", "gaussian"),
            'privacy.clip bounds a site\'s weights, which only method = "fed-mufsht" with '
            'mechanism = "gaussian" sends: leave clip out',
        )
    )
    return rules


def _protected_sums(plan: RunPlan) -> list[tuple[bool, str]]:
    """FedHK-MVFC with masked or noisy sums: nothing else may leave."""
    options = plan.fedhk
    return [
        (
            options.init == "kmeans",
            "fedhk.init = 'kmeans' shows the server centres of each site's own records: use "
            "'spread' or 'box' with secure aggregation or noise",
        ),
        (
            options.encoding != "float64",
            f"fedhk.encoding = '{options.encoding}' rounds single sums, and secure aggregation or "
            "noise carries whole numbers of a ring instead: leave encoding out",
        ),
        (
            bool(options.local_clusters),
            "fedhk.local_clusters makes the server match single sites' centres, which secure "
            "aggregation hides: leave local_clusters out",
        ),
    ]


def largest_weight(n_sites: int, temperature: float) -> float:
    """Return the most that one of the sites can weigh by Eq. 16 ("softmax"): q is 1, all others 0.

    Parameters
    ----------
    n_sites : int
    temperature : float
        ``mufsht.agg_temp``.
    """
    return 1.0 / (1.0 + (n_sites - 1) * math.exp(-1.0 / temperature))


def _masked_selection(plan: RunPlan) -> list[tuple[bool, str]]:
    """Fed-MUFSHT with masked sums: weights that no lie about NMI makes those of one site."""
    settings, n = plan.mufsht_settings(), len(plan.privacy.participants)
    least = math.ceil(1000.0 / math.log(n - 1)) / 1000.0  # n >= 3
    largest = largest_weight(n, settings.agg_temp)
    way_out = (
        "use 'uniform' (the default with secure aggregation), or 'softmax' with an agg_temp of "
        f"{least:g} or more"
    )
    return [
        (
            settings.weighting == "linear",
            "mufsht.weighting = 'linear' lets a server that lies about the sites' NMI give one of "
            f"them all of the weight, so that the masked sum is its weights W alone: {way_out}",
        ),
        (
            settings.weighting == "softmax" and largest > 0.5,
            f"mufsht.weighting = 'softmax' with agg_temp = {settings.agg_temp:g} lets a server "
            f"that lies about the sites' NMI give one of {n} sites {largest:.4f} of the weight, so "
            f"that the masked sum is mostly its weights W: {way_out}",
        ),
    ]


def _noisy_sums(plan: RunPlan) -> list[tuple[bool, str]]:
    """FedHK-MVFC with a patient-level guarantee: every release is planned, bounded and paid."""
    options, settings = plan.fedhk, plan.settings(1)
    profile = f"profile '{plan.profile}'" if plan.profile else "the default profile 'robust'"
    return [
        (
            settings.bandwidth == "auto" or settings.scaling == "standard",
            f"{profile} takes scaling or bandwidth from the data, which nobody has "
            "paid for: set profile = 'paper', or name fedhk.heat_kernel and leave scaling and "
            "bandwidth out",
        ),
        (
            settings.scaling != "minmax",
            f"fedhk.scaling = '{settings.scaling}' leaves records without a bound: use 'minmax', "
            "which scales by the declared bounds",
        ),
        (
            options.n_init != 1,
            f"fedhk.n_init is {options.n_init} and every start costs as much as the first: use 1 "
            "with noise",
        ),
        (
            options.init != "spread",
            f"fedhk.init is '{options.init}': use 'spread', the start that needs no data, with "
            "noise",
        ),
        (
            options.acceleration != "none",
            "fedhk.acceleration = 'anderson' undoes steps that were already paid for: use 'none' "
            "with noise",
        ),
    ]


def _noisy_selection(plan: RunPlan) -> list[tuple[bool, str]]:
    """Fed-MUFSHT with site-level noise: one clipped update a site and round, equal weights."""
    settings = plan.mufsht_settings()
    return [
        (
            plan.privacy.clip is None,
            "privacy.clip is missing: say how large (L2 norm) a site's weights may be, for "
            "instance 1.0",
        ),
        (
            settings.weighting != "uniform",
            f"mufsht.weighting = '{settings.weighting}' makes weights of the sites' NMI, a release "
            "that nobody has paid for: use 'uniform' with noise",
        ),
        (
            settings.search == "keys",
            "mufsht.search = 'keys' lets each site vote for columns, a release that nobody has "
            "paid for: use 'off' or 'weights' with noise",
        ),
        (
            settings.text,
            "mufsht.text pools how many records hold each word, a release that nobody has paid "
            "for: leave text out with noise",
        ),
    ]


def _random_labels(plan: RunPlan) -> list[tuple[bool, str]]:
    """TensorFMVC with label privacy: every list of labels that leaves costs a share of epsilon."""
    return [
        (
            plan.profile == "paper",
            "profile 'paper' begins with labels at random and sends those of each view beside "
            "them, so epsilon would pay for noise: use 'plus' with "
            "privacy.mechanism = 'randomised-response'",
        ),
    ]


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
