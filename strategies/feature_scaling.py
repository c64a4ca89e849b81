"""The scaling of features that all sites of a Fed-MUFSHT run share, from sums that add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.statistics import Floats

__all__ = ["FeatureMoments", "FeatureScaling", "declared_feature_scaling", "feature_scaling"]

#: A variance below this share of the mean square about the origin is rounding ...
_RESOLUTION = 1e-12
#: ... and so is one below this share of the origin's square.
_CELL_RESOLUTION = 1e-28


@dataclass(frozen=True)
class FeatureMoments:
    """Sums over the observed cells of each feature; those of several sites add up.

    Attributes
    ----------
    count, total, squares : ndarray of shape (d,), float64
        Number of cells, sum of ``x - origin`` and sum of ``(x - origin)^2``.
    """

    count: Floats
    total: Floats
    squares: Floats

    def __add__(self, other: FeatureMoments) -> FeatureMoments:
        """Return the moments of both sites' cells."""
        return FeatureMoments(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )


@dataclass(frozen=True)
class FeatureScaling:
    """Pooled centre and spread of each feature.

    Attributes
    ----------
    center, spread : ndarray of shape (d,), float64
        Mean and standard deviation (divisor: the number of cells); one spread for all features of
        text. The spread of a dead feature is 1.
    dead : ndarray of shape (d,), bool
        Features that are constant or never observed: they are 0 once prepared.
    """

    center: Floats
    spread: Floats
    dead: NDArray[np.bool_]


def feature_scaling(
    moments: FeatureMoments, origin: Floats | None = None, *, text: bool = False
) -> FeatureScaling:
    """Turn pooled moments into the scaling that all sites share.

    Parameters
    ----------
    moments : FeatureMoments
        Summed over the sites.
    origin : ndarray of shape (d,), optional
        As given to `feature_moments`.
    text : bool, default False
        One spread for all features: the root mean of their variances, so that ``||X||_F^2 = d``.

    Returns
    -------
    FeatureScaling
    """
    origin = np.zeros_like(moments.total) if origin is None else origin
    count = np.maximum(moments.count, 1.0)
    offset = moments.total / count
    mean_square = moments.squares / count
    variance = mean_square - np.square(offset)
    rounding = _RESOLUTION * mean_square + _CELL_RESOLUTION * np.square(origin)
    dead = variance <= rounding
    variance[dead] = 0.0
    if text and not dead.all():
        variance[:] = variance.mean()
    spread = np.where(dead, 1.0, np.sqrt(variance))
    return FeatureScaling(origin + offset, spread, dead)


def declared_feature_scaling(bounds: Floats) -> FeatureScaling:
    """Scale a view by its declared bounds (d_v, 2) alone, which no record can change.

    Centre and spread are those of values that lie evenly between the bounds; no feature is dead.
    """
    low, high = bounds.T
    dead = np.zeros(len(bounds), dtype=bool)
    return FeatureScaling((low + high) / 2.0, (high - low) / np.sqrt(12.0), dead)
