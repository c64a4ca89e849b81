"""TensorFMVC on one machine, which plays every site and the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin

from configs.errors import ConfigError, DataRefused
from configs.tensor_profiles import SAMPLE_ORDER_WARNING, TensorSettings, resolve_tensor
from fedmvc_client.estimators.validation import (
    check_dense_or_sparse,
    check_tolerance,
    check_whole_numbers,
)
from fedmvc_client.solvers.devices import resolve_device
from fedmvc_client.solvers.tensor_site import TensorSite
from strategies.tensor_admm import TensorDriver, doubts

__all__ = ["TensorFMVC"]


class TensorFMVC(ClusterMixin, BaseEstimator):
    """Multi-view clustering of the same samples by tensor factorisation, on one machine.

    Each view is clustered by itself, as a site of a vertical federation would; a tensor Schatten-p
    norm draws the views' labels together. The arithmetic is a federated run's, bit for bit: the
    server's half is the same driver, and the blend Z is rounded as it is for the wire.

    Parameters
    ----------
    n_clusters : int
        At least 2, at most the number of rows.
    profile : {"plus", "paper"}, optional
        "plus" (default): spectral local term, aligned k-means starts, orientation "unfold", int8
        blend; the result does not depend on the order of rows. "paper": Butterworth distances and
        sequential sweeps from random labels, orientation "sample", whose result does.
    p : float, default 0.9
        Exponent of the tensor Schatten-p norm, above 0, at most 1.
    r : float, default 5.0
        Exponent of the view weights, above 1; larger spreads them more evenly.
    orientation : {"sample", "cluster", "view", "unfold", "identity"}, optional
        Which axis of the tensor is transformed; "unfold" and "identity" none.
    kappa : float, optional
        Profile "plus": strength of the tensor term, between 0 and 1.
    lam, omega : float, optional
        Profile "paper": strength of the tensor term, and the cut-off of the distances (Eq. 16).
    mu0, mu_growth : float, optional
        Penalty of the first round and its factor a round.
    balance : float, optional
        Profile "plus": weight of the push to equal clusters.
    anchor_kind : {"das", "random", "pc1"}, default "das"
    anchors : int, default 0
        Anchors of a view; 0 for half the rows, at most 1000.
    neighbours : int, default 10
        Anchors that a row is joined to.
    z_encoding : {"float64", "float16", "int8"}, optional
        How the blend would travel to a site.
    local_sweeps : int, default 1
        Sweeps of a view a round.
    sweep : {"random", "natural"}, optional
        Profile "paper": order of the rows in a sweep; "natural" is the order of the file.
    scaling : {"auto", "none"}, default "auto"
        "auto": text becomes unit rows of TF-IDF, other columns are scaled to [0, 1].
    max_iter : int, default 150
        Rounds at most.
    tol : float, default 1e-6
        Stop where no label moved and labels and tensor differ by less.
    random_state : int, default 0
    device : str, default "auto"
        "auto", "cpu", "cuda" or "cuda:N".

    Attributes
    ----------
    labels_ : ndarray of shape (n,), int64
        0 .. K-1; -1 for a row without any observed cell.
    vote_labels_ : ndarray of shape (n,), int64
        Majority vote of what the views say alone: the result without the tensor term.
    view_labels_ : list of ndarray of shape (n,), int64
        Last labels of each view, in common names; -1 where the view lacks the row.
    start_labels_ : list of ndarray of shape (n,), int64
        What each view says alone, in the same names: the first labels of profile "plus".
    view_weights_ : ndarray of shape (M,)
        alpha, summing to 1.
    agreement_ : ndarray of shape (M,)
        Share of a view's rows on which what it says alone is the result.
    n_iter_ : int
        Rounds.
    objective_history_ : list of float
        Local terms and tensor norm after each round; it may rise.
    warnings_ : list of str
        What a reader should know: order of rows, missing cells, no convergence.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1], 50)
    >>> views = [rng.normal(size=(100, 2)) + 8 * labels[:, None] for _ in range(2)]
    >>> model = TensorFMVC(2, device="cpu").fit(views)
    >>> sorted(np.bincount(model.labels_).tolist())
    [50, 50]
    """

    def __init__(
        self,
        n_clusters: int,
        *,
        profile: str | None = None,
        p: float = 0.9,
        r: float = 5.0,
        orientation: str | None = None,
        kappa: float | None = None,
        lam: float | None = None,
        omega: float | None = None,
        mu0: float | None = None,
        mu_growth: float | None = None,
        balance: float | None = None,
        anchor_kind: str = "das",
        anchors: int = 0,
        neighbours: int = 10,
        z_encoding: str | None = None,
        local_sweeps: int = 1,
        sweep: str | None = None,
        scaling: str = "auto",
        max_iter: int = 150,
        tol: float = 1e-6,
        random_state: int = 0,
        device: str = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.profile = profile
        self.p = p
        self.r = r
        self.orientation = orientation
        self.kappa = kappa
        self.lam = lam
        self.omega = omega
        self.mu0 = mu0
        self.mu_growth = mu_growth
        self.balance = balance
        self.anchor_kind = anchor_kind
        self.anchors = anchors
        self.neighbours = neighbours
        self.z_encoding = z_encoding
        self.local_sweeps = local_sweeps
        self.sweep = sweep
        self.scaling = scaling
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.device = device

    def fit(self, views: Sequence[Any], y: object = None) -> TensorFMVC:
        """Cluster the rows of several views.

        Parameters
        ----------
        views : sequence of array-like or sparse matrix of shape (n, d_m)
            Rows are the same samples; NaN = missing, an all-NaN row = the sample lacks the view.
        y : ignored

        Raises
        ------
        ConfigError
            Where a parameter is out of range.
        DataRefused
            Where the views do not fit each other, hold fewer rows than clusters, or one cannot be
            clustered.
        """
        settings = self._settings()
        tables = check_dense_or_sparse(views)
        n_rows = tables[0].shape[0]
        if self.n_clusters > n_rows:
            raise DataRefused(
                f"n_clusters is {self.n_clusters} but there are {n_rows} rows: ask for fewer "
                "clusters"
            )
        # as sites are: the driver takes them in the order of their names
        sites = {
            f"{m:09d}": TensorSite(
                table,
                settings,
                self.n_clusters,
                seed=self.random_state,
                position=m,
                device=self.device,
                name=f"view {m}",
            )
            for m, table in enumerate(tables)
        }
        driver = self._drive(settings, sites)
        self._keep(driver)
        self._warn(settings, driver, list(sites.values()))
        return self

    def fit_predict(self, views: Sequence[Any], y: object = None) -> NDArray[np.int64]:
        """Fit and return ``labels_``."""
        return self.fit(views).labels_

    # -- inside ------------------------------------------------------------------------------

    def _settings(self) -> TensorSettings:
        check_whole_numbers(
            {
                "n_clusters": (self.n_clusters, 1),
                "max_iter": (self.max_iter, 1),
                "random_state": (self.random_state, 0),
            }
        )
        if self.n_clusters == 1:
            raise ConfigError(
                "n_clusters is 1 and a vertical run needs 2 or more: with 1 cluster every row has "
                "the same label"
            )
        check_tolerance(self.tol)
        resolve_device(self.device)
        return resolve_tensor(
            self.profile,
            orientation=self.orientation,
            p=self.p,
            r=self.r,
            kappa=self.kappa,
            lam=self.lam,
            omega=self.omega,
            mu0=self.mu0,
            mu_growth=self.mu_growth,
            balance=self.balance,
            anchor_kind=self.anchor_kind,
            anchors=self.anchors,
            neighbours=self.neighbours,
            z_encoding=self.z_encoding,
            local_sweeps=self.local_sweeps,
            sweep=self.sweep,
            scaling=self.scaling,
        )

    def _drive(self, settings: TensorSettings, sites: dict[str, TensorSite]) -> TensorDriver:
        starts = {name: site.start() for name, site in sites.items()}
        driver = TensorDriver(
            settings,
            self.n_clusters,
            {name: labels for name, (labels, _) in starts.items()},
            {name: trace for name, (_, trace) in starts.items()},
            alone={name: site.alone() for name, site in sites.items()},
            tol=self.tol,
            max_rounds=self.max_iter,
        )
        for name, site in sites.items():
            site.rename(driver.names[name])
        self.objective_history_ = []
        while not driver.done:
            replies = {}
            for name, site in sites.items():
                query = driver.query(name)
                replies[name] = site.sweep(query.weight, query.mu, query.z, query.scale)
            driver.advance(
                {name: labels for name, (labels, _) in replies.items()},
                {name: trace for name, (_, trace) in replies.items()},
            )
            self.objective_history_.append(driver.objective)
        return driver

    def _keep(self, driver: TensorDriver) -> None:
        result = driver.result()
        self.labels_ = result.labels
        self.vote_labels_ = result.vote
        self.view_labels_ = [result.site_labels[name] for name in driver.sites]
        self.start_labels_ = [result.alone[name] for name in driver.sites]
        self.view_weights_ = result.view_weights
        self.agreement_ = result.agreement
        self.n_iter_ = driver.rounds

    def _warn(
        self, settings: TensorSettings, driver: TensorDriver, sites: Sequence[TensorSite]
    ) -> None:
        self.warnings_ = [SAMPLE_ORDER_WARNING] if settings.orientation == "sample" else []
        self.warnings_ += [warning for site in sites for warning in site.warnings]
        unlabelled = int((self.labels_ < 0).sum())
        if unlabelled:
            self.warnings_.append(f"{unlabelled} rows hold no observed cell: their label is -1")
        names = [f"view {m}" for m in range(len(sites))]
        self.warnings_ += doubts(driver.result(), settings.r, names)
        if not driver.converged:
            self.warnings_.append(
                f"stopped at max_iter = {self.max_iter} before labels and tensor agreed to tol = "
                f"{self.tol:g}: raise max_iter"
            )
