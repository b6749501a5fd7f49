"""Reads a trace for an audit: the large table in chunks of row groups, the small ones whole.

Every task opens the files itself, so on a cluster all workers must be able to read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.core.errors import TraceError
from tidings.scenarios.trace.reader import conformed
from tidings.scenarios.trace.tables import TABLES

PUBLISHED, DELIVERED = "published", "delivered"


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Row groups of one file, starting at row `first` of the whole table."""

    path: str
    groups: tuple[int, ...]
    first: int
    rows: int


Chunk = tuple[RowGroups, ...]


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """The files of a trace. `stamp` changes with their content, so that caches never serve outdated data."""

    directory: str
    stamp: str
    published: int
    """Rows of the table `published`."""
    delivered: tuple[RowGroups, ...]

    @property
    def rows(self) -> int:
        return sum(groups.rows for groups in self.delivered)


def trace_files(directory: Path) -> TraceFiles:
    """Return the files of the trace in `directory`; TraceError if a table is missing, unreadable or has other
    columns."""
    if not directory.is_dir():
        raise TraceError(f"no such trace directory: {directory}")
    stamps = []
    groups: dict[str, tuple[RowGroups, ...]] = {}
    for name in TABLES:
        dataset = _dataset(directory, name)
        stamps += [
            f"{file}:{Path(file).stat().st_mtime_ns}:{Path(file).stat().st_size}" for file in dataset.files
        ]
        if name in (DELIVERED, PUBLISHED):
            groups[name] = tuple(_groups(dataset.files))
    published = sum(group.rows for group in groups[PUBLISHED])
    return TraceFiles(
        str(directory.resolve()), sha256("|".join(stamps).encode()).hexdigest(), published, groups[DELIVERED]
    )


def _dataset(directory: Path, name: str) -> Any:
    import pyarrow.dataset as ds  # imported here: it loads pandas, which no task needs

    path = directory / f"{name}.parquet"
    if not path.exists():
        raise TraceError(f"the trace in {directory} has no table {name!r} ({path.name})")
    try:
        dataset = ds.dataset(path, format="parquet", partitioning="hive")
        schemas = [dataset.schema, *(pq.read_schema(file) for file in dataset.files)]
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"cannot read trace table {path}: {_first_line(error)}") from error
    for schema in schemas:
        conformed(schema.empty_table(), name, path)
    return dataset


def _groups(files: Sequence[str]) -> Iterator[RowGroups]:
    first = 0
    for path in files:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            yield RowGroups(str(Path(path).resolve()), (group,), first, rows)
            first += rows


def chunks(groups: Sequence[RowGroups], rows: int) -> list[Chunk]:
    """Join the groups, in order, into chunks of about `rows` rows; at least one chunk."""
    found: list[list[RowGroups]] = [[]]
    size = 0
    for group in groups:
        if size + group.rows > rows and found[-1]:
            found.append([])
            size = 0
        found[-1].append(group)
        size += group.rows
    return [_joined(parts) for parts in found]


def _joined(groups: Sequence[RowGroups]) -> Chunk:
    """Merge neighbouring groups of a file."""
    joined: list[RowGroups] = []
    for group in groups:
        if joined and joined[-1].path == group.path:
            before = joined.pop()
            group = RowGroups(
                group.path, before.groups + group.groups, before.first, before.rows + group.rows
            )
        joined.append(group)
    return tuple(joined)


def read_chunk(chunk: Chunk, columns: Sequence[str], batch_rows: int) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a chunk as tables of at most `batch_rows`, each with the number of its first row."""
    for groups in chunk:
        first = groups.first
        try:
            with pq.ParquetFile(groups.path) as file:
                for batch in file.iter_batches(batch_rows, list(groups.groups), list(columns)):
                    yield first, conformed(pa.table(batch), DELIVERED, groups.path, columns)
                    first += len(batch)
        except (OSError, pa.ArrowException) as error:
            raise TraceError(f"cannot read trace table {groups.path}: {_first_line(error)}") from error


def read_table(files: TraceFiles, name: str, columns: Sequence[str] | None = None) -> Any:
    """Read a whole table, or some of its columns."""
    path = Path(files.directory) / f"{name}.parquet"
    try:
        present = None if columns is None else _present(path, columns)
        table = pq.read_table(path, columns=present, partitioning="hive")
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"cannot read trace table {path}: {_first_line(error)}") from error
    return conformed(table, name, path, columns)


def _present(path: Path, columns: Sequence[str]) -> list[str]:
    """Return those of the columns that the table has: an older one lacks some."""
    names = pq.ParquetDataset(path, partitioning="hive").schema.names
    return [name for name in columns if name in names]


def event_id_at(files: TraceFiles, row: int) -> str:
    """Return the event id of a row of `delivered`; needed if no such event was published."""
    group = next(group for group in files.delivered if group.first <= row < group.first + group.rows)
    text: str = _event_ids(group.path, group.groups[0], files.stamp)[row - group.first].as_py()
    return text


@lru_cache(maxsize=4)
def _event_ids(path: str, group: int, stamp: str) -> Any:
    with pq.ParquetFile(path) as file:
        return file.read_row_group(group, ["event_id"])["event_id"]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
