"""What every Fed-MUFSHT run does, whether its sums are plain, masked or noisy."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from configs.errors import ConfigError
from configs.mufsht_profiles import MUFSHTSettings
from strategies.agreed_views import AgreedViews
from strategies.base import FederatedStrategy
from strategies.feature_rounds import FeatureSurvey, MeanWeights, RoundOutcome, initial_weights
from strategies.feature_scaling import FeatureScaling
from strategies.feature_selection import FeatureSelection
from strategies.run_state import Exchange
from strategies.statistics import Floats

__all__ = ["MUFSHTRun"]

Replies = dict[str, Any]
#: Plays one round from the broadcast weights (D, k); returns their mean.
Round = Callable[[int, Floats], Generator[Exchange, Replies, MeanWeights]]

#: Below this share of the sites' norm the mean has lost more than it kept: the sites disagree.
AGREEMENT = 0.5
#: Features that a warning names at most.
_NAMED = 5


class MUFSHTRun(FederatedStrategy):
    """The rounds of a run, its result, and what is said of both.

    Attributes
    ----------
    selection : FeatureSelection or None
        The published result.
    metrics : dict
        Sizes, what was selected of each view, each site's NMI and weight, how far they agree; with
        noise what is known without the sites' numbers.
    """

    _settings: MUFSHTSettings
    _views: AgreedViews
    _survey: FeatureSurvey
    _scaling: tuple[FeatureScaling, ...]
    _last: MeanWeights
    _quality: dict[str, float]
    _gamma: dict[str, float]

    def model_arrays(self) -> ArrayRecord:
        """Arrays of ``selection.npz``, empty before there is a selection."""
        arrays = {} if self.selection is None else self.selection.arrays()
        return ArrayRecord({name: Array(value) for name, value in arrays.items()})

    # -- before round 1 ----------------------------------------------------------------------

    def _warn_of_data(self) -> None:
        """Name what in the data, or in its size, the result will say little about."""
        never = self._survey.count == 0
        self._warn_of_columns(never, "are never observed")
        self._warn_of_columns(self._dead & ~never, "are constant")
        self._warn_of_mixed_text()
        if self.plan.n_clusters > max(self._views.dims):
            self.warn(
                f"n_clusters is {self.plan.n_clusters} but no view has more than "
                f"{max(self._views.dims)} columns: the embeddings are larger than what they explain"
            )

    def _warn_of_mixed_text(self) -> None:
        """Name views whose cells are counts at some sites and weights at others."""
        for h, view in enumerate(self._views.names):
            holding = sum(bool(self._views.held[site][h]) for site in self.sites)
            weighted = round(float(self._survey.fractional[h]))
            if 0 < weighted < holding:
                self.warn(
                    f"view '{view}' holds weights of words at {weighted} of {holding} sites and "
                    "counts at the others: TF-IDF is applied at none; give counts at all of them"
                )

    def _warn_of_columns(self, features: NDArray[np.bool_], why: str) -> None:
        """Name the features (D,) that score 0, a view at a time."""
        parts = np.split(features, np.cumsum(self._views.dims)[:-1])
        for view, part in zip(self._views.descriptions, parts, strict=True):
            found = [c for c, chosen in zip(view.columns, part, strict=True) if chosen]
            if found:
                named = ", ".join(f"'{c}'" for c in found[:_NAMED])
                self.warn(
                    f"{len(found)} of {len(view.columns)} columns of view '{view.name}' {why} "
                    f"and score 0 ({named}{', ...' if len(found) > _NAMED else ''})"
                )

    @property
    def _dead(self) -> NDArray[np.bool_]:
        return np.concatenate([s.dead for s in self._scaling])

    # -- rounds ------------------------------------------------------------------------------

    def _rounds(self, play: Round) -> Generator[Exchange, Replies, None]:
        """Play rounds until the mean quality stands still, where there is one, or to the last."""
        k = self.plan.n_clusters
        weights = initial_weights(self._views.n_columns, k, self.plan.seed)
        before: float | None = None
        for number in range(1, self.plan.max_rounds + 1):
            self._last = yield from play(number, weights)
            weights = self._last.weights
            if self._quality:
                now = float(np.mean([self._quality[site] for site in sorted(self._quality)]))
                if before is not None and abs(now - before) < self.plan.tol:
                    return
                before = now

    def _require_weights(self) -> None:
        if isinstance(self._last, RoundOutcome) and self._last.norm == 0:
            raise ConfigError(
                f"0 of {self._views.n_columns} columns have weights after round "
                f"{len(self.state.history)}: lower mufsht.beta ({self._settings.beta:g})"
            )

    # -- after the rounds --------------------------------------------------------------------

    def _selection(self, ranking: NDArray[np.int64], scores: Floats) -> FeatureSelection:
        survey, settings = self._survey, self._settings
        return FeatureSelection(
            views=self._views.names,
            columns=tuple(view.columns for view in self._views.descriptions),
            ranking=ranking,
            scores=scores,
            observed_share=survey.observed_share,
            weights=self._last.weights,
            scaling=self._scaling,
            frequencies=survey.frequencies,
            documents=survey.documents,
            ratio=settings.ratio,
            rank=settings.rank,
            text=settings.text,
            plan_id=self.plan.plan_id,
        )

    def _publish(self, selection: FeatureSelection) -> None:
        """Keep the result; warn of what it says little about."""
        self.selection, last = selection, self._last
        if isinstance(last, RoundOutcome) and last.kept < AGREEMENT:
            self.warn(
                f"the mean keeps {last.kept:.2f} of the norm of the sites' weights (below "
                f"{AGREEMENT} they do not agree): the ranking says little about single sites"
            )
        empty = int((selection.scores[selection.support()] == 0).sum())
        if empty and selection.scores.any():
            self.warn(
                f"{empty} of {int(selection.support().sum())} selected columns have score 0 and "
                "say nothing: lower mufsht.ratio or mufsht.beta"
            )
        self._warn_of_columns(
            ~last.observed & (self._survey.count > 0),
            "are observed by no site with a weight in the last round",
        )
        self.metrics = self._measured(selection)

    def _measured(self, selection: FeatureSelection) -> dict[str, Any]:
        last, names = self._last, selection.names
        figures: dict[str, Any] = {}
        if isinstance(last, RoundOutcome):
            figures = {
                "objective": last.objective,
                "rows": self._survey.rows,
                "dead": [list(names[j]) for j in np.flatnonzero(self._dead)],
                "quality": dict(self._quality),
                "kept": last.kept,
                "view_weights": dict(zip(selection.views, last.view_weights.tolist(), strict=True)),
            }
        return figures | {
            "features": dict(zip(selection.views, selection.sizes, strict=True)),
            "selected": {view: len(columns) for view, columns in selection.selected().items()},
            "weights": dict(self._gamma),
            "rank": selection.rank,
            "ratio": selection.ratio,
            "settings": asdict(self._settings),
        }
