"""Reads an archive from its files: in any process, while the writer runs or after it has ended.

A reader has no state except its connection: each step looks up, in one view of the database, where the next offset
is. So it finds rows that have moved from the tail to a segment, and reports rows that have been trimmed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from tidings.core.errors import ArchiveAhead, ArchiveCorrupt, ArchiveError, ArchiveTrimmed
from tidings.core.events.subscription import Interest
from tidings.storage.archive.database import open_database
from tidings.storage.archive.errors import raised_as_archive_error
from tidings.storage.archive.facts import Segment, check_name
from tidings.storage.archive.files import check_there
from tidings.storage.archive.listing import (
    read_bounds,
    read_id,
    read_segments,
    read_tail,
    sealed_end,
)
from tidings.storage.archive.newest import NewestRows, rows_at
from tidings.storage.archive.notes import read_consumers, write_consumer
from tidings.storage.archive.opened import Opened
from tidings.storage.archive.rows import Rows, batch_of, projected, published_at
from tidings.storage.archive.segment_file import SegmentFile
from tidings.storage.archive.verify import find_problems

BATCH_ROWS = 16_384
MAX_CONSUMERS = 1_000


class ArchiveReader(Opened):
    """Reads the archive in `directory`; ArchiveError if there is none. May be used by several threads."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        check_there(self.directory)
        self._database = open_database(self.directory, writable=False)
        try:
            with self._database.transaction():
                self.id = read_id(self._database)
        except BaseException:
            self._database.close()
            raise
        self._newest = NewestRows(self)

    def segments(self) -> list[Segment]:
        """Return the sealed segments, oldest first."""
        with self._database.transaction():
            return read_segments(self._database)

    def consumers(self) -> dict[str, int]:
        """Return what each consumer has committed: the next offset that it needs."""
        with self._database.transaction():
            return read_consumers(self._database)

    def read(
        self, start: int, stop: int, batch_rows: int = BATCH_ROWS, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of offsets [start, stop), always the same ones; batches may be smaller than requested.

        With `columns`, the rows have only these and the offset, in the order of the schema; others are not decoded.

        ArchiveTrimmed, ArchiveAhead, ArchiveCorrupt: raised at once if known, else by the iterator.
        """
        if start < 0 or stop < start or batch_rows < 1:
            raise ArchiveError(f"cannot read offsets {start} to {stop} in batches of {batch_rows}")
        with self._database.transaction():
            self._check_kept(start, stop)
        return self._batches(start, stop, batch_rows, projected(columns))

    def offset_at(self, published_ns: int) -> int:
        """Return the first offset that was published at `published_ns` or later; the end if there is none."""
        position = 0
        while True:
            with self._database.transaction():
                first, end = read_bounds(self._database)
                segments = [
                    segment
                    for segment in read_segments(self._database, max(position, first) - 1)
                    if segment.max_published_ns >= published_ns
                ]
                if not segments:
                    position = max(position, sealed_end(self._database))
                    rows = read_tail(self._database, position, end, BATCH_ROWS) if position < end else None
            if segments:
                found = self._find_in_segment(segments[0], published_ns)
                position = segments[0].last + 1
            elif rows is not None:
                found = _find_in_rows(rows, position, published_ns)
                position += len(rows)
            else:
                return end
            if found is not None:
                return found

    def newest(self, interest: Interest, stop: int, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Return the newest row before `stop` of each topic, of those that the interest selects, with ascending
        offsets. Without a filter, a segment costs its topics, not its rows, from the second time on."""
        offsets = self._newest.offsets(interest, stop)
        return rows_at(lambda start, end: self.read(start, end, batch_rows), offsets)

    def published_ns(self, offset: int) -> int:
        """Return when the event at this offset was published."""
        return published_at(self.read(offset, offset + 1, columns=["published_ns"]))

    def commit(self, consumer: str, offset: int) -> None:
        """Record that the consumer needs nothing before `offset`; retention keeps the rest. Never goes back."""
        check_name("consumer", consumer)
        if offset < 0:
            raise ArchiveError(f"consumer {consumer!r} cannot commit offset {offset}")
        with (
            closing(open_database(self.directory, writable=True)) as database,
            database.transaction(write=True),
        ):
            end = read_bounds(database).end
            if offset > end:
                raise ArchiveAhead(
                    f"consumer {consumer!r} cannot commit offset {offset}: archive {self.directory} ends at {end}"
                )
            others = read_consumers(database)
            if consumer not in others and len(others) >= MAX_CONSUMERS:
                raise ArchiveError(
                    f"archive {self.directory} has {len(others)} consumers, the limit is {MAX_CONSUMERS}"
                )
            write_consumer(database, consumer, offset, time.time_ns())

    def verify(self, progress: Callable[[float], None] = lambda share: None) -> list[str]:
        """Check all files and return every problem, one line each."""
        return find_problems(self._database, self.directory, progress)

    def _batches(self, start: int, stop: int, batch_rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        while start < stop:
            with self._database.transaction():
                self._check_kept(start, stop)
                segments = read_segments(self._database, start - 1, 1)
                rows = None if segments else read_tail(self._database, start, stop, batch_rows)
            if rows is not None:
                yield batch_of(start, rows, schema)
                start += len(rows)
            else:
                yield from self._segment_batches(segments[0], start, stop, batch_rows, schema)
                start = segments[0].last + 1

    def _segment_batches(
        self, segment: Segment, start: int, stop: int, batch_rows: int, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield a segment's batches. An open file is read to its end even if it is trimmed."""
        if segment.first > start:
            raise ArchiveCorrupt(f"{self._database.path} is damaged: it lists no segment for offset {start}")
        with self._opened(segment, start, stop) as file:
            yield from file.batches(start, min(stop, segment.last + 1), batch_rows, schema)

    def _opened(self, segment: Segment, start: int, stop: int) -> SegmentFile:
        try:
            with raised_as_archive_error(segment.path):
                return SegmentFile(segment)
        except ArchiveError:
            with self._database.transaction():
                self._check_kept(start, stop)  # it may have been trimmed since the lookup
            raise

    def _find_in_segment(self, segment: Segment, published_ns: int) -> int | None:
        try:
            with self._opened(segment, segment.first, segment.first) as file:
                return file.first_published_at(published_ns)
        except ArchiveTrimmed:
            return None

    def _check_kept(self, start: int, stop: int) -> None:
        first, end = read_bounds(self._database)
        if start < first:
            raise ArchiveTrimmed(
                f"offset {start} is no longer in archive {self.directory}; the first is {first}"
            )
        if stop > end:
            raise ArchiveAhead(
                f"offset {stop - 1} does not exist yet; archive {self.directory} ends at {end}"
            )


def _find_in_rows(rows: Rows, first: int, published_ns: int) -> int | None:
    late = (offset for offset, event in enumerate(rows.events, first) if event.published_ns >= published_ns)
    return next(late, None)
