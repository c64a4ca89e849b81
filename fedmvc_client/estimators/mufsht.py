"""Unsupervised multi-view feature selection by tensor learning, on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from configs.errors import DataRefused
from configs.mufsht_profiles import MUFSHTSettings
from fedmvc_client.estimators.mufsht_settings import check_ratio, feature_tables, resolve_parameters
from fedmvc_client.solvers.feature_preparation import (
    FeatureScaling,
    PreparedFeatures,
    check_text,
    document_frequencies,
    holds_counts,
    raw_values,
    standardise,
    text_rows,
)
from fedmvc_client.solvers.feature_search import (
    ITERATIONS,
    ROUNDS,
    SWEEPS,
    closed_loop,
    refine_order,
)
from fedmvc_client.solvers.feature_site import consensus_labels
from fedmvc_client.solvers.tensor_learning import TensorLearning
from strategies.feature_ranking import rank_features, row_norm_scores
from strategies.feature_rounds import initial_weights
from strategies.messages import n_selected

__all__ = ["MUFSHT"]

Floats = NDArray[np.float64]

#: Share of the features that is selected where none is given.
_RATIO = 0.4
#: Features that a warning names at most.
_NAMED = 5


class MUFSHT(TransformerMixin, BaseEstimator):
    """Multi-view unsupervised feature selection by tensor learning (Fed-MUFSHT's stage 2).

    Every view is explained by an embedding of its own with weights ``W_v``; a CP model draws the
    embeddings of all views together, and missing cells are imputed on the way. Features are ranked
    by their rows of the weights. It starts from the SVD of each view: the paper's swarm search over
    the weights ends at worse objectives at many times the cost.

    Parameters
    ----------
    n_clusters : int
        k, the size of the embeddings: at least 2, at most the number of rows.
    profile : {"gated", "paper"}, optional
        Values of what is not given. "gated" (default): ``rank="gated_pivot"``, ``tau=0.1``,
        ``mu=0.005``. "paper": ``rank="row_norm"``, ``search="weights"``, ``tau=1``, ``mu=0.5``,
        whose ranking can fall behind a random one where features are redundant.
    rank : {"gated_pivot", "row_norm"}, optional
        How weights become an order: pivoting behind a gate of relevance, which puts redundant
        features late, or the length of the rows.
    search : {"off", "weights", "keys"}, optional
        HC-THRO, the paper's swarm; the profile's by default: "off", in profile "paper" "weights".
        "weights": its closed loop instead of the SVD start, two rounds of 20 iterations and 5
        sweeps; after as many sweeps its objective is higher. "keys": look for ``ratio`` of the
        features that explain the embeddings better than the ranking's first; clustering does not
        follow that criterion.
    stages : {"both", "search", "tensor"}, default "both"
        Stages of the paper, for ablations: "search" keeps what the swarm over the weights finds,
        without a sweep (II); "tensor" sweeps from random weights (I).
    hcl, acm : bool, default True
        Eqs. 4 and 5 of the swarm (IV, V; without both: III).
    tau : float, optional
        Pull of the views' embeddings towards each other, 0 or more.
    beta, lam : float, optional
        Push of whole rows of the weights to 0, and smoothness over correlated features; by default
        0.01 and 0.1, for text 0.0001 and 0.
    mu : float, optional
        Cost of imputed values, 0 or more.
    text : bool, default False
        The views are counts (weighted by TF-IDF) or weights of words: rows are scaled to unit
        length and each view has one scale.
    simplex : {"view", "sample", "none"}, default "view"
        Which CP factor has its rows on the probability simplex.
    ratio : float, default 0.4
        Share of the features that is selected where a method is given none.
    max_iter : int, default 30
        Sweeps at most.
    tol : float, default 1e-3
        Stop where the objective changes by less than this share of it. Lower it with care: with
        half the cells missing, more sweeps fit noise (planted features found: .88 after 15, .80
        after 30 and more).
    random_state : int, default 0
        Of the k-means behind ``labels_`` and of a search; else no ranking depends on it.
    device : str, default "auto"
        "auto", "cpu", "cuda" or "cuda:N".

    Attributes
    ----------
    ranking_ : ndarray of shape (D,), int64
        Features of all views side by side, best first.
    features_ : ndarray of shape (D, 2), int64
        View and column of each feature.
    scores_ : ndarray of shape (D,)
        Length of each feature's row of the weights; about the root of the share of its variance
        that the embedding explains. 0 for a feature that is constant or never observed.
    weights_ : list of ndarray of shape (d_v, k)
        W_v.
    imputed_ : list of ndarray of shape (n, d_v)
        The views with predictions in their missing cells, in their own units; text as unit rows. A
        feature that is never observed stays NaN.
    labels_ : ndarray of shape (n,), int64
        Consensus clusters: k-means on the CP factor of the samples; -1 for a row without any
        observed cell.
    view_weights_ : ndarray of shape (V,)
        alpha, summing to 1.
    objective_history_ : list of float
        The objective after each sweep; it never rises, but between the rounds of a search over
        weights. That of the swarm's best where there is no sweep.
    n_iter_ : int
        Sweeps.
    warnings_ : list of str
        What a reader should know: dead features, empty rows, no convergence.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1, 2], 40)
    >>> views = [rng.normal(size=(120, 6)) for _ in range(2)]
    >>> for view in views:
    ...     view[:, :3] += 4 * rng.normal(size=(3, 3))[labels]
    >>> model = MUFSHT(3, rank="row_norm", device="cpu").fit(views)
    >>> sorted(model.get_support(0.5, indices=True).tolist())
    [0, 1, 2, 6, 7, 8]
    """

    def __init__(
        self,
        n_clusters: int,
        *,
        profile: str | None = None,
        rank: str | None = None,
        search: str | None = None,
        stages: str = "both",
        hcl: bool = True,
        acm: bool = True,
        tau: float | None = None,
        beta: float | None = None,
        lam: float | None = None,
        mu: float | None = None,
        text: bool = False,
        simplex: str = "view",
        ratio: float = _RATIO,
        max_iter: int = 30,
        tol: float = 1e-3,
        random_state: int = 0,
        device: str = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.profile = profile
        self.rank = rank
        self.search = search
        self.stages = stages
        self.hcl = hcl
        self.acm = acm
        self.tau = tau
        self.beta = beta
        self.lam = lam
        self.mu = mu
        self.text = text
        self.simplex = simplex
        self.ratio = ratio
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.device = device

    def fit(self, views: Sequence[Any], y: object = None) -> MUFSHT:
        """Rank the features of several views.

        Parameters
        ----------
        views : sequence of array-like or sparse matrix of shape (n, d_v)
            Rows are the same samples; NaN = missing, an all-NaN row = the sample lacks the view.
        y : ignored

        Raises
        ------
        ConfigError
            Where a parameter is out of range.
        DataRefused
            Where the views do not fit each other, hold fewer rows than clusters, infinite cells or
            nothing that varies, or are no text in text mode.
        """
        settings = resolve_parameters(**self.get_params())
        tables = feature_tables(views)
        n_rows = len(tables[0])
        if self.n_clusters > n_rows:
            raise DataRefused(
                f"n_clusters is {self.n_clusters} but there are {n_rows} rows: ask for fewer "
                "clusters"
            )
        self._sizes = [table.shape[1] for table in tables]
        self._frequencies = self._learn_words(tables)
        rows = self._rows(tables)
        prepared, scalings = zip(*(standardise(r, text=self.text) for r in rows), strict=True)
        model = TensorLearning(
            [p.values for p in prepared],
            [p.observed for p in prepared],
            self.n_clusters,
            **settings.learning,
            device=self.device,
            name="the list of views",
        )
        self.objective_history_ = self._learn(model, settings)
        self.n_iter_ = 0 if settings.stages == "search" else len(self.objective_history_)
        self._keep(model, prepared, settings)
        self.imputed_ = [
            _completed(row, raw_values(model.imputed(v), scalings[v])) for v, row in enumerate(rows)
        ]
        self._warn(prepared, scalings)
        return self

    def get_support(self, ratio: float | None = None, indices: bool = False) -> NDArray[Any]:
        """Return which features are selected.

        Parameters
        ----------
        ratio : float, optional
            Share of all features, above 0, at most 1; by default the parameter ``ratio``.
        indices : bool, default False
            Return the selected features, best first, and not a mask over all.

        Returns
        -------
        ndarray of shape (D,), bool, or (m,), int64
            Over the features of all views side by side.
        """
        check_is_fitted(self, "ranking_")
        ratio = self.ratio if ratio is None else ratio
        check_ratio(ratio)
        chosen = self.ranking_[: self._n_selected(ratio)]
        if indices:
            return chosen
        support = np.zeros(len(self.ranking_), dtype=bool)
        support[chosen] = True
        return support

    def transform(self, views: Sequence[Any], ratio: float | None = None) -> list[Floats]:
        """Return the selected columns of each view.

        Parameters
        ----------
        views : sequence of array-like or sparse matrix of shape (n, d_v)
            The same columns as in `fit`.
        ratio : float, optional
            See `get_support`.

        Returns
        -------
        list of ndarray of shape (n, m_v)
            In the views' own units, missing cells NaN, columns in their order. Text is weighted as
            in `fit` and its rows are scaled to unit length over the selected words.
        """
        support = self.get_support(ratio)
        tables = feature_tables(views)
        sizes = [table.shape[1] for table in tables]
        if sizes != self._sizes:
            raise DataRefused(
                f"the views have {sizes} columns but had {self._sizes} when this was fitted: give "
                "the same columns"
            )
        parts = np.split(support, np.cumsum(sizes)[:-1])
        chosen = [row[:, part] for row, part in zip(self._rows(tables), parts, strict=True)]
        return [text_rows(row, None) for row in chosen] if self.text else chosen

    # -- inside ------------------------------------------------------------------------------

    def _learn(self, model: TensorLearning, settings: MUFSHTSettings) -> list[float]:
        """Run the stages; return the objective after each sweep."""
        alone = settings.stages == "search"
        started: list[float] = []
        if settings.search == "weights":
            started = closed_loop(
                model,
                variant=settings.variant,
                rounds=1 if alone else ROUNDS,
                iterations=ROUNDS * ITERATIONS if alone else ITERATIONS,
                sweeps=0 if alone else SWEEPS,
                random_state=self.random_state,
            )
        elif settings.stages == "tensor":
            drawn = initial_weights(sum(self._sizes), self.n_clusters, self.random_state)
            model.start_from(np.split(drawn, np.cumsum(self._sizes)[:-1]))
        else:
            model.start_svd()
        return started if alone else started + model.descend(self.max_iter, self.tol)

    def _n_selected(self, ratio: float) -> int:
        return n_selected(ratio, len(self.ranking_))

    def _learn_words(self, tables: list[Floats]) -> list[tuple[Floats, int] | None]:
        """Return the document frequencies of each view of counts, None for others."""
        if not self.text:
            return [None] * len(tables)
        for v, table in enumerate(tables):
            check_text(table, f"view {v}")
        return [document_frequencies(t) if holds_counts(t) else None for t in tables]

    def _rows(self, tables: list[Floats]) -> list[Floats]:
        """Return what is standardised: the views, or their text as unit rows."""
        if not self.text:
            return tables
        for v, table in enumerate(tables):
            check_text(table, f"view {v}")
        return [text_rows(t, f) for t, f in zip(tables, self._frequencies, strict=True)]

    def _keep(
        self, model: TensorLearning, prepared: Sequence[PreparedFeatures], settings: MUFSHTSettings
    ) -> None:
        shares = np.concatenate([p.observed.mean(axis=1) for p in prepared])
        self.weights_ = model.weights
        self.view_weights_ = model.view_weights
        self.features_ = np.array(
            [(v, column) for v, size in enumerate(self._sizes) for column in range(size)],
            dtype=np.int64,
        )
        self.scores_ = row_norm_scores(np.concatenate(self.weights_), shares)
        n_samples = prepared[0].observed.shape[1]
        self.ranking_ = rank_features(
            self.weights_,
            # noise falls with the samples that were observed
            max(1, round(n_samples * float(shares.mean()))),
            rule=settings.rank,
            observed_share=shares,
        )
        if settings.search == "keys":
            self.ranking_ = refine_order(
                model,
                self.ranking_,
                self._n_selected(self.ratio),
                variant=settings.variant,
                random_state=self.random_state,
            )
        self.labels_ = consensus_labels(
            model,
            [p.observed for p in prepared],
            self.n_clusters,
            random_state=self.random_state,
        )

    def _warn(
        self, prepared: Sequence[PreparedFeatures], scalings: Sequence[FeatureScaling]
    ) -> None:
        self.warnings_ = []
        for v, (part, scaling) in enumerate(zip(prepared, scalings, strict=True)):
            n_columns = len(part.values)
            never = ~part.observed.any(axis=1)
            for what, columns in (
                ("never observed", np.flatnonzero(never)),
                ("constant", np.flatnonzero(scaling.dead & ~never)),
            ):
                if len(columns):
                    named = ", ".join(map(str, columns[:_NAMED]))
                    more = ", ..." if len(columns) > _NAMED else ""
                    self.warnings_.append(
                        f"view {v}: {len(columns)} of {n_columns} columns are {what} and score 0 "
                        f"({named}{more})"
                    )
        unlabelled = int((self.labels_ < 0).sum())
        if unlabelled:
            self.warnings_.append(f"{unlabelled} rows hold no observed cell: their label is -1")
        history = self.objective_history_
        if (
            self.stages != "search"
            and len(history) >= self.max_iter
            and (len(history) < 2 or history[-2] - history[-1] > self.tol * abs(history[-2]))
        ):
            self.warnings_.append(
                f"stopped at max_iter = {self.max_iter} before the objective settled to tol = "
                f"{self.tol:g}: raise max_iter"
            )


def _completed(rows: Floats, predicted: Floats) -> Floats:
    """Put predictions into the missing cells of features that were observed at all."""
    missing = np.isnan(rows)
    return np.where(missing & ~missing.all(axis=0), predicted, rows)
