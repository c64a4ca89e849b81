"""The tables of a run plan, one a topic.

A field's description states what is allowed and is what an error message shows. A field that is
None is decided by the profile: see `configs.profiles`, `configs.tensor_profiles` and
`configs.mufsht_profiles`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from configs.mufsht_profiles import RankingRule, Search, Simplex, Stages, Weighting
from configs.profiles import LARGEST_EXPONENT, Bandwidth, HeatKernel, Scaling
from configs.site import SITE_NAME
from configs.tables import Table
from configs.tensor_profiles import (
    AnchorKind,
    BlendEncoding,
    Orientation,
    Sweep,
    ViewScalingRule,
)

__all__ = [
    "FedHKOptions",
    "MUFSHTOptions",
    "Method",
    "PrivacyOptions",
    "QuorumOptions",
    "TensorOptions",
]

Method = Literal["fedhk-mvfc", "tensor-fmvc", "fed-mufsht"]

Aggregation = Literal["exact", "weighted", "fedavg", "median", "quality", "nmi_softmax"]
Encoding = Literal["float64", "float32", "int16", "int8"]
Initialisation = Literal["kmeans", "box", "spread"]
Acceleration = Literal["anderson", "none"]
Mechanism = Literal["none", "gaussian", "randomised-response", "paper"]
NoisePlacement = Literal["distributed", "local"]
Blend = Annotated[float, Field(ge=0.0, le=1.0)] | Literal["adaptive"]


class FedHKOptions(Table):
    """Table ``[fedhk]``: options of FedHK-MVFC; the first five are up to the profile."""

    fuzzifier: float | None = Field(
        None, gt=1.0, le=LARGEST_EXPONENT, description="a number above 1 and at most 100"
    )
    view_exponent: float | None = Field(
        None, gt=1.0, le=LARGEST_EXPONENT, description="a number above 1 and at most 100"
    )
    heat_kernel: HeatKernel | None = Field(None, description="'minmax', 'absdev', 'one'")
    scaling: Scaling | None = Field(None, description="'minmax', 'standard', 'none'")
    bandwidth: Annotated[Bandwidth, Field(union_mode="left_to_right")] | None = Field(
        None, description="a number above 0, or 'auto'"
    )
    n_init: int = Field(5, ge=1, le=1000, description="a whole number from 1 to 1000")
    anneal: bool = Field(False, description="true or false")
    local_iterations: int = Field(5, ge=1, le=1000, description="a whole number from 1 to 1000")
    local_clusters: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict, description="a table of site = whole number, 1 or more"
    )
    aggregation: Aggregation = "exact"
    init: Initialisation = "kmeans"
    acceleration: Acceleration = "anderson"
    encoding: Encoding = "float64"
    gamma: Blend = Field(1.0, description="a number from 0 to 1, or 'adaptive'")
    rho: Blend = Field(1.0, description="a number from 0 to 1, or 'adaptive'")
    nmi_temperature: float = Field(0.5, gt=0.0, description="a number above 0")

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.bandwidth is not None and self.bandwidth != "auto" and self.bandwidth <= 0.0:
            raise ValueError(
                f"fedhk.bandwidth is {self.bandwidth!r}; allowed: a number above 0, or 'auto'"
            )
        if self.local_clusters and self.aggregation == "exact":
            raise ValueError(
                "fedhk.local_clusters is set but fedhk.aggregation is 'exact': a site's own "
                "cluster count needs an averaging aggregation, for instance 'weighted'"
            )
        if self.encoding in ("int8", "int16") and self.aggregation != "exact":
            raise ValueError(
                f"fedhk.encoding is {self.encoding!r} but fedhk.aggregation is "
                f"{self.aggregation!r}: difference coding exists for 'exact' only; use 'float32' "
                "or 'float64'"
            )
        return self


class TensorOptions(Table):
    """Table ``[tensor]``: options of TensorFMVC."""

    orientation: Orientation | None = Field(
        None, description="'sample', 'cluster', 'view', 'unfold', 'identity'"
    )
    p: float = Field(0.9, gt=0.0, le=1.0, description="a number above 0 and at most 1")
    r: float = Field(5.0, gt=1.0, le=1000.0, description="a number above 1 and at most 1000")
    kappa: float | None = Field(
        None, gt=0.0, lt=1.0, description="a number above 0 and below 1 (profile 'plus')"
    )
    lam: float | None = Field(
        None, alias="lambda", gt=0.0, description="a number above 0 (profile 'paper')"
    )
    omega: float | None = Field(None, gt=0.0, description="a number above 0 (profile 'paper')")
    mu0: float | None = Field(None, gt=0.0, description="a number above 0")
    mu_growth: float | None = Field(None, ge=1.0, le=1000.0, description="a number from 1 to 1000")
    balance: float | None = Field(None, ge=0.0, description="a number, 0 or more (profile 'plus')")
    anchor_kind: AnchorKind = "das"
    anchors: int = Field(0, ge=0, description="a whole number, 0 = half the rows, at most 1000")
    neighbours: int = Field(10, ge=1, description="a whole number, 1 or more")
    z_encoding: BlendEncoding | None = Field(None, description="'float64', 'float16', 'int8'")
    local_sweeps: int = Field(1, ge=1, le=1000, description="a whole number from 1 to 1000")
    sweep: Sweep | None = Field(None, description="'random', 'natural' (profile 'paper')")
    scaling: ViewScalingRule = "auto"
    min_overlap: int = Field(50, ge=1, description="a whole number, 1 or more")
    link_cost: int = Field(
        12, ge=1, le=16, description="a whole number from 1 to 16 (scrypt takes 2 to its power)"
    )


class MUFSHTOptions(Table):
    """Table ``[mufsht]``: options of Fed-MUFSHT."""

    search: Search | None = Field(None, description="'off', 'keys', 'weights'")
    rank: RankingRule | None = Field(None, description="'gated_pivot', 'row_norm'")
    ratio: float = Field(0.4, gt=0.0, le=1.0, description="a number above 0 and at most 1")
    tau: float | None = Field(None, ge=0.0, description="a number, 0 or more")
    beta: float | None = Field(None, ge=0.0, description="a number, 0 or more")
    lam: float | None = Field(None, ge=0.0, description="a number, 0 or more")
    mu: float | None = Field(None, ge=0.0, description="a number, 0 or more")
    text: bool = Field(False, description="true or false")
    simplex: Simplex = "view"
    weighting: Weighting = "softmax"
    agg_temp: float = Field(0.1, gt=0.0, description="a number above 0")
    mix: float = Field(0.5, ge=0.0, le=1.0, description="a number from 0 to 1")
    local_sweeps: int = Field(8, ge=1, le=1000, description="a whole number from 1 to 1000")
    stages: Stages = "both"
    hcl: bool = Field(True, description="true or false")
    acm: bool = Field(True, description="true or false")


class QuorumOptions(Table):
    """Table ``[quorum]``: how many sites a run needs and how long it waits for them."""

    min_sites: int = Field(1, ge=1, description="a whole number, 1 or more")
    timeout_s: float = Field(600.0, gt=0.0, description="a number of seconds above 0")
    on_missing: Literal["stop", "continue"] = "stop"


class PrivacyOptions(Table):
    """Table ``[privacy]``: what the server may see, and the noise that hides single patients.

    What is left out is filled in by `configs.privacy_rules.with_defaults` where the plan uses it.
    """

    secure_aggregation: bool = Field(False, description="true or false")
    participants: Annotated[
        tuple[Annotated[str, Field(pattern=SITE_NAME)], ...], Field(strict=False)
    ] = Field((), description="a list of site names (letters, digits, '.', '_' or '-')")
    colluders: int = Field(1, ge=1, description="a whole number, 1 or more")
    tolerated_dropouts: int | None = Field(None, ge=0, description="a whole number, 0 or more")
    threshold: int | None = Field(None, ge=2, description="a whole number, 2 or more")
    spare_exchanges: int | None = Field(
        None, ge=0, le=10_000, description="a whole number from 0 to 10000"
    )
    max_rows: int = Field(100_000, ge=1, le=2**40, description="a whole number of rows, 1 or more")
    min_contributors: int = Field(3, ge=1, description="a whole number, 1 or more")
    mechanism: Mechanism = "none"
    epsilon: float | None = Field(
        None, gt=0.0, le=1000.0, description="a number above 0, at most 1000"
    )
    delta: float | None = Field(
        None, gt=0.0, le=0.01, description="a number above 0, at most 0.01, well below 1 / rows"
    )
    noise: NoisePlacement | None = Field(None, description="'distributed', 'local'")
    clip: float | None = Field(
        None, gt=0.0, description="a number above 0 (method 'fed-mufsht' with noise)"
    )

    @field_validator("participants")
    @classmethod
    def _one_order(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        """Put the names in one order, so that equal plans have equal ids."""
        return tuple(sorted(names))
