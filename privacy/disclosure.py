"""Who learns what in a run: plain sentences for whoever approves a plan, and the certificate."""

from __future__ import annotations

from configs.plan import RunPlan
from privacy.label_privacy import label_disclosures
from privacy.selection_privacy import selection_disclosures

__all__ = ["disclosures"]

#: Seconds that one scrypt hash takes on one core where its n is 2 to the power 12.
_HASH_S = 0.01


def disclosures(plan: RunPlan) -> tuple[str, ...]:
    """Say what leaves a site under a plan, and who learns what from it.

    Parameters
    ----------
    plan : RunPlan

    Returns
    -------
    tuple of str
        Sentences, for ``plans show`` and the certificate; they depend on the plan alone.
    """
    if plan.method == "tensor-fmvc":
        return _vertical(plan)
    if plan.method == "fed-mufsht":
        return selection_disclosures(plan, _masks(plan))
    return _horizontal_sums(plan) if plan.protected else _horizontal(plan)


def _vertical(plan: RunPlan) -> tuple[str, ...]:
    cost, floor = plan.tensor.link_cost, plan.tensor.min_overlap
    private = plan.privacy.mechanism == "randomised-response"
    sent = "what all sites sent for it" if private else "all sites' labels of it"
    return (
        "Measurements and ids stay at the site; the server gets the names, units and declared "
        "bounds of its columns, and one keyed token for each id on its list.",
        "Every site learns which of its patients all other sites hold too: that somebody is a "
        "patient elsewhere is itself health data, so use a list of patients who consented to the "
        "study.",
        "Any site holds the linkage key: it can put invented ids on its list and learn which of "
        "them all others hold (with two sites, whether a person is a patient of the other), as far "
        "as the others do not notice; take part only with sites you would trust with that.",
        "The server learns how long each site's list is and how many patients any two or more of "
        f"them share; with fewer than {floor} in all lists the run is refused, and no site is told "
        "how many there were.",
        f"The server and one site together can name every common row and read {sent}.",
        "The server and one site together can also test whether a guessed id is on any site's "
        f"list, at the cost of one hash a guess (scrypt with n = 2**{cost}, about "
        f"{_duration(cost)} of one core): ids that can be listed, such as numbers in a row or "
        "birth dates, are not hidden by that.",
        "Who has the linkage key keeps that ability: when a site leaves, the others replace the "
        "key before the next run.",
        "The server deletes the tokens after matching, which is a promise and not a proof; where "
        "Flower's SuperLink keeps a database on disk, that may hold remains of them. Two runs of "
        "one plan have equal tokens, so their lists can be compared: change the plan's seed for a "
        "fresh start.",
        *(label_disclosures(plan) if private else _open_labels(plan)),
        "A refusal tells the server counts, such as of rows or of repeated ids, names of columns "
        "and numbers of lines in a file, and never an id or a value.",
        "Labels, ids and what a stopped run left lie in the site's own folders (results, state), "
        "closed to users outside their group, until somebody removes them.",
        "At the end every site receives the final label and the vote's label of each common row; "
        "the server keeps the sites' weights and how far their groupings agree.",
    )


def _open_labels(plan: RunPlan) -> tuple[str, ...]:
    """Say what labels tell that leave as they are."""
    return (
        f"At the start and in each round, at most {plan.max_rounds}, the server gets from every "
        f"site a label (1 of {plan.n_clusters} clusters) for each common row and one number on how "
        "tight the clusters are; at the start also the labels that its view gives alone, and which "
        "common rows it has no measurement of: the server sees each site's whole grouping of these "
        "patients, which tells something about their measurements.",
        f"Each round every site receives Z ({plan.tensor_settings().z_encoding}), a blend of all "
        "sites' labels of each common row: with few sites one can work out much of another's "
        "labels from it.",
        "A server that breaks the protocol can name any rows of a list as shared, choose Z at will "
        "and read from the labels and that number how alike any two patients are in a site's view: "
        "the site trusts the server not to. A site checks order, shapes and that the rows stay the "
        "same, no more.",
    )


def _horizontal(plan: RunPlan) -> tuple[str, ...]:
    options = plan.fedhk
    start = (
        "At the start the server gets centres of a k-means over the site's records with their "
        "counts (none of fewer than policy.min_cell records), and three sums a column."
        if options.init == "kmeans"
        else "At the start the server gets three sums a column; no centre is proposed by a site."
    )
    rounds = (
        "sums over all of the site's records for each cluster and column reach the server"
        if options.aggregation == "exact"
        else "the site's own model (centres and view weights) and figures on how well it fits "
        "reach the server"
    )
    return (
        "Rows, ids, row order, memberships and labels stay at the site.",
        *_chosen(plan),
        "The server gets the names, units and declared bounds of the columns; the number of "
        "records, and how many hold or partly miss each view; count, mean, variance, least and "
        "greatest value of each column.",
        start,
        f"Each round, at most {plan.max_rounds}, {rounds}; at the end the cluster sizes, the "
        "partition coefficient and the dispersion of each view do.",
        *_paper_noise(plan),
        "Every site receives the pooled scaling and, each round, the centres and view weights: "
        "with two sites each can work out something of the other's sums.",
        "There is no differential privacy and no secure aggregation: the least and greatest value "
        "of a column each belong to a patient, and sums over few records can tell something about "
        "a single one.",
    )


