"""A FedHK-MVFC run over masked or noisy sums."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from configs.errors import FedMVCError
from strategies.agreed_views import AgreedViews
from strategies.fedhk_protected import ProtectedSums
from strategies.fedhk_run import FedHKRun
from strategies.fedhk_setup import Setup
from strategies.messages import FinishRequest
from strategies.run_state import Exchange

__all__ = ["ProtectedFedHKRun"]

Replies = dict[str, Any]


class ProtectedFedHKRun(FedHKRun):
    """Rounds in which the server sees sums over sites and nothing of a single one."""

    def _protected(
        self, sums: ProtectedSums, views: AgreedViews
    ) -> Generator[Exchange, Replies, None]:
        """Run over masked or noisy sums; whatever ends it, the sites are told."""
        self.noise = sums.noise
        try:
            preparation, bandwidth = yield from sums.prepared()
            self._warn_of_silent(preparation, views)
            options = self.plan.fedhk
            centers = preparation.data_free_seeds(
                options.init, self.plan.n_clusters, self.plan.seed
            )
            setup = Setup(views, preparation, bandwidth, centers, {})
            if options.aggregation == "exact":
                yield from self._protected_exact(sums, setup)
            else:
                yield from self._protected_averaging(sums, setup)
            yield from self._protected_finish(sums, setup)
        except FedMVCError:
            yield from sums.close(None, len(self.state.history))
            raise

    def _protected_exact(
        self, sums: ProtectedSums, setup: Setup
    ) -> Generator[Exchange, Replies, None]:
        driver = self._exact_driver(setup, sums.box)
        present: tuple[str, ...] = ()
        for number in range(1, self.plan.max_rounds + 1):
            if driver.done or not sums.releases_left:
                break
            query = driver.query()
            request = self._request(number, query, setup)
            found = yield from sums.statistics(request, number, query.starts.size)
            if sums.contributors != present and present:
                driver.restart_histories(np.ones(len(setup.views.dims), dtype=bool))
            present = sums.contributors
            driver.advance(query, found)
            self._record_exact(number, driver, sums.contributors)
        # with noise the last release is worth more than a J that was measured
        solution = driver.solution() if self.noise is None else driver.following()
        self._keep(setup, *solution, driver.converged or self.noise is not None)

    def _protected_averaging(
        self, sums: ProtectedSums, setup: Setup
    ) -> Generator[Exchange, Replies, None]:
        driver = self._averaging_driver(setup)
        for number in range(1, self.plan.max_rounds + 1):
            if driver.done:
                break
            query = driver.query()
            request = self._request(number, query, setup)
            pooled_model = yield from sums.models(request, number, query.starts.size)
            driver.advance_pooled(query, pooled_model)
            weights = driver.view_weights[driver.best].tolist()
            self.record_round(number, driver.objective, weights, {}, sums.contributors)
        self._keep(setup, *driver.solution(), driver.converged)

    def _protected_finish(
        self, sums: ProtectedSums, setup: Setup
    ) -> Generator[Exchange, Replies, None]:
        if self.model is None:
            return
        request, last = FinishRequest(*self.ids, self.model), len(self.state.history)
        figures = yield from sums.figures(request, last)
        if figures is not None:
            self._judge(setup, figures)
        yield from sums.close(request, last)
