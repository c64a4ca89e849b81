"""The server's half of TensorFMVC: G, Q, mu and alpha from the labels that the sites send.

One round: the sites update their labels H with the blend Z; then G = shrink(H + Q/mu, lambda/mu)
(Eq. 32), Q += mu (H - G), mu grows, and Z = G - Q/mu goes down. The view weights alpha (Eq. 21)
follow from each site's trace. Rows that a site does not hold have H = 0 there and keep Q = 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from configs.errors import ProtocolError, QuorumLost
from configs.tensor_profiles import MU_MAX, TensorSettings
from strategies.label_alignment import Labels, align_labels, contingency, majority_vote
from strategies.label_coding import Blend
from strategies.statistics import Floats
from strategies.tensor_blending import DenseTensor, StreamedTensor, Threshold

__all__ = ["TensorDriver", "TensorQuery", "TensorResult", "doubts", "view_weights", "vote_shares"]

#: From this share of the final vote on, one view's labels are the result.
ONE_SIDED = 0.9

#: Traces below this much a row count as this much: what is left of a clustering without error is
#: rounding, which differs between machines and must not decide whose view counts.
TRACE_FLOOR = 1e-6


@dataclass(frozen=True)
class TensorQuery:
    """What a site needs for the next round.

    ``weight`` multiplies its local term, ``mu`` the blend; ``z`` (N, K) times ``scale`` is the
    blend's value, in the rows' shared order. None where there is no tensor term yet. A row that
    the site does not hold is 0.
    """

    weight: float
    mu: float
    z: Blend | None
    scale: float


@dataclass(frozen=True)
class TensorResult:
    """What a run ends with; M sites in name order, N rows in shared order.

    Attributes
    ----------
    labels : ndarray of shape (N,), int64
        Vote of the sites' last labels, each with alpha^r (Eq. 33); -1 where no site has the row.
    vote : ndarray of shape (N,), int64
        Majority vote of what the aligned sites say alone, in the result's names: the result
        without the tensor term.
    view_weights : ndarray of shape (M,)
        alpha.
    agreement, agreement_nmi : ndarray of shape (M,)
        Share of a site's rows on which what its view says alone is the result, and the
        normalised mutual information of the two.
    pairwise : ndarray of shape (M, M)
        Share of the rows of both sites on which they agree alone; 0 without such rows.
    site_labels : dict of str to ndarray of shape (N,), int64
        Last labels of each site in common names.
    alone : dict of str to ndarray of shape (N,), int64
        What each site's view says alone, in the result's names.
    n_clusters : int
    """

    labels: Labels
    vote: Labels
    view_weights: Floats
    agreement: Floats
    agreement_nmi: Floats
    pairwise: Floats
    site_labels: dict[str, Labels]
    alone: dict[str, Labels]
    n_clusters: int


def view_weights(traces: Floats, r: float, floor: float = 0.0) -> Floats:
    """Weights alpha that minimise ``sum_m alpha_m^r T_m`` on the simplex (Eq. 21).

    Parameters
    ----------
    traces : ndarray of shape (M,)
        T_m, none negative.
    r : float
        Above 1.
    floor : float
        Traces below it count as equal to it. Where all are 0 every weight is 1/M; where some are,
        they share the weight.

    Returns
    -------
    ndarray of shape (M,)
        Sums to 1.
    """
    raised = np.maximum(traces, floor)
    least = float(raised.min())
    raw = raised == 0 if least == 0 else (least / raised) ** (1.0 / (r - 1.0))
    return np.asarray(raw / raw.sum())


def vote_shares(weights: Floats, r: float) -> Floats:
    """Share (M,) of each view in the final vote: alpha^r over the sum of all (Eq. 33)."""
    return np.asarray(weights**r / (weights**r).sum())


def doubts(result: TensorResult, r: float, names: Sequence[str]) -> list[str]:
    """Say what a reader of the result should doubt: one view that decides, empty clusters.

    Parameters
    ----------
    result : TensorResult
    r : float
    names : sequence of str
        What a sentence calls the views.

    Returns
    -------
    list of str
    """
    known = result.labels >= 0
    sentences = []
    share = vote_shares(result.view_weights, r)
    most = int(share.argmax())
    if len(names) > 1 and share[most] >= ONE_SIDED:
        agreement = (result.labels == result.vote)[known].mean()
        sentences.append(
            f"{names[most]} has {share[most]:.0%} of the final vote, so the result is close to its "
            "clustering alone, right or wrong (Eq. 21 trusts tight clusters); the aligned vote "
            f"agrees on {agreement:.0%} of the rows: compare the two, raise r or leave the view out"
        )
    n_clusters = result.n_clusters
    found = np.unique(result.labels[known]).size
    if found < n_clusters:
        sentences.append(
            f"{n_clusters - found} of {n_clusters} clusters are empty: ask for fewer, or doubt the "
            "settings"
        )
    return sentences


class TensorDriver:
    """Runs the server's half of TensorFMVC, round by round.

    Parameters
    ----------
    settings : TensorSettings
    n_clusters : int
    labels : mapping of str to ndarray of shape (N,), int64
        Each site's first labels under its own names, -1 where it does not hold the row.
    traces : mapping of str to float
        Each site's trace T_m with them.
    alone : mapping of str to ndarray of shape (N,), int64, optional
        What each site's view says by itself, where its first labels are drawn at random: the
        aligned vote and the agreements are about these. By default the first labels.
    tol : float
        The run has converged where no label moved and max|H - G| is below it.
    max_rounds : int

    Attributes
    ----------
    sites : list of str
        In name order.
    names : dict of str to ndarray of shape (K,), int64
        ``names[site][k]`` is the common name of the site's own cluster k; profile "paper" leaves
        every name as it is.
    done, converged : bool
    rounds : int
    objective : float
        ``sum_m weight_m T_m + lambda ||G||_Sp^p`` with the weights that go to the sites next.
    residual : float
        max|H - G| over the rows that the sites hold, exact where it is below ``tol``, else a lower
        bound of at least ``tol``; inf after a round in which a label moved.
    view_weights : ndarray of shape (M,)
        alpha.
    """

    def __init__(
        self,
        settings: TensorSettings,
        n_clusters: int,
        labels: Mapping[str, Labels],
        traces: Mapping[str, float],
        *,
        alone: Mapping[str, Labels] | None = None,
        tol: float,
        max_rounds: int,
    ) -> None:
        self.settings = settings
        self.n_clusters = n_clusters
        self.tol = tol
        self.max_rounds = max_rounds
        self.sites = sorted(labels)
        if not self.sites:
            raise QuorumLost("0 sites sent first labels: a vertical run needs at least 1")
        self._held: dict[str, NDArray[np.bool_] | None] = {}
        self._n_rows = len(labels[self.sites[0]])
        self._check(labels, traces)
        for site in self.sites:
            held = labels[site] >= 0
            self._held[site] = None if held.all() else held
        own = labels if alone is None else alone
        self._check(own, traces)
        common = self._common_names(own)
        unnamed = settings.profile == "paper"  # labels at random have no names to bring together
        self.names = {s: np.arange(n_clusters) if unnamed else common[s] for s in self.sites}
        self._starts = {s: _renamed(own[s], common[s], self._held[s]) for s in self.sites}
        self._labels = {s: _renamed(labels[s], self.names[s], self._held[s]) for s in self.sites}
        self.done = self.converged = False
        self.rounds = 0
        self.residual = np.inf
        self.mu = settings.mu0
        kind = StreamedTensor if settings.orientation == "unfold" else DenseTensor
        self._tensor = kind(
            self._n_rows,
            n_clusters,
            [self._held[site] for site in self.sites],
            settings.orientation,
            settings.z_encoding,
        )
        self.lam = settings.lam
        if settings.profile == "plus":
            self._tensor.add([self._labels[site] for site in self.sites])
            self.lam = settings.kappa * self.mu * self._tensor.largest_singular_value()
            self._tensor.split(self._threshold(), None, until=0.0)
        self._weigh(traces)

    # -- the rounds --------------------------------------------------------------------------

    def query(self, site: str) -> TensorQuery:
        """Return what ``site`` needs for the next round."""
        m = self._position(site)
        z, scale = self._tensor.blends[m]
        return TensorQuery(float(self.weights[m]), self.mu, z, scale)

    def advance(self, labels: Mapping[str, Labels], traces: Mapping[str, float]) -> None:
        """Take the sites' labels (common names) and traces, and prepare the next round.

        Raises
        ------
        ProtocolError
            Where a site is missing or unknown, a label is out of range, a row that the site held
            has none (or the other way), or a trace is negative or not finite.
        """
        self._check(labels, traces)
        moved = any(not np.array_equal(labels[s], self._labels[s]) for s in self.sites)
        self._labels = {site: labels[site] for site in self.sites}
        following = min(self.settings.mu_growth * self.mu, MU_MAX)
        self._tensor.add([self._labels[site] for site in self.sites])
        # where a label moved the gap decides nothing
        gap = self._tensor.split(
            self._threshold(), self.mu / following, until=0.0 if moved else self.tol
        )
        self.residual = np.inf if moved else gap
        self.mu = following
        self._weigh(traces)
        self.rounds += 1
        self.converged = not moved and self.residual < self.tol
        self.done = self.converged or self.rounds >= self.max_rounds

    def drop(self, site: str) -> None:
        """Go on without a site; lambda stays.

        Raises
        ------
        ProtocolError
            Where there is no such site.
        QuorumLost
            Where it is the last one.
        """
        m = self._position(site)
        if len(self.sites) == 1:
            raise QuorumLost(f"site '{site}' was the last of 1 sites: none is left to cluster")
        self.sites.remove(site)
        for kept in (self._held, self._starts, self._labels, self._traces):
            del kept[site]
        self._tensor.drop(m)
        self._weigh(self._traces)

    def result(self) -> TensorResult:
        """Return the final labels, and how the sites stand to them."""
        final = [self._labels[site] for site in self.sites]
        labels = majority_vote(final, self.view_weights**self.settings.r, self.n_clusters)
        vote = majority_vote(
            [self._starts[site] for site in self.sites], np.ones(len(self.sites)), self.n_clusters
        )
        names = linear_sum_assignment(contingency(vote, labels, self.n_clusters), maximize=True)[1]
        starts = [_renamed(self._starts[s], names, self._held[s]) for s in self.sites]
        tables = [contingency(start, labels, self.n_clusters) for start in starts]
        pairwise = [
            [_diagonal_share(contingency(a, b, self.n_clusters)) for b in starts] for a in starts
        ]
        return TensorResult(
            labels,
            _renamed(vote, names, vote >= 0),
            self.view_weights,
            np.array([_diagonal_share(table) for table in tables]),
            np.array([_mutual_information(table) for table in tables]),
            np.array(pairwise),
            dict(zip(self.sites, final, strict=True)),
            dict(zip(self.sites, starts, strict=True)),
            self.n_clusters,
        )

    # -- inside ------------------------------------------------------------------------------

    def _threshold(self) -> Threshold:
        return Threshold(self.lam / self.mu, self.settings.p, self.settings.gst_iterations)

    def _common_names(self, labels: Mapping[str, Labels]) -> dict[str, NDArray[np.int64]]:
        names = align_labels([labels[site] for site in self.sites], self.n_clusters)
        return dict(zip(self.sites, names, strict=True))

    def _weigh(self, traces: Mapping[str, float]) -> None:
        """Set alpha, the weights of the local terms and the objective."""
        self._traces = {site: float(traces[site]) for site in self.sites}
        found = np.array(list(self._traces.values()))
        self.view_weights = view_weights(found, self.settings.r, TRACE_FLOOR * self._n_rows)
        self.weights = self.view_weights**self.settings.r
        if self.settings.profile == "plus":
            self.weights = self.weights / self.weights.mean()
        self.objective = float(self.weights @ found) + self.lam * self._tensor.penalty

    def _position(self, site: str) -> int:
        if site not in self.sites:
            raise ProtocolError(f"site '{site}' is not one of the {len(self.sites)} of this run")
        return self.sites.index(site)

    def _check(self, labels: Mapping[str, Labels], traces: Mapping[str, float]) -> None:
        for what, given in (("labels", labels), ("traces", traces)):
            if sorted(given) != self.sites:
                raise ProtocolError(
                    f"{what} came from {len(given)} sites that are not the {len(self.sites)} of "
                    "this run: every site of a round answers once"
                )
        for site in self.sites:
            found = labels[site]
            if found.shape != (self._n_rows,):
                raise ProtocolError(
                    f"site '{site}' has labels of shape {found.shape}, but the run has "
                    f"{self._n_rows} rows"
                )
            if found.size and not (found.min() >= -1 and found.max() < self.n_clusters):
                raise ProtocolError(
                    f"site '{site}' has labels from {found.min()} to {found.max()}, but "
                    f"{self.n_clusters} clusters are numbered 0 to {self.n_clusters - 1}"
                )
            if site in self._held and not self._same_rows(site, found):
                raise ProtocolError(
                    f"site '{site}' has {int((found >= 0).sum())} labelled rows that are not "
                    "those of its first labels: a site's rows stay the same during a run"
                )
            if not (np.isfinite(traces[site]) and traces[site] >= 0):
                raise ProtocolError(
                    f"site '{site}' has trace {traces[site]}: a sum of squares is 0 or more"
                )

    def _same_rows(self, site: str, labels: Labels) -> bool:
        held = self._held[site]
        if held is None:
            return not labels.size or int(labels.min()) >= 0
        return bool(np.array_equal(labels >= 0, held))


def _renamed(labels: Labels, names: NDArray[np.int64], held: NDArray[np.bool_] | None) -> Labels:
    return names[labels] if held is None else np.where(held, names[labels], -1)


def _diagonal_share(table: Floats) -> float:
    return float(np.trace(table) / max(table.sum(), 1.0))


def _mutual_information(table: Floats) -> float:
    """Mutual information over the mean of the two entropies; 1 where both are one cluster."""
    joint = table / max(table.sum(), 1.0)
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)
    entropies = [-float((x[x > 0] * np.log(x[x > 0])).sum()) for x in (rows, columns)]
    if sum(entropies) == 0:
        return 1.0
    cells = joint > 0
    product = np.outer(rows, columns)
    information = float((joint[cells] * np.log(joint[cells] / product[cells])).sum())
    return min(max(2 * information / sum(entropies), 0.0), 1.0)
