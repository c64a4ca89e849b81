"""Checks of what the sites of a FedHK-MVFC run reply, and the replies as the maths takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from configs.errors import ProtocolError
from strategies.acceleration import Query
from strategies.agreed_views import AgreedViews
from strategies.averaging import SiteModel
from strategies.messages import (
    ChangeCoder,
    CodedStatistics,
    FinishReply,
    LocalModelReply,
    PrepareReply,
    SeedReply,
    StatisticsReply,
    SufficientStatistics,
)
from strategies.preparation import Preparation
from strategies.statistics import Floats

#: Rounding that a float32 reply may carry.
_SLACK = 1e-5
#: A local centre may leave the pooled range (the median bears that), but not by this factor: sums
#: of squares must stay finite.
_FAR = 1e6


def check_prepare(reply: PrepareReply, views: AgreedViews) -> None:
    """Check shapes and counts of a site's moments.

    Raises
    ------
    ProtocolError
    """
    s = len(views.names)
    if reply.holding.shape != (s,) or reply.partly_missing.shape != (s,):
        raise ProtocolError(f"it counts {reply.holding.size} views, the run has {s}")
    if len(reply.moments) != s:
        raise ProtocolError(f"it sends moments of {len(reply.moments)} views, the run has {s}")
    holding, partly = reply.holding, reply.partly_missing
    in_order = (partly >= 0) & (partly <= holding) & (holding <= reply.n_rows)
    if reply.n_rows < 1 or not in_order.all():
        raise ProtocolError("its row counts contradict each other")
    for moments, dim, rows in zip(reply.moments, views.dims, holding, strict=True):
        for part in (moments.count, moments.mean, moments.m2, moments.minimum, moments.maximum):
            if part.shape != (dim,):
                raise ProtocolError(f"its moments have shape {part.shape}, expected ({dim},)")
        counted = ((moments.count >= 0) & (moments.count <= rows)).all()
        if not counted or (moments.m2 < 0).any() or (moments.minimum > moments.maximum).any():
            raise ProtocolError("its moments contradict each other")


def check_seeds(
    reply: SeedReply,
    views: AgreedViews,
    preparation: Preparation,
    n_starts: int,
    n_clusters: int,
    n_rows: int,
) -> None:
    """Check shapes of a site's seeds, and that they can come from its records.

    Raises
    ------
    ProtocolError
    """
    if len(reply.centers) != len(views.dims) or len(reply.spread_sums) != len(views.dims):
        raise ProtocolError(f"it sends {len(reply.centers)} views, the run has {len(views.dims)}")
    if reply.counts.ndim != 2 or reply.counts.shape[0] != n_starts or (reply.counts < 0).any():
        raise ProtocolError(f"its seed counts do not fit {n_starts} starts")
    if reply.counts.shape[1] > n_clusters:
        raise ProtocolError(f"it proposes {reply.counts.shape[1]} centres, asked were {n_clusters}")
    if (reply.counts > _above(n_rows)).any() or (reply.counts.sum(axis=1) > _above(n_rows)).any():
        raise ProtocolError(f"its seeds stand for more than its {n_rows} records")
    for centers, sums, dim, reach in zip(
        reply.centers, reply.spread_sums, views.dims, preparation.reach, strict=True
    ):
        if centers.shape != (*reply.counts.shape, dim):
            raise ProtocolError(f"its seeds have shape {centers.shape}, the view has {dim} columns")
        if sums.shape != (3, dim):
            raise ProtocolError(f"its spread sums have shape {sums.shape}, expected (3, {dim})")
        delta, size = reach
        if (np.abs(centers) > _above(size)).any():
            raise ProtocolError("its seeds lie outside the range of the records")
        with np.errstate(over="ignore", invalid="ignore"):
            most = _above(n_rows * delta * np.stack([size**2, size, np.ones_like(size)]))
        if (np.abs(sums) > most).any():
            raise ProtocolError(f"its spread sums are above what {n_rows} records can give")


def _above(limit: Any) -> Any:
    """Return a limit with room for rounding."""
    return limit * (1.0 + _SLACK) + _SLACK


def check_local(
    site: str,
    reply: LocalModelReply,
    query: Query,
    reach: Sequence[tuple[Floats, Floats]],
    site_rows: Mapping[str, int],
    site_clusters: Callable[[str], int],
) -> None:
    """Check a site's local models against what it was asked.

    Raises
    ------
    ProtocolError
    """
    n_starts = query.starts.shape[0]
    n_clusters = site_clusters(site)
    for part in (reply.objective, reply.partition_coefficient, reply.agreement):
        if part.shape != (n_starts,):
            raise ProtocolError(f"it answers {part.shape} starts, {n_starts} were asked")
    # What weighs a site must be in its range: no site can buy itself more.
    for part in (reply.agreement, reply.partition_coefficient):
        if (part < 0).any() or (part > 1 + _SLACK).any():
            raise ProtocolError("its quality is not between 0 and 1")
    if reply.n_rows != site_rows[site]:
        raise ProtocolError("its number of rows changed during the run")
    # Each record adds at most sum_h v_h^alpha <= 1 to J.
    if (reply.objective < 0).any() or (reply.objective > _above(reply.n_rows)).any():
        raise ProtocolError(f"its objective is not between 0 and its {reply.n_rows} records")
    weights = reply.view_weights
    if weights.shape != query.view_weights.shape or (weights < 0).any():
        raise ProtocolError("its view weights are not weights of the run's views")
    if (np.abs(weights.sum(axis=1, dtype=np.float64) - 1.0) > _SLACK).any():
        raise ProtocolError("its view weights do not sum to 1")
    if len(reply.centers) != len(reach):
        raise ProtocolError(f"it sends {len(reply.centers)} views of {len(reach)}")
    for centers, (_, size) in zip(reply.centers, reach, strict=True):
        expected = (n_starts, n_clusters, *size.shape)
        if centers.shape != expected:
            raise ProtocolError(f"its centres have shape {centers.shape}, expected {expected}")
        if (np.abs(centers) > _above(_FAR * size)).any():
            raise ProtocolError(f"its centres lie beyond {_FAR:g} times the range of the records")


def check_finish(
    site: str, reply: FinishReply, n_clusters: int, n_views: int, site_rows: Mapping[str, int]
) -> None:
    """Check the shapes and ranges of a site's final statistics.

    Raises
    ------
    ProtocolError
    """
    if reply.dispersion.shape != (n_views,) or reply.mean_membership.shape != (n_clusters,):
        raise ProtocolError(
            f"its final statistics do not fit {n_views} views and {n_clusters} clusters"
        )
    if reply.n_rows != site_rows[site]:
        raise ProtocolError("its number of rows changed during the run")
    if (reply.dispersion < 0).any() or (reply.mean_membership < 0).any():
        raise ProtocolError("its final statistics are negative")


def statistics_shapes(query: Query, preparation: Preparation) -> list[tuple[int, ...]]:
    """Shapes of numerators, masses and dispersion that a site must send."""
    shapes = [a.shape for a in query.centers]
    masses = [
        shape if by_cell else shape[:2]
        for shape, by_cell in zip(shapes, preparation.cell_mass, strict=True)
    ]
    return [*shapes, *masses, query.view_weights.shape]


def statistics_limits(preparation: Preparation) -> list[Floats]:
    """Largest absolute value that one record can add to each block of a site's sums.

    In the order of `statistics_shapes`; each has shape (d_h,) or (1,). Memberships and kernel
    values are at most 1, and so is a record's dispersion over all clusters.
    """
    reach = preparation.reach
    return [
        *(delta * size for delta, size in reach),
        *(
            delta if by_cell else delta.max(keepdims=True)
            for (delta, _), by_cell in zip(reach, preparation.cell_mass, strict=True)
        ),
        np.ones(1),
    ]


def check_sums(
    site: str,
    reply: StatisticsReply | CodedStatistics,
    shapes: list[tuple[int, ...]],
    decoders: Mapping[str, ChangeCoder],
    limits: list[Floats],
    site_rows: Mapping[str, int],
) -> None:
    """Check the shapes, signs and size of a site's sums, coded or not.

    Raises
    ------
    ProtocolError
    """
    rows = site_rows[site]
    if isinstance(reply, CodedStatistics):
        if reply.base not in (-1, decoders[site].round):
            raise ProtocolError(
                f"its changes are against round {reply.base}, not round {decoders[site].round}"
            )
        found = [code.shape for code in reply.codes]
        if reply.scales.shape != (shapes[0][0], len(shapes)) or (reply.scales < 0).any():
            raise ProtocolError("its coding scales do not fit its blocks")
        # A change is at most twice what the sums can be, plus the last rounding error.
        steps = reply.scales.astype(np.float64) * decoders[site].limit
        most = np.array([float(limit.max()) for limit in limits])
        too_large = bool((steps > _above(4.0 * rows * most)).any())
    else:
        sums = reply.statistics
        found = [a.shape for a in (*sums.numerator, *sums.mass, sums.dispersion)]
        if any((a < 0).any() for a in (*sums.mass, sums.dispersion)):
            raise ProtocolError("its weights or dispersions are negative")
        too_large = False
    if found != shapes:
        raise ProtocolError(f"its statistics have shapes {found}, expected {shapes}")
    if isinstance(reply, StatisticsReply):
        blocks = [*sums.numerator, *sums.mass, sums.dispersion]
        too_large = any(
            (np.abs(block) > _above(rows * limit)).any()
            for block, limit in zip(blocks, limits, strict=True)
        )
    if too_large:
        raise ProtocolError(f"its statistics are above what {rows} records can give")


def decoded(
    reply: StatisticsReply | CodedStatistics, decoder: ChangeCoder | None, query: Query
) -> SufficientStatistics:
    """Return a checked reply's sums in float64.

    Raises
    ------
    ProtocolError
        Where a coded reply came for a plan without coding.
    """
    if isinstance(reply, CodedStatistics) and decoder is not None:
        if reply.base == -1:
            decoder.restart()
        blocks = decoder.decode(reply.round, query.starts.tolist(), reply.codes, reply.scales)
        s = len(query.centers)
        return SufficientStatistics(blocks[:s], blocks[s : 2 * s], np.maximum(blocks[-1], 0.0))
    if not isinstance(reply, StatisticsReply):
        raise ProtocolError("coded statistics came where none were asked for")
    sums = reply.statistics
    return SufficientStatistics(
        tuple(a.astype(np.float64) for a in sums.numerator),
        tuple(a.astype(np.float64) for a in sums.mass),
        sums.dispersion.astype(np.float64),
    )


def site_model(reply: LocalModelReply, held: np.ndarray[Any, np.dtype[np.bool_]]) -> SiteModel:
    """Return a checked reply as what the averaging driver takes."""
    return SiteModel(
        [a.astype(np.float64) for a in reply.centers],
        reply.view_weights.astype(np.float64),
        reply.objective,
        reply.partition_coefficient,
        reply.agreement,
        reply.n_rows,
        held,
    )
