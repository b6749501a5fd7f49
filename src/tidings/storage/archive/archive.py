"""The archive's writer: events come in, are numbered, and are on disk when `append` returns.

New events go to the tail, a table of the database with many of them in each row, one transaction per batch. When the
tail is large enough the oldest become a Parquet file (upkeep.py).

Sealing and retention never fail an `append`: its events are on disk already, and a caller who got an error would
append them again. They are tried again later, and `trouble` says why they failed. Only when the tail has grown to
`max_tail_rows` or `max_tail_bytes` does `append` refuse.
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
from tidings.storage.archive.errors import told_as_archive_error
from tidings.storage.archive.facts import ArchiveSettings, Bounds, Gap, check_name
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
from tidings.storage.archive.notes import add_gap, read_marks, write_marks
from tidings.storage.archive.opened import Opened
from tidings.storage.archive.opening_checks import check_and_clean
from tidings.storage.archive.packing import LeaveOut, Packed, pack, refuse, row_checksum
from tidings.storage.archive.upkeep import Upkeep
from tidings.storage.files import sync_directory

RETRY_S = 5.0
"""After a failure, `append` does not try to seal again before."""
MAX_GAPS = 10_000
MAX_REASON_CHARACTERS = 1_000


class Archive(Opened):
    """Opened by `Archive.open`. One thread at a time, not always the same."""

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

    def marks(self) -> dict[str, int]:
        """The latest value of each mark that came with `append`."""
        with self._database.transaction():
            return read_marks(self._database)

    def append(
        self,
        events: Iterable[Event | Arrival],
        notified_ns: int,
        *,
        marks: Mapping[str, int | None] | None = None,
        leave_out: LeaveOut = refuse,
    ) -> int:
        """The offset of the first of the events, which are on disk then; if it raises, none of them is kept.

        A mark of None is removed. An event that could not be read back is left out, and `leave_out` told of it; without
        that it is an ArchiveError. ArchiveFull: there is no room, and the same call may be made again later.
        """
        packed = pack(events, notified_ns, leave_out)
        _check_marks(marks or {})
        count = sum(row.count for row in packed)
        size_bytes = sum(len(row.value) for row in packed)
        self._make_room(count, size_bytes)
        tail = self._upkeep.tail()
        self._upkeep.set_tail(None)  # unknown, should this be interrupted
        first = self._insert(packed, marks or {})
        self._upkeep.set_tail(TailSize(tail.events + count, tail.size_bytes + size_bytes))
        if self._upkeep.tail_is_large() and not (self.trouble and time.monotonic() < self._retry_at):
            with suppress(ArchiveError):  # `trouble` tells
                self.maintain()
        return first

    def note_gap(self, reason: str, missing: int | None = None) -> None:
        """Something may be missing before the next offset. Beyond MAX_GAPS the last two become one."""
        if missing is not None and not 0 <= missing <= INT_MAX:
            raise ArchiveError(f"a gap must miss at least 1 event, not {missing}")
        reason = reason[:MAX_REASON_CHARACTERS].encode(errors="replace").decode()
        with self._database.transaction(write=True):
            end = read_bounds(self._database).end
            add_gap(self._database, Gap(end, self._clock(), reason, missing), MAX_GAPS)

    def seal(self) -> None:
        """Seal all of the tail."""
        while self._upkeep.tail().events:
            self._upkeep.seal_one()

    def maintain(self) -> None:
        """Seal what is due, then give up what need not be kept."""
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
        """ArchiveFull where the tail is at its bounds and cannot be sealed."""
        while self._overflows(events, size_bytes):
            try:
                self._upkeep.seal_one()
            except ArchiveError as error:
                raise ArchiveFull(
                    f"archive {self.directory}: {self._upkeep.tail().events} events wait to be sealed, "
                    f"which is not possible: {error}"
                ) from error

    def _overflows(self, events: int, size_bytes: int) -> bool:
        """A batch that is larger than the bounds is taken into an empty tail."""
        tail = self._upkeep.tail()
        return tail.events > 0 and (
            tail.events + events > self.settings.max_tail_rows
            or tail.size_bytes + size_bytes > self.settings.max_tail_bytes
        )

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


def _check_marks(marks: Mapping[str, int | None]) -> None:
    for name, value in marks.items():
        check_name("mark", name)
        if value is not None and not (isinstance(value, int) and INT_MIN <= value <= INT_MAX):
            raise ArchiveError(f"mark {name!r}: {value!r} is not a 64-bit integer")
