"""What the profiles of Fed-MUFSHT stand for: one place that turns names into numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from configs.errors import ConfigError
from configs.values import check_name, check_number, check_whole

__all__ = [
    "MUFSHTProfile",
    "MUFSHTSettings",
    "RankingRule",
    "Search",
    "Simplex",
    "Stages",
    "Variant",
    "Weighting",
    "resolve_mufsht",
]

MUFSHTProfile = Literal["gated", "paper"]
RankingRule = Literal["gated_pivot", "row_norm"]
Search = Literal["off", "keys", "weights"]
Simplex = Literal["view", "sample", "none"]
Stages = Literal["both", "search", "tensor"]
Weighting = Literal["softmax", "linear", "uniform"]
Variant = Literal["hc-thro", "thro", "no-hcl", "no-acm"]

#: What each profile stands for where a value is not given.
_PROFILES: dict[str, dict[str, Any]] = {
    "gated": {"search": "off", "rank": "gated_pivot", "tau": 0.1, "mu": 0.005},
    "paper": {"search": "weights", "rank": "row_norm", "tau": 1.0, "mu": 0.5},
}
#: beta and lam, which depend on whether the views are text.
_PENALTIES = {True: {"beta": 1e-4, "lam": 0.0}, False: {"beta": 0.01, "lam": 0.1}}
#: (hcl, acm) to the optimiser that is left.
_VARIANTS: dict[tuple[bool, bool], Variant] = {
    (True, True): "hc-thro",
    (False, False): "thro",
    (False, True): "no-hcl",
    (True, False): "no-acm",
}


@dataclass(frozen=True)
class MUFSHTSettings:
    """Resolved settings of one Fed-MUFSHT run.

    Attributes
    ----------
    profile : {"gated", "paper"}
        "gated": deterministic start, gated pivot. "paper": the closed loop of HC-THRO over the
        weights and tensor learning, features by the length of their rows.
    search : {"off", "keys", "weights"}
        What the swarm looks for: nothing, a better set of ``ratio`` of the features, or weights.
    rank : {"gated_pivot", "row_norm"}
        How weights become an order of features.
    ratio : float
        Share of the features that is selected, above 0, at most 1.
    tau, beta, lam, mu : float
        Pull of the views' embeddings towards each other, push of whole rows of the weights to 0,
        smoothness over correlated features, cost of imputed values (Eq. 14); 0 or more.
    text : bool
        Views are counts or weights of words.
    simplex : {"view", "sample", "none"}
        Which CP factor has its rows on the probability simplex.
    weighting : {"softmax", "linear", "uniform"}
        How the sites' NMI become weights: Eq. 16, its linear form, or equal weights, for which no
        NMI is sent.
    agg_temp : float
        Temperature of Eq. 16, above 0.
    mix : float
        eta of Eq. 18 in [0, 1]: share of the broadcast weights in a site's next start.
    local_sweeps : int
        Sweeps of a site in each round, at least 1.
    stages : {"both", "search", "tensor"}
        Which stages of the paper run; "search" alone is ablation II, "tensor" alone is I.
    variant : {"hc-thro", "thro", "no-hcl", "no-acm"}
        The swarm with or without Eqs. 4 and 5 (ablations III, IV and V).
    """

    profile: MUFSHTProfile
    search: Search
    rank: RankingRule
    ratio: float
    tau: float
    beta: float
    lam: float
    mu: float
    text: bool
    simplex: Simplex
    weighting: Weighting
    agg_temp: float
    mix: float
    local_sweeps: int
    stages: Stages
    variant: Variant

    @property
    def learning(self) -> dict[str, Any]:
        """What tensor learning takes by name: penalties and simplex."""
        return {key: getattr(self, key) for key in ("tau", "beta", "lam", "mu", "simplex")}


def resolve_mufsht(
    profile: str | None = None,
    *,
    search: str | None = None,
    rank: str | None = None,
    ratio: float = 0.4,
    tau: float | None = None,
    beta: float | None = None,
    lam: float | None = None,
    mu: float | None = None,
    text: bool = False,
    simplex: str = "view",
    weighting: str = "softmax",
    agg_temp: float = 0.1,
    mix: float = 0.5,
    local_sweeps: int = 8,
    stages: str = "both",
    hcl: bool = True,
    acm: bool = True,
) -> MUFSHTSettings:
    """Resolve a profile and explicit values into settings.

    Parameters
    ----------
    profile : {"gated", "paper"} or None
        None is "gated".
    search, rank, tau, ... : optional
        As in `MUFSHTSettings`; None leaves the choice to the profile.
    hcl, acm : bool, default True
        Hierarchical competitive learning (Eq. 4) and adaptive cognitive mapping (Eq. 5) of the
        swarm.

    Returns
    -------
    MUFSHTSettings

    Raises
    ------
    ConfigError
        If a value is out of range, a name is unknown, or two values contradict each other.
    """
    name = "gated" if profile is None else profile
    check_name("profile", name, get_args(MUFSHTProfile))
    for key, flag in (("text", text), ("hcl", hcl), ("acm", acm)):
        if not isinstance(flag, bool):
            raise ConfigError(f"{key} is {flag!r}: give true or false.")
    for key, word, allowed in (
        ("simplex", simplex, Simplex),
        ("weighting", weighting, Weighting),
        ("stages", stages, Stages),
    ):
        check_name(key, word, get_args(allowed))
    defaults = _PROFILES[name] | _PENALTIES[text]
    if stages == "tensor" and search is None:
        search = "off"
    search = defaults["search"] if search is None else search
    rank = defaults["rank"] if rank is None else rank
    check_name("search", search, get_args(Search))
    check_name("rank", rank, get_args(RankingRule))
    _check_stages(search, stages, hcl, acm)
    penalties = {
        key: check_number(key, defaults[key] if value is None else value, least=0.0)
        for key, value in (("tau", tau), ("beta", beta), ("lam", lam), ("mu", mu))
    }
    return MUFSHTSettings(
        profile=cast(MUFSHTProfile, name),
        search=cast(Search, search),
        rank=cast(RankingRule, rank),
        ratio=check_number("ratio", ratio, above=0.0, most=1.0),
        **penalties,
        text=text,
        simplex=cast(Simplex, simplex),
        weighting=cast(Weighting, weighting),
        agg_temp=check_number("agg_temp", agg_temp, above=0.0),
        mix=check_number("mix", mix, least=0.0, most=1.0),
        local_sweeps=check_whole("local_sweeps", local_sweeps, 1),
        stages=cast(Stages, stages),
        variant=_VARIANTS[hcl, acm],
    )


def _check_stages(search: str, stages: str, hcl: bool, acm: bool) -> None:
    """Refuse switches that would do nothing."""
    if stages == "search" and search != "weights":
        raise ConfigError(
            f"stages is 'search' but search is {search!r}: without tensor learning only search = "
            "'weights' makes weights."
        )
    if stages == "tensor" and search != "off":
        raise ConfigError(
            f"stages is 'tensor' but search is {search!r}: leave one of them out, or use stages = "
            "'both'."
        )
    if search == "off" and not (hcl and acm):
        key = "acm" if hcl else "hcl"
        raise ConfigError(
            f"{key} is false but search is 'off': it is part of the search; leave it out or set "
            "search = 'weights'."
        )
