"""What the profiles of TensorFMVC stand for: one place that turns names into numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from configs.errors import ConfigError
from configs.values import check_name, check_number, check_whole

__all__ = [
    "LARGEST_ANCHORS",
    "MU_MAX",
    "SAMPLE_ORDER_WARNING",
    "AnchorKind",
    "BlendEncoding",
    "Orientation",
    "Sweep",
    "TensorProfile",
    "TensorSettings",
    "ViewScalingRule",
    "resolve_tensor",
]

Orientation = Literal["sample", "cluster", "view", "unfold", "identity"]
AnchorKind = Literal["das", "random", "pc1"]
BlendEncoding = Literal["float64", "float16", "int8"]
Sweep = Literal["random", "natural"]
ViewScalingRule = Literal["auto", "none"]
TensorProfile = Literal["plus", "paper"]

MU_MAX = 1.2e13
"""Largest penalty weight mu of the augmented Lagrangian (Eq. 17)."""

LARGEST_ANCHORS = 1000
"""Without a number in the plan a site takes half its rows as anchors, at most this many."""

SAMPLE_ORDER_WARNING = (
    'orientation "sample" transforms along the rows, so its result depends on their order: scores '
    "on files sorted by class are an artefact that vanishes when the rows are shuffled; use "
    'orientation "unfold"'
)

_CONSENSUS = "profile 'consensus' is not available in this version: use 'plus'"
#: A key that means something in one profile only, and the profile's way to say the same.
_OWN_KEYS = {
    "kappa": ("plus", "lambda"),
    "balance": ("plus", "the paper's local term, which already pushes to equal clusters"),
    "lambda": ("paper", "kappa"),
    "omega": ("paper", "the spectral term, which needs no cut-off"),
    "sweep": ("paper", "the spectral term, which updates all rows at once"),
}


@dataclass(frozen=True)
class TensorSettings:
    """Resolved settings of one TensorFMVC run.

    Attributes
    ----------
    profile : {"plus", "paper"}
        "plus": spectral local term, all rows in parallel. "paper": the Butterworth distance of
        Eq. 16 and the sequential row sweep of Eq. 30.
    orientation : {"sample", "cluster", "view", "unfold", "identity"}
        Which axis of the N x K x M tensor is transformed before the shrinkage.
    p : float
        Exponent of the tensor Schatten-p norm, above 0, at most 1.
    r : float
        Exponent of the view weights (Eq. 21), above 1; larger spreads them more evenly.
    kappa : float
        Profile "plus": lambda = kappa mu0 sigma_1 of the first labels, in (0, 1).
    lam : float
        Profile "paper": lambda of Eq. 10, above 0.
    omega : float
        Profile "paper": cut-off of Eq. 16, above 0.
    mu0, mu_growth : float
        First mu, above 0, and its factor a round, at least 1.
    balance : float
        Profile "plus": weight of the push to equal clusters, 0 or more.
    anchor_kind : {"das", "random", "pc1"}
    anchors : int
        Anchors of a site; 0 for half its rows, at most `LARGEST_ANCHORS`.
    neighbours : int
        k of the anchor graph (Eq. 14), at least 1.
    z_encoding : {"float64", "float16", "int8"}
        How the blend Z travels to the sites.
    local_sweeps : int
        Sweeps over a site's rows per exchange, at least 1.
    sweep : {"random", "natural"}
        Profile "paper": row order of the sweep; "natural" depends on the file's order.
    scaling : {"auto", "none"}
        "auto": text becomes unit rows of TF-IDF, other columns are scaled to [0, 1].
    gst_iterations : int
        Iterations of the generalised soft threshold.
    """

    profile: TensorProfile
    orientation: Orientation
    p: float
    r: float
    kappa: float
    lam: float
    omega: float
    mu0: float
    mu_growth: float
    balance: float
    anchor_kind: AnchorKind
    anchors: int
    neighbours: int
    z_encoding: BlendEncoding
    local_sweeps: int
    sweep: Sweep
    scaling: ViewScalingRule
    gst_iterations: int


_PLUS = {"orientation": "unfold", "mu0": 1.0, "mu_growth": 1.05, "z_encoding": "int8"}
_PAPER = {"orientation": "sample", "mu0": 1e-4, "mu_growth": 1.1, "z_encoding": "float64"}


def resolve_tensor(
    profile: str | None = None,
    *,
    orientation: str | None = None,
    p: float = 0.9,
    r: float = 5.0,
    kappa: float | None = None,
    lam: float | None = None,
    omega: float | None = None,
    mu0: float | None = None,
    mu_growth: float | None = None,
    balance: float | None = None,
    anchor_kind: str = "das",
    anchors: int = 0,
    neighbours: int = 10,
    z_encoding: str | None = None,
    local_sweeps: int = 1,
    sweep: str | None = None,
    scaling: str = "auto",
) -> TensorSettings:
    """Resolve a profile and explicit values into settings.

    Parameters
    ----------
    profile : {"plus", "paper"} or None
        None is "plus".
    orientation, p, r, ... : optional
        As in `TensorSettings`; None leaves the choice to the profile.

    Returns
    -------
    TensorSettings

    Raises
    ------
    ConfigError
        If a value is out of range, a name is unknown, or a key belongs to the other profile.
    """
    if profile == "consensus":
        raise ConfigError(f"{_CONSENSUS}.")
    name = "plus" if profile is None else profile
    check_name("profile", name, get_args(TensorProfile))
    given = {"kappa": kappa, "balance": balance, "lambda": lam, "omega": omega, "sweep": sweep}
    for key, (owner, instead) in _OWN_KEYS.items():
        if given[key] is not None and name != owner:
            raise ConfigError(
                f"{key} is {given[key]!r} but profile is '{name}': {key} belongs to profile "
                f"'{owner}'; '{name}' has {instead}."
            )
    chosen: dict[str, Any] = {
        key: default if value is None else value
        for (key, default), value in zip(
            (_PLUS if name == "plus" else _PAPER).items(),
            (orientation, mu0, mu_growth, z_encoding),
            strict=True,
        )
    }
    check_name("orientation", chosen["orientation"], get_args(Orientation))
    check_name("z_encoding", chosen["z_encoding"], get_args(BlendEncoding))
    check_name("anchor_kind", anchor_kind, get_args(AnchorKind))
    check_name("scaling", scaling, get_args(ViewScalingRule))
    check_name("sweep", sweep or "random", get_args(Sweep))
    kappa = 0.4 if kappa is None else kappa
    return TensorSettings(
        profile=cast(TensorProfile, name),
        orientation=chosen["orientation"],
        p=check_number("p", p, above=0.0, most=1.0),
        r=check_number("r", r, above=1.0, most=1000.0),
        kappa=check_number("kappa", kappa, above=0.0, below=1.0),
        lam=check_number("lambda", 1.0 if lam is None else lam, above=0.0),
        omega=check_number("omega", 0.01 if omega is None else omega, above=0.0),
        mu0=check_number("mu0", chosen["mu0"], above=0.0, most=MU_MAX),
        mu_growth=check_number("mu_growth", chosen["mu_growth"], least=1.0, most=1000.0),
        balance=check_number("balance", 0.1 if balance is None else balance, least=0.0),
        anchor_kind=cast(AnchorKind, anchor_kind),
        anchors=check_whole("anchors", anchors, 0),
        neighbours=check_whole("neighbours", neighbours, 1),
        z_encoding=chosen["z_encoding"],
        local_sweeps=check_whole("local_sweeps", local_sweeps, 1),
        sweep=cast(Sweep, sweep or "random"),
        scaling=cast(ViewScalingRule, scaling),
        gst_iterations=10 if name == "plus" else 4,
    )
