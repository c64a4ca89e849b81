"""Tables of TOML files as strict models, and their errors as one sentence with the way out."""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from configs.errors import ConfigError

__all__ = ["Table", "explain", "parse_table", "read_toml"]

_Model = TypeVar("_Model", bound=BaseModel)


class Table(BaseModel):
    """Base of every table that a user writes: frozen, no unknown key, no silent conversion."""

    # strict: a quoted number or a bool for a count is a slip that must not run
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def parse_table(model: type[_Model], fields: dict[str, Any], source: str) -> _Model:
    """Validate a mapping.

    Parameters
    ----------
    model : type of pydantic.BaseModel
        What the mapping must be.
    fields : dict
        The mapping.
    source : str
        What an error message calls the input, for instance a file name.

    Returns
    -------
    instance of `model`
        The validated value.

    Raises
    ------
    ConfigError
        One sentence that names the source, the key, its value and what is allowed.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(explain(error, model, source)) from None


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file.

    Parameters
    ----------
    path : Path
        The file.
    what : str
        What the file is, for the message: ``"plan"``, ``"site file"``.

    Returns
    -------
    dict
        The parsed tables.

    Raises
    ------
    ConfigError
        If the file is missing, unreadable, not UTF-8 or not TOML; the path is in `local_detail`.
    """
    detail = str(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{what} '{path.name}' does not exist: check its name.", local_detail=detail
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{what} '{path.name}' is not UTF-8 text (byte {error.start}): save it as UTF-8.",
            local_detail=detail,
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{what} '{path.name}' cannot be read: {error.strerror}.", local_detail=detail
        ) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is no TOMLDecodeError
        raise ConfigError(
            f"{what} '{path.name}' is not valid TOML: {error}.", local_detail=detail
        ) from None


def explain(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """Say in one sentence what is wrong with the first offending key.

    Parameters
    ----------
    error : pydantic.ValidationError
        What validation raised.
    model : type of BaseModel
        The model that was validated.
    source : str
        What the sentence calls the input, for instance a file name.

    Returns
    -------
    str
        The sentence: source, key, value and what is allowed or the closest known key.
    """
    found = error.errors(include_url=False)
    # a misspelt key is missing under its own name too: the misspelling is what helps
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    location = first["loc"]
    key, table, field = _resolve(location, model)
    if first["type"] == "extra_forbidden":
        return f"{source}: unknown key '{key}': {_suggest(str(location[-1]), table, model)}"
    if first["type"] == "missing":
        allowed = _allowed(field) if field is not None else "a value"
        return f"{source}: '{key}' is missing: add it ({allowed})."
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        return f"{source}: {text.removesuffix('.')}."
    allowed = _allowed(field) if field is not None else str(first["msg"]).lower()
    return f"{source}: {key} is {_shown(first['input'])}; allowed: {allowed}."


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as TOML writes it
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _resolve(
    location: tuple[int | str, ...], model: type[BaseModel]
) -> tuple[str, type[BaseModel], FieldInfo | None]:
    """Return the dotted key, the table's model and the field of a pydantic location."""
    parts: list[str] = []
    table: type[BaseModel] = model
    field: FieldInfo | None = None
    for step in location:
        if isinstance(step, int):
            parts[-1] = f"{parts[-1]}[{step}]" if parts else f"[{step}]"
            continue
        if field is not None:
            inner = next(_models(field.annotation), None)
            if inner is None:
                # inside a plain mapping the step is the user's key; in a union it is pydantic's
                if _is_mapping(field.annotation) and step != "[key]":
                    parts.append(step)
                break
            table = inner
        field = _keys(table).get(step)
        parts.append(step)
        if field is None:
            break
    return ".".join(parts), table, field


def _keys(table: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a table's fields by the keys that a user writes."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)


def _is_mapping(annotation: Any) -> bool:
    return typing.get_origin(annotation) is dict


def _allowed(field: FieldInfo) -> str:
    if field.description:
        return field.description
    choices = list(_choices(field.annotation))
    return ", ".join(map(repr, choices)) if choices else "a value of another type"


def _choices(annotation: Any) -> Iterator[object]:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        yield from typing.get_args(annotation)
    elif origin in (typing.Union, types.UnionType):
        for argument in typing.get_args(annotation):
            yield from _choices(argument)


def _suggest(unknown: str, table: type[BaseModel], model: type[BaseModel]) -> str:
    """Say where an unknown key may belong."""
    elsewhere = any(
        unknown in _keys(inner)
        for field in model.model_fields.values()
        for inner in _models(field.annotation)
    )
    close = difflib.get_close_matches(unknown, _keys(table), n=1)
    if close and not elsewhere and unknown not in model.model_fields:
        return f"did you mean '{close[0]}'?"
    if table is not model and unknown in model.model_fields:
        return f"'{unknown}' belongs at the top of the file, before the first table."
    for name, field in model.model_fields.items():
        for inner in _models(field.annotation):
            if inner is not table and unknown in _keys(inner):
                return f"'{unknown}' belongs to table [{name}]."
    return f"known keys: {', '.join(_keys(table))}."
