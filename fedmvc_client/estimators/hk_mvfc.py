"""HK-MVFC on one machine, which plays site and server at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import NotFittedError

from configs.errors import DataRefused
from configs.profiles import HeatKernelSettings, resolve_heat_kernel
from fedmvc_client.estimators.validation import (
    check_tolerance,
    check_views,
    check_whole_numbers,
)
from fedmvc_client.solvers.devices import resolve_device, resolve_dtype
from fedmvc_client.solvers.fuzzifier import hard_labels
from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, memberships, spread_sums
from fedmvc_client.solvers.initialisation import local_seeds
from fedmvc_client.solvers.views import PreparedViews
from strategies.acceleration import FixedPointDriver
from strategies.aggregation import collapse_warnings
from strategies.messages import Moments
from strategies.preparation import Preparation, pooled_seeds

__all__ = ["HKMVFC"]

Floats = NDArray[np.float64]


class HKMVFC(ClusterMixin, BaseEstimator):
    """Heat-kernel multi-view fuzzy clustering (HK-MVFC) on one machine.

    Minimises Eq. 6 of the FedHK-MVFC paper by block descent: memberships (Eq. 8), view weights
    (Eq. 10) and centres (the stationary point of Eq. 47, heat-kernel coefficient kept) from one
    evaluation of the distances, accelerated by safeguarded Anderson steps. The driver is the one
    that the federated server runs.

    Parameters
    ----------
    n_clusters : int
        At least 1, at most the number of rows.
    profile : {"robust", "paper"}, optional
        "robust" (default): standardised columns, kernel "one", bandwidth "auto", annealing, and a
        fuzzifier that follows the number of columns. "paper": min-max scaling and kernel, m = 2,
        alpha = 5, bandwidth 1. Where no profile is named and one of the next five is given, plain
        HK-MVFC runs with these values and the rest from "paper".
    fuzzifier : float, optional
        m > 1 of Eq. 8.
    view_exponent : float, optional
        alpha > 1 of Eq. 10; larger spreads the weight more evenly.
    heat_kernel : {"minmax", "absdev", "one"}, optional
        Coefficient delta by Eq. 1, Eq. 2, or 1.
    scaling : {"minmax", "standard", "none"}, optional
    bandwidth : float or "auto", optional
        beta > 0 of exp(-beta phi).
    n_init : int, default 5
        Starts, computed as one batch; the one with the smallest objective is kept.
    anneal : bool, default False
        Pass through smaller bandwidths first.
    max_iter : int, default 200
        Passes over the data at most.
    tol : float, default 1e-6
        Stop at this relative change of the objective.
    random_state : int, default 0
    device : str, default "auto"
        "auto", "cpu", "cuda" or "cuda:N".
    dtype : {"float64", "float32"}, default "float64"

    Attributes
    ----------
    labels_ : ndarray of shape (n,), int64
        0 .. c-1; -1 for a row without any observed cell.
    membership_ : ndarray of shape (n, c)
        Rows on the simplex.
    cluster_centers_ : list of ndarray of shape (c, d_h)
        In data units.
    view_weights_ : ndarray of shape (s,)
    objective_history_ : list of float
        Objective at the accepted points of the best start; it never rises.
    n_iter_ : int
        Passes over the data.
    warnings_ : list of str
        What a reader should know: collapse, constant columns, no convergence.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1], 50)
    >>> views = [rng.normal(size=(100, 2)) + 8 * labels[:, None] for _ in range(2)]
    >>> model = HKMVFC(2).fit(views)
    >>> sorted(np.bincount(model.labels_).tolist())
    [50, 50]
    """

    def __init__(
        self,
        n_clusters: int,
        *,
        profile: str | None = None,
        fuzzifier: float | None = None,
        view_exponent: float | None = None,
        heat_kernel: str | None = None,
        scaling: str | None = None,
        bandwidth: float | str | None = None,
        n_init: int = 5,
        anneal: bool = False,
        max_iter: int = 200,
        tol: float = 1e-6,
        random_state: int = 0,
        device: str = "auto",
        dtype: str = "float64",
    ) -> None:
        self.n_clusters = n_clusters
        self.profile = profile
        self.fuzzifier = fuzzifier
        self.view_exponent = view_exponent
        self.heat_kernel = heat_kernel
        self.scaling = scaling
        self.bandwidth = bandwidth
        self.n_init = n_init
        self.anneal = anneal
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.device = device
        self.dtype = dtype

    def fit(self, views: Sequence[ArrayLike], y: object = None) -> HKMVFC:
        """Cluster the rows of several views.

        Parameters
        ----------
        views : sequence of array-like of shape (n, d_h)
            Rows are the same samples; NaN = missing, an all-NaN row = the sample lacks the view.
        y : ignored

        Raises
        ------
        ConfigError
            Where a parameter is out of range.
        DataRefused
            Where the views do not fit each other or hold fewer rows than clusters.
        """
        arrays = check_views(views)
        if not any(np.isfinite(array).any() for array in arrays):
            raise DataRefused(f"the {len(arrays)} views hold 0 observed cells: there is no data")
        settings = self._settings(sum(a.shape[1] for a in arrays))
        n_rows = arrays[0].shape[0]
        if self.n_clusters > n_rows:
            raise DataRefused(
                f"n_clusters is {self.n_clusters} but there are {n_rows} rows: ask for fewer "
                "clusters"
            )
        preparation = _prepare(settings, arrays)
        prepared = self._prepared(arrays, preparation)
        bandwidth = preparation.bandwidth(spread_sums(prepared))
        driver = self._drive(preparation, prepared, bandwidth)
        self._keep(driver, preparation, bandwidth)
        self.membership_ = self._memberships(prepared)
        self.labels_ = hard_labels(self.membership_, prepared.held)
        self._warn(driver)
        return self

    def fit_predict(self, views: Sequence[ArrayLike], y: object = None) -> NDArray[np.int64]:
        """Fit and return ``labels_``."""
        return self.fit(views).labels_

    def predict_membership(self, views: Sequence[ArrayLike]) -> Floats:
        """Membership (n, c) of new rows under the fitted model.

        Raises
        ------
        sklearn.exceptions.NotFittedError
        DataRefused
            Where views or columns differ from the fitted ones.
        """
        if not hasattr(self, "preparation_"):
            raise NotFittedError("this HKMVFC is not fitted: call fit first")
        arrays = check_views(views)
        dims = [a.shape[1] for a in arrays]
        fitted = [c.shape[1] for c in self.cluster_centers_]
        if dims != fitted:
            raise DataRefused(f"views have {dims} columns, the model was fitted on {fitted}")
        return self._memberships(self._prepared(arrays, self.preparation_, new_rows=True))

    def predict(self, views: Sequence[ArrayLike]) -> NDArray[np.int64]:
        """Cluster of each new row: the largest of `predict_membership`, -1 for an empty row."""
        membership = self.predict_membership(views)
        held = np.stack([np.isfinite(a).any(axis=1) for a in check_views(views)], axis=1)
        return hard_labels(membership, held)

    # -- inside ------------------------------------------------------------------------------

    def _settings(self, n_columns: int) -> HeatKernelSettings:
        check_whole_numbers(
            {
                "n_clusters": (self.n_clusters, 1),
                "n_init": (self.n_init, 1),
                "max_iter": (self.max_iter, 1),
                "random_state": (self.random_state, 0),
            }
        )
        check_tolerance(self.tol)
        resolve_device(self.device)
        resolve_dtype(self.dtype)
        return resolve_heat_kernel(
            self.profile,
            n_columns,
            fuzzifier=self.fuzzifier,
            view_exponent=self.view_exponent,
            heat_kernel=self.heat_kernel,
            scaling=self.scaling,
            bandwidth=self.bandwidth,
            n_init=self.n_init,
            anneal=self.anneal,
        )

    def _prepared(
        self, arrays: list[Floats], preparation: Preparation, new_rows: bool = False
    ) -> PreparedViews:
        cell_mass = (True,) * len(arrays) if new_rows else preparation.cell_mass
        return PreparedViews(
            arrays,
            preparation.scaling,
            preparation.settings.heat_kernel,
            cell_mass=cell_mass,
            device=self.device,
            dtype=self.dtype,
        )

    def _drive(
        self, preparation: Preparation, prepared: PreparedViews, bandwidth: Floats
    ) -> FixedPointDriver:
        settings = preparation.settings
        centers, counts = local_seeds(
            prepared,
            self.n_clusters,
            settings.n_init,
            self.random_state,
            view_spread=preparation.spread,
            mean=preparation.mean,
        )
        start = pooled_seeds(
            [centers],
            [counts],
            np.ones((1, len(centers)), dtype=bool),
            preparation.spread,
            preparation.mean,
            self.n_clusters,
            self.random_state,
            preparation.box,
        )
        driver = FixedPointDriver(
            start,
            np.tile(preparation.equal_weights, (settings.n_init, 1)),
            view_exponent=settings.view_exponent,
            holding_share=preparation.holding_share,
            active=preparation.active,
            tol=self.tol,
            max_evaluations=self.max_iter,
            acceleration="anderson",
            stages=preparation.stages,
        )
        while not driver.done:
            query = driver.query()
            sums = heat_kernel_pass(
                prepared,
                query.centers,
                query.view_weights,
                bandwidth=query.bandwidth_factor[:, None] * bandwidth,
                holding_share=preparation.holding_share,
                fuzzifier=settings.fuzzifier,
                view_exponent=settings.view_exponent,
            )
            driver.advance(query, sums)
        return driver

    def _keep(self, driver: FixedPointDriver, preparation: Preparation, bandwidth: Floats) -> None:
        self._scaled_centers, self.view_weights_ = driver.solution()
        self.cluster_centers_ = [
            sc.offset + sc.scale * a
            for a, sc in zip(self._scaled_centers, preparation.scaling, strict=True)
        ]
        self.preparation_ = preparation
        self.bandwidth_ = bandwidth
        self.objective_history_ = driver.objective_history
        self.n_iter_ = driver.evaluations

    def _memberships(self, prepared: PreparedViews) -> Floats:
        settings = self.preparation_.settings
        return memberships(
            prepared,
            self._scaled_centers,
            self.view_weights_,
            bandwidth=self.bandwidth_,
            holding_share=self.preparation_.holding_share,
            fuzzifier=settings.fuzzifier,
            view_exponent=settings.view_exponent,
        )

    def _warn(self, driver: FixedPointDriver) -> None:
        self.warnings_ = [
            f"column {j} of view {h} {why}" for h, j, why in self.preparation_.silent_columns()
        ]
        unlabelled = int((self.labels_ < 0).sum())
        if unlabelled:
            self.warnings_.append(f"{unlabelled} rows hold no observed cell: their label is -1")
        self.warnings_ += collapse_warnings(
            self._scaled_centers,
            self.view_weights_,
            self.preparation_.spread,
            float((self.membership_**2).sum(axis=1).mean()),
            [str(h) for h in range(len(self._scaled_centers))],
            self.preparation_.active.tolist(),
            self.membership_.mean(axis=0),
        )
        if not driver.converged:
            self.warnings_.append(
                f"stopped at max_iter = {self.max_iter} before the change of the objective came "
                f"below tol = {self.tol:g}: raise max_iter"
            )


def _prepare(settings: HeatKernelSettings, arrays: list[Floats]) -> Preparation:
    observed = [np.isfinite(a).sum(axis=1) for a in arrays]
    return Preparation.pool(
        settings,
        [arrays[0].shape[0]],
        [np.array([int((o > 0).sum()) for o in observed])],
        [
            np.array(
                [
                    int(((o > 0) & (o < a.shape[1])).sum())
                    for o, a in zip(observed, arrays, strict=True)
                ]
            )
        ],
        [[Moments.of(a) for a in arrays]],
    )
