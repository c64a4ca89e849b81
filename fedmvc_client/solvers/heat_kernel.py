"""One pass of HK-MVFC over the records of a site: memberships and sufficient statistics.

For every record i, cluster k and view h (Eqs. 3 to 8, bandwidth beta added)::

    phi_ik = beta_h sum_j delta_ij (x_ij - a_kj)^2      D_ik = 1 - exp(-phi_ik)
    S_ik   = sum_h v_h^alpha D_ik^h / pi_h              u_ik ~ S_ik^(-1/(m-1))

over the views the record holds. All starts are one pass: their centres stand side by side. ``phi``
of a chunk of records is one matrix product of its features (see ``views``) with a matrix made from
the centres, and the numerators and masses of the next centres are another, so no array of records x
clusters x columns ever exists.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedmvc_client.solvers.chunks import fold_chunks
from fedmvc_client.solvers.exponents import center_matrix, exponents_by_feature
from fedmvc_client.solvers.fuzzifier import inverse_power, membership_power
from fedmvc_client.solvers.views import PreparedViews
from strategies.messages import SufficientStatistics

Floats = NDArray[np.float64]

#: Centres are padded to a multiple of this many rows; odd sizes halve the speed of the products.
_ROW_MULTIPLE = 4
#: By how much rounding may lift a sum that is at most 1.
_ROUNDING = 1e-9


def heat_kernel_pass(
    prepared: PreparedViews,
    centers: Sequence[Floats],
    view_weights: Floats,
    *,
    bandwidth: Floats,
    holding_share: Floats,
    fuzzifier: float,
    view_exponent: float,
    n_threads: int | None = None,
) -> SufficientStatistics:
    """Sum over the site's records all that the next centres, view weights and objective need.

    Parameters
    ----------
    prepared : PreparedViews
    centers : sequence of ndarray of shape (R, c, d_h)
        Centres of R starts, scaled units.
    view_weights : ndarray of shape (R, s)
        Rows on the simplex.
    bandwidth : ndarray of shape (R, s)
        beta_h > 0.
    holding_share : ndarray of shape (s,)
        pi_h in (0, 1], the share of all records (of all sites) that hold view h.
    fuzzifier : float
        m > 1.
    view_exponent : float
        alpha > 1.
    n_threads : int, optional
        Threads over chunks; the result does not depend on it. By default torch's own number.

    Returns
    -------
    SufficientStatistics
        In scaled units, float64. Without ``cell_mass`` numerator and mass leave out the constant
        coefficient of a column, which their ratio does not need.

    Raises
    ------
    ValueError
        If shapes disagree or a value is not finite.
    FloatingPointError
        If a separate record would count more than 1.
    """
    step = _Pass(prepared, centers, view_weights, bandwidth, holding_share, view_exponent)
    products, dispersion = step.accumulate(fuzzifier, n_threads)
    numerator, mass = [], []
    for view, product in zip(prepared.views, products, strict=True):
        d = view.n_columns
        if product is None:
            sums = np.zeros((step.n_starts, step.n_clusters, 2 * d if view.cell_mass else d + 1))
        else:
            sums = product.cpu().numpy().reshape(step.n_starts, step.n_clusters, -1)
        weight = sums[..., d:] if view.cell_mass else sums[..., d]
        numerator.append(
            sums[..., :d] + view.shift * (weight if view.cell_mass else weight[..., None])
        )
        mass.append(np.ascontiguousarray(weight))
    return SufficientStatistics(tuple(numerator), tuple(mass), dispersion.cpu().numpy())


def memberships(
    prepared: PreparedViews,
    centers: Sequence[Floats],
    view_weights: Floats,
    *,
    bandwidth: Floats,
    holding_share: Floats,
    fuzzifier: float,
    view_exponent: float,
    n_threads: int | None = None,
) -> Floats:
    """Membership of every record in every cluster (Eq. 8).

    Parameters
    ----------
    prepared, holding_share, fuzzifier, view_exponent, n_threads
        As in :func:`heat_kernel_pass`.
    centers : sequence of ndarray of shape (c, d_h)
    view_weights, bandwidth : ndarray of shape (s,)

    Returns
    -------
    ndarray of shape (n, c)
        Rows on the simplex.
    """
    step = _single(prepared, centers, view_weights, bandwidth, holding_share, view_exponent)
    return step.memberships(fuzzifier, n_threads)


def kernel_distances(
    prepared: PreparedViews,
    centers: Sequence[Floats],
    view_weights: Floats,
    *,
    bandwidth: Floats,
    holding_share: Floats,
    view_exponent: float,
    n_threads: int | None = None,
) -> Floats:
    """Heat-kernel distance of every record to every centre: the mean of D over the views it holds.

    Parameters
    ----------
    prepared, holding_share, view_exponent, n_threads
        As in :func:`heat_kernel_pass`.
    centers : sequence of ndarray of shape (c, d_h)
    view_weights, bandwidth : ndarray of shape (s,)

    Returns
    -------
    ndarray of shape (n, c)
        In [0, 1], views weighted by ``v_h^alpha / pi_h``; 0 on the centre, or without any view.
    """
    step = _single(prepared, centers, view_weights, bandwidth, holding_share, view_exponent)
    return step.distances(n_threads)


def spread_sums(prepared: PreparedViews) -> list[Floats]:
    """Return per view ``sum delta x^2``, ``sum delta x`` and ``sum delta`` over the records.

    Returns
    -------
    list of ndarray of shape (3, d_h)
        Scaled units; missing cells count by the partial-distance rule.
    """
    return [view.spread.copy() for view in prepared.views]


@dataclass(frozen=True)
class _Workspace:
    """Buffers of one thread, reused for all its chunks."""

    kernel: tuple[torch.Tensor, ...]  # per held view (rows, b): -phi, then exp(-phi), then g
    minus_distance: tuple[torch.Tensor, ...]  # per held view (R, c, b): -D
    product: tuple[torch.Tensor, ...]  # per held view (rows, features)
    total: torch.Tensor  # (R, c, b): S, then powers of S_min / S, then u or u^m
    power: torch.Tensor  # (R, c, b)


class _Pass:
    """One pass with given centres: matrices on the device and the work of one chunk."""

    def __init__(
        self,
        prepared: PreparedViews,
        centers: Sequence[Floats],
        view_weights: Floats,
        bandwidth: Floats,
        holding_share: Floats,
        view_exponent: float,
    ) -> None:
        self.prepared = prepared
        self.n_starts, self.n_clusters = _check_shapes(
            prepared, centers, view_weights, bandwidth, holding_share
        )
        self._n_centers = self.n_starts * self.n_clusters
        self._n_padded = -(-self._n_centers // _ROW_MULTIPLE) * _ROW_MULTIPLE
        self._held = [h for h, view in enumerate(prepared.views) if view.chunks is not None]
        self._matrices = [
            self._tensor(
                center_matrix(prepared.views[h], centers[h], bandwidth[:, h], self._n_padded)
            )
            for h in self._held
        ]
        coefficient = np.where(view_weights > 0, view_weights**view_exponent / holding_share, 0.0)
        # Only ratios of S matter for u; the largest coefficient 1 keeps S clear of the floor.
        coefficient /= coefficient.max(axis=1, keepdims=True)
        self._coefficient = self._tensor(coefficient)

    def _tensor(self, array: Floats) -> torch.Tensor:
        return torch.from_numpy(array).to(device=self.prepared.device, dtype=self.prepared.dtype)

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.prepared.dtype, device=self.prepared.device)

    def _workspace(self) -> _Workspace:
        shape = (self.n_starts, self.n_clusters, self.prepared.chunk_rows)
        return _Workspace(
            kernel=tuple(self._empty(self._n_padded, shape[2]) for _ in self._held),
            minus_distance=tuple(self._empty(*shape) for _ in self._held),
            product=tuple(
                self._empty(self._n_padded, matrix.shape[1] - 1) for matrix in self._matrices
            ),
            total=self._empty(*shape),
            power=self._empty(*shape),
        )

    def accumulate(
        self, fuzzifier: float, n_threads: int | None
    ) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        """Sum the products (R c, features) of each view and the dispersions (R, s) over chunks."""
        device = self.prepared.device
        products: list[torch.Tensor | None] = [None] * self.prepared.n_views
        dispersion = torch.zeros(
            (self.n_starts, self.prepared.n_views), dtype=torch.float64, device=device
        )
        for h, matrix in zip(self._held, self._matrices, strict=True):
            shape = (self._n_centers, matrix.shape[1] - 1)
            products[h] = torch.zeros(shape, dtype=torch.float64, device=device)
        local = threading.local()

        def sums(chunk: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            if not hasattr(local, "workspace"):
                local.workspace = self._workspace()
            return self._chunk_sums(chunk, local.workspace, fuzzifier)

        def add(chunk_sums: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
            for h, (product, spread) in zip(self._held, chunk_sums, strict=True):
                total = products[h]
                assert total is not None
                total.add_(product)
                dispersion[:, h].add_(spread)

        fold_chunks(sums, add, self.prepared.n_chunks, device=device, n_threads=n_threads)
        return products, dispersion

    def memberships(self, fuzzifier: float, n_threads: int | None) -> Floats:
        """Memberships (n, c) of the first start."""

        def normalised(work: _Workspace) -> torch.Tensor:
            power, total = inverse_power(work.total, work.power, 1.0 / (fuzzifier - 1.0))
            return power.div_(total)[0]

        out = self._by_record(normalised, n_threads)
        # In float32 a row sums to 1 only to 1e-7.
        return np.asarray(out / out.sum(axis=1, keepdims=True))

    def distances(self, n_threads: int | None) -> Floats:
        """S (n, c) of the first start over the sum of its coefficients for the views held."""
        out = self._by_record(lambda work: work.total[0], n_threads)
        held = self.prepared.held @ self._coefficient[0].cpu().double().numpy()
        return np.asarray(out / np.where(held > 0, held, 1.0)[:, None])

    def _by_record(
        self, finish: Callable[[_Workspace], torch.Tensor], n_threads: int | None
    ) -> Floats:
        """Collect what ``finish`` makes (c, b) of each chunk's distances as one (n, c) array."""
        n, rows = self.prepared.n_rows, self.prepared.chunk_rows
        out = np.empty((n, self.n_clusters))
        local = threading.local()

        def fill(chunk: int) -> None:
            if not hasattr(local, "workspace"):
                local.workspace = self._workspace()
            self._distances(chunk, local.workspace)
            block = out[chunk * rows : chunk * rows + rows]
            found = finish(local.workspace)[:, : len(block)]
            block[:] = found.T.to("cpu", torch.float64).numpy()

        fold_chunks(
            fill,
            lambda _: None,
            self.prepared.n_chunks,
            device=self.prepared.device,
            n_threads=n_threads,
        )
        return out

    def _distances(self, chunk: int, work: _Workspace) -> None:
        """Fill ``kernel`` with exp(-phi), ``minus_distance`` with -D and ``total`` with S."""
        total, shape = work.total, work.total.shape
        total.zero_()
        for position, h in enumerate(self._held):
            chunks = self.prepared.views[h].chunks
            assert chunks is not None
            kernel = work.kernel[position]
            if self.prepared.separate:
                term = work.minus_distance[position].view(self._n_centers, -1)
                exponents_by_feature(self._matrices[position], chunks[chunk], kernel, term)
            else:
                torch.mm(self._matrices[position], chunks[chunk], out=kernel)
            kernel = kernel[: self._n_centers].view(shape).clamp_(max=0.0)
            minus_distance = torch.expm1(kernel, out=work.minus_distance[position])
            kernel.exp_()
            total.addcmul_(minus_distance, self._coefficient[:, h, None, None], value=-1.0)

    def _chunk_sums(
        self, chunk: int, work: _Workspace, fuzzifier: float
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        self._distances(chunk, work)
        weight = membership_power(work.total, work.power, fuzzifier)
        if self.prepared.separate and not bool((weight.sum(dim=1) <= 1.0 + _ROUNDING).all()):
            raise FloatingPointError("a record's memberships to the power m add up to more than 1")
        flat = weight.view(self.n_starts, -1)
        sums = []
        for position, h in enumerate(self._held):
            chunks = self.prepared.views[h].chunks
            assert chunks is not None
            minus_distance = work.minus_distance[position].view(self.n_starts, -1)
            dispersion = -torch.linalg.vecdot(flat, minus_distance)
            kernel = work.kernel[position]
            kernel[: self._n_centers].view(weight.shape).mul_(weight)
            product = work.product[position]
            torch.mm(kernel, chunks[chunk, :-1].T, out=product)
            # A copy even in float64: the buffer serves the next chunk before this one is summed.
            sums.append(
                (
                    product[: self._n_centers].to(torch.float64, copy=True),
                    dispersion.to(torch.float64),
                )
            )
        return sums


def _single(
    prepared: PreparedViews,
    centers: Sequence[Floats],
    view_weights: Floats,
    bandwidth: Floats,
    holding_share: Floats,
    view_exponent: float,
) -> _Pass:
    """Return the pass of one start, its arrays without the axis of starts."""
    return _Pass(
        prepared,
        [np.asarray(view)[None] for view in centers],
        np.asarray(view_weights)[None],
        np.asarray(bandwidth)[None],
        holding_share,
        view_exponent,
    )


def _check_shapes(
    prepared: PreparedViews,
    centers: Sequence[Floats],
    view_weights: Floats,
    bandwidth: Floats,
    holding_share: Floats,
) -> tuple[int, int]:
    """Return (R, c) after checking that everything agrees with it."""
    s = prepared.n_views
    if len(centers) != s:
        raise ValueError(f"{len(centers)} views of centres were given for {s} views")
    n_starts, n_clusters = centers[0].shape[:2]
    for h, (view, array) in enumerate(zip(prepared.views, centers, strict=True)):
        expected = (n_starts, n_clusters, view.n_columns)
        if array.shape != expected:
            raise ValueError(f"centres of view {h} have shape {array.shape}, expected {expected}")
    named = {"centres": centers, "view_weights": [view_weights], "bandwidth": [bandwidth]}
    for name, array in (("view_weights", view_weights), ("bandwidth", bandwidth)):
        if array.shape != (n_starts, s):
            raise ValueError(f"{name} has shape {array.shape}, expected {(n_starts, s)}")
    if holding_share.shape != (s,):
        raise ValueError(f"holding_share has shape {holding_share.shape}, expected {(s,)}")
    for name, arrays in named.items():
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError(f"{name} must be finite")
    return n_starts, n_clusters
