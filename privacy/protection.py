"""The seam between a site's sums and the messages that carry them away.

The sums of every round of an exact aggregation and of the finish, and all sums of Fed-MUFSHT, pass
a :class:`Protection` before they leave. What a FedHK-MVFC site sends before round 1 (counts,
moments, proposed centres, spread sums), the local models of its averaging aggregations, and the NMI
of a Fed-MUFSHT site do not. Today there is one protection, which changes nothing.
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
            Never the same for two sums of a run. FedHK-MVFC: number of the round, 0 for the finish.
            Fed-MUFSHT: 1 survey, 2 scale, 2 + the round's number, 3 + max_rounds refine.
        sums : sequence of ndarray
            FedHK-MVFC, a round: numerators, masses, dispersion (see `SufficientStatistics`). The
            finish: mean membership (c,), dispersion (s,), partition coefficient (1,). Fed-MUFSHT:
            see `SurveyReply`, `ScalingReply`, `ShareReply`, `RefineReply`.
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
