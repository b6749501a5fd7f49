"""The broker's store on disk (core/store.py): one SQLite file, one writer, every row checked.

How it keeps the promises of `Store`:

- **On disk when `write` returns**: one transaction per batch in the write-ahead log, synchronous=FULL. With
  `on_pending`, on disk when `commit` returns: what a turn writes waits in memory, the last value of each key, and is
  one transaction.
- **One writer**: a lock on `<name>.lock` while the store is open; it ends with its process.
- **Only what was written**: each row has a checksum over table, key, place and value. One more row, the seal, has
  the sum of all checksums, so that a vanished row is noticed, too. Opening reads everything; later reads check what
  they return. If the log (`-wal`, which only a crash leaves) is damaged or gone, the store may be older than what was
  acknowledged; the mark in the lock file shows this, and the store is rejected.
- **A new file is created under another name**, so a file that is empty or too short is damaged.
- **Bounded**: later rows reuse the pages of deleted ones, so the file is as large as the store ever was; what parts
  write they bound themselves. The log is written back into the file every `LOG_PAGES` pages and starts over; beyond
  that it takes as much as the largest batch.
- **Full**: on a full disk even deleting may fail, because the log needs room first: about `LOG_PAGES` pages must be
  freed elsewhere. Until then every write is rejected. With `on_pending` the room is checked before anything is added,
  because a failing commit is fatal.

If the disk fails (other than by being full) while a batch is synced, the batch is rejected and the state is as before;
after a crash at that moment, before the next write, the batch may turn out to be written.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from tidings.core.errors import StoreCorrupt, StoreError, StoreFull
from tidings.core.store import TABLES, Change, check_tables
from tidings.storage.database import PAGE_BYTES, Database, DatabaseKind, make_database
from tidings.storage.files import beside, lock_file, sync_directory
from tidings.storage.troubles import Troubles

LOG_PAGES = 256
RECOVERY = (
    "start the broker with --recover to fetch its state from its neighbours; "
    "the damaged file is kept beside it"
)

_ROOM_BYTES = 2 * LOG_PAGES * PAGE_BYTES
"""Free space required before something is added to a turn: for the log, and for the file it is written back to."""
_BYTES_PER_BYTE = 3
"""Bytes on disk that each byte of a change may need, with the rows it moves."""

# One tree has the rows in the order of keys, so there is no index that could disagree with it.
_SCHEMA = {
    "entries": "CREATE TABLE entries (name TEXT NOT NULL, key BLOB NOT NULL, place INTEGER NOT NULL,"
    " value BLOB NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID",
    "seal": "CREATE TABLE seal (id INTEGER PRIMARY KEY, checksum BLOB NOT NULL)",
}
_Row = tuple[int, bytes, bytes]


class _Tally:
    """Count, size and checksum of a store's content, and the place of the next new key."""

    def __init__(self) -> None:
        self.count = dict.fromkeys(TABLES, 0)
        self.size_bytes = dict.fromkeys(TABLES, 0)
        self.next_place = 1
        self._sum = 0

    def copy(self) -> _Tally:
        copy = _Tally()
        copy.count, copy.size_bytes = dict(self.count), dict(self.size_bytes)
        copy.next_place, copy._sum = self.next_place, self._sum
        return copy

    def add(self, table: str, key: bytes, row: _Row) -> None:
        place, value, checksum = row
        self.count[table] += 1
        self.size_bytes[table] += len(key) + len(value)
        self.next_place = max(self.next_place, place + 1)
        self._sum += int.from_bytes(checksum)

    def remove(self, table: str, key: bytes, row: _Row) -> None:
        _, value, checksum = row
        self.count[table] -= 1
        self.size_bytes[table] -= len(key) + len(value)
        self._sum -= int.from_bytes(checksum)

    @property
    def seal(self) -> bytes:
        return (self._sum % (1 << 64)).to_bytes(8)


def store_kind(user: str, recovery: str) -> DatabaseKind:
    """Return the kind of a store. Its errors name the `user` that has the file locked, and the `recovery` of damage."""
    troubles = Troubles(
        StoreError,
        StoreFull,
        StoreCorrupt,
        damaged_text=f"cannot use {{path}}: {{reason}}; {recovery}",
        busy_text=f"{{path}} is in use by another {user}",
    )
    return DatabaseKind(
        what="a store",
        application_id=0x74696479,  # "tidy"
        format=1,
        tables=_SCHEMA,
        counter="seal",
        first_row=lambda: (_Tally().seal,),
        log_pages=LOG_PAGES,
        busy_seconds=0.0,
        troubles=troubles,
        other_format=troubles.damaged,
        exclusive=True,
    )


