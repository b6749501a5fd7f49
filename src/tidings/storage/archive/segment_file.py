"""Sealed segments: Parquet files that Spark can read directly.

A segment is written once and never changed. Its list entry has the sha256 of the file, which a reader checks before it
uses the content (once per process and file, as long as the file is not modified); its pages have checksums, too. Row
groups are small, so that reading a range does not decode the whole file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.core.errors import ArchiveCorrupt
from tidings.storage.archive.facts import Segment
from tidings.storage.archive.rows import DETAILS, SCHEMA
from tidings.storage.troubles import one_line

GROUP_ROWS = 32_768
_DICTIONARY_COLUMNS = [
    "source",
    "incarnation",
    "topic",
    "content_type",
    "attributes.key_value.key",
    "attributes.key_value.value",
    "order.topic",
    "order.after.key_value.key",
]
_DELTA_COLUMNS = ["offset", "sequence", "published_ns", "notified_ns"]
_FORMER_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in DETAILS])
"""Of segments whose payloads are all plain bytes, sealed before there were others."""
_MAX_CHECKED = 4096
_checked: dict[tuple[object, ...], None] = {}
"""Files whose sha256 was verified, identified by what changes with their content."""


@dataclass(slots=True)
class Written:
    """What the list of segments records about a new file."""

    rows: int = 0
    size_bytes: int = 0
    first_notified_ns: int = 0
    last_notified_ns: int = 0
    max_published_ns: int = 0
    sha256: str = ""


class _HashingFile:
    """A file for pyarrow that hashes what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        count = self._file.write(data)
        self._digest.update(data)
        self.size_bytes += count
        return count

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self.size_bytes

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def write_segment(path: Path, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write a new file with a row group for each batch; OSError."""
    written = Written()
    with path.open("wb") as file:
        hashing = _HashingFile(file)
        with _parquet_writer(hashing) as writer:
            for batch in batches:
                writer.write_batch(batch, row_group_size=max(1, batch.num_rows))
                _count(written, batch)
    written.size_bytes, written.sha256 = hashing.size_bytes, hashing.hexdigest()
    return written


def _parquet_writer(file: _HashingFile) -> Any:
    return pq.ParquetWriter(
        file,
        SCHEMA,
        compression="zstd",
        use_dictionary=_DICTIONARY_COLUMNS,
        column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    )


def _count(written: Written, batch: pa.RecordBatch) -> None:
    notified = pc.min_max(batch.column("notified_ns")).as_py()
    published_ns = pc.max(batch.column("published_ns")).as_py()
    if written.rows == 0:
        written.first_notified_ns, written.last_notified_ns = notified["min"], notified["max"]
        written.max_published_ns = published_ns
    written.first_notified_ns = min(written.first_notified_ns, notified["min"])
    written.last_notified_ns = max(written.last_notified_ns, notified["max"])
    written.max_published_ns = max(written.max_published_ns, published_ns)
    written.rows += batch.num_rows


class SegmentFile:
    """A segment opened for reading; ArchiveCorrupt if it has changed since it was sealed, or is missing.

    If `trusting`, the sha256 is not checked again when this process has done so and the file is unmodified since.
    """

    def __init__(self, segment: Segment, *, trusting: bool = True) -> None:
        self._segment = segment
        try:
            self._file = segment.path.open("rb")
        except FileNotFoundError:
            raise _corrupt(segment, "the file is missing") from None
        try:
            self._check_content(trusting)
            with _raised_as_corrupt(segment):
                self._parquet = pq.ParquetFile(
                    pa.PythonFile(self._file, mode="r"), page_checksum_verification=True, pre_buffer=False
                )
                self._check_shape()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def batches(
        self, start: int, stop: int, batch_rows: int, schema: pa.Schema = SCHEMA
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of offsets [start, stop), which this segment has, with these columns."""
        first = self._segment.first
        for group in range(self._parquet.num_row_groups):
            end = first + self._parquet.metadata.row_group(group).num_rows
            if start < end and first < stop:
                rows = self._read_group(group, first, schema)
                yield from _slices(rows, max(start - first, 0), min(stop, end) - first, batch_rows)
            first = end

    def first_published_at(self, published_ns: int) -> int | None:
        """Return the first offset that was published at `published_ns` or later, or None."""
        first = self._segment.first
        for group in range(self._parquet.num_row_groups):
            with _raised_as_corrupt(self._segment):
                times = self._parquet.read_row_group(group, ["published_ns"], use_threads=False)
            late = np.flatnonzero(times.column(0).to_numpy() >= published_ns)
            if late.size:
                return first + int(late[0])
            first += times.num_rows
        return None

    def _read_group(self, group: int, first: int, schema: pa.Schema) -> pa.RecordBatch:
        with _raised_as_corrupt(self._segment):
            has = set(self._parquet.schema_arrow.names)
            names = [name for name in schema.names if name in has]
            table = self._parquet.read_row_group(group, columns=names, use_threads=False).combine_chunks()
            found = {name: table.column(name).chunk(0) for name in names}
            columns = [found.get(field.name, pa.nulls(table.num_rows, field.type)) for field in schema]
            offsets = columns[0].to_numpy()
        if not np.array_equal(offsets, np.arange(first, first + len(offsets))):
            raise _corrupt(self._segment, "its offsets are not contiguous")
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _check_content(self, trusting: bool) -> None:
        status = os.fstat(self._file.fileno())
        if status.st_size != self._segment.size_bytes:
            raise _corrupt(
                self._segment,
                f"it has {status.st_size} bytes, but had {self._segment.size_bytes} when it was sealed",
            )
        key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, self._segment.sha256)
        if trusting and key in _checked:
            return
        if hashlib.file_digest(self._file, "sha256").hexdigest() != self._segment.sha256:
            raise _corrupt(self._segment, "its content has changed since it was sealed")
        self._file.seek(0)
        if len(_checked) >= _MAX_CHECKED:
            _checked.clear()
        _checked[key] = None

    def _check_shape(self) -> None:
        if not any(map(self._parquet.schema_arrow.equals, (SCHEMA, _FORMER_SCHEMA))):
            raise _corrupt(self._segment, "its columns are not those of an archive")
        if self._parquet.metadata.num_rows != self._segment.rows:
            raise _corrupt(
                self._segment,
                f"it has {self._parquet.metadata.num_rows} rows, expected {self._segment.rows}",
            )


def _slices(rows: pa.RecordBatch, start: int, stop: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    for position in range(start, stop, batch_rows):
        yield rows.slice(position, min(batch_rows, stop - position))


class _raised_as_corrupt:  # noqa: N801 - used as a context manager
    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, pa.ArrowException | OSError | UnicodeError | EOFError):
            raise _corrupt(self._segment, one_line(str(error))) from error


def _corrupt(segment: Segment, what: str) -> ArchiveCorrupt:
    return ArchiveCorrupt(f"{segment.path} with offsets {segment.first} to {segment.last}: {what}")
