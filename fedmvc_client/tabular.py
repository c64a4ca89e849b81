"""Read one data file: its text ids and its columns as floats, every fault named by line.

No message repeats a cell: it names the view, the column and the line, which is what whoever holds
the file needs, and nothing that must not leave the site.
"""

from __future__ import annotations

import csv as text_csv
import difflib
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from configs.errors import DataRefused
from configs.schema import ColumnSchema, ViewSchema
from configs.site import Dialect
from fedmvc_client.faults import reason

__all__ = ["PARQUET_SUFFIXES", "ViewTable", "read_view"]

_CSV_SUFFIXES = (".csv", ".tsv", ".txt")
PARQUET_SUFFIXES = (".parquet", ".pq")
_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")
_LINE_END = re.compile(r"\r\n|\r|\n")  # what Arrow calls a line; str.splitlines knows more


@dataclass(frozen=True)
class ViewTable:
    """One view as its file holds it.

    Attributes
    ----------
    ids : list of str
        Ids in file order, distinct, none empty.
    columns : dict of str to ndarray of shape (n,), float64
        Cells by column name, NaN = missing; a category holds its level's index.
    """

    ids: list[str]
    columns: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Source:
    """A file whose faults are being told."""

    site: str
    view: str
    path: Path

    def refuse(self, fault: str, detail: str = "") -> DataRefused:
        return DataRefused(
            f"site '{self.site}', view '{self.view}': {fault}.",
            local_detail=f"{self.path}: {detail}" if detail else str(self.path),
        )


def read_view(
    path: Path, site: str, view: ViewSchema, id_column: str, dialect: Dialect
) -> ViewTable:
    """Read the file of one view.

    Parameters
    ----------
    path : Path
        A CSV (.csv, .tsv, .txt) or Parquet (.parquet, .pq) file.
    site : str
        The site's name, for messages.
    view : ViewSchema
        The columns to expect, found by name in any order.
    id_column : str
        Name of the id column.
    dialect : Dialect
        Delimiter, decimal sign, encoding and missing tokens; a Parquet file uses only the last.

    Returns
    -------
    ViewTable
        Ids and columns in file order.

    Raises
    ------
    DataRefused
        If the file cannot be read, holds no row, lacks or adds or doubles a column, has an empty or
        repeated id, or a cell that does not fit its column's dtype.
    """
    source = _Source(site, view.name, path)
    suffix = path.suffix.lower()
    try:
        if suffix in _CSV_SUFFIXES:
            table, where = _read_csv(source, view, id_column, dialect)
        elif suffix in PARQUET_SUFFIXES:
            table, where = _read_parquet(source, view, id_column)
        else:
            known = ", ".join(_CSV_SUFFIXES + PARQUET_SUFFIXES)
            raise source.refuse(f"its file ends in '{suffix}'; known endings: {known}")
    except FileNotFoundError:
        raise source.refuse("its file does not exist: check [data] in site.toml") from None
    except OSError as error:
        raise source.refuse(f"its file cannot be read ({reason(error)})", str(error)) from None
    if table.num_rows == 0:
        raise source.refuse("its file has columns but no row: give it at least one record")
    cells = _Cells(source, dialect, where)
    ids = cells.ids(table.column(id_column), id_column)
    return ViewTable(ids, {c.name: cells.floats(table.column(c.name), c) for c in view.columns})


def _check_names(source: _Source, found: Sequence[str], view: ViewSchema, id_column: str) -> None:
    expected = [id_column, *(column.name for column in view.columns)]
    missing = [name for name in expected if name not in found]
    if missing:
        # a file without a header has a record's cells here: no name of the file's own leaves
        extra = [name for name in found if name not in expected]
        close = difflib.get_close_matches(missing[0], extra, n=1)
        hint = "add it to the file, or repair the header line"
        if len(found) == 1:
            hint = "the header is one single column, so check dialect.delimiter in site.toml"
        kind = "id column" if missing[0] == id_column else "column"
        raise source.refuse(
            f"{kind} '{missing[0]}' is missing: {hint}",
            f"the file's closest column is '{close[0]}'" if close else "",
        )
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        raise source.refuse(f"column '{twice[0]}' stands {found.count(twice[0])} times: keep one")
    extra = [name for name in found if name not in expected]
    if extra:
        raise source.refuse(f"column '{extra[0]}' is not in the schema: remove it from the file")


