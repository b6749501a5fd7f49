"""The broker's store on disk (core/store.py): one SQLite file, one writer, every row checked.

How it keeps the promises of `Store`:

- **On disk when `write` returns**: one transaction per batch in the write-ahead log, synchronous=FULL. With
  `on_pending`, on disk when `commit` returns: the batches of a turn are savepoints of one transaction.
- **One writer**: a lock on `<name>.lock` while the store is open; it ends with its process.
- **Only what was written**: each row has a checksum over table, key, place and value. One more row, the seal, has
  the sum of all checksums, so that a vanished row is noticed, too. Opening reads everything; later reads check what
  they return. If the log (`-wal`, which only a crash leaves) is damaged or gone, the store may be older than what was
  acknowledged; the mark in the lock file shows this, and the store is rejected.
- **A new file is created under another name**, so a file that is empty or too short is damaged.
- **Bounded**: later rows reuse the pages of deleted ones, so the file is as large as the store ever was, and at most
  `limit_bytes`. The log is written back into the file every `LOG_PAGES` pages and starts over; beyond that it takes as
  much as the largest batch.
- **Full**: at `limit_bytes`, deleting still works and makes room. On a full disk it may not, because the log needs
  room first: about `LOG_PAGES` pages must be freed elsewhere. Until then every write is rejected. With `on_pending`
  the room is checked before anything is added, because a failing commit is fatal.

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

_RESERVE_PAGES = 16
"""Deleting may need a page before it frees one, so batches that only delete may exceed the limit by this."""

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
    `limit_bytes` bounds the file, in whole pages; a store that is already larger does not grow. Deleting always works
    and may take a few more pages. `on_pending` is called when the first write of a turn waits for `commit`; without
    it, writes do not wait.
    """

    def __init__(
        self,
        path: str | Path,
        limit_bytes: int | None = None,
        kind: DatabaseKind = BROKER_KIND,
        on_pending: Callable[[], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self._on_pending = on_pending
        self._pending: list[Change] = []
        """The changes written in this turn."""
        self._pending_bytes = 0
        self._kind = kind
        self._limit_pages = None if limit_bytes is None else max(1, limit_bytes // PAGE_BYTES)
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
            rows = database.execute("SELECT key, place, value, checksum FROM entries WHERE name = ?", table)
        checked = [(key, self._checked(table, key, row)) for key, *row in rows]
        checked.sort(key=lambda entry: entry[1][0])
        return [(key, value) for key, (_, value, _) in checked]

    def get(self, table: str, key: bytes) -> bytes | None:
        with self._checked_table(table).told():
            row = self._row(table, key)
        return None if row is None else row[1]

    def write(self, changes: Sequence[Change]) -> None:
        database = self._open_database()
        check_tables(changes)
        if changes:
            with database.told():
                grows = any(value is not None for _, _, value in changes)
                self._set_limit(0 if grows else _RESERVE_PAGES)
                if self._on_pending is None:
                    self._write_through(changes)
                else:
                    self._write_in_turn(changes, self._on_pending, grows=grows)

    def commit(self) -> None:
        database = self._open_database()
        if self._pending:
            self._pending, self._pending_bytes = [], 0
            with database.told():
                database.commit()

    def size_bytes(self, table: str) -> int:
        self._checked_table(table)
        return self._tally.size_bytes[table]

    def count(self, table: str) -> int:
        self._checked_table(table)
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
                self._apply_all(tally, changes)
            self._tally = tally
        except StoreError:
            raise
        except BaseException:  # interrupted: only the file shows whether the commit happened
            self._tally = self._checked_tally()
            raise

    def _write_in_turn(
        self, changes: Sequence[Change], on_pending: Callable[[], None], *, grows: bool
    ) -> None:
        database, tally, first = self._open_database(), self._tally.copy(), not self._pending
        size_bytes = self._pending_bytes + sum(len(key) + len(value or b"") for _, key, value in changes)
        if grows:
            self._check_room(_ROOM_BYTES + _BYTES_PER_BYTE * size_bytes)
        if first:
            self._tally_before = tally.copy()
            database.begin()
        try:
            with database.savepoint():
                self._apply_all(tally, changes)
        except BaseException:
            self._restore_turn()
            raise
        self._tally = tally
        self._pending += changes
        self._pending_bytes = size_bytes
        if first:
            on_pending()

    def _restore_turn(self) -> None:
        """After a failed batch, write the earlier batches of this turn again if SQLite rolled them back, too."""
        database = self._open_database()
        if not self._pending:
            database.roll_back()
        elif not database.in_transaction:
            database.begin()
            self._apply_all(self._tally_before.copy(), self._pending)

    def _check_room(self, size_bytes: int) -> None:
        disk = os.statvfs(self.path)
        if disk.f_bavail * disk.f_frsize < size_bytes:
            raise StoreFull(f"{self.path}: no room to write (less than {size_bytes >> 10} KiB free)")

    def _apply_all(self, tally: _Tally, changes: Iterable[Change]) -> None:
        for change in changes:
            self._apply(tally, *change)
        self._open_database().execute("UPDATE seal SET checksum = ?", tally.seal)

    def _apply(self, tally: _Tally, table: str, key: bytes, value: bytes | None) -> None:
        database, old = self._open_database(), self._row(table, key)
        if old is not None:
            tally.remove(table, key, old)
        if value is not None:
            place = tally.next_place if old is None else old[0]
            row = (place, value, _checksum(table, key, place, value))
            database.execute("REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", table, key, *row)
            tally.add(table, key, row)
        elif old is not None:
            database.execute("DELETE FROM entries WHERE name = ? AND key = ?", table, key)

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

    def _set_limit(self, reserve_pages: int) -> None:
        if self._limit_pages is not None:
            limit_pages = self._limit_pages + reserve_pages
            self._open_database().execute(f"PRAGMA max_page_count = {limit_pages}")

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
