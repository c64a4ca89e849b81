"""What a Fed-MUFSHT run publishes: features ranked by name, with what made them so."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError
from configs.values import check_number
from strategies.feature_scaling import FeatureScaling
from strategies.statistics import Floats

__all__ = ["FeatureSelection", "n_selected"]

Ints = NDArray[np.int64]


def n_selected(ratio: float, n_features: int) -> int:
    """Return how many of ``n_features`` a share of them is: at least 1."""
    return max(1, round(ratio * n_features))


@dataclass(frozen=True)
class FeatureSelection:
    """Features of all views, numbered side by side (D), with names, scores and order.

    Attributes
    ----------
    views : tuple of str
    columns : tuple of tuple of str
        Names of the d_v features of each view.
    ranking : ndarray of shape (D,), int64
        Best first.
    scores, observed_share : ndarray of shape (D,)
        Length of a feature's row of the weights, corrected for missing cells; the share of the
        cells that were observed, 1 where noise forbids to count them. A feature that is constant or
        never observed scores 0.
    weights : ndarray of shape (D, k)
        W of all views.
    scaling : tuple of FeatureScaling
        One a view.
    frequencies : ndarray of shape (D,)
        Document frequencies of text, 0 elsewhere.
    documents : ndarray of shape (V,)
        Pooled documents of each view of counts; 0 where cells are not weighted by TF-IDF.
    ratio : float
        Share that the plan selects.
    rank : str
        The rule that made ``ranking``.
    text : bool
    plan_id : str

    Raises
    ------
    ProtocolError
        Where shapes do not fit each other or ``ranking`` is no permutation.
    """

    views: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    ranking: Ints
    scores: Floats
    observed_share: Floats
    weights: Floats
    scaling: tuple[FeatureScaling, ...]
    frequencies: Floats
    documents: Floats
    ratio: float
    rank: str
    text: bool
    plan_id: str

    def __post_init__(self) -> None:
        sizes, d = self.sizes, sum(self.sizes)
        fits = (
            len(self.views) == len(sizes) == len(self.scaling) == self.documents.size
            and all(a.shape == (d,) for a in (self.scores, self.observed_share, self.frequencies))
            and self.weights.ndim == 2
            and len(self.weights) == d
            and all(
                a.shape == (size,)
                for size, s in zip(sizes, self.scaling, strict=False)
                for a in (s.center, s.spread, s.dead)
            )
        )
        if not fits or not math.isfinite(self.ratio) or not 0 < self.ratio <= 1:
            raise ProtocolError(f"the parts of a selection of {d} features do not fit each other")
        if not np.array_equal(np.sort(self.ranking), np.arange(d)):
            raise ProtocolError(f"the ranking of a selection is no order of its {d} features")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Features d_v of each view."""
        return tuple(len(columns) for columns in self.columns)

    @property
    def names(self) -> list[tuple[str, str]]:
        """View and column of every feature."""
        return [
            (v, c) for v, columns in zip(self.views, self.columns, strict=True) for c in columns
        ]

    def support(self, ratio: float | None = None) -> NDArray[np.bool_]:
        """Return which features (D,) are selected; ``ratio`` is the plan's by default.

        Raises
        ------
        ConfigError
            Where the ratio is not above 0 and at most 1.
        """
        chosen = np.zeros(len(self.ranking), dtype=bool)
        share = check_number("ratio", self.ratio if ratio is None else ratio, above=0.0, most=1.0)
        chosen[self.ranking[: n_selected(share, len(chosen))]] = True
        return chosen

    def selected(self, ratio: float | None = None) -> dict[str, tuple[str, ...]]:
        """Return the selected columns of each view, in the view's order; () where none is."""
        parts = self.by_view(self.support(ratio))
        return {
            view: tuple(c for c, chosen in zip(columns, part, strict=True) if chosen)
            for view, columns, part in zip(self.views, self.columns, parts, strict=True)
        }

    def by_view(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Split values of all features (D, ...) into those of each view."""
        return np.split(values, np.cumsum(self.sizes)[:-1])

    # -- as files ------------------------------------------------------------------------------

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row a feature, best first, as for a table."""
        names, support = self.names, self.support()
        for place, feature in enumerate(self.ranking.tolist()):
            view, column = names[feature]
            yield {
                "rank": place + 1,
                "view": view,
                "column": column,
                "score": float(self.scores[feature]),
                "observed_share": float(self.observed_share[feature]),
                "selected": bool(support[feature]),
            }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of ``selection.npz``."""
        return {
            "ranking": self.ranking,
            "scores": self.scores,
            "observed_share": self.observed_share,
            "weights": self.weights,
            "center": np.concatenate([s.center for s in self.scaling]),
            "spread": np.concatenate([s.spread for s in self.scaling]),
            "dead": np.concatenate([s.dead for s in self.scaling]),
            "frequencies": self.frequencies,
            "documents": self.documents,
        }

    def description(self) -> dict[str, Any]:
        """Return the content of ``selection.json``."""
        return {
            "plan_id": self.plan_id,
            "rank": self.rank,
            "ratio": self.ratio,
            "text": self.text,
            "views": list(self.views),
            "columns": {
                view: list(columns) for view, columns in zip(self.views, self.columns, strict=True)
            },
            "selected": {view: list(columns) for view, columns in self.selected().items()},
        }

    def files(self) -> dict[str, bytes]:
        """Return the files of a selection by name, the same at the server and at every site."""
        table = io.StringIO()
        writer = csv.DictWriter(table, list(next(self.rows())), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        arrays = io.BytesIO()
        np.savez(arrays, **self.arrays())  # type: ignore[arg-type]
        return {
            "features.csv": table.getvalue().encode(),
            "selection.npz": arrays.getvalue(),
            "selection.json": (json.dumps(self.description(), indent=2) + "\n").encode(),
        }

    @classmethod
    def from_parts(
        cls, arrays: Mapping[str, NDArray[Any]], description: Mapping[str, Any]
    ) -> FeatureSelection:
        """Undo `arrays` and `description`.

        Raises
        ------
        ProtocolError, KeyError, TypeError, ValueError
            Where they do not fit each other.
        """
        views = tuple(description["views"])
        columns = tuple(tuple(description["columns"][view]) for view in views)
        ends = np.cumsum([len(c) for c in columns])[:-1]
        scaling = zip(
            *(np.split(arrays[key], ends) for key in ("center", "spread", "dead")), strict=True
        )
        return cls(
            views=views,
            columns=columns,
            ranking=arrays["ranking"].astype(np.int64),
            scores=arrays["scores"],
            observed_share=arrays["observed_share"],
            weights=arrays["weights"],
            scaling=tuple(FeatureScaling(*parts) for parts in scaling),
            frequencies=arrays["frequencies"],
            documents=arrays["documents"],
            ratio=float(description["ratio"]),
            rank=str(description["rank"]),
            text=bool(description["text"]),
            plan_id=str(description["plan_id"]),
        )