BROKER_KIND = store_kind("broker", RECOVERY)


class DiskStore:
    """The store in file `path`, created if missing. For one thread at a time, not always the same one.

    StoreError: the file cannot be used, or another process uses it. StoreCorrupt: see `set_aside`.
    `on_pending` is called when the first write of a turn waits for `commit`; without it, writes do not wait.
    """

    def __init__(
        self,
        path: str | Path,
        kind: DatabaseKind = BROKER_KIND,
        on_pending: Callable[[], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self._on_pending = on_pending
        self._pending: dict[tuple[str, bytes], bytes | None] = {}
        """What was written in this turn and is not in the transaction yet: None where it was deleted."""
        self._in_turn = False
        """Something waits for `commit`."""
        self._broken = False
        """Part of a turn is lost, so it must not be committed."""
        self._room_bytes: int | None = None
        """How much more may be added in this turn; None if nobody has asked the disk yet."""
        self._kind = kind
        self._lock = _locked(self.path, kind)
        self._database: Database | None = None
        try:
            with kind.troubles.told(self.path):
                _make_if_missing(self.path, kind)
                self._database = Database(self.path, _lock_path(self.path), kind)
                self._database.check_pages()
                self._tally = self._checked_tally()
                self._database.checked = True
        except BaseException:
            self.close()
            raise

    def read(self, table: str) -> list[tuple[bytes, bytes]]:
        database = self._checked_table(table)
        with database.told():
            self._apply_pending()
            rows = database.execute("SELECT key, place, value, checksum FROM entries WHERE name = ?", table)
        checked = [(key, self._checked(table, key, row)) for key, *row in rows]
        checked.sort(key=lambda entry: entry[1][0])
        return [(key, value) for key, (_, value, _) in checked]

    def get(self, table: str, key: bytes) -> bytes | None:
        database = self._checked_table(table)
        if (table, key) in self._pending:
            return self._pending[table, key]
        with database.told():
            row = self._row(table, key)
        return None if row is None else row[1]

    def write(self, changes: Sequence[Change]) -> None:
        database = self._open_database()
        check_tables(changes)
        if changes and self._on_pending is not None:
            self._write_in_turn(changes, self._on_pending)
        elif changes:
            with database.told():
                self._write_through(changes)

    def commit(self) -> None:
        database = self._open_database()
        if self._in_turn:
            with database.told():
                try:
                    self._apply_pending()
                finally:
                    self._in_turn, self._room_bytes, self._pending = False, None, {}
                database.commit(", checksum = ?", self._tally.seal)

    def size_bytes(self, table: str) -> int:
        with self._checked_table(table).told():
            self._apply_pending()
        return self._tally.size_bytes[table]

    def count(self, table: str) -> int:
        with self._checked_table(table).told():
            self._apply_pending()
        return self._tally.count[table]

    def close(self) -> None:
        if self._database is not None:
            with suppress(StoreError):  # nothing that depends on it was acknowledged
                self.commit()
            self._database.close()
            self._database = None
        self._lock.close()

    def _write_through(self, changes: Sequence[Change]) -> None:
        database, tally = self._open_database(), self._tally.copy()
        try:
            with database.transaction(write=True):
                for change in changes:
                    self._apply(tally, *change)
                database.execute("UPDATE seal SET checksum = ?", tally.seal)
            self._tally = tally
        except StoreError:
            raise
        except BaseException:  # interrupted: only the file shows whether the commit happened
            self._tally = self._checked_tally()
            raise

    def _write_in_turn(self, changes: Sequence[Change], on_pending: Callable[[], None]) -> None:
        first, added_bytes = not self._in_turn, 0
        for _, key, value in changes:
            if value is not None:
                added_bytes += len(key) + len(value)
        if added_bytes:
            self._take_room(_BYTES_PER_BYTE * added_bytes)
        for table, key, value in changes:
            if value is not None and self._pending.get((table, key), b"") is None:
                with self._open_database().told():
                    self._apply_pending()  # deleted before, so its place is the last one now
            self._pending[table, key] = value
        self._in_turn = True
        if first:
            on_pending()

    def _apply_pending(self) -> None:
        """Move what waits in memory into the turn's transaction. After a failure nothing is committed any more."""
        if self._broken:
            raise StoreError(f"{self.path}: a write failed before")
        if not self._pending:
            return
        database, tally = self._open_database(), self._tally.copy()
        try:
            if not database.in_transaction:
                database.begin()
            for (table, key), value in self._pending.items():
                self._apply(tally, table, key, value)
        except BaseException:
            self._broken = True
            database.roll_back()
            raise
        self._tally, self._pending = tally, {}

    def _take_room(self, size_bytes: int) -> None:
        """Raise StoreFull unless there is room for so much; the disk is asked once a turn."""
        if self._room_bytes is None:
            with self._open_database().told():
                disk = os.statvfs(self.path)
            self._room_bytes = disk.f_bavail * disk.f_frsize - _ROOM_BYTES
        if self._room_bytes < size_bytes:
            needed_kib = size_bytes + _ROOM_BYTES >> 10
            raise StoreFull(f"{self.path}: no room to write (less than {needed_kib} KiB free)")
        self._room_bytes -= size_bytes

    def _apply(self, tally: _Tally, table: str, key: bytes, value: bytes | None) -> None:
        database = self._open_database()
        if value is None:
            for row in database.execute(
                "DELETE FROM entries WHERE name = ? AND key = ? RETURNING place, value, checksum", table, key
            ):
                tally.remove(table, key, self._checked(table, key, row))
            return
        old = self._row(table, key)
        if old is not None:
            tally.remove(table, key, old)
        place = tally.next_place if old is None else old[0]
        row = (place, value, _checksum(table, key, place, value))
        database.execute("REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", table, key, *row)
        tally.add(table, key, row)

    def _row(self, table: str, key: bytes) -> _Row | None:
        rows = self._open_database().execute(
            "SELECT place, value, checksum FROM entries WHERE name = ? AND key = ?", table, key
        )
        return self._checked(table, key, rows[0]) if rows else None

    def _checked(self, table: str, key: bytes, row: Iterable[Any]) -> _Row:
        place, value, checksum = row
        kinds = (type(table), type(key), type(place), type(value))
        if kinds != (str, bytes, int, bytes) or checksum != _checksum(table, key, place, value):
            raise self._corrupt(f"an entry of table {table!r:.40} has a wrong checksum")
        return place, value, checksum

    def _checked_tally(self) -> _Tally:
        """Return the tally of all rows; StoreCorrupt unless they are exactly those that were written."""
        tally, database = _Tally(), self._open_database()
        for table, key, *rest in database.iterate("SELECT name, key, place, value, checksum FROM entries"):
            row = self._checked(table, key, rest)
            if table not in TABLES:
                raise self._corrupt(f"it has an unknown table {table!r}")
            tally.add(table, key, row)
        if database.execute("SELECT checksum FROM seal") != [(tally.seal,)]:
            raise self._corrupt("entries are missing or out of date")
        return tally

    def _open_database(self) -> Database:
        if self._database is None:
            raise StoreError(f"{self.path} is closed")
        return self._database

    def _checked_table(self, table: str) -> Database:
        database = self._open_database()
        if table not in TABLES:
            raise KeyError(table)
        return database

    def _corrupt(self, reason: str) -> Exception:
        return self._kind.troubles.damaged(self.path, reason)


def set_aside(path: str | Path) -> Path:
    """Rename the store and its log to `<name>.damaged-N`, with the first free N; return that path.

    The mark stays until a new store is created.
    """
    path = Path(path)
    with BROKER_KIND.troubles.told(path), _locked(path, BROKER_KIND):
        number = 1
        while any(file.exists() for file in _files(beside(path, f".damaged-{number}"))):
            number += 1
        aside = beside(path, f".damaged-{number}")
        # The log is renamed after its file: a log alone is noticed as damage, a file without its log might not be.
        pairs = [pair for pair in zip(_files(path), _files(aside), strict=True) if pair[0].exists()]
        if not pairs:
            raise StoreError(f"{path}: there is no store to set aside")
        for old, new in pairs:
            old.rename(new)
        sync_directory(path.parent)
    return aside


def _make_if_missing(path: Path, kind: DatabaseKind) -> None:
    file, *rest = _files(path)
    if file.exists():
        return
    if any(left.exists() for left in rest):
        raise kind.troubles.damaged(path, "the file is missing, but its log exists")
    make_database(path, _lock_path(path), kind)


def _checksum(table: str, key: bytes, place: int, value: bytes) -> bytes:
    name = table.encode()
    head = struct.pack(">BqQ", len(name), place, len(key))
    return hashlib.blake2b(b"".join((head, name, key, value)), digest_size=8).digest()


def _locked(path: Path, kind: DatabaseKind) -> BinaryIO:
    with kind.troubles.told(path):
        try:
            return lock_file(_lock_path(path))
        except BlockingIOError:
            raise kind.troubles.busy(path) from None


def _lock_path(path: Path) -> Path:
    return beside(path, ".lock")


def _files(path: Path) -> tuple[Path, Path, Path]:
    return path, beside(path, "-wal"), beside(path, "-shm")
