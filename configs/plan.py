"""The run plan: what everybody agrees to before a run, in one frozen, hashable value."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import Field, field_validator, model_validator

from configs.compatibility import refusal
from configs.errors import ConfigError
from configs.feature_choice import FeatureChoice, parse_features, refuse_features
from configs.mufsht_profiles import MUFSHTProfile, MUFSHTSettings, resolve_mufsht
from configs.plan_tables import (
    FedHKOptions,
    Method,
    MUFSHTOptions,
    PrivacyOptions,
    QuorumOptions,
    TensorOptions,
)
from configs.privacy_rules import check_privacy, secure_terms, with_defaults
from configs.profiles import HeatKernelSettings, Profile, resolve_heat_kernel
from configs.secure_terms import SecureTerms
from configs.tables import Table, parse_table, read_toml
from configs.tensor_profiles import TensorProfile, TensorSettings, resolve_tensor

__all__ = ["RunPlan"]

#: The table and the profiles of each method.
_TABLES = {"fedhk-mvfc": "fedhk", "tensor-fmvc": "tensor", "fed-mufsht": "mufsht"}
_PROFILES: dict[str, tuple[str, ...]] = {
    "fedhk-mvfc": get_args(Profile),
    "tensor-fmvc": get_args(TensorProfile),
    "fed-mufsht": get_args(MUFSHTProfile),
}
#: A profile that does not exist yet and is refused with its own sentence.
_COMING = {"tensor-fmvc": ("consensus",)}
#: Rounds at most, and when to stop earlier, where the plan does not say it.
_DEFAULTS: dict[str, dict[str, float]] = {
    "fedhk-mvfc": {"max_rounds": 50},
    "tensor-fmvc": {"max_rounds": 150},
    "fed-mufsht": {"max_rounds": 5, "tol": 1e-3},
}


class RunPlan(Table):
    """One run: the method, its options, the quorum and the privacy.

    ``RunPlan.model_validate(dict)`` and a TOML file are the same thing. `load` and `parse` raise
    `ConfigError` in one sentence; ``model_validate`` raises pydantic's own error.
    """

    method: Method
    profile: str | None = Field(None, description="the name of a profile (or leave it out)")
    n_clusters: int = Field(ge=1, description="a whole number, 1 or more")
    max_rounds: int = Field(ge=0, description="a whole number, 1 or more")
    tol: float = Field(1e-6, ge=0.0, description="a number, 0 or more")
    seed: int = Field(0, ge=0, lt=2**63, description="a whole number, 0 or more")
    features: str = Field("", description="'' or 'RUN_ID@RATIO'")
    fedhk: FedHKOptions = Field(default_factory=FedHKOptions, description="a table")
    tensor: TensorOptions = Field(default_factory=TensorOptions, description="a table")
    mufsht: MUFSHTOptions = Field(default_factory=MUFSHTOptions, description="a table")
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
        return {**_DEFAULTS[method], **with_defaults(fields)}

    @field_validator("features")
    @classmethod
    def _one_writing(cls, features: str) -> str:
        """Write a ratio in one way, so that equal plans have equal ids."""
        try:
            choice = parse_features(features)
        except ConfigError as error:
            raise ValueError(error.public_message) from error
        return "" if choice is None else str(choice)

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        profiles = _PROFILES[self.method]
        known = (None, *profiles, *_COMING.get(self.method, ()))
        if self.profile not in known:
            raise ValueError(
                f"profile is {self.profile!r}; allowed: {', '.join(map(repr, profiles))} (or leave "
                "it out)"
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
            if self.features:
                refuse_features(self.method)
            if self.method == "fedhk-mvfc":
                self._check_local_clusters()
                self.settings(1)
            elif self.method == "tensor-fmvc":
                self._check_two_clusters()
                self._check_anchors()
                self.tensor_settings()
            else:
                self._check_two_clusters()
                self.mufsht_settings()
            check_privacy(self)
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

    def _check_two_clusters(self) -> None:
        if self.n_clusters < 2:
            raise ConfigError(
                f"n_clusters is {self.n_clusters}: method '{self.method}' needs at least 2 clusters"
            )

    def _check_anchors(self) -> None:
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

    @cached_property
    def feature_choice(self) -> FeatureChoice | None:
        """The columns of an earlier run that this one uses; None for all."""
        return parse_features(self.features)

    @property
    def protected(self) -> bool:
        """Whether sums are masked, noisy, or both: sites then send nothing but such sums."""
        return self.privacy.secure_aggregation or self.privacy.mechanism == "gaussian"

    @property
    def needs_bounds(self) -> bool:
        """Whether columns need declared bounds: those of text have documents of unit length."""
        return self.protected and not self.mufsht.text

    @property
    def private(self) -> bool:
        """Whether a mechanism guarantees something about a patient, a label or a site."""
        return self.privacy.mechanism in ("gaussian", "randomised-response")

    def secure_terms(self) -> SecureTerms | None:
        """Return the numbers of the plan's secure sums; None where it has none."""
        return secure_terms(self)

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

    def mufsht_settings(self) -> MUFSHTSettings:
        """Resolve the settings of Fed-MUFSHT that the profile and the explicit values stand for."""
        return resolve_mufsht(self.profile, **self.mufsht.model_dump())
