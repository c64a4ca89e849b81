"""What one site keeps for itself: data files, dialect, policy, keys, device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator

from configs.errors import ConfigError
from configs.tables import Table, parse_table, read_toml

__all__ = ["SITE_NAME", "Device", "Dialect", "Keys", "Policy", "SiteConfig"]

SITE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_DEVICE = r"^(auto|cpu|cuda(:[0-9]+)?)$"


class Dialect(Table):
    """Table ``[dialect]``: how the site's CSV files are written."""

    delimiter: str = Field(",", min_length=1, max_length=1, description="one character")
    decimal: str = Field(".", min_length=1, max_length=1, description="one character")
    encoding: str = Field("utf-8", description="the name of a text encoding, for instance 'utf-8'")
    missing: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        ("", "NA", "NaN", "NULL", "?"), description="a list of texts"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.delimiter == self.decimal:
            raise ValueError(
                f"dialect.delimiter and dialect.decimal are both '{self.decimal}': a file cannot "
                "use one character for both"
            )
        try:
            "".encode(self.encoding)  # also refuses codecs that are not text, such as base64
        except LookupError:
            raise ValueError(
                f"dialect.encoding is '{self.encoding}', which is no known text encoding; "
                "for instance 'utf-8', 'latin-1'"
            ) from None
        return self


class Policy(Table):
    """Table ``[policy]``: what the site demands of a run before it takes part."""

    approval: Literal["required", "auto"] = "required"
    require: Annotated[tuple[Literal["secure_aggregation", "dp"], ...], Field(strict=False)] = (
        Field((), description="a list of 'secure_aggregation', 'dp'")
    )
    min_cohort: int = Field(50, ge=1, description="a whole number, 1 or more")
    min_contributors: int = Field(3, ge=1, description="a whole number, 1 or more")
    min_cell: int = Field(10, ge=1, description="a whole number, 1 or more")
    epsilon_budget: float = Field(8.0, ge=0.0, description="a number, 0 or more")
    delta_budget: float = Field(1e-4, ge=0.0, le=0.01, description="a number from 0 to 0.01")
    share_consistency: bool = Field(False, description="true or false")
    share_labels: bool = Field(False, description="true or false")
    cohort: str = Field(
        "",
        max_length=64,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="a name of at most 64 characters on one line, or ''",
    )
    auto_runs_a_month: int = Field(100, ge=0, description="a whole number, 0 or more")


class Keys(Table):
    """Table ``[keys]``: key files, relative to the site's folder."""

    identity: str = Field("state/identity.pem", min_length=1, description="a file name")
    node: str = Field("state/node.key", min_length=1, description="a file name")
    linkage: str = Field("state/linkage.key", min_length=1, description="a file name")
    roster: str = Field("roster.json", min_length=1, description="a file name")


class Device(Table):
    """Table ``[device]``: where and in which precision the site computes."""

    device: str = Field("auto", pattern=_DEVICE, description="'auto', 'cpu', 'cuda' or 'cuda:N'")
    dtype: Literal["float64", "float32"] = "float64"


class SiteConfig(Table):
    """A site's ``site.toml``. Only ``name`` and ``[data]`` are required."""

    name: str = Field(
        pattern=SITE_NAME,
        description="1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit",
    )
    data: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        min_length=1, description="a table of view = file, at least one"
    )
    dialect: Dialect = Field(default_factory=Dialect, description="a table")
    policy: Policy = Field(default_factory=Policy, description="a table")
    keys: Keys = Field(default_factory=Keys, description="a table")
    device: Device = Field(default_factory=Device, description="a table")

    @classmethod
    def parse(cls, fields: dict[str, Any], *, source: str = "site.toml") -> SiteConfig:
        """Validate a mapping; raises `ConfigError` in one sentence that starts with `source`."""
        return parse_table(cls, fields, source)

    @classmethod
    def load(cls, site_dir: str | Path) -> SiteConfig:
        """Read ``site.toml`` of a site's folder.

        Parameters
        ----------
        site_dir : str or Path
            The site's folder.

        Returns
        -------
        SiteConfig
            The configuration, every default filled in.

        Raises
        ------
        ConfigError
            If the file cannot be read or does not fit, naming the file and the key.
        """
        path = Path(site_dir) / "site.toml"
        if not path.exists():
            raise ConfigError(
                f"site file 'site.toml' does not exist in folder '{path.absolute().parent.name}': "
                "give a site's folder",
                local_detail=str(path),
            )
        return cls.parse(read_toml(path, "site file"), source=path.name)

    def dump(self, site_dir: str | Path) -> None:
        """Write ``site.toml`` into a site's folder, every value spelled out."""
        body = self.model_dump(mode="json")
        (Path(site_dir) / "site.toml").write_text(tomli_w.dumps(body), encoding="utf-8")
