"""FedHK-MVFC as a Flower strategy: hello, prepare, seed, rounds, finish.

``exact`` sums sufficient statistics, one exchange an iteration, and is the centralised iteration on the
pooled records; the others average site models (Eqs. 59-62).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from configs.errors import DataRefused, ProtocolError
from strategies.acceleration import FixedPointDriver, Query
from strategies.aggregation import collapse_warnings
from strategies.averaging import AveragingDriver, SiteModel
from strategies.base import Exchange, FederatedStrategy, Protocol
from strategies.fedhk_setup import (
    AgreedViews,
    agree_on_views,
    check_prepare,
    check_seeds,
    schema_conflicts,
)
from strategies.messages import (
    LIMITS,
    ChangeCoder,
    ClusterModel,
    CodedStatistics,
    FinishReply,
    FinishRequest,
    HelloReply,
    LocalModelReply,
    PrepareReply,
    PrepareRequest,
    RoundRequest,
    SeedReply,
    SeedRequest,
    StatisticsReply,
    SufficientStatistics,
)
from strategies.preparation import Preparation, pooled_seeds
from strategies.statistics import Floats, pooled

Replies = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """Everything fixed before round 1."""

    views: AgreedViews
    preparation: Preparation
    bandwidth: Floats
    centers: tuple[Floats, ...]
    site_rows: dict[str, int]


class FedHKStrategy(FederatedStrategy):
    """Server half of FedHK-MVFC.

    Attributes
    ----------
    model : ClusterModel or None
        The final model once the rounds are over.
    metrics : dict
        Objective, partition coefficient, expected cluster sizes, pooled statistics (Eqs. 65-70).
    """

    model: ClusterModel | None = None

    def protocol(self, hello: dict[str, HelloReply]) -> Protocol:
        """Yield the exchanges of one run."""
        self.metrics: dict[str, Any] = {}
        setup = yield from self._set_up(hello)
        self.start_rounds()
        if self.plan.fedhk.aggregation == "exact":
            yield from self._exact_rounds(setup)
        else:
            yield from self._averaging_rounds(setup)
        yield from self._finish(setup)

    def model_arrays(self) -> ArrayRecord:
        """Arrays of ``model.npz``, empty before there is a model."""
        arrays = {} if self.model is None else self.model.arrays()
        return ArrayRecord({name: Array(value) for name, value in arrays.items()})

    # -- before round 1 ----------------------------------------------------------------------

    def _set_up(self, hello: dict[str, HelloReply]) -> Generator[Exchange, Replies, Setup]:
        for site, error in schema_conflicts(hello).items():
            self.refuse(site, error)
        views = agree_on_views({site: hello[site] for site in self.sites})
        replies = yield Exchange(
            "prepare",
            {s: PrepareRequest(*self._ids, views.names, np.array(views.dims)) for s in self.sites},
            (PrepareReply,),
        )
        replies = self.checked(replies, lambda site, r: check_prepare(site, r, views))
        preparation = self._pool(views, replies)
        site_rows = {site: r.n_rows for site, r in replies.items()}
        return (yield from self._seed(views, preparation, site_rows))

    def _pool(self, views: AgreedViews, replies: dict[str, PrepareReply]) -> Preparation:
        ordered = [replies[s] for s in sorted(replies)]
        n_rows = [r.n_rows for r in ordered]
        if self.plan.n_clusters > sum(n_rows):
            raise DataRefused(
                f"n_clusters is {self.plan.n_clusters} but the sites hold {sum(n_rows)} rows "
                "together: ask for fewer clusters"
            )
        preparation = Preparation.pool(
            self.plan.settings(views.n_columns),
            n_rows,
            [r.holding for r in ordered],
            [r.partly_missing for r in ordered],
            [r.moments for r in ordered],
        )
        for h, j in preparation.constant_columns():
            self.warn(
                f"column '{views.descriptions[h].columns[j]}' of view '{views.names[h]}' is constant "
                "over all sites: it is kept with weight 0"
            )
        return preparation

    def _seed(
        self, views: AgreedViews, preparation: Preparation, site_rows: dict[str, int]
    ) -> Generator[Exchange, Replies, Setup]:
        options = self.plan.fedhk
        wanted = preparation.settings.n_init if self._sites_seed else 0
        replies = yield Exchange(
            "seed",
            {
                site: SeedRequest(
                    *self._ids,
                    preparation.scaling,
                    preparation.holding_share,
                    preparation.cell_mass,
                    preparation.spread,
                    preparation.mean,
                    options.local_clusters.get(site, self.plan.n_clusters),
                    wanted,
                    self.plan.seed,
                )
                for site in self.sites
            },
            (SeedReply,),
        )
        replies = self.checked(replies, lambda site, r: check_seeds(site, r, views, wanted))
        names = sorted(replies)
        sums = [
            np.sum([replies[n].spread_sums[h] for n in names], axis=0)
            for h in range(len(views.dims))
        ]
        if options.init == "kmeans":
            centers = pooled_seeds(
                [replies[n].centers for n in names],
                [replies[n].counts for n in names],
                np.stack([views.held[n] for n in names]),
                preparation.spread,
                preparation.mean,
                self.plan.n_clusters,
                self.plan.seed,
            )
        else:
            centers = preparation.data_free_seeds(
                options.init, self.plan.n_clusters, self.plan.seed
            )
        return Setup(views, preparation, preparation.bandwidth(sums), centers, site_rows)

    @property
    def _sites_seed(self) -> bool:
        """Sites propose centres: for the initialisation, or as their own fewer clusters."""
        return self.plan.fedhk.init == "kmeans" or bool(self.plan.fedhk.local_clusters)

    @property
    def _ids(self) -> tuple[str, str]:
        return self.state.run_id, self.plan.plan_id

    # -- rounds ------------------------------------------------------------------------------

    def _start_weights(self, setup: Setup) -> Floats:
        return np.tile(setup.preparation.equal_weights, (setup.centers[0].shape[0], 1))

    def _request(
        self,
        number: int,
        query: Query,
        setup: Setup,
        reference: int = -1,
        rows: np.ndarray[Any, np.dtype[np.int64]] | None = None,
    ) -> RoundRequest:
        return RoundRequest(
            *self._ids,
            number,
            query.starts,
            query.centers,
            query.view_weights,
            query.bandwidth_factor[:, None] * setup.bandwidth[None, :],
            reference,
            np.zeros((query.starts.shape[0], 0), dtype=np.int64) if rows is None else rows,
        )

    def _exact_rounds(self, setup: Setup) -> Generator[Exchange, Replies, None]:
        preparation, options = setup.preparation, self.plan.fedhk
        driver = FixedPointDriver(
            setup.centers,
            self._start_weights(setup),
            view_exponent=preparation.settings.view_exponent,
            holding_share=preparation.holding_share,
            active=preparation.active,
            tol=self.plan.tol,
            max_evaluations=self.plan.max_rounds,
            acceleration=options.acceleration,
            stages=preparation.stages,
        )
        coded = options.encoding in LIMITS
        decoders = {s: ChangeCoder(options.encoding) for s in self.sites} if coded else {}
        present = self.sites
        for number in range(1, self.plan.max_rounds + 1):
            if driver.done:
                break
            query = driver.query()
            replies = yield Exchange(
                "round",
                {
                    s: self._request(
                        number, query, setup, reference=decoders[s].round if coded else -1
                    )
                    for s in self.sites
                },
                (CodedStatistics if coded else StatisticsReply,),
                number,
            )
            replies = self.checked(
                replies,
                partial(
                    _check_sums, shapes=_statistics_shapes(query, preparation), decoders=decoders
                ),
            )
            if self.sites != present:
                present = self.sites
                driver.restart_histories()
            sums = pooled([_decoded(replies[s], decoders.get(s), query) for s in sorted(replies)])
            driver.advance(query, sums)
            _, weights = driver.solution()
            self.record_round(
                number,
                driver.objective if driver.objective is not None else float("nan"),
                weights.tolist(),
                {},
            )
        self._keep(setup, *driver.solution(), driver.converged)

    def _averaging_rounds(self, setup: Setup) -> Generator[Exchange, Replies, None]:
        options = self.plan.fedhk
        driver = AveragingDriver(
            setup.centers,
            self._start_weights(setup),
            aggregation=options.aggregation,
            temperature=options.nmi_temperature,
            spread=setup.preparation.spread,
            tol=self.plan.tol,
            max_rounds=self.plan.max_rounds,
        )
        for number in range(1, self.plan.max_rounds + 1):
            if driver.done:
                break
            query = driver.query()
            replies = yield Exchange(
                "round",
                {
                    s: self._request(number, query, setup, rows=driver.rows(s, query.starts))
                    for s in self.sites
                },
                (LocalModelReply,),
                number,
            )
            replies = self.checked(replies, partial(self._check_local, query=query, setup=setup))
            driver.advance(
                query, {s: _site_model(r, setup.views.held[s]) for s, r in replies.items()}
            )
            best = (
                int(np.flatnonzero(query.starts == driver.best)[0])
                if driver.best in query.starts
                else 0
            )
            self.record_round(
                number,
                driver.objective,
                driver.view_weights[driver.best].tolist(),
                {s: float(w[best]) for s, w in driver.weights.items()},
            )
        self._keep(setup, *driver.solution(), driver.converged)

    def _check_local(self, site: str, reply: LocalModelReply, query: Query, setup: Setup) -> None:
        n_starts = query.starts.shape[0]
        n_clusters = self.plan.fedhk.local_clusters.get(site, self.plan.n_clusters)
        for part in (reply.objective, reply.partition_coefficient, reply.agreement):
            if part.shape != (n_starts,):
                raise ProtocolError(f"it answers {part.shape} starts, {n_starts} were asked")
        if reply.n_rows != setup.site_rows[site]:
            raise ProtocolError("its number of rows changed during the run")
        if reply.view_weights.shape != query.view_weights.shape or (reply.view_weights < 0).any():
            raise ProtocolError("its view weights are not weights of the run's views")
        if len(reply.centers) != len(setup.views.dims):
            raise ProtocolError(f"it sends {len(reply.centers)} views of {len(setup.views.dims)}")
        for centers, dim in zip(reply.centers, setup.views.dims, strict=True):
            if centers.shape != (n_starts, n_clusters, dim):
                raise ProtocolError(
                    f"its centres have shape {centers.shape}, expected {(n_starts, n_clusters, dim)}"
                )

    # -- after the rounds --------------------------------------------------------------------

    def _keep(
        self, setup: Setup, centers: tuple[Floats, ...], view_weights: Floats, converged: bool
    ) -> None:
        """Make the published model from the scaled solution."""
        preparation, views = setup.preparation, setup.views
        self.model = ClusterModel(
            centers=tuple(
                sc.offset + sc.scale * a for a, sc in zip(centers, preparation.scaling, strict=True)
            ),
            view_weights=view_weights,
            scaling=preparation.scaling,
            bandwidth=setup.bandwidth,
            holding_share=preparation.holding_share,
            heat_kernel=preparation.settings.heat_kernel,
            scaling_kind=preparation.settings.scaling,
            fuzzifier=preparation.settings.fuzzifier,
            view_exponent=preparation.settings.view_exponent,
            views=views.names,
            columns=tuple(d.columns for d in views.descriptions),
            bounds=views.bounds(
                tuple(m.minimum for m in preparation.moments),
                tuple(m.maximum for m in preparation.moments),
            ),
            schema_hashes=tuple(d.schema_hash for d in views.descriptions),
            plan_id=self.plan.plan_id,
        )
        if not converged:
            self.warn(
                f"the run stopped at max_rounds = {self.plan.max_rounds} before the change of J came "
                f"below tol = {self.plan.tol:g}: raise max_rounds"
            )

    def _finish(self, setup: Setup) -> Generator[Exchange, Replies, None]:
        if self.model is None:
            return
        last = len(self.state.history)
        replies = yield Exchange(
            "finish",
            {s: FinishRequest(*self._ids, self.model) for s in self.sites},
            (FinishReply,),
            last,
        )
        replies = self.checked(replies, self._check_finish)
        self._measure(setup, {s: replies[s] for s in sorted(replies)})

    def _check_finish(self, site: str, reply: FinishReply) -> None:
        c, s = self.plan.n_clusters, 0 if self.model is None else len(self.model.views)
        if reply.dispersion.shape != (s,) or reply.mean_membership.shape != (c,):
            raise ProtocolError(f"its final statistics do not fit {s} views and {c} clusters")

    def _measure(self, setup: Setup, replies: dict[str, FinishReply]) -> None:
        if self.model is None or not replies:
            return
        preparation = setup.preparation
        n_rows = np.array([r.n_rows for r in replies.values()], dtype=np.float64)
        dispersion = np.sum([r.dispersion for r in replies.values()], axis=0)
        coefficient = float(
            n_rows @ np.array([r.partition_coefficient for r in replies.values()]) / n_rows.sum()
        )
        weights = self.model.view_weights
        self.metrics = {
            "objective": float(
                (
                    weights**preparation.settings.view_exponent
                    * dispersion
                    / preparation.holding_share
                ).sum()
            ),
            "partition_coefficient": coefficient,
            "expected_cluster_sizes": np.sum(
                [r.n_rows * r.mean_membership for r in replies.values()], axis=0
            ).tolist(),
            "rows": int(n_rows.sum()),
            "rows_by_site": setup.site_rows,
            "statistics": {
                name: {"mean": m.mean.tolist(), "variance": m.variance.tolist()}
                for name, m in zip(setup.views.names, preparation.moments, strict=True)
            },
        }
        for sentence in collapse_warnings(
            self.model.scaled_centers,
            weights,
            preparation.spread,
            coefficient,
            setup.views.names,
            preparation.active.tolist(),
        ):
            self.warn(sentence)


def _statistics_shapes(query: Query, preparation: Preparation) -> list[tuple[int, ...]]:
    """Shapes of numerators, masses and dispersion that a site must send."""
    shapes = [a.shape for a in query.centers]
    masses = [
        shape if by_cell else shape[:2]
        for shape, by_cell in zip(shapes, preparation.cell_mass, strict=True)
    ]
    return [*shapes, *masses, query.view_weights.shape]


def _check_sums(
    site: str,
    reply: StatisticsReply | CodedStatistics,
    shapes: list[tuple[int, ...]],
    decoders: dict[str, ChangeCoder],
) -> None:
    if isinstance(reply, CodedStatistics):
        if reply.base not in (-1, decoders[site].round):
            raise ProtocolError(
                f"its changes are against round {reply.base}, not round {decoders[site].round}"
            )
        found = [code.shape for code in reply.codes]
        if reply.scales.shape != (shapes[0][0], len(shapes)) or (reply.scales < 0).any():
            raise ProtocolError("its coding scales do not fit its blocks")
    else:
        sums = reply.statistics
        found = [a.shape for a in (*sums.numerator, *sums.mass, sums.dispersion)]
        if any((a < 0).any() for a in (*sums.mass, sums.dispersion)):
            raise ProtocolError("its weights or dispersions are negative")
    if found != shapes:
        raise ProtocolError(f"its statistics have shapes {found}, expected {shapes}")


def _decoded(
    reply: StatisticsReply | CodedStatistics, decoder: ChangeCoder | None, query: Query
) -> SufficientStatistics:
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


def _site_model(reply: LocalModelReply, held: np.ndarray[Any, np.dtype[np.bool_]]) -> SiteModel:
    return SiteModel(
        [a.astype(np.float64) for a in reply.centers],
        reply.view_weights.astype(np.float64),
        reply.objective,
        reply.partition_coefficient,
        reply.agreement,
        reply.n_rows,
        held,
    )
