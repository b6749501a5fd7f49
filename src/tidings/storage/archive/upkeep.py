"""Seals rows of the tail into segments, and removes old segments.

Sealing: the file is written under a name that no reader uses, synced, renamed, and its directory synced; then one
transaction lists it and removes its rows from the tail. Before that transaction the tail is authoritative, after it the
file is. A file that a crash leaves unlisted is removed at the next open (opening_checks.py).

Retention: one transaction removes segments from the list, then their files are deleted. A reader that has such a file
open reads it to its end; any other gets ArchiveTrimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from tidings.core.errors import ArchiveFull
from tidings.storage.archive.errors import raised_as_archive_error
from tidings.storage.archive.facts import ArchiveSettings, Bounds, Segment
from tidings.storage.archive.files import SEALING_NAME, SEGMENTS_NAME, segment_path
from tidings.storage.archive.listing import (
    TailSize,
    drop_sealed,
    insert_segment,
    read_bounds,
    read_segments,
    read_tail,
    sealed_bytes,
    sealed_end,
    tail_size,
    write_bounds,
)
from tidings.storage.archive.notes import forget_consumers, read_consumers
from tidings.storage.archive.retention import count_removable, expired_before_ns
from tidings.storage.archive.rows import batch_of
from tidings.storage.archive.segment_file import GROUP_ROWS, write_segment
from tidings.storage.database import Database
from tidings.storage.files import replaced

TRIM_SEGMENTS = 16
"""The most segments removed from the list in one transaction."""


class Upkeep:
    """Seals and trims one archive. Calls `reached` at each step, for tests that interrupt."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        settings: ArchiveSettings,
        clock: Callable[[], int],
        reached: Callable[[str], None],
    ) -> None:
        self._database = database
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._reached = reached
        self._tail: TailSize | None = None
        self._unlisted: list[Path] = []

    def tail(self) -> TailSize:
        if self._tail is None:
            with self._database.transaction():
                self._tail = tail_size(self._database)
        return self._tail

    def set_tail(self, tail: TailSize | None) -> None:
        """Set the size of the tail; None if it must be looked up."""
        self._tail = tail

    def tail_is_large(self) -> bool:
        tail = self.tail()
        return tail.events >= self._settings.segment_rows or tail.size_bytes >= self._settings.segment_bytes

    def run(self) -> None:
        while self.tail_is_large() or self._tail_is_old():
            self.seal_one()
        self._trim()

    def seal_one(self) -> None:
        """Seal the oldest rows of the tail, as many as fit into one segment."""
        segment = self._written_segment()
        self._tail = None  # unknown if the transaction is interrupted
        try:
            with self._database.transaction(write=True):
                insert_segment(self._database, segment)
                drop_sealed(self._database, segment.last + 1)
                self._reached("listed")
        except ArchiveFull:
            # The space is needed. After other errors the file stays: after a crash the transaction may turn out done.
            with suppress(OSError):
                segment.path.unlink()
            raise
        self._reached("sealed")

    def _tail_is_old(self) -> bool:
        """Return True if the tail has expired rows: a slow archive would otherwise never seal and trim them."""
        if self._settings.retain_s is None or not self.tail().events:
            return False
        with self._database.transaction():
            rows = read_tail(self._database, sealed_end(self._database), read_bounds(self._database).end, 1)
        return rows.notified_ns[0] < expired_before_ns(self._clock(), self._settings.retain_s)

    def _written_segment(self) -> Segment:
        with self._database.transaction():
            first = sealed_end(self._database)
        path = segment_path(self._directory, first)
        draft = self._directory / SEGMENTS_NAME / SEALING_NAME
        with raised_as_archive_error(draft), replaced(path, draft):
            written = write_segment(draft, self._tail_batches(first))
            self._reached("written")
        self._reached("in place")
        return Segment(
            first,
            first + written.rows - 1,
            path,
            written.rows,
            written.size_bytes,
            written.first_notified_ns,
            written.last_notified_ns,
            written.max_published_ns,
            written.sha256,
        )

    def _tail_batches(self, first: int) -> Iterator[pa.RecordBatch]:
        with self._database.transaction():
            end = min(read_bounds(self._database).end, first + self._settings.segment_rows)
        size_bytes = 0
        while first < end and size_bytes < self._settings.segment_bytes:
            with self._database.transaction():
                rows = read_tail(self._database, first, end, GROUP_ROWS)
            yield batch_of(first, rows)
            self._reached("writing")
            first += len(rows)
            size_bytes += rows.size_bytes

    def _trim(self) -> None:
        tail_bytes = self.tail().size_bytes
        more = True
        while more:
            with self._database.transaction(write=True):
                paths = self._take_off_list(tail_bytes)
                self._reached("unlisting")
            self._unlisted.extend(paths)
            self._reached("unlisted")
            self._remove_unlisted()
            more = len(paths) == TRIM_SEGMENTS

    def _remove_unlisted(self) -> None:
        """Delete unlisted files, including those that could not be deleted the last time."""
        while self._unlisted:
            with raised_as_archive_error(self._unlisted[0]):
                self._unlisted[0].unlink(missing_ok=True)
            del self._unlisted[0]
            self._reached("removed")

    def _take_off_list(self, tail_bytes: int) -> list[Path]:
        now_ns = self._clock()
        forget_consumers(self._database, expired_before_ns(now_ns, self._settings.consumer_expiry_s))
        if self._settings.retain_s is None and self._settings.retain_bytes is None:
            return []
        held_from = min(read_consumers(self._database).values(), default=None)
        oldest = read_segments(self._database, limit=TRIM_SEGMENTS)
        size_bytes = tail_bytes + sealed_bytes(self._database)
        count = count_removable(
            oldest, self._settings, now_ns=now_ns, size_bytes=size_bytes, held_from=held_from
        )
        for segment in oldest[:count]:
            self._database.execute("DELETE FROM segments WHERE first = ?", segment.first)
        if count:
            end = read_bounds(self._database).end
            write_bounds(self._database, Bounds(oldest[count - 1].last + 1, end))
        return [segment.path for segment in oldest[:count]]
