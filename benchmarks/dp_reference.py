"""What each record adds to the sums of FedHK-MVFC, written the slow obvious way (numpy, loops)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.sensitivity import HeatKernel

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """What the sites are sent in a round, and the plan's settings.

    Attributes
    ----------
    centers : sequence of ndarray of shape (c, d_h)
    view_weights : ndarray of shape (s,)
    heat_kernel : {"minmax", "absdev", "one"}
    fuzzifier, view_exponent : float
        m and alpha, above 1.
    bandwidth : float
        beta.
    """

    centers: Sequence[Floats]
    view_weights: Floats
    heat_kernel: HeatKernel
    fuzzifier: float = 2.0
    view_exponent: float = 2.0
    bandwidth: float = 1.0

    @property
    def n_clusters(self) -> int:
        """Number c of clusters."""
        return self.centers[0].shape[0]

    def coefficients(self, view: Floats) -> Floats:
        """Heat-kernel coefficients (n, d_h) of values in [0, 1]."""
        if self.heat_kernel == "minmax":
            return view
        return np.abs(view - 0.5) if self.heat_kernel == "absdev" else np.ones_like(view)

    def distances(self, views: Sequence[Floats]) -> list[Floats]:
        """Weighted squared distances phi (n, c) of each view."""
        found = []
        for view, centers in zip(views, self.centers, strict=True):
            phi = np.zeros((view.shape[0], self.n_clusters))
            for k in range(self.n_clusters):
                for j in range(view.shape[1]):
                    coefficient = self.coefficients(view)[:, j]
                    phi[:, k] += coefficient * (view[:, j] - centers[k, j]) ** 2
            found.append(self.bandwidth * phi)
        return found

    def memberships(self, views: Sequence[Floats], holding_share: Sequence[float] = ()) -> Floats:
        """Memberships (n, c); ``holding_share`` holds pi_h where it is not 1."""
        shares = holding_share or [1.0] * len(views)
        total = np.zeros((views[0].shape[0], self.n_clusters))
        for phi, weight, share in zip(
            self.distances(views), self.view_weights, shares, strict=True
        ):
            total += weight**self.view_exponent * -np.expm1(-phi) / share
        logits = -np.log(np.maximum(total, 1e-15)) / (self.fuzzifier - 1)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def record_terms(
    views: Sequence[Floats], model: Model, holding_share: Sequence[float] = ()
) -> Floats:
    """Return what each record adds to N - W/2, W and Q, in the order of `heat_kernel_blocks`.

    Parameters
    ----------
    views : sequence of ndarray of shape (n, d_h)
        In [0, 1].
    model : Model
    holding_share : sequence of float, optional
        pi_h.

    Returns
    -------
    ndarray of shape (n, k)
    """
    power = model.memberships(views, holding_share) ** model.fuzzifier
    numerators, masses, dispersions = [], [], []
    for view, phi in zip(views, model.distances(views), strict=True):
        weight = power * np.exp(-phi)
        coefficients = model.coefficients(view)
        for k in range(model.n_clusters):
            for j in range(view.shape[1]):
                numerators.append(weight[:, k] * coefficients[:, j] * (view[:, j] - 0.5))
                if model.heat_kernel != "one":
                    masses.append(weight[:, k] * coefficients[:, j])
            if model.heat_kernel == "one":
                masses.append(weight[:, k])
        dispersions.append((power * -np.expm1(-phi)).sum(axis=1))
    return np.column_stack([*numerators, *masses, *dispersions])
