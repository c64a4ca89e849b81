"""Views made ready for feature selection: pooled scaling, unit-norm features, text.

A prepared view is feature-major, (d, n): centred over the observed cells and scaled by what all
sites know together, 0 where missing. What the sites share are three sums a feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused
from fedmvc_client.solvers.preprocessing import LARGEST
from strategies.messages import FeatureMoments, FeatureScaling, feature_scaling

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PreparedFeatures:
    """A view of one site, ready for `TensorLearning`.

    Attributes
    ----------
    values : ndarray of shape (d, n), float64
        Rows of about unit norm, 0 where missing.
    observed : ndarray of shape (d, n), bool
    """

    values: Floats
    observed: NDArray[np.bool_]


def check_range(view: Floats, name: str) -> None:
    """Check that the squares of a view's cells can be summed.

    Parameters
    ----------
    view : ndarray, float64
        NaN = missing.
    name : str
        How a sentence calls the view.

    Raises
    ------
    DataRefused
    """
    beyond = int((np.abs(view) > LARGEST).sum())
    if beyond:
        raise DataRefused(
            f"{name} has {beyond} values beyond {LARGEST:g} and may have 0: choose a larger unit"
        )


def feature_moments(view: Floats, origin: Floats | None = None) -> FeatureMoments:
    """Sum up the observed cells of each feature.

    Parameters
    ----------
    view : ndarray of shape (n, d), float64
        Rows are samples; NaN = missing.
    origin : ndarray of shape (d,), optional
        Subtracted first, 0 by default; the same at every site. Sums of squares lose digits far
        from the data: one site alone gives its means.

    Returns
    -------
    FeatureMoments
    """
    observed = ~np.isnan(view)
    # One memory order: numpy's sums, and so the last bits, depend on it.
    cells = np.ascontiguousarray(np.where(observed, view, 0.0).T)
    if origin is not None:
        cells = np.where(observed.T, cells - origin[:, None], 0.0)
    return FeatureMoments(
        observed.sum(axis=0).astype(np.float64),
        cells.sum(axis=1),
        np.square(cells).sum(axis=1),
    )


def prepare_features(view: Floats, scaling: FeatureScaling) -> PreparedFeatures:
    """Scale a site's view: ``(x - center) / (spread sqrt(n))``, n being the site's own rows.

    Parameters
    ----------
    view : ndarray of shape (n, d), float64
        As given to `feature_moments`.
    scaling : FeatureScaling

    Returns
    -------
    PreparedFeatures
        A complete feature of one site alone has a row of norm 1.
    """
    observed = np.ascontiguousarray(~np.isnan(view).T)
    values = np.ascontiguousarray(view.T) - scaling.center[:, None]
    values /= scaling.spread[:, None] * np.sqrt(view.shape[0])
    values[~observed] = 0.0
    values[scaling.dead] = 0.0
    return PreparedFeatures(values, observed)


def standardise(view: Floats, *, text: bool = False) -> tuple[PreparedFeatures, FeatureScaling]:
    """Prepare the view of a site that stands alone.

    Parameters
    ----------
    view : ndarray of shape (n, d), float64
        NaN = missing. Text has been through `text_rows`.
    text : bool, default False

    Returns
    -------
    prepared : PreparedFeatures
    scaling : FeatureScaling
    """
    rough = feature_moments(view)
    origin = rough.total / np.maximum(rough.count, 1.0)
    scaling = feature_scaling(feature_moments(view, origin), origin, text=text)
    return prepare_features(view, scaling), scaling


def raw_values(values: Floats, scaling: FeatureScaling) -> Floats:
    """Return prepared values (d, n) in the view's own units, (n, d)."""
    scaled = values * (scaling.spread[:, None] * np.sqrt(values.shape[1]))
    return np.ascontiguousarray((scaled + scaling.center[:, None]).T)


# -- text ------------------------------------------------------------------------------------------


def check_text(view: Floats, name: str) -> None:
    """Check that a view can be read as text.

    Parameters
    ----------
    view : ndarray of shape (n, d), float64
    name : str
        How a sentence calls the view.

    Raises
    ------
    DataRefused
        If a cell is negative, or single cells of a row are missing: a document is there or not.
    """
    negative = int((view < 0).sum())
    if negative:
        raise DataRefused(
            f"{name} has {negative} negative cells and text may have 0: give counts or weights of "
            "words, or leave text mode"
        )
    missing = np.isnan(view)
    partly = int((missing.any(axis=1) & ~missing.all(axis=1)).sum())
    if partly:
        raise DataRefused(
            f"{name} has {partly} rows with some cells missing and text may have 0: a document is "
            "missing as a whole (all cells NaN) or not at all"
        )


def holds_counts(view: Floats) -> bool:
    """Whether every observed cell is a whole number, so that TF-IDF applies."""
    observed = ~np.isnan(view)
    return bool((view[observed] == np.rint(view[observed])).all())


def document_frequencies(view: Floats) -> tuple[Floats, int]:
    """Return in how many documents each word occurs, shape (d,), and the number of documents.

    Both are sums over rows: those of several sites add up.
    """
    held = ~np.isnan(view).all(axis=1)
    return (view > 0).sum(axis=0).astype(np.float64), int(held.sum())


def text_rows(view: Floats, frequencies: tuple[Floats, int] | None) -> Floats:
    """Weight words by ``ln((1 + N) / (1 + df)) + 1`` and scale rows to unit length.

    Parameters
    ----------
    view : ndarray of shape (n, d), float64
        Checked by `check_text`.
    frequencies : (df, N) or None
        Summed over the sites; None where the cells are weights already.

    Returns
    -------
    ndarray of shape (n, d)
        A row without any word stays 0, a missing one NaN.
    """
    weighted = view.copy()
    if frequencies is not None:
        occurrences, n_documents = frequencies
        weighted *= np.log((1 + n_documents) / (1 + occurrences)) + 1
    lengths = np.sqrt(np.square(weighted).sum(axis=1, keepdims=True))
    return np.asarray(weighted / np.where(lengths > 0, lengths, 1.0))