def _chosen(plan: RunPlan) -> tuple[str, ...]:
    choice = plan.feature_choice
    if choice is None:
        return ()
    return (
        f"Only the columns that run {choice.run_id[:8]} selected at a share of "
        f"{choice.ratio:g} are used, found by name in what each site kept of that run: the "
        "run's columns tell every site what that run found in the data of all its sites.",
    )


def _horizontal_sums(plan: RunPlan) -> tuple[str, ...]:
    noisy = plan.privacy.mechanism == "gaussian"
    exact = plan.fedhk.aggregation == "exact"
    what = (
        "sums over records for each cluster and column"
        if exact
        else "the weighted sum of the sites' models (centres and view weights)"
    )
    before = (
        "Before round 1 nothing about the data is sent: scaling follows from the declared bounds, "
        "and the number of records never leaves the site."
        if noisy
        else "Before and after the rounds one sum each over all sites is opened: numbers of "
        "records, counts, sums and sums of squares of each column; cluster sizes and fit."
    )
    return (
        "Rows, ids, row order, memberships and labels stay at the site.",
        *_chosen(plan),
        "The server gets the names, units and declared bounds of the columns. Values outside their "
        "bounds are cut to them"
        + (", and a missing cell takes the middle of its bounds." if noisy else "."),
        before,
        f"Each round, at most {plan.max_rounds}, {what} leave the site"
        + (" with noise" if noisy else "")
        + (" and masked." if plan.privacy.secure_aggregation else "."),
        *_paper_noise(plan),
        *_masks(plan),
        *(_noise(plan) if noisy else ()),
        "Every site receives, each round, the centres and view weights that follow from the sums "
        "over all sites.",
        "At the end nothing more leaves: each site labels its own records under the final model.",
    )


def _masks(plan: RunPlan) -> tuple[str, ...]:
    """Say what masks hide, and from whom."""
    terms = plan.secure_terms()
    if terms is None:
        return ("Without masks the server sees this site's own noisy sums.",)
    honest = terms.least_contributors - terms.colluders
    chosen = "the centres"
    if plan.method == "fed-mufsht":
        chosen = "the weights that sites start from after round 1"
    alone = (
        ()
        if plan.privacy.mechanism == "gaussian"
        else (
            "Masks without noise are not anonymity: the exact sums of many rounds can rebuild "
            f"records, and a server that chooses {chosen} can single one record out of the sum "
            "over all sites.",
        )
    )
    return (
        f"The server opens sums over at least {terms.least_contributors} of the "
        f"{terms.n_sites} participants ({', '.join(terms.participants)}) and never one site's "
        f"own; this holds against a server that lies and works with up to {terms.colluders} of "
        f"the sites, so every sum mixes at least {honest} others.",
        f"The sites make keys for {terms.exchanges} sums, which they sign; a site uses each once, "
        f"and a site with more than {terms.max_rows} records takes no part.",
        *alone,
    )


def _paper_noise(plan: RunPlan) -> tuple[str, ...]:
    """Say that the paper's noise promises nothing."""
    if plan.privacy.mechanism != "paper":
        return ()
    return (
        "Each site adds noise to its centres and view weights by Eqs. 73, 74 and 76 of the paper "
        f"(its epsilon: {plan.privacy.epsilon:g}), for comparison only: this guarantees nothing, "
        "takes nothing from the budget, and the certificate says why.",
    )


def _noise(plan: RunPlan) -> tuple[str, ...]:
    """Say what the noise promises."""
    privacy = plan.privacy
    placed = (
        "each site adds all of the noise, so this holds whatever the others do"
        if privacy.noise == "local"
        else "each site adds its part of the noise, so this holds as long as the sites named "
        "above add theirs"
    )
    return (
        f"With or without one patient of this site, what the server and the other sites see "
        f"differs by at most a factor e^epsilon, epsilon = {privacy.epsilon:g} over the whole run "
        f"(but for a probability delta = {privacy.delta:g}); {placed}.",
        "The noise does not cover who takes part, how long a site takes, that a site declines, or "
        "what somebody exports from its results.",
    )


def _duration(cost: int) -> str:
    """Return the time of one scrypt hash, two digits."""
    seconds = _HASH_S * 2.0 ** (cost - 12)
    size, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "µs"))
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"
