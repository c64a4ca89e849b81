"""Sums in which one record counts at most 1: what protected runs send, and the way back.

Masks and noise need to know beforehand how large a sum can be. Declared bounds make that possible:
a value x of a column with bounds [low, high] enters as its place between them, so each number of a
vector changes by at most 1 when one record comes or goes. Both sides use this module: sites pack,
the server unpacks sums over sites. Shapes: R starts, c clusters, s views, view h with d_h columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategies.statistics import Floats, Moments, SufficientStatistics, ViewScaling

__all__ = [
    "FinalFigures",
    "HeatKernelUnits",
    "SurveyedView",
    "declared_scaling",
    "pack_figures",
    "pack_survey",
    "split",
    "survey_size",
    "unpack_figures",
    "unpack_survey",
]

#: Below this share of what a column's bounds allow its variance is rounding.
_CONSTANT = 1e-12


def split(vector: Floats, sizes: Sequence[int]) -> list[Floats]:
    """Cut a vector into blocks of these sizes.

    Raises
    ------
    ValueError
        Where the sizes do not add up to its length.
    """
    if vector.shape != (sum(sizes),):
        raise ValueError(f"a vector of shape {vector.shape} has no blocks of {list(sizes)} numbers")
    return np.split(vector, np.cumsum(sizes)[:-1])


def declared_scaling(bounds: Floats, heat_kernel: str) -> ViewScaling:
    """Scale a view by its declared bounds (d_h, 2), which no record can change.

    The heat-kernel coefficient of ``absdev`` (Eq. 2) is taken around the bounds' middle.
    """
    low, high = bounds[:, 0], bounds[:, 1]
    zeros, ones = np.zeros_like(low), np.ones_like(low)
    middle = ones / 2 if heat_kernel == "absdev" else zeros
    return ViewScaling(low, high - low, middle, ones)


@dataclass(frozen=True)
class SurveyedView:
    """Counts of a view over all sites, and the moments of its columns."""

    holding: float
    partly_missing: float
    moments: Moments


def survey_size(dims: Sequence[int]) -> int:
    """Length of a packed survey."""
    return 1 + 2 * len(dims) + 3 * sum(dims)


def pack_survey(n_rows: int, views: Sequence[SurveyedView], bounds: Sequence[Floats]) -> Floats:
    """Pack rows, counts of each view and, a column, ``count``, ``sum t`` and ``sum t^2``.

    ``t`` in [-1, 1] is a value's place between its declared bounds.
    """
    parts = [
        np.array([float(n_rows)]),
        np.array([v.holding for v in views], dtype=np.float64),
        np.array([v.partly_missing for v in views], dtype=np.float64),
    ]
    for view, declared in zip(views, bounds, strict=True):
        middle, half = _middle_and_half(declared)
        m = view.moments
        t = np.where(m.count > 0, (m.mean - middle) / half, 0.0)
        parts += [m.count, m.count * t, m.m2 / half**2 + m.count * t**2]
    return np.concatenate(parts)


def unpack_survey(total: Floats, bounds: Sequence[Floats]) -> tuple[int, list[SurveyedView]]:
    """Return rows and views of a sum of packed surveys.

    Extremes are the declared bounds, but for a column of one value: there they are that value.
    """
    dims = [len(declared) for declared in bounds]
    s = len(dims)
    rows, holding, partly, *columns = split(
        total, [1, s, s, *(size for d in dims for size in (d, d, d))]
    )
    views = []
    for h, declared in enumerate(bounds):
        count, linear, square = columns[3 * h : 3 * h + 3]
        count = np.rint(count)
        middle, half = _middle_and_half(declared)
        safe = np.maximum(count, 1.0)
        m2 = np.maximum(square - linear**2 / safe, 0.0)
        m2 = np.where(m2 <= _CONSTANT * safe, 0.0, m2)
        mean = np.where(count > 0, middle + half * linear / safe, 0.0)
        moments = Moments(
            count,
            mean,
            half**2 * m2,
            np.where(m2 > 0, declared[:, 0], mean),
            np.where(m2 > 0, declared[:, 1], mean),
        )
        views.append(SurveyedView(round(float(holding[h])), round(float(partly[h])), moments))
    return round(float(rows[0])), views


def _middle_and_half(declared: Floats) -> tuple[Floats, Floats]:
    return declared.mean(axis=1), (declared[:, 1] - declared[:, 0]) / 2.0


class HeatKernelUnits:
    """Packs the sums of heat-kernel passes, and unpacks their sums over sites.

    Parameters
    ----------
    scaling : sequence of ViewScaling
    bounds : sequence of ndarray of shape (d_h, 2)
        Declared, in the data's units.
    heat_kernel : {"minmax", "absdev", "one"}
    cell_mass : sequence of bool
        Whether a view's mass is one number a column (else one a cluster).
    imputed : bool
        No record misses a part of a view, so coefficients are never stretched over missing cells.
    """

    def __init__(
        self,
        scaling: Sequence[ViewScaling],
        bounds: Sequence[Floats],
        heat_kernel: str,
        cell_mass: Sequence[bool],
        *,
        imputed: bool,
    ) -> None:
        self.cell_mass = tuple(cell_mass)
        self.low = tuple(
            (b[:, 0] - v.offset) / v.scale for b, v in zip(bounds, scaling, strict=True)
        )
        self.high = tuple(
            (b[:, 1] - v.offset) / v.scale for b, v in zip(bounds, scaling, strict=True)
        )
        self._coefficient = []
        for low, high, view, by_cell in zip(self.low, self.high, scaling, cell_mass, strict=True):
            most = np.ones_like(low)
            if heat_kernel == "absdev":
                most = np.maximum(np.abs(low - view.delta_a), np.abs(high - view.delta_a))
                most = np.maximum(most / view.delta_b, 1.0)
            if by_cell and not imputed:
                most = most * low.shape[0]  # all of a record's weight may be on one cell
            self._coefficient.append(most if by_cell else most.max(keepdims=True))

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns d_h of each view."""
        return tuple(len(low) for low in self.low)

    def sizes(self, n_starts: int, n_clusters: int) -> list[int]:
        """Lengths of the blocks of packed statistics: numerators, masses, dispersion."""
        each = n_starts * n_clusters
        masses = [
            each * (d if by_cell else 1)
            for d, by_cell in zip(self.dims, self.cell_mass, strict=True)
        ]
        return [*(each * d for d in self.dims), *masses, n_starts * len(self.dims)]

    def place(self, h: int, values: Floats) -> Floats:
        """Return the place of scaled values of view h between its bounds: -1/2 low, 1/2 high."""
        middle, span, _ = self._view(h)
        return np.asarray((values - middle) / span)

    def value(self, h: int, place: Floats) -> Floats:
        """Return the scaled values that places stand for."""
        middle, span, _ = self._view(h)
        return np.asarray(middle + span * place)

    def pack(self, sums: SufficientStatistics) -> Floats:
        """Pack sums: ``(N - middle W) / span`` and ``W``, over the largest coefficient, and ``Q``.

        With values scaled to [0, 1] the first is ``N - W/2``.
        """
        numerators, masses = [], []
        for h, (numerator, mass) in enumerate(zip(sums.numerator, sums.mass, strict=True)):
            middle, span, most = self._view(h)
            weight = mass if self.cell_mass[h] else mass[..., None]
            numerators.append(((numerator - middle * weight) / (span * most)).ravel())
            masses.append((mass / (most if self.cell_mass[h] else most[0])).ravel())
        return np.concatenate([*numerators, *masses, sums.dispersion.ravel()])

    def unpack(self, total: Floats, n_starts: int, n_clusters: int) -> SufficientStatistics:
        """Return the statistics of a sum of packed ones."""
        s = len(self.dims)
        blocks = split(total, self.sizes(n_starts, n_clusters))
        numerators, masses = [], []
        for h, d in enumerate(self.dims):
            middle, span, most = self._view(h)
            shape = (n_starts, n_clusters, d)
            by_cell = self.cell_mass[h]
            mass = blocks[s + h].reshape(shape if by_cell else shape[:2])
            mass = mass * (most if by_cell else most[0])
            weight = mass if by_cell else mass[..., None]
            numerators.append(blocks[h].reshape(shape) * (span * most) + middle * weight)
            masses.append(mass)
        dispersion = blocks[-1].reshape(n_starts, s)
        return SufficientStatistics(tuple(numerators), tuple(masses), dispersion)

    def pack_spread(self, sums: Sequence[Floats]) -> Floats:
        """Pack delta-weighted sums (3, d_h) of each view (see `SeedReply`)."""
        parts = []
        for h, (square, linear, weight) in enumerate(sums):
            middle, span, most = self._view(h)
            half = span / 2.0
            first = (linear - middle * weight) / half
            second = (square - 2.0 * middle * linear + middle**2 * weight) / half**2
            parts += [second / most, first / most, weight / most]
        return np.concatenate(parts)

    def unpack_spread(self, total: Floats) -> list[Floats]:
        """Return the delta-weighted sums (3, d_h) of each view from a sum of packed ones."""
        blocks = split(total, [size for d in self.dims for size in (d, d, d)])
        found = []
        for h in range(len(self.dims)):
            middle, span, most = self._view(h)
            half = span / 2.0
            second, first, weight = (block * most for block in blocks[3 * h : 3 * h + 3])
            linear = half * first + middle * weight
            square = half**2 * second + 2.0 * middle * half * first + middle**2 * weight
            found.append(np.stack([square, linear, weight]))
        return found

    def _view(self, h: int) -> tuple[Floats, Floats, Floats]:
        """Middle and width of the scaled bounds, and the largest coefficient, of view h."""
        low, high = self.low[h], self.high[h]
        return (low + high) / 2.0, high - low, self._coefficient[h]


@dataclass(frozen=True)
class FinalFigures:
    """Sums over records at the final model.

    ``sizes`` (c,) sums memberships, ``coefficient`` their squares, ``dispersion`` (s,) is Q.
    """

    n_rows: int
    sizes: Floats
    dispersion: Floats
    coefficient: float


def pack_figures(figures: FinalFigures) -> Floats:
    """Pack final figures; each is at most 1 a record."""
    return np.concatenate(
        [
            [float(figures.n_rows)],
            figures.sizes,
            figures.dispersion,
            [figures.coefficient],
        ]
    )


def unpack_figures(total: Floats, n_clusters: int, n_views: int) -> FinalFigures:
    """Return the final figures of a sum of packed ones."""
    rows, sizes, dispersion, coefficient = split(total, [1, n_clusters, n_views, 1])
    return FinalFigures(
        round(float(rows[0])),
        np.maximum(sizes, 0.0),
        np.maximum(dispersion, 0.0),
        float(coefficient[0]),
    )
