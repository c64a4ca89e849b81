"""Tensor learning of Fed-MUFSHT (Eq. 14, resolved): weights and embeddings of several views.

With prepared views ``X_v`` (d_v, n) and N_v marking missing cells it lowers::

    F = sum_v 1/d_v [ mu ||E_v||^2 + lam tr(W_v' Q_v W_v) + beta ||W_v||_{2,1}
                      + alpha_v ||X_v + E_v - W_v Z_v||^2 ]
        + tau/k sum_v ||Z_v - A diag(M_v) P'||^2 + eta ||M||^2 / V + T sum_v alpha_v ln alpha_v

over ``Z_v Z_v' = I``, E_v supported on N_v, and alpha on the simplex; see `ConsensusFactors` for
A, P and M. Without ``Z_v Z_v' = I`` the objective has no minimum: a larger Z makes every penalty on
W as small as one likes. Every block is an exact minimisation or a majorise-minimise step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from configs.errors import DataRefused
from configs.mufsht_profiles import Simplex
from fedmvc_client.solvers.chunks import fold_chunks, one_intra_op_thread
from fedmvc_client.solvers.consensus_factors import ConsensusFactors
from fedmvc_client.solvers.devices import resolve_device
from fedmvc_client.solvers.embeddings import leading_embedding, polar
from fedmvc_client.solvers.feature_laplacian import feature_laplacian
from fedmvc_client.solvers.feature_view import FeatureView

Floats = NDArray[np.float64]
T = TypeVar("T")

#: Majorise-minimise steps of a weight matrix where the Laplacian takes part.
WEIGHT_STEPS = 3
#: Largest eigenvalue of a normalised Laplacian.
_LAPLACIAN_BOUND = 2.0
#: Least view weight that a weight matrix is divided by.
_LEAST_WEIGHT = 1e-300
#: Below this many cells starting threads for a block costs more than it saves.
_THREADED_CELLS = 4_000_000


@dataclass(frozen=True)
class WeightProblem:
    """What the objective says of the weights alone, for a search over them.

    Attributes
    ----------
    views : list of torch.Tensor of shape (d_v, n)
        ``X_v + E_v`` of the views that take part.
    view_weights : list of float
    laplacians : list of torch.Tensor, or None
    lam, beta, tau : float
    targets : list of torch.Tensor of shape (k, n), or None
        ``A diag(M_v) P'``; None before a start.
    """

    views: list[torch.Tensor]
    view_weights: list[float]
    laplacians: list[torch.Tensor] | None
    lam: float
    beta: float
    tau: float
    targets: list[torch.Tensor] | None


class TensorLearning:
    """The state of tensor learning at one site, and one method a block.

    Parameters
    ----------
    views : sequence of ndarray of shape (d_v, n), float64
        Prepared: rows of about unit norm, 0 where missing.
    observed : sequence of (ndarray of shape (d_v, n), bool, or None), optional
        None = complete.
    rank : int
        k, at most n.
    tau : float, default 0.1
        Pull of the embeddings towards each other; larger values slow the descent.
    beta : float, default 0.01
        Push of whole rows of W to 0.
    lam : float, default 0.1
        Smoothness of W over correlated features; 0 builds no Laplacian.
    mu : float, default 0.005
        Cost of imputed values; 0.5, as printed, shrinks them to a third with four views.
    temp : float, default 0.5
        T: larger spreads the view weights more evenly.
    ridge : float, default 0.01
        eta, on M.
    simplex : {"view", "sample", "none"}, default "view"
    device : str, default "cpu"
    n_threads : int, optional
        Views at a time, by default one where there are few cells; no result depends on it.
    name : str, default "the data"
        How a sentence calls the views.

    Attributes
    ----------
    view_weights : ndarray of shape (V,)
        alpha; 0 for a view that the site lacks.
    factors : ConsensusFactors
    device : torch.device

    Raises
    ------
    DataRefused
        If there are fewer samples than k, or nothing varies in any view.

    Notes
    -----
    A feature without any cell other than 0 has weight 0 and is not imputed; a view of such features
    only takes no part. A start forgets what was imputed before.
    """

    def __init__(
        self,
        views: Sequence[Floats],
        observed: Sequence[NDArray[np.bool_] | None] | None,
        rank: int,
        *,
        tau: float = 0.1,
        beta: float = 0.01,
        lam: float = 0.1,
        mu: float = 0.005,
        temp: float = 0.5,
        ridge: float = 0.01,
        simplex: Simplex = "view",
        device: str = "cpu",
        n_threads: int | None = None,
        name: str = "the data",
    ) -> None:
        n_samples = views[0].shape[1]
        if rank > n_samples:
            raise DataRefused(
                f"{name} has {n_samples} rows but k is {rank}: ask for fewer clusters or bring "
                "more rows"
            )
        self.rank = rank
        self.n_features = [len(view) for view in views]
        self.device = resolve_device(device)
        cells = sum(view.size for view in views)
        self._n_threads = 1 if n_threads is None and cells < _THREADED_CELLS else n_threads
        self._beta, self._lam, self._mu, self._temp = beta, lam, mu, temp
        #: Views that take part, and the tensors of each.
        self._active = [v for v, view in enumerate(views) if view.any()]
        if not self._active:
            raise DataRefused(
                f"{name} has {len(views)} views and 0 of them vary: check the files or the columns"
            )
        masks = observed or [None] * len(views)
        self._views = [FeatureView(views[v], masks[v], self.device) for v in self._active]
        self.factors = ConsensusFactors(tau / rank, ridge / len(self._views), simplex)
        self._alpha = torch.full((len(self._views),), 1.0 / len(self._views), dtype=torch.float64)
        self._laplacians: list[torch.Tensor] = []
        if lam > 0:
            # blocks of rows run in parallel inside each
            self._laplacians = [
                feature_laplacian(view.filled, n_threads=n_threads) for view in self._views
            ]

    # -- starts --------------------------------------------------------------------------------

    def start_svd(self) -> None:
        """Start from the truncated SVD of each view, turned onto that of the first."""

        def lead(v: int) -> tuple[torch.Tensor, int]:
            self._views[v].forget()
            return leading_embedding(self._views[v].filled, self.rank)

        found = self._each(lead)
        with one_intra_op_thread():
            first = max(found, key=lambda pair: pair[1])[0]
            turned = [polar(first @ z.T) @ z for z, _ in found]
        self._start(turned)

    def start_from(self, weights: Sequence[Floats]) -> None:
        """Start from given weights: ``Z_v`` is the orthogonal factor of ``W_v' X_v``.

        Parameters
        ----------
        weights : sequence of ndarray of shape (d_v, k)
            One for every view.
        """

        def embed(v: int) -> torch.Tensor:
            view = self._views[v]
            view.forget()
            given = np.ascontiguousarray(weights[self._active[v]], dtype=np.float64)
            view.weights = torch.tensor(given, device=self.device)
            view.weights[view.dead] = 0.0
            return polar(view.weights.T @ view.filled)

        self._start(self._each(embed), keep_weights=True)

    def _start(self, embeddings: list[torch.Tensor], *, keep_weights: bool = False) -> None:
        self._alpha.fill_(1.0 / len(self._views))

        def fit(v: int) -> None:
            view = self._views[v]
            view.embed(embeddings[v])
            if not keep_weights:
                view.weights = view.cross()
            view.measure()

        self._each(fit)
        with one_intra_op_thread():
            self.factors.start(embeddings)

    # -- blocks, in the order of a sweep --------------------------------------------------------

    def update_embeddings(self) -> None:
        """Set each Z_v to the orthogonal factor of what data and consensus ask for (exact)."""

        def update(v: int) -> None:
            view = self._views[v]
            pull = float(self._alpha[v]) / view.n_features * (view.weights.T @ view.filled)
            view.embed(polar(pull + self.factors.weight * self.factors.model(v)))
            view.measure()

        self._each(update)

    def update_weights(self) -> None:
        """Shrink the rows of each W_v; exact without Laplacian, else majorise-minimise."""

        def update(v: int) -> None:
            view = self._views[v]
            alpha = max(float(self._alpha[v]), _LEAST_WEIGHT)
            cross = view.cross()
            if self._lam == 0:
                view.weights = _shrunk_rows(cross, self._beta / (2 * alpha))
            else:
                bound = self._lam * _LAPLACIAN_BOUND
                for _ in range(WEIGHT_STEPS):
                    smooth = _LAPLACIAN_BOUND * view.weights - torch.sparse.mm(
                        self._laplacians[v], view.weights
                    )
                    target = (alpha * cross + self._lam * smooth) / (alpha + bound)
                    view.weights = _shrunk_rows(target, self._beta / (2 * (alpha + bound)))
            view.measure()

        self._each(update)

    def update_consensus(self) -> None:
        """Update A, P and M."""
        self.factors.update([view.embedding for view in self._views])

    def update_imputation(self) -> None:
        """Set ``E_v = N_v * alpha / (alpha + mu) W_v Z_v`` (exact; Eq. 13 is a residual)."""

        def update(v: int) -> None:
            alpha = float(self._alpha[v])
            share = alpha / (alpha + self._mu) if alpha + self._mu > 0 else 0.0
            self._views[v].impute(share)

        self._each(update)

    def update_view_weights(self) -> None:
        """Set alpha to the softmax of ``-err_v / T`` (exact)."""
        self._alpha = torch.softmax(-self._errors() / self._temp, dim=0)

    def sweep(self) -> float:
        """Update every block once; return F, which never rises."""
        self.update_embeddings()
        self.update_weights()
        self.update_consensus()
        self.update_imputation()
        self.update_view_weights()
        return self.objective()

    def descend(self, max_sweeps: int, tol: float) -> list[float]:
        """Sweep until F changes by less than ``tol`` of itself; return F after each sweep."""
        history: list[float] = []
        while len(history) < max_sweeps:
            history.append(self.sweep())
            if len(history) > 1 and abs(history[-2] - history[-1]) <= tol * abs(history[-2]):
                break
        return history

    def objective(self) -> float:
        """Return F."""

        def penalties(v: int) -> float:
            view = self._views[v]
            total = self._mu * view.imputed_norm
            total += self._beta * float(torch.linalg.vector_norm(view.weights, dim=1).sum())
            if self._lam > 0:
                smoothed = torch.sparse.mm(self._laplacians[v], view.weights)
                total += self._lam * float((view.weights * smoothed).sum())
            return total / view.n_features

        with one_intra_op_thread():
            consensus = self.factors.penalty([view.embedding for view in self._views])
        entropy = float(torch.special.xlogy(self._alpha, self._alpha).sum())
        fit = float((self._alpha * self._errors()).sum())
        return sum(self._each(penalties)) + fit + consensus + self._temp * entropy

    def problem(self) -> WeightProblem:
        """Return what a search over the weights needs."""
        started = hasattr(self.factors, "samples")
        return WeightProblem(
            views=[view.filled for view in self._views],
            view_weights=self._alpha.tolist(),
            laplacians=self._laplacians or None,
            lam=self._lam,
            beta=self._beta,
            tau=self.factors.weight * self.rank,
            targets=[self.factors.model(v) for v in range(len(self._views))] if started else None,
        )

    def gather(self, weights: Sequence[Floats]) -> list[Floats]:
        """Return the weights of the views that take part, of those of all views."""
        return [weights[v] for v in self._active]

    def spread(self, weights: Sequence[Floats]) -> list[Floats]:
        """Undo `gather`, with 0 for the views that the site lacks."""
        found = [np.zeros((d, self.rank)) for d in self.n_features]
        for v, part in zip(self._active, weights, strict=True):
            found[v] = part
        return found

    # -- what came out ---------------------------------------------------------------------------

    @property
    def weights(self) -> list[Floats]:
        """W_v (d_v, k) of every view; 0 for one that the site lacks."""
        return self.spread([view.weights.cpu().numpy().copy() for view in self._views])

    @property
    def embeddings(self) -> list[Floats | None]:
        """Z_v (k, n) of every view; None for one that the site lacks."""
        found: list[Floats | None] = [None] * len(self.n_features)
        for v, view in zip(self._active, self._views, strict=True):
            found[v] = view.embedding.cpu().numpy().copy()
        return found

    @property
    def sample_factor(self) -> Floats:
        """P (n, k)."""
        return np.asarray(self.factors.samples.cpu().numpy().copy())

    @property
    def view_weights(self) -> Floats:
        """Alpha (V,), summing to 1; 0 for a view that the site lacks."""
        found = np.zeros(len(self.n_features))
        found[self._active] = self._alpha.numpy()
        return found

    def imputed(self, view: int) -> Floats:
        """Return a prepared view (d_v, n) with ``W Z``, unshrunk, in the missing cells."""
        if view not in self._active:
            n_samples = self._views[0].filled.shape[1]
            return np.zeros((self.n_features[view], n_samples))
        return self._views[self._active.index(view)].completed()

    # -- inside ------------------------------------------------------------------------------

    def _errors(self) -> torch.Tensor:
        return torch.tensor([view.error for view in self._views], dtype=torch.float64)

    def _each(self, function: Callable[[int], T]) -> list[T]:
        """Call a function for every view, several at a time, each on one thread."""
        results: list[T] = []
        fold_chunks(
            function,
            results.append,
            len(self._views),
            device=self.device,
            n_threads=self._n_threads,
        )
        return results


def _shrunk_rows(rows: torch.Tensor, threshold: float) -> torch.Tensor:
    """Shorten every row by ``threshold``, to 0 at least: the proximal point of a sum of norms."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    left = (lengths - threshold).clamp_(min=0.0)
    return rows * (left / torch.where(lengths > 0, lengths, 1.0))
