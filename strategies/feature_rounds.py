"""The server's arithmetic of Fed-MUFSHT: pooled scaling, site weights, weighted mean, ranking.

Everything comes from sums over the sites, so it is the same with secure aggregation and without.
Shapes: V views, view v with d_v features, D features side by side, embeddings of size k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused
from configs.mufsht_profiles import MUFSHTSettings, Weighting
from strategies.feature_ranking import rank_features, row_norm_scores
from strategies.feature_scaling import FeatureMoments, FeatureScaling, feature_scaling
from strategies.feature_start import initial_weights
from strategies.statistics import Floats

__all__ = [
    "FeatureSurvey",
    "MeanWeights",
    "RoundOutcome",
    "aggregate",
    "by_votes",
    "initial_weights",
    "quality_weights",
    "rank_weights",
    "summed",
]

Ints = NDArray[np.int64]


def summed(sums: Mapping[str, Sequence[Floats]]) -> tuple[Floats, ...]:
    """Add up what the sites sent, in the order of their names."""
    return tuple(
        np.asarray(np.sum(parts, axis=0))
        for parts in zip(*(sums[site] for site in sorted(sums)), strict=True)
    )


@dataclass(frozen=True)
class FeatureSurvey:
    """What the sites know together of their records before any is scaled.

    Attributes
    ----------
    rows : int
    holding : ndarray of shape (V,)
        Records that hold each view.
    count, exposed : ndarray of shape (D,)
        Observed cells; records of the sites that observe the feature at all.
    first : ndarray of shape (D,)
        Sum of the observed cells, or documents with the word.
    fractional : ndarray of shape (V,)
        Sites where a view's cells are weights of words.
    sizes : tuple of int
        d_v.
    text : bool
    """

    rows: int
    holding: Floats
    count: Floats
    exposed: Floats
    first: Floats
    fractional: Floats
    sizes: tuple[int, ...]
    text: bool

    @classmethod
    def of(cls, sums: Sequence[Floats], sizes: Sequence[int], *, text: bool) -> FeatureSurvey:
        """Read the summed `SurveyReply`."""
        rows, holding, count, exposed, first, fractional = sums
        return cls(int(rows[0]), holding, count, exposed, first, fractional, tuple(sizes), text)

    @classmethod
    def declared(cls, middles: Floats, sizes: Sequence[int]) -> FeatureSurvey:
        """Stand in for a survey that is not made: every cell there, around its bounds' middle.

        ``samples`` is then 1, so that a gate for noise goes by the weights alone.
        """
        ones, v = np.ones_like(middles), len(sizes)
        return cls(0, np.ones(v), ones, ones, middles, np.zeros(v), tuple(sizes), text=False)

    @property
    def origin(self) -> Floats:
        """Pooled mean of each feature (D,); 0 for text, whose cells are not far from it."""
        if self.text:
            return np.zeros_like(self.first)
        return np.asarray(self.first / np.maximum(self.count, 1.0))

    @property
    def documents(self) -> Floats:
        """Documents of each view (V,) whose cells are counts; 0 where TF-IDF does not apply."""
        if not self.text:
            return np.zeros_like(self.holding)
        return np.where(self.fractional > 0, 0.0, self.holding)

    @property
    def frequencies(self) -> Floats:
        """Document frequencies (D,), 0 where TF-IDF does not apply."""
        counted = np.repeat(self.documents > 0, self.sizes)
        return np.where(counted, self.first, 0.0)

    @property
    def observed_share(self) -> Floats:
        """Observed cells of each feature (D,) over those of the sites that observe it at all."""
        return np.asarray(self.count / np.maximum(self.exposed, 1.0))

    @property
    def samples(self) -> int:
        """Samples behind the weights of an average feature: noise falls with them."""
        return max(1, round(float(self.count.mean())))

    def scaling(self, total: Floats, squares: Floats) -> tuple[FeatureScaling, ...]:
        """Turn the second sums (D,) into the scaling of each view.

        Raises
        ------
        DataRefused
            Where nothing varies in any view.
        """
        ends = np.cumsum(self.sizes)[:-1]
        parts = zip(
            *(np.split(a, ends) for a in (self.count, total, squares, self.origin)), strict=True
        )
        found = tuple(
            feature_scaling(FeatureMoments(c, t, s), origin, text=self.text)
            for c, t, s, origin in parts
        )
        if all(s.dead.all() for s in found):
            raise DataRefused(
                f"0 of {len(self.count)} features vary over the {self.rows} rows of all sites: "
                "check the files or the columns"
            )
        return found


def quality_weights(
    quality: Mapping[str, float], weighting: Weighting, temperature: float
) -> dict[str, float]:
    """Weight each site by its NMI (Eq. 16).

    Parameters
    ----------
    quality : mapping
        q of each site, in [0, 1].
    weighting : {"softmax", "linear", "uniform"}
        ``exp(q / temperature)``, ``q``, or 1, each over its sum; "linear" is uniform where all q
        are 0.
    temperature : float
        > 0. Towards infinity "softmax" is uniform, towards 0 the best site decides alone.

    Returns
    -------
    dict
        gamma, summing to 1.
    """
    names = sorted(quality)
    q = np.array([quality[site] for site in names])
    if weighting == "softmax":
        raw = np.exp((q - q.max()) / temperature)
    elif weighting == "linear" and q.sum() > 0:
        raw = q
    else:
        raw = np.ones(len(q))
    return dict(zip(names, (raw / raw.sum()).tolist(), strict=True))


@dataclass(frozen=True)
class MeanWeights:
    """One round's weighted mean.

    Attributes
    ----------
    weights : ndarray of shape (D, k)
        W~ (Eq. 17); 0 for a feature that no site observes.
    observed : ndarray of shape (D,), bool
        Features that a site in the mean observes.
    """

    weights: Floats
    observed: NDArray[np.bool_]


@dataclass(frozen=True)
class RoundOutcome(MeanWeights):
    """One round's weighted mean, and figures on it.

    Attributes
    ----------
    weights, observed
        As in `MeanWeights`.
    view_weights : ndarray of shape (V,)
        Mean alpha of the sites, summing to 1.
    objective : float
        Mean F of the sites.
    norm : float
        Norm that the views' weights have at the sites in the mean.
    kept : float
        ``||W~||`` over the norm that its views have at the sites in the mean: near 1 where the
        sites' weights agree.
    """

    view_weights: Floats
    objective: float
    norm: float
    kept: float


def aggregate(sums: Sequence[Floats], sizes: Sequence[int], n_sites: int) -> RoundOutcome:
    """Divide a round's sums by the weight behind each entry.

    Parameters
    ----------
    sums : sequence of ndarray
        The summed `ShareReply`.
    sizes : sequence of int
        d_v.
    n_sites : int
        How many these are.

    Returns
    -------
    RoundOutcome
        A site that lacks a feature has no part in its mean, so it does not shrink it.
    """
    weighted, mass, alpha, norms, (objective,) = sums
    observed = mass > 0
    mean = weighted / np.where(observed, mass, 1.0)[:, None]
    mean[~observed] = 0.0
    behind = np.array([part.max() for part in np.split(mass, np.cumsum(sizes)[:-1])])
    norm = float(np.linalg.norm(norms / np.where(behind > 0, behind, 1.0)))
    return RoundOutcome(
        mean,
        observed,
        np.asarray(alpha / max(float(alpha.sum()), np.finfo(float).tiny)),
        float(objective) / n_sites,
        norm,
        float(np.linalg.norm(mean)) / norm if norm > 0 else 0.0,
    )


def rank_weights(
    weights: Floats, survey: FeatureSurvey, settings: MUFSHTSettings
) -> tuple[Ints, Floats]:
    """Order the features by their weights (D, k); return the ranking (D,) and the scores (D,)."""
    share = survey.observed_share
    ranking = rank_features(
        np.split(weights, np.cumsum(survey.sizes)[:-1]),
        survey.samples,
        rule=settings.rank,
        observed_share=share,
    )
    return ranking, row_norm_scores(weights, share)


def by_votes(ranking: Ints, votes: Floats) -> Ints:
    """Put features with more votes (D,) first; of equal votes the order stays."""
    return ranking[np.argsort(-votes[ranking], kind="stable")]
