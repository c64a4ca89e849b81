"""HK-MVFC written the slow, obvious way: loops over starts and views, full broadcast arrays.

Beside the fast kernel of ``fedmvc_client.solvers`` this is what the tests believe in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategies.messages import SufficientStatistics, ViewScaling


def pooled_scaling(raw: np.ndarray, scaling: str, heat_kernel: str) -> ViewScaling:
    """Scaling of one view from its observed values (all sites' records in one array)."""
    low, high = np.nanmin(raw, axis=0), np.nanmax(raw, axis=0)
    constant = high == low
    offset, scale = np.zeros_like(low), np.ones_like(low)
    if scaling == "minmax":
        offset, scale = low, np.where(constant, 1.0, high - low)
    elif scaling == "standard":
        offset, scale = np.nanmean(raw, axis=0), np.nanstd(raw, axis=0)
        scale = np.where(constant, 1.0, scale)
    scaled = (raw - offset) / scale
    if heat_kernel == "minmax":
        delta_a = np.nanmin(scaled, axis=0)
        delta_b = np.nanmax(scaled, axis=0) - delta_a
    else:
        delta_a = np.nanmean(scaled, axis=0)
        delta_b = np.ones_like(low)
    return ViewScaling(offset, scale, delta_a, np.where(constant, np.inf, delta_b))


def coefficients(scaled: np.ndarray, view: ViewScaling, heat_kernel: str) -> np.ndarray:
    """Heat-kernel coefficient of every cell (Eqs. 1, 2), missing cells by the partial distance."""
    observed = ~np.isnan(scaled)
    distance = np.where(observed, scaled - view.delta_a, 0.0)
    if heat_kernel == "minmax":
        delta = np.clip(distance / view.delta_b, 0.0, 1.0)
    elif heat_kernel == "absdev":
        delta = np.abs(distance) / view.delta_b
    else:
        delta = np.broadcast_to(1.0 / view.delta_b, scaled.shape)
    n_observed = np.maximum(observed.sum(axis=1, keepdims=True), 1)
    return np.where(observed, delta * scaled.shape[1] / n_observed, 0.0)


@dataclass
class Reference:
    """One data set with its scaling; the counterpart of ``PreparedViews``."""

    x: list[np.ndarray]
    delta: list[np.ndarray]
    held: np.ndarray
    cell_mass: list[bool]

    @classmethod
    def of(
        cls,
        views: Sequence[np.ndarray],
        scaling: Sequence[ViewScaling],
        heat_kernel: str,
        cell_mass: Sequence[bool],
    ) -> Reference:
        """Scale the views."""
        scaled = [(raw - s.offset) / s.scale for raw, s in zip(views, scaling, strict=True)]
        delta = [coefficients(x, s, heat_kernel) for x, s in zip(scaled, scaling, strict=True)]
        held = np.column_stack([~np.isnan(x).all(axis=1) for x in scaled])
        return cls([np.nan_to_num(x) for x in scaled], delta, held, list(cell_mass))

    def exponent(self, h, centers, bandwidth):
        """Exponent phi of one view and start, (n, c), by the (n, c, d) broadcast."""
        difference = self.x[h][:, None, :] - centers[None]
        return bandwidth * (self.delta[h][:, None, :] * difference**2).sum(axis=2)

    def memberships(self, centers, v, bandwidth, share, m, alpha):
        """U (n, c) of one start (Eq. 8)."""
        s = np.zeros((len(self.held), len(centers[0])))
        for h in range(len(self.x)):
            distance = -np.expm1(-self.exponent(h, centers[h], bandwidth[h]))
            s += np.where(self.held[:, [h]], v[h] ** alpha / share[h] * distance, 0.0)
        logits = -np.log(np.maximum(s, 1e-15)) / (m - 1.0)
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def statistics(self, centers, v, bandwidth, share, m, alpha) -> SufficientStatistics:
        """All starts: centers per view (R, c, d_h), v and bandwidth (R, s)."""
        n_starts, n_clusters = centers[0].shape[:2]
        numerator = [np.zeros_like(a) for a in centers]
        mass = [np.zeros_like(a) for a in centers]
        dispersion = np.zeros((n_starts, len(self.x)))
        for r in range(n_starts):
            own = [a[r] for a in centers]
            u = self.memberships(own, v[r], bandwidth[r], share, m, alpha)
            for h, x in enumerate(self.x):
                phi = self.exponent(h, own[h], bandwidth[r, h])
                um = u**m * self.held[:, [h]]
                dispersion[r, h] = (um * -np.expm1(-phi)).sum()
                g = um * np.exp(-phi)
                delta = self.delta[h] if self.cell_mass[h] else np.ones_like(x)
                for k in range(n_clusters):
                    numerator[h][r, k] = (g[:, [k]] * delta * x).sum(axis=0)
                    mass[h][r, k] = (g[:, [k]] * delta).sum(axis=0)
        mass = [w if cells else w[..., 0] for w, cells in zip(mass, self.cell_mass, strict=True)]
        return SufficientStatistics(tuple(numerator), tuple(mass), dispersion)

    def plain_centers(self, centers, v, bandwidth, share, m, alpha):
        """Apply the printed centre update (Eq. 48), which lost delta: sum g x / sum g."""
        out = []
        u = self.memberships(centers, v, bandwidth, share, m, alpha)
        for h, x in enumerate(self.x):
            g = u**m * np.exp(-self.exponent(h, centers[h], bandwidth[h]))
            out.append((g.T @ x) / g.sum(axis=0)[:, None])
        return out
