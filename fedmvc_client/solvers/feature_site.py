"""One site's part in Fed-MUFSHT: a fit from given weights, its quality, clusters, a key search.

Nothing is kept from one fit to the next but the prepared views: a fit from the same start gives
the same weights, also after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from threadpoolctl import threadpool_limits

from configs.mufsht_profiles import MUFSHTSettings
from fedmvc_client.solvers.feature_preparation import prepare_features, raw_values, text_rows
from fedmvc_client.solvers.feature_search import closed_loop, refine_order
from fedmvc_client.solvers.tensor_learning import TensorLearning
from strategies.feature_ranking import procrustes_align, rank_features
from strategies.messages import FeatureScaling, n_selected

__all__ = ["FeatureSite", "SiteFit", "clusters_of", "consensus_labels"]

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Swarm iterations before the sweeps of a round, where the search is over weights.
ITERATIONS = 20
#: Beyond this many records a random sample of them is clustered for the quality.
QUALITY_ROWS = 5_000


@dataclass(frozen=True)
class SiteFit:
    """What a site made of one round.

    Attributes
    ----------
    weights : ndarray of shape (D, k)
        W of all views, turned onto the broadcast by one rotation.
    view_weights : ndarray of shape (V,)
        alpha; 0 for a view that the site lacks.
    objective : float
        F.
    """

    weights: Floats
    view_weights: Floats
    objective: float


def clusters_of(points: Floats, n_clusters: int, *, n_init: int, random_state: int) -> Labels:
    """Return the clusters (n,) of k-means on points (n, m)."""
    with threadpool_limits(limits=1):
        model = KMeans(n_clusters, n_init=n_init, random_state=random_state % 2**32)
        return np.asarray(model.fit_predict(points), dtype=np.int64)


def consensus_labels(
    model: TensorLearning,
    observed: Sequence[NDArray[np.bool_]],
    n_clusters: int,
    *,
    random_state: int,
) -> Labels:
    """Return clusters (n,) of k-means on the CP factor of the samples.

    -1 for a sample without any observed cell; ``observed`` are the masks (d_v, n) of its views.
    """
    found = clusters_of(model.sample_factor, n_clusters, n_init=10, random_state=random_state)
    return np.where(np.concatenate(list(observed)).any(axis=0), found, -1)


class FeatureSite:
    """The views of one site, scaled as all sites agreed.

    Parameters
    ----------
    rows : sequence of ndarray of shape (n, d_v)
        What is scaled: views with NaN where missing, or their text as unit rows; all NaN for a view
        that the site lacks.
    scaling : sequence of FeatureScaling
    settings : MUFSHTSettings
    n_clusters : int
        k, at most n.
    seed : int
        Of the k-means and the swarm.
    device, name : str
        As for `TensorLearning`.

    Raises
    ------
    DataRefused
        If there are fewer rows than k, or nothing varies in any view.
    """

    def __init__(
        self,
        rows: Sequence[Floats],
        scaling: Sequence[FeatureScaling],
        settings: MUFSHTSettings,
        n_clusters: int,
        *,
        seed: int,
        device: str,
        name: str,
    ) -> None:
        self._rows, self._scaling = list(rows), list(scaling)
        self._settings, self._k, self._seed = settings, n_clusters, seed
        prepared = [prepare_features(r, s) for r, s in zip(rows, scaling, strict=True)]
        self._observed = [p.observed for p in prepared]
        self._ends = np.cumsum([len(p.values) for p in prepared])[:-1]
        self._model = TensorLearning(
            [p.values for p in prepared],
            self._observed,
            n_clusters,
            **settings.learning,
            device=device,
            name=name,
        )

    @property
    def observes(self) -> NDArray[np.bool_]:
        """Features (D,) with an observed cell at this site."""
        return np.concatenate([mask.any(axis=1) for mask in self._observed])

    # -- rounds ----------------------------------------------------------------------------------

    def fit(self, broadcast: Floats, own: Floats | None = None) -> SiteFit:
        """Fit from the broadcast weights, or from their blend with the site's own (Eq. 18).

        Parameters
        ----------
        broadcast : ndarray of shape (D, k)
            W~.
        own : ndarray of shape (D, k), optional
            W_k of the round before.

        Returns
        -------
        SiteFit
        """
        settings, mix = self._settings, self._settings.mix
        start = broadcast if own is None else mix * broadcast + (1.0 - mix) * own
        if settings.search == "weights":
            closed_loop(
                self._model,
                start=self._split(start),
                rounds=1,
                iterations=ITERATIONS,
                sweeps=settings.local_sweeps if settings.stages == "both" else 0,
                variant=settings.variant,
                random_state=self._seed,
            )
        else:
            self._learn(start)
        return SiteFit(
            np.concatenate(procrustes_align(self._model.weights, self._split(broadcast))),
            self._model.view_weights,
            self._model.objective(),
        )

    def quality(self, weights: Floats) -> float:
        """Return q in [0, 1] (Eq. 15): how far two clusterings of the records agree (NMI).

        The one is k-means on the features that the weights would select, the other k-means on the
        CP factor of the samples. No label takes part. It belongs to the last fit.

        Parameters
        ----------
        weights : ndarray of shape (D, k)
            That fit's.
        """
        known = np.flatnonzero(np.concatenate(self._observed).any(axis=0))
        if len(known) > QUALITY_ROWS:
            rng = np.random.default_rng(self._seed)
            known = np.sort(rng.choice(known, QUALITY_ROWS, replace=False))
        if len(known) <= self._k:
            return 0.0
        found, consensus = (
            clusters_of(points[known], self._k, n_init=5, random_state=self._seed)
            for points in (self._chosen(self._selected(weights)), self._model.sample_factor)
        )
        return float(np.clip(normalized_mutual_info_score(found, consensus), 0.0, 1.0))

    def _selected(self, weights: Floats) -> NDArray[np.bool_]:
        """Return which features (D,) this site would select by its own weights."""
        share = np.concatenate([mask.mean(axis=1) for mask in self._observed])
        n_samples = self._observed[0].shape[1]
        m = n_selected(self._settings.ratio, len(share))
        ranking = rank_features(
            self._split(weights),
            max(1, round(n_samples * float(share.mean()))),
            rule=self._settings.rank,
            observed_share=share,
            m=m,
        )
        chosen = np.zeros(len(share), dtype=bool)
        chosen[ranking] = True
        return chosen

    def _chosen(self, support: NDArray[np.bool_]) -> Floats:
        """Return the selected features of all records (n, m), missing cells imputed."""
        parts = []
        for v, chosen in enumerate(self._split(support)):
            values = self._model.imputed(v)
            if self._settings.text:
                raw = raw_values(values, self._scaling[v])[:, chosen]
                parts.append(text_rows(raw, None))
            else:
                parts.append(values[chosen].T)
        return np.concatenate(parts, axis=1)

    # -- after the rounds --------------------------------------------------------------------

    def settle(self, weights: Floats) -> None:
        """Fit the embeddings and the imputation to the published weights (D, k)."""
        self._learn(weights)

    def labels(self) -> Labels:
        """Return the site's own consensus clusters (n,) after `settle` (see `consensus_labels`)."""
        return consensus_labels(self._model, self._observed, self._k, random_state=self._seed)

    def refined(self, ranking: NDArray[np.int64], wanted: int) -> Floats:
        """Return which features (D,) the key search prefers after `settle`, as 0 and 1."""
        order = refine_order(
            self._model,
            ranking,
            wanted,
            variant=self._settings.variant,
            random_state=self._seed,
        )
        chosen = np.zeros(len(ranking))
        chosen[order[:wanted]] = 1.0
        return chosen

    def completed(self, view: int) -> Floats:
        """Return a view's rows (n, d_v) with predictions in their missing cells, after `settle`.

        Observed cells are unchanged; text as unit rows. What nothing is known of stays NaN:
        features without any observed cell here, and samples without one in any view.
        """
        rows = self._rows[view]
        predicted = raw_values(self._model.imputed(view), self._scaling[view])
        known = np.logical_or.reduce([mask.any(axis=0) for mask in self._observed])
        gaps = np.isnan(rows) & self._observed[view].any(axis=1) & known[:, None]
        return np.where(gaps, predicted, rows)

    # -- inside ------------------------------------------------------------------------------

    def _learn(self, start: Floats) -> None:
        self._model.start_from(self._split(start))
        for _ in range(self._settings.local_sweeps):
            self._model.sweep()

    def _split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Split values of all features (D, ...) into those of each view."""
        return np.split(values, self._ends)
