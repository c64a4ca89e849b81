"""Who learns what in a selection, and how little of it site-level noise leaves."""

from __future__ import annotations

from configs.compatibility import largest_weight
from configs.plan import RunPlan

__all__ = ["SITE_LEVEL_UTILITY", "selection_disclosures"]

#: Measured; as a warning of a run, before a plan is approved, and in the certificate.
SITE_LEVEL_UTILITY = (
    "noise that hides a whole site leaves no usable selection at a meaningful epsilon with fewer "
    "than hundreds of sites: on planted data of 300 columns (0.98 of the right ones found without "
    "noise, 0.15 by chance) 5 sites found 0.17 of them and 20 sites 0.14 at epsilon 1 a round, "
    "0.19 and 0.20 at epsilon 8"
)

_STAYS = "Rows, ids, row order, labels, embeddings and imputed values stay at the site."
_COLUMNS = "The server gets the names, units and declared bounds of the columns"
_CUT = "Values outside their bounds are cut to them."
_KEPT = (
    "At the end every site and the server keep the ranking of the columns with scores, the "
    "share of the cells that is observed over all sites, the mean weights and the scaling: "
    "what is selected tells something about the patients of all sites."
)
_REFUSALS = (
    "A refusal tells the server counts, such as of rows or of negative cells, and names of "
    "views and columns, and never an id or a value."
)
_LEFT = (
    "Labels, ids and what a stopped run left lie in the site's own folders (results, state), "
    "closed to users outside their group, until somebody removes them."
)


def selection_disclosures(plan: RunPlan, masks: tuple[str, ...]) -> tuple[str, ...]:
    """Say what leaves a site in a run of Fed-MUFSHT, and who learns what from it.

    Parameters
    ----------
    plan : RunPlan
    masks : tuple of str
        What is said of its masks, or of their lack, where its sums are protected.
    """
    if plan.privacy.mechanism == "gaussian":
        return _noisy(plan, masks)
    return _masked(plan, masks) if plan.protected else _plain(plan)


def _plain(plan: RunPlan) -> tuple[str, ...]:
    settings, uniform = plan.mufsht_settings(), plan.mufsht.weighting == "uniform"
    cells = (
        "for each word how many documents have it, then the sum and the sum of squares of its "
        "weights: where only one document has a word, these sums are that document's own"
        if settings.text
        else "for each column with at least policy.min_cell observed cells how many they are and "
        "their sum, then their sum and sum of squares about the pooled mean: so the site's own "
        "mean and variance of each column, from which one enormous value can be read"
    )
    turn = (
        "the site's weights W, divided by the number of sites (no figure on their quality is sent)"
        if uniform
        else "one figure q on how well the selected columns repeat the site's own grouping (no "
        "label is read), and then the site's weights W times the weight gamma that follows from it"
    )
    keys = (
        ("At the end the server gets which columns the site itself would choose.",)
        if settings.search == "keys"
        else ()
    )
    return (
        _STAYS,
        f"{_COLUMNS}; the number of records, and how many hold each view; {cells}.",
        f"Each round, at most {plan.max_rounds}, the server gets {turn}; with them which columns "
        "the site observes, its view weights, its objective and the size of W.",
        f"W holds {plan.n_clusters} numbers for each column, and these are linear combinations of "
        "the site's records: without secure aggregation the server sees those of each single site "
        "and can read an unusual record from them almost as it is (one three times as large as the "
        "other 99: cosine 0.99 with a mix of the columns of W), and of a site with few records "
        "much of any record: the site trusts the server not to.",
        "Every site receives the pooled scaling of the columns and, each round, the weighted mean "
        "of the weights of all sites: with two sites each can work out much of the other's.",
        *keys,
        _KEPT,
        _REFUSALS,
        _LEFT,
        "There is no differential privacy and no secure aggregation.",
    )


