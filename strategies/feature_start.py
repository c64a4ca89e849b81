"""The weights that every Fed-MUFSHT run starts from: they follow from the plan, at both ends."""

from __future__ import annotations

import numpy as np

from strategies.statistics import Floats

__all__ = ["initial_weights"]


def initial_weights(n_features: int, k: int, seed: int) -> Floats:
    """Draw the common start W0 (D, k): standard normal over the root of D."""
    drawn = np.random.default_rng(seed).standard_normal((n_features, k))
    return np.asarray(drawn / np.sqrt(n_features))
