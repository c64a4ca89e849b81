"""Declared bounds of a site's views: what masks and noise are made for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError
from strategies.messages import ViewDescription

__all__ = ["declared_bounds"]


def declared_bounds(views: Sequence[ViewDescription]) -> dict[str, NDArray[np.float64]]:
    """Return the declared bounds (d_h, 2) of each view.

    Raises
    ------
    ConfigError
        Where a column has none.
    """
    for view in views:
        if not view.bounded.all():
            column = view.columns[int(np.argmin(view.bounded))]
            raise ConfigError(
                f"column '{column}' of view '{view.name}' has no bounds in schema.toml, and masks "
                "or noise need them: declare bounds = [least, greatest] at all sites"
            )
    return {view.name: view.bounds for view in views}
