"""The seam between a site's sums and the messages that carry them away.

The sums of every round of an exact aggregation and of the finish pass a :class:`Protection` before
they leave. What a site sends before round 1 (counts, moments, proposed centres, spread sums) and
the local models of the averaging aggregations do not. Today there is one protection, which changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from configs.plan import RunPlan

Floats = NDArray[np.float64]


class Protection(Protocol):
    """What is done to the sums of one exchange before they leave."""

    def protect(self, exchange: int, sums: Sequence[Floats]) -> tuple[Floats, ...]:
        """Return what may leave in place of ``sums``, same shapes.

        Parameters
        ----------
        exchange : int
            Number of the round; 0 for the finish.
        sums : sequence of ndarray
            A round: numerators, masses, dispersion (see `SufficientStatistics`). The finish: mean
            membership (c,), dispersion (s,), partition coefficient (1,).
        """
        ...


class Plain:
    """No protection: the server sees each site's sums."""

    def protect(self, exchange: int, sums: Sequence[Floats]) -> tuple[Floats, ...]:
        """Return the sums as they are."""
        return tuple(sums)


def protection_for(plan: RunPlan) -> Protection:
    """Return the protection that a plan asks for (plans that ask for more are refused earlier)."""
    return Plain()


def plain_certificate(participants: Sequence[str], bounds: str) -> dict[str, Any]:
    """Say what an unprotected run guarantees, which is nothing beyond keeping records at home.

    Parameters
    ----------
    participants : sequence of str
        Sites of the run.
    bounds : str
        Where the scaling's extremes come from.
    """
    return {
        "relation": None,
        "unit": None,
        "mechanism": "none",
        "sigma": None,
        "sensitivity": None,
        "exchanges": None,
        "epsilon": None,
        "epsilon_if_others_collude": None,
        "delta": None,
        "accountant": None,
        "noise": None,
        "participants": list(participants),
        "tolerated_dropouts": None,
        "colluders": None,
        "threshold": None,
        "bounds": bounds,
        "assumptions": "the server is trusted with each site's sums over its records",
        "not_covered": "no differential privacy and no secure aggregation: sums, counts, extremes "
        "and the centres proposed at the start can tell something about single records",
    }
