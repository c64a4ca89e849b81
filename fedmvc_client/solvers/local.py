"""Several (U, V, A) iterations on the records of one site alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmvc_client.solvers.heat_kernel import heat_kernel_pass
from fedmvc_client.solvers.views import PreparedViews
from strategies.messages import SufficientStatistics

Floats = NDArray[np.float64]


def local_iterations(
    prepared: PreparedViews,
    centers: Sequence[Floats],
    view_weights: Floats,
    n_iterations: int,
    *,
    bandwidth: Floats,
    holding_share: Floats,
    fuzzifier: float,
    view_exponent: float,
    active: NDArray[np.bool_],
) -> tuple[tuple[Floats, ...], Floats, SufficientStatistics]:
    """Run passes of memberships, view weights and centres, each from one evaluation of phi.

    Parameters
    ----------
    prepared : PreparedViews
    centers : sequence of ndarray of shape (R, c, d_h)
    view_weights : ndarray of shape (R, s)
    n_iterations : int
        At least 1.
    bandwidth, holding_share, fuzzifier, view_exponent
        As in :func:`fedmvc_client.solvers.heat_kernel.heat_kernel_pass`.
    active : ndarray of shape (s,), bool
        Views that vary at all; the others keep weight 0.

    Returns
    -------
    centers : tuple of ndarray of shape (R, c, d_h)
    view_weights : ndarray of shape (R, s)
    first : SufficientStatistics
        Of the first pass: its objective belongs to the centres and weights given.

    Raises
    ------
    ValueError
        If ``n_iterations`` is below 1.
    """
    if n_iterations < 1:
        raise ValueError(f"n_iterations={n_iterations} must be >= 1")
    first: SufficientStatistics | None = None
    current = tuple(np.asarray(view, dtype=np.float64) for view in centers)
    for _ in range(n_iterations):
        sums = heat_kernel_pass(
            prepared,
            current,
            view_weights,
            bandwidth=bandwidth,
            holding_share=holding_share,
            fuzzifier=fuzzifier,
            view_exponent=view_exponent,
        )
        first = first or sums
        view_weights = sums.next_view_weights(holding_share, view_exponent, active)
        current = sums.next_centers(current)
    assert first is not None
    return current, view_weights, first