def _masked(plan: RunPlan, masks: tuple[str, ...]) -> tuple[str, ...]:
    settings = plan.mufsht_settings()
    cells = (
        "for each word how many documents have it, then the sum and the sum of squares of its "
        "weights: where only one document of all sites has a word, these are that document's own"
        if settings.text
        else "for each column with at least policy.min_cell observed cells how many they are and "
        "their sum, then their sum and sum of squares about the pooled mean"
    )
    uniform = settings.weighting == "uniform"
    quality = () if uniform else _weighed(plan)
    gammas = "" if uniform else "the weight gamma of each site by name and "
    keys = (
        ("At the end the sites' choices of columns are added up masked.",)
        if settings.search == "keys"
        else ()
    )
    return (
        _STAYS,
        f"{_COLUMNS}." if settings.text else f"{_COLUMNS}. {_CUT}",
        "Before round 1 two sums over all sites are opened: the number of records, and how many "
        f"hold each view; {cells}.",
        *quality,
        f"Each round, at most {plan.max_rounds}, the site's weights W "
        + ("divided by the number of sites" if uniform else "times gamma")
        + ", which columns it observes, its view weights, its objective and the size of W leave "
        "masked.",
        *masks,
        f"W holds {plan.n_clusters} numbers for each column, and these are linear combinations of "
        "records: an unusual record of one site can still show in the sum over all sites.",
        f"Every site receives the pooled scaling of the columns and, each round, {gammas}the "
        "weighted mean of the weights of all sites.",
        *keys,
        _KEPT,
        _REFUSALS,
        _LEFT,
    )


def _weighed(plan: RunPlan) -> tuple[str, ...]:
    """Say what the figure q tells, and how much of the sum a weight that follows from it is."""
    n_sites = len(plan.privacy.participants)
    largest = largest_weight(n_sites, plan.mufsht_settings().agg_temp)
    return (
        f"Each round, at most {plan.max_rounds}, the server first gets, in the clear, one figure q "
        "on how well the selected columns repeat the site's own grouping (no label is read), and "
        "makes of all sites' figures their weights gamma.",
        f"Under this plan a site's gamma is at most {largest:.4f} (with equal ones it is "
        f"{1 / n_sites:.4f}), also where a server lies about q, so that the sum is never mostly "
        "one site's W; the site refuses gammas that no q can give.",
    )


def _noisy(plan: RunPlan, masks: tuple[str, ...]) -> tuple[str, ...]:
    privacy = plan.privacy
    placed = (
        "each site adds all of the noise, so this holds whatever the others do"
        if privacy.noise == "local"
        else "each site adds its part of the noise, so this holds as long as the sites named "
        "above add theirs"
    )
    return (
        _STAYS,
        f"{_COLUMNS}. {_CUT}",
        "Before round 1 nothing about the data is sent: the scaling follows from the declared "
        "bounds, the number of records never leaves the site, and which views it holds is what it "
        "declares.",
        f"Each round, at most {plan.max_rounds}, the site's weights W ({plan.n_clusters} numbers "
        f"for each column), shortened to the length privacy.clip = {privacy.clip:g}, leave the "
        "site with noise"
        + (" and masked" if privacy.secure_aggregation else "")
        + ", and nothing else does: no figure on their quality, no count.",
        *masks,
        "The noise hides the site as a whole: whatever its records are, what the server and the "
        "other sites see differs by at most a factor e^epsilon, epsilon = "
        f"{privacy.epsilon:g} over the whole run (but for a probability delta = "
        f"{privacy.delta:g}); {placed}.",
        "The noise does not cover who takes part, how long a site takes, that a site declines, or "
        "what somebody exports from its results.",
        f"{SITE_LEVEL_UTILITY[0].upper()}{SITE_LEVEL_UTILITY[1:]}.",
        "Every site receives, each round, the mean of the noisy weights; at the end every site and "
        "the server keep the ranking of the columns that follows from it.",
        _LEFT,
    )
