"""FedHK-MVFC as a Flower strategy: hello, prepare, seed, rounds, finish.

``exact`` sums sufficient statistics, one exchange an iteration, and is the centralised iteration
on the pooled records; the others average site models (Eqs. 59-62).
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError, DataRefused
from strategies.agreed_views import AgreedViews, agree_on_views, schema_conflicts
from strategies.base import Protocol
from strategies.fedhk_protected import ProtectedSums
from strategies.fedhk_protected_run import ProtectedFedHKRun
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
from strategies.fedhk_setup import Setup, final_figures, starting_centers
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
    SeedReply,
    SeedRequest,
    StatisticsReply,
)
from strategies.preparation import Preparation
from strategies.run_state import Exchange
from strategies.statistics import pooled

Replies = dict[str, Any]


class FedHKStrategy(ProtectedFedHKRun):
    """Server half of FedHK-MVFC.

    Attributes
    ----------
    metrics : dict
        Objective, partition coefficient, expected cluster sizes, pooled statistics (Eqs. 65-70).
    """

    def protocol(self, hello: dict[str, HelloReply]) -> Protocol:
        """Yield the exchanges of one run."""
        self._check_local_clusters()
        for site, error in schema_conflicts(hello).items():
            self.refuse(site, error)
        views = agree_on_views({site: hello[site] for site in self.sites})
        if self.plan.protected:
            yield from self._protected(ProtectedSums(self, hello, views), views)
            return
        setup = yield from self._set_up(views)
        if self.plan.fedhk.aggregation == "exact":
            yield from self._exact_rounds(setup)
        else:
            yield from self._averaging_rounds(setup)
        yield from self._finish(setup)

    # -- before round 1 ----------------------------------------------------------------------

    def _set_up(self, views: AgreedViews) -> Generator[Exchange, Replies, Setup]:
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
        self._warn_of_silent(preparation, views)
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

    def _exact_rounds(self, setup: Setup) -> Generator[Exchange, Replies, None]:
        preparation, options = setup.preparation, self.plan.fedhk
        driver = self._exact_driver(setup)
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
                open=True,
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
            self._record_exact(number, driver)
            self.take_back()
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
        driver = self._averaging_driver(setup)
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
                open=True,
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
            self.take_back()
        self._keep(setup, *driver.solution(), driver.converged)

    # -- after the rounds --------------------------------------------------------------------

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
        if replies:
            self._judge(setup, final_figures([replies[s] for s in sorted(replies)]))
