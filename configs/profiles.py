"""What the profiles of HK-MVFC stand for: one place that turns names into numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from configs.errors import ConfigError
from configs.values import check_name

__all__ = [
    "ANNEALING",
    "AUTO_BANDWIDTH_FACTOR",
    "LARGEST_EXPONENT",
    "Bandwidth",
    "HeatKernel",
    "HeatKernelSettings",
    "Profile",
    "Scaling",
    "resolve_heat_kernel",
]

HeatKernel = Literal["minmax", "absdev", "one"]
Scaling = Literal["minmax", "standard", "none"]
Bandwidth = float | Literal["auto"]
Profile = Literal["robust", "paper"]

AUTO_BANDWIDTH_FACTOR = 0.1
"""Bandwidth ``"auto"`` is this factor over the view's mean delta-weighted spread."""

ANNEALING = (0.05, 0.2, 0.5)
"""Bandwidth factors that an annealed run passes through before it runs at factor 1."""

LARGEST_EXPONENT = 100.0
"""Above it ``v^alpha`` or ``u^m`` underflows to 0 and the updates divide 0 by 0."""

_HIGH_DIMENSION = 10  # above it the robust fuzzifier must approach 1 or all memberships meet at 1/c


@dataclass(frozen=True)
class HeatKernelSettings:
    """Resolved settings of one HK-MVFC run.

    Attributes
    ----------
    fuzzifier : float
        m of the paper's Eq. 8, above 1 and at most 100.
    view_exponent : float
        alpha of the paper's Eq. 10, above 1 and at most 100; larger spreads the weight more evenly
        over the views.
    heat_kernel : {"minmax", "absdev", "one"}
        Heat-kernel coefficient delta: Eq. 1, Eq. 2 or the constant 1.
    scaling : {"minmax", "standard", "none"}
        Scaling of every column before the kernel.
    bandwidth : float or "auto"
        beta of ``exp(-beta phi)``, above 0; 1 is the paper.
    n_init : int
        Number of starts, at least 1.
    anneal : bool
        Whether the run passes through the bandwidth factors `ANNEALING` first.
    """

    fuzzifier: float
    view_exponent: float
    heat_kernel: HeatKernel
    scaling: Scaling
    bandwidth: Bandwidth
    n_init: int
    anneal: bool


def resolve_heat_kernel(
    profile: str | None,
    n_columns: int,
    *,
    fuzzifier: float | None = None,
    view_exponent: float | None = None,
    heat_kernel: str | None = None,
    scaling: str | None = None,
    bandwidth: float | str | None = None,
    n_init: int = 5,
    anneal: bool = False,
) -> HeatKernelSettings:
    """Resolve a profile and explicit values into settings.

    Without a profile and without an explicit value the robust profile runs. Without a profile but
    with at least one explicit value, plain HK-MVFC runs with these and the rest from the paper.

    Parameters
    ----------
    profile : {"robust", "paper"} or None
        Name of the profile.
    n_columns : int
        Number of columns over all views.
    fuzzifier, view_exponent, heat_kernel, scaling, bandwidth : optional
        Explicit values; None leaves the choice to the profile.
    n_init : int, default 5
        Number of starts.
    anneal : bool, default False
        Whether to anneal the bandwidth; the robust profile always does.

    Returns
    -------
    HeatKernelSettings
        The settings.

    Raises
    ------
    ConfigError
        If a value is out of range, a name is unknown, or the robust profile is combined with an
        explicit value.
    """
    for key, name, allowed in (
        ("profile", profile, Profile),
        ("heat_kernel", heat_kernel, HeatKernel),
        ("scaling", scaling, Scaling),
    ):
        if name is not None:
            check_name(key, name, get_args(allowed))
    for name, exponent, usual in (
        ("fuzzifier", fuzzifier, 2.0),
        ("view_exponent", view_exponent, 5.0),
    ):
        _check_above(name, exponent, 1.0, f"{usual} is the paper's value")
        if exponent is not None and exponent > LARGEST_EXPONENT:
            raise ConfigError(
                f"{name} is {exponent!r}: give at most {LARGEST_EXPONENT:g} ({usual} is the "
                "paper's value); powers that large underflow to 0."
            )
    if bandwidth != "auto":
        _check_above("bandwidth", bandwidth, 0.0, 'or "auto"; 1.0 is the paper\'s value')
    if isinstance(n_init, bool) or not _is_integer(n_init) or n_init < 1:
        raise ConfigError(f"n_init is {n_init!r}: give a whole number of starts, 1 or more.")
    explicit = {
        "fuzzifier": fuzzifier,
        "view_exponent": view_exponent,
        "heat_kernel": heat_kernel,
        "scaling": scaling,
        "bandwidth": bandwidth,
    }
    given = [name for name, value in explicit.items() if value is not None]
    if profile == "robust" and given:
        raise ConfigError(
            f'profile "robust" sets {given[0]} itself: leave out {" and ".join(given)}, '
            'or leave out the profile, or use profile = "paper".'
        )
    if profile == "robust" or (profile is None and not given):
        return HeatKernelSettings(
            fuzzifier=1.1 if n_columns > _HIGH_DIMENSION else 2.0,
            view_exponent=5.0,
            heat_kernel="one",
            scaling="standard",
            bandwidth="auto",
            n_init=int(n_init),
            anneal=True,
        )
    return HeatKernelSettings(
        fuzzifier=2.0 if fuzzifier is None else float(fuzzifier),
        view_exponent=5.0 if view_exponent is None else float(view_exponent),
        heat_kernel=cast(HeatKernel, heat_kernel or "minmax"),
        scaling=cast(Scaling, scaling or "minmax"),
        bandwidth=_bandwidth(bandwidth),
        n_init=int(n_init),
        anneal=bool(anneal),
    )


def _is_integer(value: object) -> bool:
    # numpy's integers are not ints but carry __index__, which floats and strings lack
    return hasattr(value, "__index__")


def _check_above(key: str, value: Any, limit: float, hint: str) -> None:
    if value is None:
        return
    try:
        number = float(value) if not isinstance(value, bool | str) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not limit < number < math.inf:
        raise ConfigError(f"{key} is {value!r}: give a finite number above {limit:g} ({hint}).")


def _bandwidth(value: float | str | None) -> Bandwidth:
    if value == "auto":
        return "auto"
    return 1.0 if value is None else float(value)
