"""The run plan: what everybody agrees to before a run, in one frozen, hashable value."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from configs.compatibility import refusal
from configs.errors import ConfigError
from configs.profiles import (
    LARGEST_EXPONENT,
    Bandwidth,
    HeatKernel,
    HeatKernelSettings,
    Profile,
    Scaling,
    resolve_heat_kernel,
)
from configs.tables import Table, parse_table, read_toml
from configs.tensor_profiles import (
    AnchorKind,
    BlendEncoding,
    Orientation,
    Sweep,
    TensorProfile,
    TensorSettings,
    ViewScalingRule,
    resolve_tensor,
)

__all__ = ["FedHKOptions", "Method", "PrivacyOptions", "QuorumOptions", "RunPlan", "TensorOptions"]

Method = Literal["fedhk-mvfc", "tensor-fmvc"]
#: The table and the profiles of each method; a third profile is refused with its own sentence.
_TABLES = {"fedhk-mvfc": "fedhk", "tensor-fmvc": "tensor"}
_PROFILES = {
    "fedhk-mvfc": get_args(Profile),
    "tensor-fmvc": (*get_args(TensorProfile), "consensus"),
}
#: Exchanges at most, where the plan does not say it.
_ROUNDS = {"fedhk-mvfc": 50, "tensor-fmvc": 150}

Aggregation = Literal["exact", "weighted", "fedavg", "median", "quality", "nmi_softmax"]
Encoding = Literal["float64", "float32", "int16", "int8"]
Initialisation = Literal["kmeans", "box", "spread"]
Acceleration = Literal["anderson", "none"]
Mechanism = Literal["none", "gaussian", "randomised-response", "paper"]
Blend = Annotated[float, Field(ge=0.0, le=1.0)] | Literal["adaptive"]


class FedHKOptions(Table):
    """Table ``[fedhk]``: options of FedHK-MVFC.

    The first five are None where the profile decides; see `configs.profiles`. A field's
    description states what is allowed and is what an error message shows.
    """

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
    """Table ``[tensor]``: options of TensorFMVC.

    Those that are None are decided by the profile; see `configs.tensor_profiles`.
    """

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


class QuorumOptions(Table):
    """Table ``[quorum]``: how many sites a run needs and how long it waits for them."""

    min_sites: int = Field(1, ge=1, description="a whole number, 1 or more")
    timeout_s: float = Field(600.0, gt=0.0, description="a number of seconds above 0")
    on_missing: Literal["stop", "continue"] = "stop"


class PrivacyOptions(Table):
    """Table ``[privacy]``; today only the plain run exists, anything else is refused in words."""

    secure_aggregation: bool = Field(False, description="true or false")
    mechanism: Mechanism = "none"


class RunPlan(Table):
    """One run: the method, its options, the quorum and the privacy.

    ``RunPlan.model_validate(dict)`` and a TOML file are the same thing. `load` and `parse` raise
    `ConfigError` in one sentence; ``model_validate`` raises pydantic's own error.
    """

    method: Method
    profile: str | None = Field(None, description="the name of a profile (or leave it out)")
    n_clusters: int = Field(ge=1, description="a whole number, 1 or more")
    max_rounds: int = Field(ge=1, description="a whole number, 1 or more")
    tol: float = Field(1e-6, ge=0.0, description="a number, 0 or more")
    seed: int = Field(0, ge=0, lt=2**63, description="a whole number, 0 or more")
    features: str = Field("", description="'' (a selection by another run is not available yet)")
    fedhk: FedHKOptions = Field(default_factory=FedHKOptions, description="a table")
    tensor: TensorOptions = Field(default_factory=TensorOptions, description="a table")
    quorum: QuorumOptions = Field(default_factory=QuorumOptions, description="a table")
    privacy: PrivacyOptions = Field(default_factory=PrivacyOptions, description="a table")

    @model_validator(mode="before")
    @classmethod
    def _by_method(cls, fields: Any) -> Any:
        """Fill in what depends on the method; refuse another method's table."""
        method = fields.get("method") if isinstance(fields, dict) else None
        if method not in _TABLES:
            return fields
        for other, table in _TABLES.items():
            if other != method and table in fields:
                raise ValueError(
                    f"table [{table}] belongs to method '{other}' but method is '{method}': leave "
                    f"it out or use [{_TABLES[method]}]"
                )
        return {"max_rounds": _ROUNDS[method], **fields}

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.features != "":
            raise ValueError(
                f"features is {self.features!r}: clustering on the columns that another run "
                'selected is not available in this version; use ""'
            )
        profiles = _PROFILES[self.method]
        if self.profile is not None and self.profile not in profiles:
            raise ValueError(
                f"profile is {self.profile!r}; allowed: "
                f"{', '.join(map(repr, profiles[:2]))} (or leave it out)"
            )
        reason = refusal(
            self.method,
            self.fedhk.aggregation,
            secure_aggregation=self.privacy.secure_aggregation,
            mechanism=self.privacy.mechanism,
        )
        if reason is not None:
            raise ValueError(reason)
        try:
            if self.method == "fedhk-mvfc":
                self._check_local_clusters()
                self.settings(1)
            else:
                self._check_vertical()
                self.tensor_settings()
        except ConfigError as error:
            raise ValueError(error.public_message.removesuffix(".")) from error
        return self

    def _check_local_clusters(self) -> None:
        for site, count in self.fedhk.local_clusters.items():
            if count > self.n_clusters:
                raise ConfigError(
                    f"fedhk.local_clusters.{site} is {count} but n_clusters is "
                    f"{self.n_clusters}: a site cannot have more clusters than the run"
                )

    def _check_vertical(self) -> None:
        if self.n_clusters < 2:
            raise ConfigError(
                f"n_clusters is {self.n_clusters}: method 'tensor-fmvc' needs at least 2 clusters"
            )
        if 0 < self.tensor.anchors < self.n_clusters:
            raise ConfigError(
                f"tensor.anchors is {self.tensor.anchors} but n_clusters is {self.n_clusters}: "
                "give at least as many anchors as clusters, or 0 for half the rows"
            )

    @classmethod
    def parse(cls, fields: dict[str, Any], *, source: str = "plan") -> RunPlan:
        """Validate a mapping of plan keys.

        Parameters
        ----------
        fields : dict
            Keys and tables as in a plan file.
        source : str, default "plan"
            What an error message calls the plan, for instance a file name.

        Returns
        -------
        RunPlan
            The plan.

        Raises
        ------
        ConfigError
            One sentence that names the source, the key, its value and what is allowed.
        """
        return parse_table(cls, fields, source)

    @classmethod
    def load(cls, path: str | Path) -> RunPlan:
        """Read a plan file.

        Parameters
        ----------
        path : str or Path
            A TOML file.

        Returns
        -------
        RunPlan
            The plan.

        Raises
        ------
        ConfigError
            If the file cannot be read or a key does not fit, naming the file and the key.
        """
        path = Path(path)
        return cls.parse(read_toml(path, "plan"), source=path.name)

    def canonical(self) -> str:
        """Return the plan as canonical JSON: sorted keys, every default written out."""
        return json.dumps(self.fields(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def fields(self) -> dict[str, Any]:
        """Return the plan as plain values, every default written out, its method's table only."""
        others = {table for method, table in _TABLES.items() if method != self.method}
        return self.model_dump(mode="json", by_alias=True, exclude=others)

    @cached_property
    def plan_id(self) -> str:
        """SHA-256 of `canonical`, as 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def settings(self, n_columns: int) -> HeatKernelSettings:
        """Resolve the heat-kernel settings.

        Parameters
        ----------
        n_columns : int
            Number of columns over all views of the run.

        Returns
        -------
        HeatKernelSettings
            The settings that the profile and the explicit values stand for.
        """
        options = self.fedhk
        return resolve_heat_kernel(
            self.profile,
            n_columns,
            fuzzifier=options.fuzzifier,
            view_exponent=options.view_exponent,
            heat_kernel=options.heat_kernel,
            scaling=options.scaling,
            bandwidth=options.bandwidth,
            n_init=options.n_init,
            anneal=options.anneal,
        )

    def tensor_settings(self) -> TensorSettings:
        """Resolve the settings of TensorFMVC that the profile and the explicit values stand for."""
        chosen = self.tensor.model_dump(exclude={"min_overlap", "link_cost"})
        return resolve_tensor(self.profile, **chosen)
