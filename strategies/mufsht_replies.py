"""What the server demands of the sites' replies in a Fed-MUFSHT run before it uses them.

What is checked of a reply's sums holds for plain runs: masks and noise hide a single site's, and
then the site itself sees to their bounds. The NMI is checked in any run that has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from configs.errors import ProtocolError
from strategies.agreed_views import AgreedViews
from strategies.messages import (
    FitReply,
    RefineReply,
    ScalingReply,
    ShareReply,
    SurveyReply,
)
from strategies.statistics import Floats

__all__ = ["check_quality", "check_refined", "check_scaling", "check_share", "check_survey"]

#: How far a sum of weights may be off by rounding.
_ROUNDING = 1e-9


def _check_shapes(sums: Sequence[Floats], shapes: Sequence[tuple[int, ...]], what: str) -> None:
    if [a.shape for a in sums] != list(shapes):
        raise ProtocolError(f"the {what} do not have the shapes that were asked for")


def check_survey(reply: SurveyReply, views: AgreedViews, *, text: bool) -> None:
    """Refuse counts that do not fit each other; those of ``text`` are documents with the word.

    Raises
    ------
    ProtocolError
    """
    d, v = views.n_columns, len(views.names)
    _check_shapes(reply.sums, [(1,), (v,), (d,), (d,), (d,), (v,)], "counts")
    (rows,), holding, count, exposed, first, fractional = reply.sums
    at_most = np.repeat(holding, views.dims)
    counts = (holding, count, exposed, first) if text else (holding, count, exposed)
    whole = all((a == np.rint(a)).all() and (a >= 0).all() for a in counts)
    fits = (
        whole
        and rows >= 1
        and rows == np.rint(rows)
        and (holding <= rows).all()
        and (count <= at_most).all()
        and (exposed == np.where(count > 0, rows, 0.0)).all()
        and np.isin(fractional, (0.0, 1.0) if text else (0.0,)).all()
        and (not text or (first <= count).all())
    )
    if not fits:
        raise ProtocolError("the counts of its records do not fit each other")


def check_scaling(reply: ScalingReply, views: AgreedViews) -> None:
    """Refuse second sums that no records can have.

    Raises
    ------
    ProtocolError
    """
    d = views.n_columns
    _check_shapes(reply.sums, [(d,), (d,)], "second sums")
    if (reply.sums[1] < 0).any():
        raise ProtocolError("a sum of squares is below 0")


def check_quality(reply: FitReply) -> None:
    """Refuse an NMI outside [0, 1].

    Raises
    ------
    ProtocolError
    """
    if not 0.0 <= reply.quality <= 1.0:
        raise ProtocolError("the NMI is not between 0 and 1")


def check_share(reply: ShareReply, views: AgreedViews, k: int, weight: float) -> None:
    """Refuse weighted weights that do not fit the site's weight gamma.

    Raises
    ------
    ProtocolError
    """
    d, v = views.n_columns, len(views.names)
    _check_shapes(reply.sums, [(d, k), (d,), (v,), (v,), (1,)], "weighted sums")
    weights, mass, alpha, norms, _ = reply.sums
    fits = (
        np.isin(mass, (0.0, weight)).all()
        and not weights[mass == 0].any()  # else they would count without a weight behind them
        and (alpha >= 0).all()
        and abs(float(alpha.sum()) - weight) <= _ROUNDING
        and (norms >= 0).all()
    )
    if not fits:
        raise ProtocolError("the weighted sums do not fit the site's weight")


def check_refined(reply: RefineReply, views: AgreedViews, wanted: int) -> None:
    """Refuse a choice of another number of features than was asked for.

    Raises
    ------
    ProtocolError
    """
    _check_shapes(reply.sums, [(views.n_columns,)], "choices")
    (chosen,) = reply.sums
    if not np.isin(chosen, (0.0, 1.0)).all() or int(chosen.sum()) != wanted:
        raise ProtocolError(f"the choice is not one of {wanted} features")
