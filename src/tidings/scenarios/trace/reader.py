"""Reads a trace: the six tables, checked against their schemas.

Files of other writers are accepted. A table may be a directory of Parquet parts. Its columns may come in any order,
be declared nullable, as Spark writes them, and have another Arrow type for the same content (`large_string`,
`string_view`, a dictionary of strings; `large_list`). Columns that older traces lack get their defaults. The result has
the exact schema of `trace.tables`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.core.errors import TraceError
from tidings.scenarios.trace.coded import Coded
from tidings.scenarios.trace.disturbances import Disturbances
from tidings.scenarios.trace.tables import DEFAULTS, SCHEMAS, TABLES, arrow_table


@dataclass(frozen=True)
class Trace:
    """Holds the tables of one run as pyarrow tables; `directory` is where they were read from."""

    published: Any
    subscribed: Any
    delivered: Any
    traffic: Any
    faults: Any
    nodes: Any
    directory: Path | None = field(default=None, compare=False)

    @classmethod
    def read(cls, directory: Path | str) -> Self:
        """Return the trace in `directory`; raise TraceError if it is missing, unreadable or has another schema."""
        directory = Path(directory)
        if not directory.is_dir():
            raise TraceError(f"there is no trace directory {directory}")
        return cls(**{name: _read_table(directory, name) for name in TABLES}, directory=directory)

    @classmethod
    def from_rows(
        cls,
        *,
        published: Iterable[Sequence[Any]] = (),
        subscribed: Iterable[Sequence[Any]] = (),
        delivered: Iterable[Sequence[Any]] = (),
        traffic: Iterable[Sequence[Any]] = (),
        faults: Iterable[Sequence[Any]] = (),
        nodes: Iterable[Sequence[Any]] = (),
    ) -> Self:
        """Make a trace from rows in column order, such as the row types of `trace.tables`."""
        rows = (published, subscribed, delivered, traffic, faults, nodes)
        return cls(**{name: _table_of(name, list(of)) for name, of in zip(TABLES, rows, strict=True)})

    def without(self, subscribers: Collection[str]) -> Self:
        """Return the trace without what these subscribers asked for and were shown."""
        if not subscribers:
            return self
        names = pa.array(sorted(subscribers), pa.string())

        def others(table: Any) -> Any:
            return table.filter(pc.invert(pc.is_in(table["subscriber"], value_set=names)))

        return replace(self, subscribed=others(self.subscribed), delivered=others(self.delivered))

    @cached_property
    def coded(self) -> Coded:
        """The same content as integer arrays, made once, for checkers and metrics."""
        disturbances = Disturbances(self.faults, self.nodes)
        return Coded.of_tables(self.published, self.subscribed, self.delivered, self.directory, disturbances)


def _table_of(name: str, rows: list[Sequence[Any]]) -> Any:
    """Make a table of rows, which may lack the last columns that have defaults."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMAS[name])
    for column in SCHEMAS[name].names[len(columns) :]:
        columns.append([DEFAULTS[name][column]] * len(rows))
    return arrow_table(name, columns)


def _read_table(directory: Path, name: str) -> Any:
    path = directory / f"{name}.parquet"
    if not path.exists():
        raise TraceError(f"the trace in {directory} has no table {name!r} ({path.name})")
    try:
        # Parts below directories such as `seed=1` get a column `seed`, which is then rejected: several runs
        # are not one trace.
        table = pq.read_table(path, partitioning="hive")
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"cannot read trace table {path}: {_first_line(error)}") from error
    return conformed(table, name, path)


def conformed(table: Any, name: str, path: Path | str, columns: Sequence[str] | None = None) -> Any:
    """Return the table with the exact schema of `name`, or with these columns of it.

    Raise TraceError, which names the file, if it does not fit.
    """
    schema = SCHEMAS[name]
    for column in table.column_names:
        if schema.get_field_index(column) < 0:
            raise TraceError(f"trace table {path} has an unknown column {column!r}")
    if columns is not None:
        schema = pa.schema([schema.field(column) for column in columns])
    defaults = DEFAULTS.get(name, {})
    arrays = [
        _default_column(wanted, defaults[wanted.name], len(table))
        if wanted.name in defaults and wanted.name not in table.column_names
        else _conformed_column(table, wanted, path)
        for wanted in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _default_column(wanted: Any, value: Any, rows: int) -> Any:
    return pa.chunked_array([pa.repeat(pa.scalar(value, wanted.type), rows)])


def _conformed_column(table: Any, wanted: Any, path: Path | str) -> Any:
    found = table.column_names.count(wanted.name)
    if found != 1:
        raise TraceError(
            f"trace table {path} has {found or 'no'} columns {wanted.name!r}; exactly one is required"
        )
    column = table.column(wanted.name)
    if not _same_type(column.type, wanted.type):
        raise TraceError(f"trace table {path}: column {wanted.name!r} is {column.type}, not {wanted.type}")
    column = column.cast(wanted.type)
    if column.null_count and not wanted.nullable:  # after the cast: a dictionary may have a null value
        raise TraceError(f"trace table {path}: column {wanted.name!r} has nulls")
    return column


def _same_type(found: Any, wanted: Any) -> bool:
    """Compare types, ignoring nested fields' names and nullability, and Arrow's representation."""
    found = _plain(found)
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(found)
            and _same_type(found.key_type, wanted.key_type)
            and _same_type(found.item_type, wanted.item_type)
        )
    if pa.types.is_list(wanted):
        return pa.types.is_list(found) and _same_type(found.value_type, wanted.value_type)
    return bool(found == wanted)


def _plain(kind: Any) -> Any:
    """Return the common type of those that are the same in Parquet and differ only in Arrow's metadata."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.list_(kind.value_type)
    return kind


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
