"""The archive's writer: events come in, are numbered, and are on disk when `append` returns.

New rows go to the tail, a table of the database. When the tail is large enough it is sealed: its oldest rows
become a Parquet file. One transaction lists the file and removes the rows from the tail, so at any moment each
offset is in exactly one place, whatever file a crash leaves; `leftovers.py` removes such files at the next open.

Sealing and retention never fail an `append`: its events are on disk already, and a caller who got an error would
append them again. They are tried again later, and `trouble` says why they failed; only when the tail has grown to
`max_tail_rows` or `max_tail_bytes` (and one batch) does `append` refuse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import pyarrow as pa

from tidings.archive.database import Database, make_database
from tidings.archive.errors import told_as_archive_error
from tidings.archive.facts import ArchiveSettings, Bounds, Gap, Segment
from tidings.archive.files import (
    DATABASE_NAME,
    SEALING_NAME,
    SEGMENTS_NAME,
    check_free,
    check_there,
    lock_writer,
    segment_path,
    sync_directory,
)
from tidings.archive.leftovers import check_and_clean
from tidings.archive.listing import (
    TailSize,
    insert_segment,
    read_bounds,
    read_gaps,
    read_id,
    read_segments,
    read_tail,
    sealed_end,
    tail_size,
)
from tidings.archive.retention import count_removable, expired_before_ns
from tidings.archive.rows import batch_of, pack_row, row_checksum
from tidings.archive.segment_file import GROUP_ROWS, write_segment
from tidings.model.errors import ArchiveError, ArchiveFull
from tidings.model.event import INT_MAX, INT_MIN, Event

SEAL_RETRY_S = 5.0
MAX_GAPS = 10_000


class Archive:
    """Opened by `open`. One thread at a time, not always the same."""

    id: str
    """32 hexadecimal digits, made with the archive."""
    trouble: str
    """Why sealing or retention failed the last time; empty if it did not."""

    @classmethod
    def open(
        cls,
        directory: str | Path,
        settings: ArchiveSettings = ArchiveSettings(),  # noqa: B008 - it is frozen
        *,
        create: bool = True,
        clock: Callable[[], int] = time.time_ns,
    ) -> Self:
        """The archive in `directory`, made if there is none and `create` says so; ArchiveError."""
        directory = Path(directory)
        if create:
            with told_as_archive_error(directory):
                directory.mkdir(parents=True, exist_ok=True)
        else:
            check_there(directory)
        lock = lock_writer(directory)
        try:
            _make_unless_there(directory)
            return cls(directory, settings, lock, clock)
        except BaseException:
            lock.close()
            raise

    def __init__(
        self, directory: Path, settings: ArchiveSettings, lock: BinaryIO, clock: Callable[[], int]
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.trouble = ""
        self._lock = lock
        self._clock = clock
        self._retry_at = 0.0
        self._tail: TailSize | None = None
        self._database = Database(directory, writable=True)
        try:
            check_and_clean(self._database, directory)
            with self._database.transaction():
                self.id = read_id(self._database)
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()
        self._lock.close()

    def bounds(self) -> Bounds:
        with self._database.transaction():
            return read_bounds(self._database)

    def gaps(self) -> list[Gap]:
        with self._database.transaction():
            return read_gaps(self._database)

    def marks(self) -> dict[str, int]:
        with self._database.transaction():
            return dict(self._database.execute("SELECT name, value FROM marks ORDER BY name"))

    def append(
        self, events: Sequence[Event], notified_ns: int, *, marks: Mapping[str, int | None] | None = None
    ) -> int:
        """The offset of the first of the events, which are on disk then; if it raises, none of them is kept.

        A mark that is None is removed.
        """
        packed = [pack_row(event, notified_ns) for event in events]
        size_bytes = sum(map(len, packed))
        tail = self._make_room(len(packed), size_bytes)
        self._tail = None  # unknown, should this be interrupted
        try:
            first = self._insert(packed, _checked_marks(marks or {}))
        except ArchiveFull:
            self._database.shorten_log()
            raise
        self._tail = TailSize(tail.rows + len(packed), tail.size_bytes + size_bytes)
        self._maintain_if_due()
        return first

    def note_gap(self, reason: str, missing: int | None = None) -> None:
        """Something may be missing before the next offset. Beyond MAX_GAPS the last two become one."""
        with self._database.transaction(write=True):
            end = read_bounds(self._database).end
            ((count,),) = self._database.execute("SELECT COUNT(*) FROM gaps")
            if count >= MAX_GAPS:
                ((last, before),) = self._database.execute(
                    "SELECT id, missing FROM gaps ORDER BY id DESC LIMIT 1"
                )
                missing = None if missing is None or before is None else missing + before
                self._database.execute("DELETE FROM gaps WHERE id = ?", last)
            self._database.execute(
                "INSERT INTO gaps (offset, noted_ns, reason, missing) VALUES (?, ?, ?, ?)",
                end,
                self._clock(),
                reason,
                missing,
            )

    def seal(self) -> None:
        """Seal all of the tail."""
        while self._tail_size().rows:
            self._seal_one()

    def maintain(self) -> None:
        """Seal what is due, then give up what need not be kept."""
        try:
            while self._seal_due():
                self._seal_one()
            self._trim()
        except ArchiveError as error:
            self.trouble = str(error)
            self._retry_at = time.monotonic() + SEAL_RETRY_S
            raise
        self.trouble = ""

    def _insert(self, packed: Sequence[bytes], marks: Mapping[str, int | None]) -> int:
        with self._database.transaction(write=True):
            first = read_bounds(self._database).end
            self._database.insert(
                "INSERT INTO tail VALUES (?, ?, ?)",
                ((offset, row_checksum(offset, row), row) for offset, row in enumerate(packed, first)),
            )
            self._database.execute("UPDATE about SET ending = ?", first + len(packed))
            kept = [(name, value) for name, value in marks.items() if value is not None]
            self._database.insert("REPLACE INTO marks VALUES (?, ?)", kept)
            removed = [(name,) for name, value in marks.items() if value is None]
            self._database.insert("DELETE FROM marks WHERE name = ?", removed)
            self._reached("inserted")
        self._reached("appended")
        return first

    def _make_room(self, rows: int, size_bytes: int) -> TailSize:
        """The size of the tail, which is below its bounds; ArchiveFull."""
        if self._overflows(rows, size_bytes):
            try:
                self.maintain()
            except ArchiveError as error:
                if self._overflows(rows, size_bytes):
                    raise ArchiveFull(
                        f"archive {self.directory}: {self._tail_size().rows} events wait to be sealed, "
                        f"which is not possible: {error}"
                    ) from error
        return self._tail_size()

    def _overflows(self, rows: int, size_bytes: int) -> bool:
        tail = self._tail_size()
        return tail.rows > 0 and (
            tail.rows + rows > self.settings.max_tail_rows
            or tail.size_bytes + size_bytes > self.settings.max_tail_bytes
        )

    def _maintain_if_due(self) -> None:
        if not self._seal_due() or (self.trouble and time.monotonic() < self._retry_at):
            return
        with suppress(ArchiveError):  # `trouble` tells
            self.maintain()

    def _seal_due(self) -> bool:
        tail = self._tail_size()
        return tail.rows >= self.settings.segment_rows or tail.size_bytes >= self.settings.segment_bytes

    def _seal_one(self) -> None:
        with told_as_archive_error(self.directory / SEGMENTS_NAME):
            segment = self._write_segment()
        self._tail = None
        with self._database.transaction(write=True):
            insert_segment(self._database, segment)
            self._database.execute("DELETE FROM tail WHERE offset <= ?", segment.last)
            self._reached("listed")
        self._reached("sealed")

    def _write_segment(self) -> Segment:
        with self._database.transaction():
            first = sealed_end(self._database)
        draft = self.directory / SEGMENTS_NAME / SEALING_NAME
        written = write_segment(draft, self._tail_batches(first))
        self._reached("written")
        path = segment_path(self.directory, first)
        draft.rename(path)
        self._reached("renamed")
        sync_directory(path.parent)
        self._reached("synchronised")
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
        """The oldest rows of the tail, as many as belong into one segment."""
        rows = size_bytes = 0
        with self._database.transaction():
            end = min(read_bounds(self._database).end, first + self.settings.segment_rows)
        while first + rows < end and size_bytes < self.settings.segment_bytes:
            with self._database.transaction():
                chunk = read_tail(self._database, first + rows, end, GROUP_ROWS)
            yield batch_of(first + rows, chunk)
            rows += len(chunk)
            size_bytes += sum(len(row.packed) + len(row.payload) for row in chunk)

    def _trim(self) -> None:
        with self._database.transaction(write=True):
            removed = self._unlist()
            self._reached("unlisting")
        self._reached("unlisted")
        for segment in removed:
            with told_as_archive_error(segment.path):
                segment.path.unlink(missing_ok=True)
            self._reached("removed")

    def _unlist(self) -> list[Segment]:
        now_ns = self._clock()
        self._database.execute(
            "DELETE FROM consumers WHERE committed_ns < ?",
            expired_before_ns(now_ns, self.settings.consumer_expiry_s),
        )
        ((held_from,),) = self._database.execute("SELECT MIN(offset) FROM consumers")
        segments = read_segments(self._database)
        count = count_removable(
            segments,
            self.settings,
            now_ns=now_ns,
            tail_bytes=self._tail_size().size_bytes,
            held_from=held_from,
        )
        for segment in segments[:count]:
            self._database.execute("DELETE FROM segments WHERE first = ?", segment.first)
            self._database.execute("UPDATE about SET first = ?", segment.last + 1)
        return segments[:count]

    def _tail_size(self) -> TailSize:
        if self._tail is None:
            self._tail = tail_size(self._database)
        return self._tail

    def _reached(self, point: str) -> None:
        """Where tests cut in."""


def _make_unless_there(directory: Path) -> None:
    if (directory / DATABASE_NAME).exists():
        return
    with told_as_archive_error(directory):
        check_free(directory)
        (directory / SEGMENTS_NAME).mkdir(exist_ok=True)
        sync_directory(directory)
    make_database(directory)


def _checked_marks(marks: Mapping[str, int | None]) -> Mapping[str, int | None]:
    for name, value in marks.items():
        if value is None and isinstance(name, str):
            continue
        if not isinstance(name, str) or not isinstance(value, int) or not INT_MIN <= value <= INT_MAX:
            raise ArchiveError(f"mark {name!r}: {value!r} is no integer of 64 bits")
    return marks
