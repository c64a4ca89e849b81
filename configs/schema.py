"""What the data look like: views, their columns, units and bounds; one hash a view."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import tomli_w
from pydantic import Field, model_validator

from configs.errors import ConfigError
from configs.tables import Table, parse_table, read_toml

__all__ = ["ColumnSchema", "DataSchema", "Feature", "IdRule", "ViewSchema"]

#: How a vertical run makes ids of different sites comparable; see `privacy.alignment`.
IdRule = Literal["exact", "trim", "upper", "alphanumeric"]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Bounds = tuple[float, float]
_INDICATOR: Bounds = (0.0, 1.0)


@dataclass(frozen=True)
class Feature:
    """One numeric column of a view's array, after categories became indicators.

    Attributes
    ----------
    name : str
        The column's name; ``"column=level"`` for an indicator of a category's level.
    unit : str
        The declared unit, empty where there is none.
    bounds : tuple of two floats or None
        Declared least and greatest value; (0, 1) for an indicator.
    """

    name: str
    unit: str
    bounds: Bounds | None


class ColumnSchema(Table):
    """One column of a file: its name, type, unit, and bounds or levels."""

    name: Name = Field(description="a text")
    dtype: Literal["float", "int", "bool", "category"]
    unit: str = Field("", description="a text")
    bounds: Annotated[Bounds, Field(strict=False)] | None = Field(
        None, description="two numbers [least, greatest]"
    )
    levels: Annotated[tuple[Name, ...], Field(strict=False)] = Field(
        (), description="a list of texts"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.bounds is not None and self.bounds[0] >= self.bounds[1]:
            raise ValueError(
                f"column '{self.name}' has bounds {list(self.bounds)}: give the smaller number "
                "first, and two different ones"
            )
        if self.bounds is not None and self.dtype in ("bool", "category"):
            raise ValueError(
                f"column '{self.name}' is of dtype '{self.dtype}', which has no bounds: leave "
                "bounds out"
            )
        if self.dtype == "category" and not self.levels:
            raise ValueError(
                f"column '{self.name}' is of dtype 'category' but has no levels: list them, for "
                'instance levels = ["a", "b"]'
            )
        if self.dtype != "category" and self.levels:
            raise ValueError(
                f"column '{self.name}' is of dtype '{self.dtype}' but has levels: leave them out "
                "or use dtype 'category'"
            )
        _refuse_twice(self.levels, f"column '{self.name}' lists level")
        return self

    def features(self) -> tuple[Feature, ...]:
        """Return the numeric columns that this column becomes."""
        if self.dtype == "category":
            return tuple(Feature(f"{self.name}={level}", "", _INDICATOR) for level in self.levels)
        bounds = _INDICATOR if self.dtype == "bool" else self.bounds
        return (Feature(self.name, self.unit, bounds),)


class ViewSchema(Table):
    """One view: a name and its columns, in the order of the view's array."""

    name: Name = Field(description="a text")
    columns: Annotated[tuple[ColumnSchema, ...], Field(strict=False, min_length=1)] = Field(
        description="a list of at least one column"
    )

    @model_validator(mode="after")
    def _unique(self) -> Self:
        _refuse_twice([column.name for column in self.columns], f"view '{self.name}' lists column")
        _refuse_twice(
            [feature.name for feature in self.features()], f"view '{self.name}' would hold feature"
        )
        return self

    def features(self) -> tuple[Feature, ...]:
        """Return the numeric columns of the view's array, in order."""
        return tuple(feature for column in self.columns for feature in column.features())


class DataSchema(Table):
    """The views that a federation agreed on, and the column that holds a record's id."""

    id: Name = Field(description="the name of the id column")
    id_rule: IdRule = "trim"
    views: Annotated[tuple[ViewSchema, ...], Field(strict=False, min_length=1)] = Field(
        description="a list of at least one view"
    )

    @model_validator(mode="after")
    def _unique(self) -> Self:
        _refuse_twice(self.view_names, "the schema lists view")
        for view in self.views:
            if any(column.name == self.id for column in view.columns):
                raise ValueError(
                    f"view '{view.name}' lists the id column '{self.id}' as data: leave it out"
                )
        return self

    @property
    def view_names(self) -> tuple[str, ...]:
        """Names of the views, in order."""
        return tuple(view.name for view in self.views)

    def view(self, name: str) -> ViewSchema:
        """Return a view by name.

        Raises
        ------
        ConfigError
            If the schema has no view of that name.
        """
        for view in self.views:
            if view.name == name:
                return view
        raise ConfigError(
            f"the schema has no view '{name}'; its views: {', '.join(self.view_names)}."
        )

    def features(self, view_name: str) -> tuple[Feature, ...]:
        """Return the numeric columns of a view's array, in order.

        Parameters
        ----------
        view_name : str
            Name of the view.

        Returns
        -------
        tuple of Feature
            A category contributes one feature a level, every other column one.
        """
        return self.view(view_name).features()

    def schema_hash(self, view_name: str) -> str:
        """Return the hash by which two sites know that they mean the same view.

        Parameters
        ----------
        view_name : str
            Name of the view.

        Returns
        -------
        str
            SHA-256, 64 hexadecimal digits, of the view's name and its columns with their types,
            units, bounds, levels and order. Other views do not enter it.
        """
        body = self.view(view_name).model_dump(mode="json")
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def parse(cls, fields: dict[str, Any], *, source: str = "schema") -> DataSchema:
        """Validate a mapping; raises `ConfigError` in one sentence that starts with `source`."""
        return parse_table(cls, fields, source)

    @classmethod
    def load(cls, path: str | Path) -> DataSchema:
        """Read a ``schema.toml``.

        Raises
        ------
        ConfigError
            If the file cannot be read or does not fit, naming the file and the key.
        """
        path = Path(path)
        return cls.parse(read_toml(path, "schema"), source=path.name)

    def dump(self, path: str | Path) -> None:
        """Write the schema as TOML; `load` reads back an equal value."""
        body = self.model_dump(mode="json", exclude_defaults=True)
        Path(path).write_text(tomli_w.dumps(body), encoding="utf-8")

    @classmethod
    def from_arrays(cls, views: Sequence[np.ndarray]) -> DataSchema:
        """Make a schema for plain arrays.

        Parameters
        ----------
        views : sequence of ndarray of shape (n, d_h)
            Only the number of columns is read; nothing of the schema depends on a value.

        Returns
        -------
        DataSchema
            Views ``view_0``, ``view_1``, ..., each with float columns ``x0``, ``x1``, ... without
            bounds.
        """
        return cls.parse(
            {
                "id": "id",
                "views": [
                    {
                        "name": f"view_{h}",
                        "columns": [
                            {"name": f"x{j}", "dtype": "float"} for j in range(view.shape[1])
                        ],
                    }
                    for h, view in enumerate(views)
                ],
            }
        )


def _refuse_twice(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} '{name}' twice: every name may stand once")
        seen.add(name)
