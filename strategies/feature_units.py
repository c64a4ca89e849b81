"""Sums of a selection as masks carry them: each number as a share of the bound that it keeps to.

Masks need to know beforehand how large a site's number can be. A number x, |x| <= b, travels as
``max_rows x / b``: none is then above ``max_rows``, and counts of records travel as they are. With
n participants at most ``a = n max_rows`` records take part. The bounds b:

- A value's place between its declared bounds is in [-1, 1], and its distance from an origin between
  them at most their width. Cells of text are at most 1: documents have unit length.
- gamma and gamma times a view weight are at most 1.
- The pooled spread makes the squares of all sites' prepared cells add up to the N cells of a
  feature (for text on average), and a site divides its own by its m records:
  ``||X_v||^2 <= d_v N / m <= d_v a``. As ``Z_v Z_v' = I``, imputed cells have at most the norm of
  W_v, and a weight step mixes ``(X_v + E_v) Z_v'`` with ``(I - Q_v / 2) W_v`` (0 <= Q_v <= 2I) and
  shrinks the mixture, so a sweep adds at most ``||X_v||^2`` to ``||W_v||^2``. Over S sweeps in each
  of T rounds that is ``S T d_v N / m``: sites of at least S T records keep ``||W_v||^2 <= d_v a``,
  and so does any site where nothing is missing. A search keeps to [-1, 1] and stays far below.
- With these norms the terms of F (`fedmvc_client.solvers.tensor_learning`) are at most ``6 a`` for
  all fits together, ``(mu + 2 lam + beta) a`` a view for the penalties, and ``4 tau + 1`` a view
  for consensus and entropy.

A site checks what it gets and what it sends: a bound that does not hold costs it its part, no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from strategies.statistics import Floats
from strategies.unit_sums import split

if TYPE_CHECKING:  # the ClientApp speaks messages, and starts too often to load a plan's validation
    from configs.plan import RunPlan

__all__ = ["FeatureUnits"]

#: Below this share of what a column's bounds allow its variance is rounding.
_CONSTANT = 1e-12
#: A feature with less weight behind it than this cannot be divided by it: the grid is too coarse.
_LEAST_MASS = 1e-6


class FeatureUnits:
    """Packs the sums of one site, and unpacks their sums over sites.

    Parameters
    ----------
    plan : RunPlan
        With secure aggregation and without noise.
    bounds : sequence of ndarray of shape (d_v, 2)
        Declared; those of text count for nothing.

    Attributes
    ----------
    dims : tuple of int
        d_v.
    survey_sizes, scaling_sizes, share_sizes : list of int
        Lengths of the blocks of packed `SurveyReply`, `ScalingReply` and `ShareReply`.
    weight_bounds : ndarray of shape (V,)
        Largest norm of a view's weights.
    """

    def __init__(self, plan: RunPlan, bounds: Sequence[Floats]) -> None:
        settings = plan.mufsht_settings()
        self.dims = tuple(len(declared) for declared in bounds)
        d, v, self._k = sum(self.dims), len(self.dims), plan.n_clusters
        self._most = float(plan.privacy.max_rows)
        self._middle, self._half, self._width = np.zeros(d), np.ones(d), np.ones(d)
        if not settings.text:
            low, high = np.concatenate(list(bounds)).T
            self._middle, self._width = (low + high) / 2.0, high - low
            self._half = self._width / 2.0
        self._resolution = 0.0 if settings.text else _CONSTANT
        self.survey_sizes = [1, v, d, d, d, v]
        self.scaling_sizes = [d, d]
        self.share_sizes = [d * self._k, d, v, v, 1]
        records = self._most * len(plan.privacy.participants)
        self.weight_bounds: Floats = np.sqrt(np.array(self.dims) * records)
        penalties = settings.mu + 2.0 * settings.lam + settings.beta
        objective = records * (6.0 + v * penalties) + v * (4.0 * settings.tau + 1.0)
        self._share_bounds = (
            np.repeat(self.weight_bounds, self.dims)[:, None],
            np.ones(d),
            np.ones(v),
            self.weight_bounds,
            np.array([objective]),
        )

    def pack_survey(self, sums: Sequence[Floats]) -> Floats:
        """Pack the sums of a `SurveyReply`."""
        rows, holding, count, exposed, first, fractional = sums
        places = np.clip((first - count * self._middle) / self._half, -count, count)
        return np.concatenate([rows, holding, count, exposed, places, fractional])

    def unpack_survey(self, total: Floats) -> tuple[Floats, ...]:
        """Return the summed `SurveyReply`; counts are whole steps of the grid and stay exact."""
        rows, holding, count, exposed, places, fractional = split(total, self.survey_sizes)
        first = count * self._middle + self._half * np.clip(places, -count, count)
        return rows, holding, count, exposed, first, fractional

    def pack_scaling(self, sums: Sequence[Floats]) -> Floats:
        """Pack the sums of a `ScalingReply`."""
        total, squares = sums
        return np.concatenate([total / self._width, squares / self._width**2])

    def unpack_scaling(self, total: Floats, count: Floats) -> tuple[Floats, Floats]:
        """Return the summed `ScalingReply`.

        A column whose standard deviation is below a millionth of its width becomes constant: its
        variance would be what the grid rounds off.

        Parameters
        ----------
        total : ndarray
            A sum of packed ones.
        count : ndarray of shape (D,)
            Observed cells over all sites.
        """
        linear, squares = split(total, self.scaling_sizes)
        seen = np.maximum(count, 1.0)
        least = linear**2 / seen
        squares = np.where(squares - least <= self._resolution * seen, least, squares)
        return linear * self._width, squares * self._width**2

    def pack_share(self, sums: Sequence[Floats]) -> Floats:
        """Pack the sums of a `ShareReply`."""
        parts = zip(sums, self._share_bounds, strict=True)
        return np.concatenate([(self._most / bound * part).ravel() for part, bound in parts])

    def unpack_share(self, total: Floats) -> tuple[Floats, ...]:
        """Return the summed `ShareReply`; a feature with hardly any weight behind it has none."""
        weights, *others = split(total, self.share_sizes)
        parts = zip((weights.reshape(-1, self._k), *others), self._share_bounds, strict=True)
        weighted, mass, *rest = (bound / self._most * part for part, bound in parts)
        return weighted, np.where(mass < _LEAST_MASS, 0.0, mass), *rest
