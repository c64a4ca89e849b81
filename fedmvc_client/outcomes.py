"""What a run leaves at a site, by method. None of it leaves the site again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.messages import ClusterModel, FeatureSelection

__all__ = ["Outcome", "SelectionResult", "SiteResult", "VerticalResult"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SiteResult:
    """What a run leaves at the site and nowhere else.

    ``membership`` is (n, c); ``labels`` (n,) is its largest entry's cluster; ``personal_model`` is
    the blend of Eqs. 63-64.
    """

    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    membership: Floats
    model: ClusterModel
    personal_model: ClusterModel


@dataclass(frozen=True)
class VerticalResult:
    """What a vertical run leaves at the site and nowhere else.

    Row i belongs to ``ids[i]``, all (n,) labels are in 0..K-1, -1 where there is none: ``labels``
    of the run, ``vote_labels`` of the aligned majority vote without the tensor term, both for rows
    that all sites hold, and ``view_labels``, what the site's own view says alone. Nobody has a
    model of the patients' data, so ``model`` and ``personal_model`` are None.
    """

    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    vote_labels: NDArray[np.int64]
    view_labels: NDArray[np.int64]
    n_clusters: int

    @property
    def model(self) -> None:
        """None: labels need no model."""

    @property
    def personal_model(self) -> None:
        """None, as `model`."""

    @property
    def membership(self) -> Floats:
        """Membership (n, K): 1 in the row's cluster, a row of 0 where it has no label."""
        return crisp(self.labels, self.n_clusters)


@dataclass(frozen=True)
class SelectionResult:
    """What a Fed-MUFSHT run leaves at the site.

    ``labels`` (n,) are the site's own consensus clusters in 0..K-1, -1 for a record without any
    observed cell: their numbers mean nothing at another site, and they stay here. ``selection`` is
    the published result. There is no model of clusters, so ``model`` and ``personal_model`` are
    None.
    """

    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    selection: FeatureSelection
    n_clusters: int

    @property
    def model(self) -> None:
        """None: a selection has features and no centres."""

    @property
    def personal_model(self) -> None:
        """None, as `model`."""

    @property
    def membership(self) -> Floats:
        """Membership (n, K): 1 in the row's cluster, a row of 0 where it has no label."""
        return crisp(self.labels, self.n_clusters)


def crisp(labels: NDArray[np.int64], n_clusters: int) -> Floats:
    """Return memberships (n, K) of labels: 1 in the row's cluster, a row of 0 where it has none."""
    return np.asarray(labels[:, None] == np.arange(n_clusters), dtype=np.float64)


Outcome = SiteResult | VerticalResult | SelectionResult