def _read_csv(
    source: _Source, view: ViewSchema, id_column: str, dialect: Dialect
) -> tuple[pa.Table, Callable[[int], str]]:
    raw = source.path.read_bytes()
    try:
        text = raw.decode(dialect.encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise source.refuse(
            f"its file is not {dialect.encoding} text (byte {error.start}): set dialect.encoding "
            "in site.toml"
        ) from None
    header = _header(text, dialect)
    if not header:
        raise source.refuse("its file is empty: it needs a header line and at least one row")
    _check_names(source, header, view, id_column)
    body = pa.BufferReader(text.encode())
    numeric = {c.name: pa.float64() for c in view.columns if c.dtype in ("float", "int")}
    as_text = dict.fromkeys(header, pa.string())
    try:
        table = _parse_csv(body, as_text | numeric, dialect)
    except pa.ArrowInvalid:
        # once more as text, slower: finds the line, and takes tokens with spaces around them
        table = _parse_csv_as_text(source, text, as_text, dialect)
    return table, lambda row: f"line {_physical_line(text, row + 2)}"


def _header(text: str, dialect: Dialect) -> list[str]:
    rows = text_csv.reader(io.StringIO(text, newline=""), delimiter=dialect.delimiter)
    try:
        return next((row for row in rows if row), [])
    except text_csv.Error:
        return []


def _parse_csv(
    body: pa.BufferReader,
    types: dict[str, pa.DataType],
    dialect: Dialect,
    on_ragged: Callable[[csv.InvalidRow], str] | None = None,
) -> pa.Table:
    body.seek(0)
    return csv.read_csv(
        body,
        read_options=csv.ReadOptions(use_threads=on_ragged is None),
        parse_options=csv.ParseOptions(delimiter=dialect.delimiter, invalid_row_handler=on_ragged),
        convert_options=csv.ConvertOptions(
            column_types=types,
            null_values=list(dialect.missing),
            decimal_point=dialect.decimal,
        ),
    )


def _parse_csv_as_text(
    source: _Source, text: str, types: dict[str, pa.DataType], dialect: Dialect
) -> pa.Table:
    ragged: list[csv.InvalidRow] = []

    def on_ragged(row: csv.InvalidRow) -> str:
        ragged.append(row)
        return "error"

    try:
        return _parse_csv(pa.BufferReader(text.encode()), types, dialect, on_ragged)
    except pa.ArrowInvalid:
        if not ragged:
            raise source.refuse(
                "its file cannot be read as CSV: check dialect.delimiter and the quotes"
            ) from None
        row = ragged[0]
        line = _physical_line(text, row.number)
        raise source.refuse(
            f"line {line} has {row.actual_columns} cells but the header has "
            f"{row.expected_columns}: repair the line or check dialect.delimiter"
        ) from None


def _physical_line(text: str, row: int) -> int:
    """Return the line number of the row-th line that is not empty (the header is row 1)."""
    lines = [number for number, line in enumerate(_LINE_END.split(text), 1) if line]
    return lines[min(row, len(lines)) - 1]


def _read_parquet(
    source: _Source, view: ViewSchema, id_column: str
) -> tuple[pa.Table, Callable[[int], str]]:
    if source.path.stat().st_size == 0:
        raise source.refuse("its file is empty: it needs columns and at least one row")
    try:
        with parquet.ParquetFile(source.path) as file:
            _check_names(source, file.schema_arrow.names, view, id_column)
            table = file.read()
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's refusal, not the file's content
        raise source.refuse(
            "its file is not a readable Parquet file: write it again", str(error)
        ) from None
    return table, lambda row: f"row {row + 1}"


class _Cells:
    """Turn columns of any type into ids or floats."""

    def __init__(self, source: _Source, dialect: Dialect, where: Callable[[int], str]) -> None:
        self._source = source
        self._missing = pa.array(dialect.missing, pa.string())
        self._decimal = dialect.decimal
        self._where = where

    def ids(self, column: pa.ChunkedArray, name: str) -> list[str]:
        column = _decoded(column)
        if not _is_text(column.type):
            raise self._source.refuse(
                f"id column '{name}' is of type {column.type}: ids are text, so store them as text"
            )
        texts = pc.utf8_trim_whitespace(column.cast(pa.string())).to_pylist()
        first: dict[str, int] = {}
        for row, text in enumerate(texts):
            if not text:
                raise self._source.refuse(
                    f"{self._where(row)} has no id in column '{name}': every record needs one"
                )
            if text in first:
                raise self._source.refuse(
                    f"{self._where(row)} repeats the id of {self._where(first[text])}: a record "
                    "may stand once"
                )
            first[text] = row
        return texts

    def floats(self, column: pa.ChunkedArray, schema: ColumnSchema) -> np.ndarray:
        column = _decoded(column)
        kind = column.type
        if pa.types.is_null(kind):
            return np.full(len(column), np.nan)
        if _is_text(kind):
            cells = pc.utf8_trim_whitespace(column.cast(pa.string()))
            blank = pc.is_in(cells, value_set=self._missing)
            cells = pc.if_else(blank, pa.scalar(None, pa.string()), cells).combine_chunks()
            if schema.dtype == "category":
                return self._indices(cells, schema, [(level,) for level in schema.levels])
            if schema.dtype == "bool":
                return self._indices(pc.utf8_lower(cells), schema, [_FALSE, _TRUE])
            values = self._numbers(cells, schema)
        elif pa.types.is_boolean(kind) and schema.dtype == "bool":
            values = _to_numpy(column.cast(pa.float64()))
        elif (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        ) and schema.dtype != "category":
            values = _to_numpy(column.cast(pa.float64(), safe=False))
        else:
            raise self._source.refuse(
                f"column '{schema.name}' is of type {kind} but the schema says "
                f"'{schema.dtype}': convert it"
            )
        values[~np.isfinite(values)] = np.nan
        if schema.dtype == "int":
            self._refuse_where(values != np.rint(values), values, schema, "no whole number")
        if schema.dtype == "bool":
            self._refuse_where((values != 0) & (values != 1), values, schema, "neither 0 nor 1")
        return values

    def _numbers(self, cells: pa.Array, schema: ColumnSchema) -> np.ndarray:
        if self._decimal != ".":
            # a point would be a thousands mark in such a file, and must not be read as a decimal
            point = pc.match_substring(cells, ".")
            cells = pc.replace_substring(cells, self._decimal, ".")
            cells = pc.if_else(point, pa.scalar("", pa.string()), cells)
        try:
            return _to_numpy(cells.cast(pa.float64()))
        except pa.ArrowInvalid:
            row = _first_failure(cells)
            raise self._bad_cell(row, schema, "no number") from None

    def _indices(
        self, cells: pa.Array, schema: ColumnSchema, levels: Sequence[Sequence[str]]
    ) -> np.ndarray:
        index = np.full(len(cells), -1.0)
        for value, spellings in enumerate(levels):
            index[_to_numpy(pc.is_in(cells, value_set=pa.array(spellings, pa.string())))] = value
        index[_to_numpy(pc.is_null(cells))] = np.nan
        what = "no level of the schema" if schema.dtype == "category" else "neither true nor false"
        self._refuse_where(index == -1.0, index, schema, what)
        return index

    def _refuse_where(
        self, wrong: np.ndarray, values: np.ndarray, schema: ColumnSchema, what: str
    ) -> None:
        rows = np.flatnonzero(wrong & ~np.isnan(values))
        if rows.size:
            raise self._bad_cell(int(rows[0]), schema, what)

    def _bad_cell(self, row: int, schema: ColumnSchema, what: str) -> DataRefused:
        return self._source.refuse(
            f"column '{schema.name}' of dtype '{schema.dtype}' holds {what} at {self._where(row)}: "
            "repair the cell, or list its token in dialect.missing"
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _to_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return np.array(column.to_numpy(zero_copy_only=False))  # a copy: Arrow's buffers are read-only


def _first_failure(cells: pa.Array) -> int:
    """Return the first row that is no number, by halving: Arrow's own message shows the cell."""
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            cells[low:middle].cast(pa.float64())
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
