"""Sufficient statistics of a heat-kernel pass and the updates that follow from their sums.

A site computes one :class:`SufficientStatistics` per pass; their sum over sites is all that the
next centres (the stationary point of Eq. 47, heat-kernel coefficient kept), the next view weights
(Eq. 10) and the objective (Eq. 6) need. Shapes: R starts, c clusters, s views, view h with d_h
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Below this weight a centre coordinate has no record behind it and keeps its old value.
MASS_FLOOR = 1e-300


@dataclass(frozen=True)
class ViewScaling:
    """Pooled scaling and heat-kernel coefficients of one view.

    ``x = (raw - offset) / scale``. The heat-kernel coefficient of a scaled value is
    ``clip((x - delta_a) / delta_b, 0, 1)`` for kernel ``minmax`` (Eq. 1),
    ``|x - delta_a| / delta_b`` for ``absdev`` (Eq. 2) and ``1 / delta_b`` for ``one``.
    ``delta_b = inf`` marks a constant column: its coefficient is 0, so it has no effect.

    Parameters
    ----------
    offset, scale, delta_a, delta_b : ndarray of shape (d_h,), float64
    """

    offset: Floats
    scale: Floats
    delta_a: Floats
    delta_b: Floats


@dataclass(frozen=True)
class SufficientStatistics:
    """Sums over records of one heat-kernel pass, in scaled units.

    Parameters
    ----------
    numerator : tuple of ndarray of shape (R, c, d_h)
        ``sum_i u_ik^m exp(-phi_ik) delta_ij x_ij``.
    mass : tuple of ndarray of shape (R, c, d_h) or (R, c)
        ``sum_i u_ik^m exp(-phi_ik) delta_ij``; one number a cluster where every column of the
        view has the same coefficient.
    dispersion : ndarray of shape (R, s)
        ``Q_h = sum_ik u_ik^m D^h_ik``, not yet divided by the share of records holding the view.
    """

    numerator: tuple[Floats, ...]
    mass: tuple[Floats, ...]
    dispersion: Floats

    def __add__(self, other: SufficientStatistics) -> SufficientStatistics:
        """Add the sums of two disjoint sets of records."""
        return SufficientStatistics(
            tuple(a + b for a, b in zip(self.numerator, other.numerator, strict=True)),
            tuple(a + b for a, b in zip(self.mass, other.mass, strict=True)),
            self.dispersion + other.dispersion,
        )

    def next_centers(self, previous: Sequence[Floats]) -> tuple[Floats, ...]:
        """Centre update ``a_kj = N_kj / W_kj`` (Eq. 47 with delta kept).

        Parameters
        ----------
        previous : sequence of ndarray of shape (R, c, d_h)
            Kept where no record has weight.
        """
        centers = []
        for numerator, mass, old in zip(self.numerator, self.mass, previous, strict=True):
            weight = mass if mass.ndim == numerator.ndim else mass[..., None]
            weight = np.broadcast_to(weight, numerator.shape)
            populated = weight > MASS_FLOOR
            new = np.array(old, dtype=np.float64)
            np.divide(numerator, weight, out=new, where=populated)
            centers.append(new)
        return tuple(centers)

    def next_view_weights(
        self, holding_share: Floats, view_exponent: float, active: NDArray[np.bool_]
    ) -> Floats:
        """View-weight update ``v_h ~ (Q_h / pi_h)^(-1/(alpha-1))`` (Eq. 10) as a softmax of logs.

        Parameters
        ----------
        holding_share : ndarray of shape (s,)
            pi_h, the share of records that hold view h.
        view_exponent : float
            alpha > 1.
        active : ndarray of shape (s,), bool
            Views that vary at all; the others get weight 0.

        Returns
        -------
        ndarray of shape (R, s)
            Rows on the simplex. Where every active dispersion is 0 the weights are equal.
        """
        if not active.any():
            return np.full(self.dispersion.shape, 1.0 / active.shape[0])
        dispersion = np.where(active, self.dispersion / holding_share, 1.0)
        with np.errstate(divide="ignore"):
            logits = -np.log(np.maximum(dispersion, np.finfo(np.float64).tiny)) / (
                view_exponent - 1.0
            )
        logits = np.where(active, logits, -np.inf)
        logits = logits - logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def objective(
        self, view_weights: Floats, holding_share: Floats, view_exponent: float
    ) -> Floats:
        """Objective ``J = sum_h v_h^alpha Q_h / pi_h`` (Eq. 6) of each start, shape (R,)."""
        return np.asarray(
            (view_weights**view_exponent * self.dispersion / holding_share).sum(axis=1)
        )


def pooled(parts: Sequence[SufficientStatistics]) -> SufficientStatistics:
    """Sum the statistics of several sites in the order given; name order keeps it reproducible."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@dataclass(frozen=True)
class Moments:
    """Count, mean, centred sum of squares and range of each column; missing cells left out.

    Parameters
    ----------
    count, mean, m2, minimum, maximum : ndarray of shape (d_h,), float64
        A column without an observed cell has count, mean, m2, minimum and maximum 0.
    """

    count: Floats
    mean: Floats
    m2: Floats
    minimum: Floats
    maximum: Floats

    @classmethod
    def of(cls, values: Floats) -> Moments:
        """Moments of the finite cells of ``values``, shape (n, d_h)."""
        observed = np.isfinite(values)
        count = observed.sum(axis=0).astype(np.float64)
        safe = np.maximum(count, 1.0)
        mean = np.where(observed, values, 0.0).sum(axis=0) / safe
        residual = np.where(observed, values - mean, 0.0)
        mean = mean + residual.sum(axis=0) / safe
        m2 = (np.where(observed, values - mean, 0.0) ** 2).sum(axis=0)
        empty = count == 0
        low = np.where(observed, values, np.inf).min(axis=0, initial=np.inf)
        high = np.where(observed, values, -np.inf).max(axis=0, initial=-np.inf)
        return cls(count, mean, m2, np.where(empty, 0.0, low), np.where(empty, 0.0, high))

    @classmethod
    def pool(cls, parts: Sequence[Moments]) -> Moments:
        """Pool the moments of disjoint sets of records (Chan, Golub and LeVeque 1983).

        The pooled variance weighs sites by their records and keeps the spread between sites, which
        the mean of site variances (Eqs. 69-70) loses.
        """
        count = np.sum([p.count for p in parts], axis=0)
        safe = np.maximum(count, 1.0)
        first = parts[0].mean
        mean = first + np.sum([p.count * (p.mean - first) for p in parts], axis=0) / safe
        m2 = np.sum([p.m2 + p.count * (p.mean - mean) ** 2 for p in parts], axis=0)
        low = np.min([np.where(p.count > 0, p.minimum, np.inf) for p in parts], axis=0)
        high = np.max([np.where(p.count > 0, p.maximum, -np.inf) for p in parts], axis=0)
        empty = count == 0
        return cls(
            count,
            np.where(empty, 0.0, mean),
            m2,
            np.where(empty, 0.0, low),
            np.where(empty, 0.0, high),
        )

    @property
    def variance(self) -> Floats:
        """Population variance of each column (divisor n)."""
        return np.asarray(self.m2 / np.maximum(self.count, 1.0))
