"""The privacy certificate of a run: what it guarantees, under which assumptions, and what not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from configs.plan import RunPlan
from privacy.disclosure import disclosures
from privacy.label_privacy import label_limits, label_messages, label_terms
from privacy.mechanisms import GaussianNoise
from privacy.paper_mechanism import NO_GUARANTEE
from privacy.selection_privacy import SITE_LEVEL_UTILITY

__all__ = ["certificate"]

_POOLED_EXTREMES = "pooled extremes exchanged before round 1"
_POOLED_MOMENTS = "pooled means and variances exchanged before round 1"
_OWN_EXTREMES = "each site scales by its own extremes, which stay there"
_DECLARED = "declared in schema.toml"
_UNIT_ROWS = "none needed: each document is scaled to unit length"

_ASSUMED = {
    "fedhk-mvfc": "the server is trusted with each site's sums over its records",
    "tensor-fmvc": "the server is trusted with one label a row, site and round, deletes the tokens "
    "after matching and shares nothing with any site; the sites follow the protocol and never give "
    "the linkage key to the server",
    "fed-mufsht": "the server is trusted with each site's sums over its records and with its "
    "weights, from which an unusual record can be read; the sites follow the protocol",
}
_ASSUMED_OF_LABELS = (
    "each site draws its answers itself and re-sends them, whatever the server and the other sites "
    "do; each site consented to sharing labels (policy.share_labels); the server deletes the "
    "tokens after matching and shares nothing with any site; the sites never give the linkage key "
    "to the server"
)
_PLAIN = (
    "no differential privacy and no secure aggregation: sums, counts, extremes and the centres "
    "proposed at the start can tell something about single records"
)
_MASKED_ALONE = (
    "secure aggregation without noise is not anonymity: exact sums over a whole run can rebuild "
    "records, and a server that chooses what the sites compute (centres, or the weights they start "
    "from) can single one record out of the sum of all sites",
)
_WEIGHED = (
    "each site's NMI, which the server sees in the clear, and by which, or by a lie about it, one "
    "site can have up to half of the weight in a sum",
)
_USELESS = (f"that the result says anything: {SITE_LEVEL_UTILITY}",)
_NEVER = (
    "the correctness of the result against a server that lies",
    "who takes part, and which records several sites share: a patient of two sites pays at both",
    "how long a site takes",
    "anything that a user exports",
)
_NOISY = (
    "refusals and drop-outs that the data cause (they all read 'declined')",
    "counts that `check` prints at the site",
)
_PAPER = (
    NO_GUARANTEE,
    "numbers beside centres and view weights, which have no noise: counts, moments or extremes of "
    "columns, starting centres that sites propose, objectives, final figures",
    "a round that is asked again: without masks it is answered with fresh noise",
)
_UNITS = {
    "fedhk-mvfc": ("add or remove one patient", "one patient of one site"),
    "fed-mufsht": ("replace the update of one site", "one site"),
    "tensor-fmvc": (
        "change one label before it is sent",
        "one label of one row of one site, given all rows; not a patient: one changed row may move "
        "most labels",
    ),
}


def certificate(
    plan: RunPlan,
    participants: Sequence[str] | None,
    bounds: str | None = None,
    noise: GaussianNoise | None = None,
) -> dict[str, Any]:
    """Say what a run guarantees.

    Parameters
    ----------
    plan : RunPlan
    participants : sequence of str or None
        Sites of the run; None where whoever certifies is not told who else takes part.
    bounds : str, optional
        Where bounds or extremes of the columns come from; by default as in a run over real sites.
    noise : GaussianNoise, optional
        What the sites added; None before it is known, or where there is none.

    Returns
    -------
    dict
        The same keys for every method and plan.
    """
    privacy, terms = plan.privacy, plan.secure_terms()
    return {
        "relation": None,
        "unit": None,
        "mechanism": privacy.mechanism,
        "sigma": None,
        "sensitivity": None,
        "noise_multiplier": None,
        "exchanges": None if terms is None else terms.exchanges,
        "epsilon": None,
        "epsilon_if_others_collude": None,
        "delta": None,
        "accountant": None,
        "noise": privacy.noise,
        "participants": None if participants is None else list(participants),
        "tolerated_dropouts": None if terms is None else terms.tolerated_dropouts,
        "colluders": None if terms is None else terms.colluders,
        "threshold": None if terms is None else terms.threshold,
        "bounds": bounds or _bounds(plan),
        "assumptions": _assumptions(plan),
        "not_covered": _not_covered(plan),
        **_guarantee(plan, noise, None if participants is None else len(participants)),
    }


def _bounds(plan: RunPlan) -> str:
    if plan.protected:
        return _DECLARED if plan.needs_bounds else _UNIT_ROWS
    if plan.method == "tensor-fmvc":
        return _OWN_EXTREMES
    return _POOLED_MOMENTS if plan.method == "fed-mufsht" else _POOLED_EXTREMES


def _guarantee(plan: RunPlan, noise: GaussianNoise | None, n_sites: int | None) -> dict[str, Any]:
    """Return the figures of a mechanism that guarantees something; nothing for another."""
    mechanism = plan.privacy.mechanism
    if mechanism in ("none", "paper"):
        return {}
    relation, unit = _UNITS[plan.method]
    found: dict[str, Any] = {"relation": relation, "unit": unit}
    if mechanism == "randomised-response":
        return found | {
            "exchanges": label_messages(plan),
            "epsilon": plan.privacy.epsilon,
            "epsilon_if_others_collude": plan.privacy.epsilon,
            "delta": 0.0,
            "accountant": label_terms(plan, n_sites),
        }
    if noise is None:
        return found
    return found | {
        "sigma": {block.name: noise.sigma * block.weight for block in noise.blocks.blocks},
        "sensitivity": noise.sensitivity,
        "noise_multiplier": noise.noise_multiplier,
        "exchanges": noise.releases,
        "epsilon": noise.epsilon,
        "epsilon_if_others_collude": noise.epsilon_if_others_collude,
        "delta": noise.delta,
        "accountant": "exact curve of the Gaussian mechanism (Balle and Wang 2018) at mu = "
        "sqrt(exchanges) / noise_multiplier; sigma, by kind of number, is what the sites that are "
        "counted on add up to in an opened sum",
    }


def _assumptions(plan: RunPlan) -> str:
    terms = plan.secure_terms()
    if plan.privacy.mechanism == "randomised-response":
        return _ASSUMED_OF_LABELS
    if terms is None and not plan.protected:
        return _ASSUMED[plan.method]
    parts = []
    if terms is not None:
        parts.append(
            f"{terms.n_sites} participants follow the protocol; at most {terms.colluders} of them "
            f"share what they know with the server; at most {terms.tolerated_dropouts} are missing "
            "from a sum, so that every opened sum holds at least "
            f"{terms.least_contributors - terms.colluders} other sites; the roster of identity "
            "keys reached each site outside the network; a site's state folder is not restored "
            "from a copy"
        )
    if plan.privacy.noise == "local":
        parts.append("each site's own noise protects its patients, whatever the others do")
    elif plan.privacy.noise == "distributed":
        parts.append(
            "the noise is the sum of what the sites add; epsilon_if_others_collude is what the "
            "site's own share alone protects"
        )
    return "; ".join(parts)


def _not_covered(plan: RunPlan) -> str:
    if not plan.protected and plan.privacy.mechanism == "none":
        if plan.method == "fedhk-mvfc":
            return _PLAIN
        return " ".join(("No differential privacy and no secure aggregation.", *disclosures(plan)))
    mechanism = plan.privacy.mechanism
    parts: tuple[str, ...] = _NEVER
    if plan.secure_terms() is not None and mechanism in ("none", "paper"):
        parts = (*_MASKED_ALONE, *parts)
    if mechanism == "paper":
        parts = (*_PAPER, *parts)
    elif mechanism == "gaussian":
        parts = (*parts, *_NOISY)
    elif mechanism == "randomised-response":
        parts = (*label_limits(plan), *parts)
    if plan.method == "fed-mufsht" and mechanism == "gaussian":
        parts = (*parts, *_USELESS)
    elif plan.method == "fed-mufsht" and plan.mufsht.weighting != "uniform":
        parts = (*_WEIGHED, *parts)
    return "; ".join(parts)
