"""The views of a site, scaled and laid out for the heat-kernel pass.

Each view becomes a stack of feature-major chunks of shape (n_chunks, n_features, chunk_rows) so
that the exponent ``phi`` of all centres and the sums over records are one matrix product each. The
rows of a chunk are ``[delta x, delta, sum_j delta_j x_j^2]`` (2 d_h + 1 features); a view with one
weight a record (kernel ``one``, no missing cell) needs only ``[x, held, sum_j w_j x_j^2]``
(d_h + 2). Records that do not hold the view, and the filling of the last chunk, are columns of
zeros: their exponent, dispersion and contribution to every sum are exactly 0.

The scaled values are shifted to the middle of the site's own data first: without it ``phi`` loses
digits by cancellation where values are far from 0. The pass adds the shift back.

Where noise hides a record, what any other record adds to a sum may not depend on it, not even by
rounding, which a request can enlarge (centres that nearly coincide). ``separate`` views therefore
take a shift that no record moves and compute feature by feature: the order inside a matrix product
depends on how many records stand beside one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedmvc_client.solvers.chunks import chunk_rows
from fedmvc_client.solvers.devices import resolve_device, resolve_dtype
from strategies.messages import ViewScaling

Floats = NDArray[np.float64]
HeatKernel = Literal["minmax", "absdev", "one"]

#: Rows whose mean is the shift, taken evenly over the data; any point inside the data would do.
_SHIFT_ROWS = 4096


class PreparedView:
    """One view, ready for :func:`fedmvc_client.solvers.heat_kernel.heat_kernel_pass`.

    Attributes
    ----------
    n_columns : int
        d_h.
    cell_mass : bool
        Whether each cell has its own heat-kernel coefficient (else one weight a record).
    chunks : torch.Tensor of shape (n_chunks, n_features, chunk_rows) or None
        None where the site does not hold the view at all.
    shift : ndarray of shape (d_h,)
        What was subtracted from the scaled values.
    weight : ndarray of shape (d_h,)
        Constant coefficient of each column, ``1 / delta_b`` (used without ``cell_mass``).
    held : ndarray of shape (n,), bool
    spread : ndarray of shape (3, d_h)
        ``sum delta x^2``, ``sum delta x``, ``sum delta`` over the records.
    """

    def __init__(
        self,
        raw: NDArray[np.floating] | None,
        n_rows: int,
        scaling: ViewScaling,
        heat_kernel: HeatKernel,
        cell_mass: bool,
        device: torch.device,
        dtype: torch.dtype,
        separate: bool,
    ) -> None:
        self.raw = raw
        self.scaling = scaling
        self.n_columns = len(scaling.scale)
        self.cell_mass = cell_mass
        self.weight = 1.0 / scaling.delta_b
        self.held = np.zeros(n_rows, dtype=bool)
        self.spread = np.zeros((3, self.n_columns))
        self.chunks: torch.Tensor | None = None
        self.shift = np.zeros(self.n_columns)
        self._heat_kernel = heat_kernel
        if raw is not None:
            self.shift = np.full(self.n_columns, 0.5) if separate else self._middle(raw)
            self.chunks = self._fill(raw, chunk_rows(n_rows, device), device, dtype)

    def scaled(self, rows: slice | NDArray[np.intp]) -> Floats:
        """Return the scaled values of some rows, NaN where missing; a view not held is all NaN."""
        if self.raw is None:
            n_rows = len(self.held[rows])
            return np.full((n_rows, self.n_columns), np.nan)
        # One memory order: numpy's sums, and so the last bits, depend on it.
        values = np.ascontiguousarray(self.raw[rows], dtype=np.float64)
        scaled = (values - self.scaling.offset) / self.scaling.scale
        return np.where(np.isfinite(scaled), scaled, np.nan)

    def _middle(self, raw: NDArray[np.floating]) -> Floats:
        sample = self.scaled(slice(None, None, max(1, len(raw) // _SHIFT_ROWS)))
        observed = ~np.isnan(sample)
        total = np.where(observed, sample, 0.0).sum(axis=0)
        return np.asarray(total / np.maximum(observed.sum(axis=0), 1))

    def _coefficients(self, scaled: Floats) -> Floats:
        """Heat-kernel coefficient of each cell (Eqs. 1 and 2)."""
        if self._heat_kernel == "one":
            return np.broadcast_to(self.weight, scaled.shape)
        delta = (scaled - self.scaling.delta_a) * self.weight
        if self._heat_kernel == "absdev":
            return np.asarray(np.abs(delta))
        return np.asarray(np.clip(delta, 0.0, 1.0))

    def _fill(
        self,
        raw: NDArray[np.floating],
        rows_per_chunk: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        n_rows, d = len(raw), self.n_columns
        n_features = 2 * d + 1 if self.cell_mass else d + 2
        n_chunks = -(-n_rows // rows_per_chunk)
        chunks = torch.empty((n_chunks, n_features, rows_per_chunk), dtype=dtype, device=device)
        features = np.zeros((n_features, rows_per_chunk))
        for number in range(n_chunks):
            first = number * rows_per_chunk
            rows = slice(first, min(first + rows_per_chunk, n_rows))
            self._fill_chunk(rows, features)
            chunks[number].copy_(torch.from_numpy(features))
        return chunks

    def _fill_chunk(self, rows: slice, features: Floats) -> None:
        d, n = self.n_columns, rows.stop - rows.start
        x = self.scaled(rows)
        observed = ~np.isnan(x)
        n_observed = observed.sum(axis=1)
        held = n_observed > 0
        self.held[rows] = held
        x = np.where(observed, x, 0.0)
        if self.cell_mass:
            factor = d / np.maximum(n_observed, 1)
            delta = self._coefficients(x) * observed * factor[:, None]
        else:
            if (n_observed[held] < d).any():
                raise ValueError("a view with one weight a record must have no partly missing row")
            delta = self.weight * held[:, None]
        self.spread += [(delta * x * x).sum(axis=0), (delta * x).sum(axis=0), delta.sum(axis=0)]
        x = np.where(observed, x - self.shift, 0.0)
        features[:, n:] = 0.0
        if self.cell_mass:
            features[:d, :n] = (delta * x).T
            features[d : 2 * d, :n] = delta.T
        else:
            features[:d, :n] = x.T
            features[d, :n] = held
        features[-1, :n] = 0.0
        for j in range(d):
            features[-1, :n] += delta[:, j] * x[:, j] ** 2


class PreparedViews:
    """All views of one site, scaled, with their heat-kernel coefficients, on one device.

    Parameters
    ----------
    views : sequence of ndarray of shape (n, d_h), or None
        Raw values, not finite = missing; the arrays are referenced, not copied. None: the site does
        not hold the view.
    scaling : sequence of ViewScaling
        Pooled scaling and heat-kernel coefficients, one a view.
    heat_kernel : {"minmax", "absdev", "one"}
    cell_mass : sequence of bool
        For each view whether the cluster mass is summed cell by cell. False is only legal for
        kernel ``one`` where no record anywhere misses a part of the view.
    device, dtype : str
        See :func:`fedmvc_client.solvers.devices.resolve_device`.
    separate : bool, default False
        Whether a record's part of every sum is the same to the bit whatever the other records are.
        Then values are scaled to [0, 1] by numbers that follow from no record.

    Attributes
    ----------
    n_rows : int
    n_chunks, chunk_rows : int
    held : ndarray of shape (n, s), bool
        A record holds a view if at least one of its cells is observed.

    Raises
    ------
    ValueError
        If no view is given, numbers of rows or columns disagree, or ``cell_mass`` is illegal.

    Notes
    -----
    A missing cell has coefficient 0 and the record's other coefficients of that view are multiplied
    by d_h / observed cells (partial distance).
    """

    def __init__(
        self,
        views: Sequence[NDArray[np.floating] | None],
        scaling: Sequence[ViewScaling],
        heat_kernel: HeatKernel,
        *,
        cell_mass: Sequence[bool],
        device: str | torch.device = "cpu",
        dtype: str = "float64",
        separate: bool = False,
    ) -> None:
        if not len(views) == len(scaling) == len(cell_mass):
            raise ValueError(
                f"{len(views)} views need as many scalings and mass rules, "
                f"got {len(scaling)} and {len(cell_mass)}"
            )
        rows = {len(view) for view in views if view is not None}
        if len(rows) != 1 or 0 in rows:
            raise ValueError(f"views must have one common number of rows >= 1, got {sorted(rows)}")
        for number, (view, pooled, cells) in enumerate(zip(views, scaling, cell_mass, strict=True)):
            if view is not None and view.shape[1:] != pooled.scale.shape:
                raise ValueError(
                    f"view {number} has shape {view.shape} but its scaling describes "
                    f"{len(pooled.scale)} columns"
                )
            if not cells and heat_kernel != "one":
                raise ValueError(f"heat kernel {heat_kernel} needs cell_mass=True in view {number}")
        self.n_rows = rows.pop()
        self.heat_kernel = heat_kernel
        self.device = device if isinstance(device, torch.device) else resolve_device(device)
        self.dtype = resolve_dtype(dtype)
        self.separate = separate
        self.chunk_rows = chunk_rows(self.n_rows, self.device)
        self.n_chunks = -(-self.n_rows // self.chunk_rows)
        self.views = tuple(
            PreparedView(
                view,
                self.n_rows,
                pooled,
                heat_kernel,
                cells,
                self.device,
                self.dtype,
                separate,
            )
            for view, pooled, cells in zip(views, scaling, cell_mass, strict=True)
        )
        self.held = np.column_stack([view.held for view in self.views])

    @property
    def n_views(self) -> int:
        """Number of views, held or not."""
        return len(self.views)
