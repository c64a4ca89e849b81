"""What every FedHK-MVFC run does, whether its sums are plain, masked or noisy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from strategies.acceleration import STAGE_LIMIT, FixedPointDriver, Query
from strategies.aggregation import collapse_warnings
from strategies.agreed_views import AgreedViews
from strategies.averaging import AveragingDriver
from strategies.base import FederatedStrategy
from strategies.fedhk_setup import Setup
from strategies.messages import RoundRequest
from strategies.preparation import Preparation
from strategies.statistics import Floats
from strategies.unit_sums import FinalFigures

__all__ = ["FedHKRun"]


class FedHKRun(FederatedStrategy):
    """Drivers, requests, model and figures of a run.

    Attributes
    ----------
    metrics : dict
        Objective, partition coefficient, expected cluster sizes, pooled statistics (Eqs. 65-70).
    """

    def model_arrays(self) -> ArrayRecord:
        """Arrays of ``model.npz``, empty before there is a model."""
        arrays = {} if self.model is None else self.model.arrays()
        return ArrayRecord({name: Array(value) for name, value in arrays.items()})

    def _warn_of_silent(self, preparation: Preparation, views: AgreedViews) -> None:
        for h, j, why in preparation.silent_columns():
            column = views.descriptions[h].columns[j]
            self.warn(f"column '{column}' of view '{views.names[h]}' {why}")

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

    def _exact_driver(
        self, setup: Setup, box: tuple[tuple[Floats, ...], tuple[Floats, ...]] | None = None
    ) -> FixedPointDriver:
        preparation = setup.preparation
        driver = FixedPointDriver(
            setup.centers,
            self._start_weights(setup),
            view_exponent=preparation.settings.view_exponent,
            holding_share=preparation.holding_share,
            active=preparation.active,
            tol=self.plan.tol,
            max_evaluations=self.plan.max_rounds,
            acceleration=self.plan.fedhk.acceleration,
            stages=preparation.stages,
            box=box,
        )
        if driver.annealing_left_out:
            self.warn(
                f"annealing is left out: it takes at least {STAGE_LIMIT * len(preparation.stages)} "
                f"rounds and max_rounds is {self.plan.max_rounds}; raise max_rounds"
            )
        return driver

    def _averaging_driver(self, setup: Setup) -> AveragingDriver:
        options = self.plan.fedhk
        return AveragingDriver(
            setup.centers,
            self._start_weights(setup),
            aggregation=options.aggregation,
            temperature=options.nmi_temperature,
            spread=setup.preparation.spread,
            tol=self.plan.tol,
            max_rounds=self.plan.max_rounds,
        )

    def _record_exact(
        self, number: int, driver: FixedPointDriver, sites: Sequence[str] | None = None
    ) -> None:
        objective = float("nan") if driver.objective is None else driver.objective
        self.record_round(number, objective, driver.solution()[1].tolist(), {}, sites)

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

    def _judge(self, setup: Setup, figures: FinalFigures) -> None:
        """Measure the model by sums over records, and warn where it has no structure."""
        if self.model is None:
            return
        preparation = setup.preparation
        self.metrics = setup.metrics(self.model, figures)
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
