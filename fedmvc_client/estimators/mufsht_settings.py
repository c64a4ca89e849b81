"""What MUFSHT checks and resolves: its parameters and the views that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError, DataRefused
from fedmvc_client.estimators.validation import (
    check_dense_or_sparse,
    check_tolerance,
    check_whole_numbers,
)
from fedmvc_client.solvers.consensus_factors import Simplex
from fedmvc_client.solvers.devices import resolve_device
from fedmvc_client.solvers.preprocessing import LARGEST
from strategies.feature_ranking import RankingRule

Floats = NDArray[np.float64]

#: What each profile stands for where a parameter is not given.
PROFILES: dict[str, dict[str, Any]] = {
    "gated": {"rank": "gated_pivot", "tau": 0.1, "mu": 0.005},
    "paper": {"rank": "row_norm", "tau": 1.0, "mu": 0.5},
}
#: beta and lam, which depend on whether the views are text.
PENALTIES = {True: {"beta": 1e-4, "lam": 0.0}, False: {"beta": 0.01, "lam": 0.1}}


#: What the swarm may look for.
SEARCHES = ("off", "weights", "keys")


@dataclass(frozen=True)
class MUFSHTSettings:
    """Parameters with every default filled in.

    Attributes
    ----------
    rank : {"gated_pivot", "row_norm"}
    options : dict
        What `TensorLearning` takes by name.
    """

    rank: RankingRule
    options: dict[str, Any]


def resolve_mufsht(
    *,
    n_clusters: int,
    profile: str | None,
    rank: str | None,
    search: str,
    text: bool,
    simplex: str,
    ratio: float,
    max_iter: int,
    tol: float,
    random_state: int,
    device: str,
    **penalties: float | None,
) -> MUFSHTSettings:
    """Check the parameters of `MUFSHT` and fill in what is not given.

    Parameters
    ----------
    n_clusters, profile, rank, search, text, simplex, ratio, max_iter, tol, random_state, device
        As the estimator's.
    **penalties : float or None
        ``tau``, ``beta``, ``lam`` and ``mu``.

    Raises
    ------
    ConfigError
        Where one is out of range or unknown.
    """
    check_whole_numbers(
        {
            "n_clusters": (n_clusters, 2),
            "max_iter": (max_iter, 1),
            "random_state": (random_state, 0),
        }
    )
    check_tolerance(tol)
    check_ratio(ratio)
    if not isinstance(text, bool):
        raise ConfigError(f"text is {text!r}: give True or False")
    profile = "gated" if profile is None else profile
    if profile not in PROFILES:
        raise ConfigError(f'profile "{profile}" is unknown; use "gated" or "paper"')
    defaults = PROFILES[profile] | PENALTIES[text]
    rule: Any = defaults["rank"] if rank is None else rank
    if rule not in get_args(RankingRule):
        raise ConfigError(f'rank "{rule}" is unknown; use "gated_pivot" or "row_norm"')
    if search not in SEARCHES:
        raise ConfigError(f'search "{search}" is unknown; use "off", "weights" or "keys"')
    if simplex not in get_args(Simplex):
        raise ConfigError(f'simplex "{simplex}" is unknown; use "view", "sample" or "none"')
    resolve_device(device)
    options: dict[str, Any] = {"simplex": simplex, "device": device}
    for name, value in penalties.items():
        options[name] = defaults[name] if value is None else _number(name, value)
    return MUFSHTSettings(rule, options)


def check_ratio(ratio: Any) -> None:
    """Check a share of features.

    Raises
    ------
    ConfigError
        Where it is not above 0 and at most 1.
    """
    if not _is_number(ratio) or not 0 < ratio <= 1:
        raise ConfigError(f"ratio is {ratio!r}: give a number above 0, at most 1")


def feature_tables(views: Sequence[Any]) -> list[Floats]:
    """Return views as dense float64 tables, every cell finite or NaN.

    Raises
    ------
    DataRefused
        Where a view is no table of numbers, has other rows than view 0, or holds an infinite or too
        large cell.
    """
    tables = [
        table if isinstance(table, np.ndarray) else np.asarray(table.toarray())
        for table in check_dense_or_sparse(views)
    ]
    for v, table in enumerate(tables):
        infinite = int(np.isinf(table).sum())
        if infinite:
            raise DataRefused(
                f"view {v} has {infinite} infinite cells and may have 0: mend them or mark them "
                "as missing"
            )
        beyond = int((np.abs(table) > LARGEST).sum())
        if beyond:
            raise DataRefused(
                f"view {v} has {beyond} values beyond {LARGEST:g} and may have 0: choose a larger "
                "unit"
            )
    return tables


def _number(name: str, value: Any) -> float:
    if not _is_number(value) or not 0 <= value < np.inf:
        raise ConfigError(f"{name} is {value!r}: give a number, 0 or more")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
