"""The archive's writer: `append` numbers events, and they are on disk when it returns.

New events go to the tail, a table of the database with many events in each row, one transaction per batch. When the
tail is large enough, its oldest events become a Parquet file (upkeep.py).

Sealing and retention never make an `append` fail: its events are on disk already, and after an error the caller would
append them again. They are retried later, and `trouble` has the reason of the failure. Only when the tail has grown to
`max_tail_rows` or `max_tail_bytes` does `append` raise ArchiveFull.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Self

from tidings.core.errors import ArchiveError, ArchiveFull
from tidings.core.events.event import INT_MAX, INT_MIN, Event
from tidings.core.events.run import Arrival
from tidings.storage.archive.database import make_database, open_database
from tidings.storage.archive.errors import raised_as_archive_error
from tidings.storage.archive.facts import ArchiveGap, ArchiveSettings, Bounds, check_name
from tidings.storage.archive.files import (
    DATABASE_NAME,
    SEGMENTS_NAME,
    check_free,
    check_there,
    lock_writer,
)
from tidings.storage.archive.listing import (
    TailSize,
    read_bounds,
    read_id,
    write_bounds,
)
from tidings.storage.archive.notes import add_gap, write_marks
from tidings.storage.archive.opened import Opened
from tidings.storage.archive.opening_checks import check_and_clean
from tidings.storage.archive.packing import LeaveOut, Packed, pack, refuse, row_checksum
from tidings.storage.archive.upkeep import Upkeep
from tidings.storage.files import sync_directory

RETRY_S = 5.0
"""After a failure, `append` does not try to seal again before this has passed."""
MAX_GAPS = 10_000
MAX_REASON_CHARACTERS = 1_000


class Archive(Opened):
    """An archive opened for writing by `Archive.open`. For one thread at a time, not always the same one."""

    trouble: str
    """Why sealing or retention last failed; empty if the last attempt succeeded."""

    @classmethod
    def open(
        cls,
        directory: str | Path,
        settings: ArchiveSettings = ArchiveSettings(),  # noqa: B008 - it is frozen
        *,
        create: bool = True,
        clock: Callable[[], int] = time.time_ns,
    ) -> Self:
        """Open the archive in `directory`, created if missing unless `create` is False; ArchiveError."""
        directory = Path(directory)
        if create:
            with raised_as_archive_error(directory):
                directory.mkdir(parents=True, exist_ok=True)
        else:
            check_there(directory)
        lock = lock_writer(directory)
        try:
            _make_if_missing(directory)
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
        self._database = open_database(directory, writable=True)
        self._upkeep = Upkeep(self._database, directory, settings, clock, self._reached)
        try:
            check_and_clean(self._database, directory)
            self._database.renew_format()
            with self._database.transaction():
                self.id = read_id(self._database)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Release the lock; what was appended is on disk already."""
        super().close()
        self._lock.close()

    def append(
        self,
        events: Iterable[Event | Arrival],
        notified_ns: int,
        *,
        marks: Mapping[str, int | None] | None = None,
        leave_out: LeaveOut = refuse,
    ) -> int:
        """Write events to disk and return the offset of the first one; if it raises, none of them is kept.

        A mark of None is removed. An event that could not be read back is left out and reported to `leave_out`; the
        default raises ArchiveError. ArchiveFull: there is no room, and the same call may be retried later.
        """
        packed = pack(events, notified_ns, leave_out)
        _check_marks(marks or {})
        count = sum(row.count for row in packed)
        size_bytes = sum(len(row.value) for row in packed)
        self._make_room(count, size_bytes)
        tail = self._upkeep.tail()
        self._upkeep.set_tail(None)  # unknown if the insertion is interrupted
        first = self._insert(packed, marks or {})
        self._upkeep.set_tail(TailSize(tail.events + count, tail.size_bytes + size_bytes))
        if self._upkeep.tail_is_large() and not (self.trouble and time.monotonic() < self._retry_at):
            with suppress(ArchiveError):  # `trouble` has it
                self.maintain()
        return first

    def note_gap(self, reason: str, missing: int | None = None) -> None:
        """Note that events may be missing before the next offset. Beyond MAX_GAPS the last two are merged."""
        if missing is not None and not 0 <= missing <= INT_MAX:
            raise ArchiveError(f"a gap must have 0 to {INT_MAX} missing events, not {missing}")
        reason = reason[:MAX_REASON_CHARACTERS].encode(errors="replace").decode()
        with self._database.transaction(write=True):
            end = read_bounds(self._database).end
            add_gap(self._database, ArchiveGap(end, self._clock(), reason, missing), MAX_GAPS)

    def seal(self) -> None:
        """Seal all of the tail."""
        while self._upkeep.tail().events:
            self._upkeep.seal_one()

    def maintain(self) -> None:
        """Seal what is due, then remove what need not be kept."""
        try:
            self._upkeep.run()
        except ArchiveError as error:
            self.trouble = str(error)
            self._retry_at = time.monotonic() + RETRY_S
            raise
        self._database.sync_mark()
        self.trouble = ""

    def _insert(self, packed: Sequence[Packed], marks: Mapping[str, int | None]) -> int:
        with self._database.transaction(write=True):
            kept = read_bounds(self._database)
            *offsets, end = accumulate((row.count for row in packed), initial=kept.end)
            self._database.insert(
                "INSERT INTO tail VALUES (?, ?, ?)",
                (
                    (offset, row_checksum(offset, row.value), row.value)
                    for offset, row in zip(offsets, packed, strict=True)
                ),
            )
            write_bounds(self._database, Bounds(kept.first, end))
            write_marks(self._database, marks)
            self._reached("inserted")
        self._reached("appended")
        return kept.end

    def _make_room(self, events: int, size_bytes: int) -> None:
        """Seal until the events fit into the tail; ArchiveFull if that fails."""
        while self._overflows(events, size_bytes):
            try:
                self._upkeep.seal_one()
            except ArchiveError as error:
                raise ArchiveFull(
                    f"archive {self.directory}: {self._upkeep.tail().events} events wait to be sealed, "
                    f"but sealing fails: {error}"
                ) from error

    def _overflows(self, events: int, size_bytes: int) -> bool:
        """Return True if the events exceed the limits of the tail; an empty tail takes a batch of any size."""
        tail = self._upkeep.tail()
        return tail.events > 0 and (
            tail.events + events > self.settings.max_tail_rows
            or tail.size_bytes + size_bytes > self.settings.max_tail_bytes
        )

    def _reached(self, point: str) -> None:
        """Do nothing; tests override this to interrupt."""


def _make_if_missing(directory: Path) -> None:
    if (directory / DATABASE_NAME).exists():
        return
    with raised_as_archive_error(directory):
        check_free(directory)
        (directory / SEGMENTS_NAME).mkdir(exist_ok=True)
        sync_directory(directory)
    make_database(directory)


def _check_marks(marks: Mapping[str, int | None]) -> None:
    for name, value in marks.items():
        check_name("mark", name)
        if value is not None and not (isinstance(value, int) and INT_MIN <= value <= INT_MAX):
            raise ArchiveError(f"mark {name!r}: {value!r} is not a 64-bit integer")
