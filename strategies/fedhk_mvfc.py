"""FedHK-MVFC as a Flower strategy: hello, prepare, seed, rounds, finish.

``exact`` sums sufficient statistics, one exchange an iteration, and is the centralised iteration
on the pooled records; the others average site models (Eqs. 59-62).
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from configs.errors import ConfigError, DataRefused
from strategies.acceleration import STAGE_LIMIT, FixedPointDriver, Query
from strategies.aggregation import collapse_warnings
from strategies.agreed_views import AgreedViews, agree_on_views, schema_conflicts
from strategies.averaging import AveragingDriver
from strategies.base import FederatedStrategy, Protocol
from strategies.fedhk_replies import (
    check_finish,
    check_local,
    check_prepare,
    check_seeds,
    check_sums,
    decoded,
    site_model,
    statistics_limits,
    statistics_shapes,
)
from strategies.fedhk_setup import Setup, starting_centers
from strategies.messages import (
    LIMITS,
    ChangeCoder,
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
)
from strategies.preparation import Preparation
from strategies.run_state import Exchange
from strategies.statistics import Floats, pooled

Replies = dict[str, Any]


class FedHKStrategy(FederatedStrategy):
    """Server half of FedHK-MVFC.

    Attributes
    ----------
    metrics : dict
        Objective, partition coefficient, expected cluster sizes, pooled statistics (Eqs. 65-70).
    """

    def protocol(self, hello: dict[str, HelloReply]) -> Protocol:
        """Yield the exchanges of one run."""
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
        self._check_local_clusters()
        for site, error in schema_conflicts(hello).items():
            self.refuse(site, error)
        views = agree_on_views({site: hello[site] for site in self.sites})
        replies = yield Exchange(
            "prepare",
            {s: PrepareRequest(*self.ids, views.names, np.array(views.dims)) for s in self.sites},
            (PrepareReply,),
        )
        replies = self.checked(replies, lambda site, r: check_prepare(r, views))
        preparation = self._pool(views, replies)
        site_rows = {site: r.n_rows for site, r in replies.items()}
        return (yield from self._seed(views, preparation, site_rows))

    def _check_local_clusters(self) -> None:
        """Refuse a plan that gives clusters to a site nobody knows: a misspelt name."""
        known = [*self.sites, *self.state.dropped]
        unknown = sorted(set(self.plan.fedhk.local_clusters) - set(known))
        if unknown:
            raise ConfigError(
                f"fedhk.local_clusters names site '{unknown[0]}', which is not in the run: its "
                f"sites are {', '.join(self.sites)}"
            )

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
        for h, j, why in preparation.silent_columns():
            column = views.descriptions[h].columns[j]
            self.warn(f"column '{column}' of view '{views.names[h]}' {why}")
        return preparation

    def _seed(
        self, views: AgreedViews, preparation: Preparation, site_rows: dict[str, int]
    ) -> Generator[Exchange, Replies, Setup]:
        wanted = preparation.settings.n_init if self._sites_seed else 0
        replies = yield Exchange(
            "seed",
            {
                site: SeedRequest(
                    *self.ids,
                    preparation.scaling,
                    preparation.holding_share,
                    preparation.cell_mass,
                    preparation.spread,
                    preparation.mean,
                    self._site_clusters(site),
                    wanted,
                    self.plan.seed,
                )
                for site in self.sites
            },
            (SeedReply,),
        )
        replies = self.checked(
            replies,
            lambda site, r: check_seeds(
                r, views, preparation, wanted, self._site_clusters(site), site_rows[site]
            ),
        )
        names = sorted(replies)
        sums = [
            np.sum([replies[n].spread_sums[h] for n in names], axis=0)
            for h in range(len(views.dims))
        ]
        centers, unseeded = starting_centers(self.plan, preparation, views, replies)
        if unseeded:
            self.warn(
                f"no site gave a starting centre for {unseeded} of {wanted} starts (each would "
                'stand for too few records): they are drawn from the pooled ranges, as init = "box"'
            )
        return Setup(views, preparation, preparation.bandwidth(sums), centers, site_rows)

    @property
    def _sites_seed(self) -> bool:
        """Sites propose centres: for the initialisation, or as their own fewer clusters."""
        return self.plan.fedhk.init == "kmeans" or bool(self.plan.fedhk.local_clusters)

    def _site_clusters(self, site: str) -> int:
        """Clusters that a site works on: the run's, or fewer where the plan says so."""
        return self.plan.fedhk.local_clusters.get(site, self.plan.n_clusters)

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
            *self.ids,
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
        if driver.annealing_left_out:
            self.warn(
                f"annealing is left out: it takes at least {STAGE_LIMIT * len(preparation.stages)} "
                f"rounds and max_rounds is {self.plan.max_rounds}; raise max_rounds"
            )
        limits = statistics_limits(preparation)
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
                    check_sums,
                    shapes=statistics_shapes(query, preparation),
                    decoders=decoders,
                    limits=limits,
                    site_rows=setup.site_rows,
                ),
            )
            if self.sites != present:
                present = self.sites
                driver.restart_histories(self._still_held(setup.views))
            sums = pooled([decoded(replies[s], decoders.get(s), query) for s in sorted(replies)])
            driver.advance(query, sums)
            _, weights = driver.solution()
            self.record_round(
                number,
                driver.objective if driver.objective is not None else float("nan"),
                weights.tolist(),
                {},
            )
        self._keep(setup, *driver.solution(), driver.converged)

    def _still_held(self, views: AgreedViews) -> NDArray[np.bool_]:
        """Return which views (s,) a site still in the run holds; warn of the others."""
        held = np.any([views.held[s] for s in self.sites], axis=0)
        for h in np.flatnonzero(~held):
            self.warn(
                f"no site left in the run holds view '{views.names[h]}': its centres stay as they "
                "were and its weight is 0"
            )
        return np.asarray(held)

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
        present = self.sites
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
            replies = self.checked(
                replies,
                partial(
                    check_local,
                    query=query,
                    reach=setup.preparation.reach,
                    site_rows=setup.site_rows,
                    site_clusters=self._site_clusters,
                ),
            )
            if self.sites != present:
                present = self.sites
                driver.restart(self._still_held(setup.views))
            driver.advance(
                query, {s: site_model(r, setup.views.held[s]) for s, r in replies.items()}
            )
            self.record_round(
                number,
                driver.objective,
                driver.view_weights[driver.best].tolist(),
                driver.best_weights,
            )
        self._keep(setup, *driver.solution(), driver.converged)

    # -- after the rounds --------------------------------------------------------------------

    def _keep(
        self, setup: Setup, centers: tuple[Floats, ...], view_weights: Floats, converged: bool
    ) -> None:
        """Make the published model from the scaled solution."""
        self.model = setup.model(centers, view_weights, self.plan.plan_id)
        if not converged:
            self.warn(
                f"the run stopped at max_rounds = {self.plan.max_rounds} before the change of J "
                f"came below tol = {self.plan.tol:g}: raise max_rounds"
            )

    def _finish(self, setup: Setup) -> Generator[Exchange, Replies, None]:
        if self.model is None:
            return
        last = len(self.state.history)
        replies = yield Exchange(
            "finish",
            {s: FinishRequest(*self.ids, self.model) for s in self.sites},
            (FinishReply,),
            last,
        )
        replies = self.checked(
            replies,
            partial(
                check_finish,
                n_clusters=self.plan.n_clusters,
                n_views=len(setup.views.dims),
                site_rows=setup.site_rows,
            ),
        )
        self._measure(setup, {s: replies[s] for s in sorted(replies)})

    def _measure(self, setup: Setup, replies: dict[str, FinishReply]) -> None:
        if self.model is None or not replies:
            return
        preparation = setup.preparation
        self.metrics = setup.metrics(self.model, replies)
        for sentence in collapse_warnings(
            self.model.scaled_centers,
            self.model.view_weights,
            preparation.spread,
            self.metrics["partition_coefficient"],
            setup.views.names,
            preparation.active.tolist(),
            np.array(self.metrics["expected_cluster_sizes"]) / self.metrics["rows"],
        ):
            self.warn(sentence)
