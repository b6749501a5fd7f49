"""The broker's store on disk (protocol/store.py): one SQLite file, one writer, every row checked.

What keeps the promises of `Store`:

- **On disk when `write` returns**: one transaction per batch in the write-ahead log, synchronous=FULL.
- **One writer**: a lock on `<name>.lock` for as long as the store is open; it goes with its process.
- **Never other content than was written**: each row carries a checksum over table, key, place and value, and
  one more row, the seal, the sum of all checksums, so that a row that vanished is noticed too. Opening reads
  everything; later reads check what they return. A log (`-wal`, which only a crash leaves) that would give an
  earlier state than was written is refused. Three things cannot be told from the crash they look like: damage
  in the last batch of the log drops that, a deleted log gives the state after an earlier batch, and so does a
  backup that was put back.
- **A new file is made under another name**, so a file that is empty or too short is a damaged one.
- **Bounded**: deleted rows leave pages that later rows use again, so the file is as large as the store ever
  was, and at most `limit_bytes`. The log is written back into the file every `LOG_PAGES` pages and starts
  over; beside that it takes as much as the largest batch.
- **Full**: at `limit_bytes` deleting still works and makes room. On a full disk it may not, for the log needs
  room first: about `LOG_PAGES` pages must come from elsewhere. Until then every write is refused.

If the disk fails while a batch is synchronised (not: if it is full), the batch is refused and the state is
as before; a crash right then, before the next write, may show the batch as written.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from tidings.model.errors import ArchiveCorrupt, StoreCorrupt, StoreError, StoreFull
from tidings.protocol.store import TABLES, Change, check_tables

PAGE_BYTES = 4096
LOG_PAGES = 256
APPLICATION_ID = 0x74696479  # "tidy"
FORMAT = 1
RECOVERY = (
    "start the broker with --recover to fetch its state from its neighbours; "
    "the damaged file is kept beside it"
)

_RESERVE_PAGES = 16
"""Deleting may need a page before it frees one; batches that only delete may go so far above the limit."""

# One tree holds rows and order of keys: there is no index that could disagree with it.
_SCHEMA = {
    "entries": "CREATE TABLE entries (name TEXT NOT NULL, key BLOB NOT NULL, place INTEGER NOT NULL,"
    " value BLOB NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID",
    "seal": "CREATE TABLE seal (id INTEGER PRIMARY KEY, checksum BLOB NOT NULL)",
}
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_VERSIONS = slice(18, 20)
_APPLICATION = slice(68, 72)
_WITH_LOG = b"\2\2"

# Said of a file that opens, these mean that its content makes no sense.
_NONSENSE = {None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
_Row = tuple[int, bytes, bytes]


class _Tally:
    """Count, size and checksum of what a store holds, and the place for the next new key."""

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


class DiskStore:
    """The store in file `path`, which is created if there is none. One thread at a time, not always the same.

    StoreError: the file cannot be used or another broker uses it; StoreCorrupt: see `set_aside`.
    `limit_bytes` bounds the file, in whole pages; a store that is larger already does not grow. Deleting may
    take a few pages more, for it always works.
    """

    def __init__(self, path: str | Path, limit_bytes: int | None = None) -> None:
        self.path = Path(path)
        self._limit_pages = None if limit_bytes is None else max(1, limit_bytes // PAGE_BYTES)
        self._lock = _locked(self.path)
        self._connection: sqlite3.Connection | None = None
        try:
            with _told_as_store_error(self.path, opening=True):
                _make_unless_there(self.path)
                _check_header(self.path)
                _check_log(self.path)
                self._connection = sqlite3.connect(
                    f"{self.path.absolute().as_uri()}?mode=rw",
                    uri=True,
                    timeout=0,
                    isolation_level=None,
                    check_same_thread=False,
                )
                self._configure()
                self._check_file()
                self._tally = self._checked_tally()
        except BaseException:
            self.close()
            raise

    def read(self, table: str) -> list[tuple[bytes, bytes]]:
        self._check_table(table)
        with _told_as_store_error(self.path):
            rows = self._execute("SELECT key, place, value, checksum FROM entries WHERE name = ?", table)
        checked = [(key, self._checked(table, key, row)) for key, *row in rows]
        checked.sort(key=lambda entry: entry[1][0])
        return [(key, value) for key, (_, value, _) in checked]

    def get(self, table: str, key: bytes) -> bytes | None:
        self._check_table(table)
        with _told_as_store_error(self.path):
            row = self._row(table, key)
        return None if row is None else row[1]

    def write(self, changes: Sequence[Change]) -> None:
        self._open_connection()
        check_tables(changes)
        if changes:
            with _told_as_store_error(self.path):
                self._set_limit(_RESERVE_PAGES if all(value is None for _, _, value in changes) else 0)
                self._commit(changes)

    def size_bytes(self, table: str) -> int:
        self._check_table(table)
        return self._tally.size_bytes[table]

    def count(self, table: str) -> int:
        self._check_table(table)
        return self._tally.count[table]

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):  # what was written is in the log, if not in the file
                connection.close()
        self._lock.close()

    def _commit(self, changes: Sequence[Change]) -> None:
        tally = self._tally.copy()
        try:
            self._execute("BEGIN IMMEDIATE")
            for change in changes:
                self._apply(tally, *change)
            self._execute("UPDATE seal SET checksum = ?", tally.seal)
            self._execute("COMMIT")
            self._tally = tally
        except (sqlite3.Error, StoreError) as error:
            self._roll_back()
            if _is_full(error):
                self._shorten_log()
            raise
        except BaseException:  # interrupted: only the file knows on which side of the commit
            self._roll_back()
            self._tally = self._checked_tally()
            raise

    def _apply(self, tally: _Tally, table: str, key: bytes, value: bytes | None) -> None:
        old = self._row(table, key)
        if old is not None:
            tally.remove(table, key, old)
        if value is not None:
            place = tally.next_place if old is None else old[0]
            row = (place, value, _checksum(table, key, place, value))
            self._execute("REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", table, key, *row)
            tally.add(table, key, row)
        elif old is not None:
            self._execute("DELETE FROM entries WHERE name = ? AND key = ?", table, key)

    def _roll_back(self) -> None:
        """SQLite has done so itself after some errors."""
        with suppress(sqlite3.Error):
            if self._open_connection().in_transaction:
                self._execute("ROLLBACK")

    def _shorten_log(self) -> None:
        """On a full disk the log may have no room for the very deletions that would make some."""
        with suppress(sqlite3.Error):
            self._execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _row(self, table: str, key: bytes) -> _Row | None:
        rows = self._execute(
            "SELECT place, value, checksum FROM entries WHERE name = ? AND key = ?", table, key
        )
        return self._checked(table, key, rows[0]) if rows else None

    def _checked(self, table: str, key: bytes, row: Iterable[Any]) -> _Row:
        place, value, checksum = row
        kinds = (type(table), type(key), type(place), type(value))
        if kinds != (str, bytes, int, bytes) or checksum != _checksum(table, key, place, value):
            raise _corrupt(self.path, f"an entry of table {table!r:.40} has a wrong checksum")
        return place, value, checksum

    def _configure(self) -> None:
        self._execute("PRAGMA locking_mode = EXCLUSIVE")  # before the log is used: then it needs no -shm file
        self._execute("PRAGMA mmap_size = 0")
        self._execute("PRAGMA cell_size_check = ON")
        self._execute("PRAGMA journal_mode = WAL")
        self._execute("PRAGMA synchronous = FULL")
        self._execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        self._execute(f"PRAGMA journal_size_limit = {LOG_PAGES * PAGE_BYTES}")

    def _set_limit(self, reserve_pages: int) -> None:
        if self._limit_pages is not None:
            self._execute(f"PRAGMA max_page_count = {self._limit_pages + reserve_pages}")

    def _check_file(self) -> None:
        """StoreCorrupt unless this is a store of our format in which SQLite finds no fault."""
        ((version,),) = self._execute("PRAGMA user_version")
        if version > FORMAT:
            raise _corrupt(self.path, f"it has format {version}, this version reads format {FORMAT}")
        if version != FORMAT:
            raise _corrupt(self.path, f"it has an unknown format {version}")
        schema = self._execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")
        if schema != [("table", name, name, sql) for name, sql in sorted(_SCHEMA.items())]:
            raise _corrupt(self.path, "its schema is damaged")
        findings = self._execute("PRAGMA quick_check(1)")
        if findings != [("ok",)]:
            raise _corrupt(self.path, _one_line(findings[0][0]))

    def _checked_tally(self) -> _Tally:
        """The tally of all rows; StoreCorrupt unless they are those that were written."""
        tally = _Tally()
        rows = self._open_connection().execute("SELECT name, key, place, value, checksum FROM entries")
        for table, key, *rest in rows:
            row = self._checked(table, key, rest)
            if table not in TABLES:
                raise _corrupt(self.path, f"it has an unknown table {table!r}")
            tally.add(table, key, row)
        if self._execute("SELECT checksum FROM seal") != [(tally.seal,)]:
            raise _corrupt(self.path, "entries are missing, or are left from before")
        return tally

    def _execute(self, sql: str, *values: object) -> list[Any]:
        """All rows at once: an unfinished query would keep the log from starting over."""
        return self._open_connection().execute(sql, values).fetchall()

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} is closed")
        return self._connection

    def _check_table(self, table: str) -> None:
        self._open_connection()
        if table not in TABLES:
            raise KeyError(table)


def set_aside(path: str | Path) -> Path:
    """Rename the store and its log to `<name>.damaged-N`, the first N that is free; return that path."""
    path = Path(path)
    with _told_as_store_error(path), _locked(path):
        number = 1
        while any(file.exists() for file in _files(_beside(path, f".damaged-{number}"))):
            number += 1
        aside = _beside(path, f".damaged-{number}")
        # The log goes after its file: alone it is noticed as damage, a file without it would not be.
        pairs = [pair for pair in zip(_files(path), _files(aside), strict=True) if pair[0].exists()]
        if not pairs:
            raise StoreError(f"{path}: there is no store to set aside")
        for old, new in pairs:
            old.rename(new)
        _sync_directory(path)
    return aside


def _make_unless_there(path: Path) -> None:
    file, *rest = _files(path)
    if file.exists():
        return
    if any(left.exists() for left in rest):
        raise _corrupt(path, "the file is missing, but its log is there")
    draft = _beside(path, ".new")
    for left in (*_files(draft), _beside(draft, "-journal")):
        left.unlink(missing_ok=True)
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        for sql in _SCHEMA.values():
            connection.execute(sql)
        connection.execute("INSERT INTO seal VALUES (1, ?)", (_Tally().seal,))
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")  # last: all of the above is in the file itself
    finally:
        connection.close()
    draft.rename(path)
    _sync_directory(path)


def _check_log(path: Path) -> None:
    """StoreCorrupt if SQLite would drop what was written, as it does behind damage in the log."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        from tidings.archive.log_check import (
            check_log,
        )  # with libraries that a broker needs after a crash only

        try:
            check_log(path, PAGE_BYTES, has_index=False)
        except ArchiveCorrupt as error:
            raise _corrupt(path, str(error)) from None


def _check_header(path: Path) -> None:
    """StoreCorrupt if SQLite should not even look at the file: it might recover what is not ours."""
    with path.open("r+b") as file:  # also PermissionError, which SQLite tells only when it writes
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise _corrupt(path, f"it is cut off after {len(header)} bytes")
    if not header.startswith(_MAGIC) or header[_APPLICATION] != APPLICATION_ID.to_bytes(4):
        raise _corrupt(path, "it is not the store of a broker")
    if header[_VERSIONS] != _WITH_LOG:
        raise _corrupt(path, "its header is damaged")


def _checksum(table: str, key: bytes, place: int, value: bytes) -> bytes:
    name = table.encode()
    head = struct.pack(">BqQ", len(name), place, len(key))
    return hashlib.blake2b(b"".join((head, name, key, value)), digest_size=8).digest()


def _locked(path: Path) -> BinaryIO:
    """The lock file of the store, locked until it is closed. It stays: removing it would race."""
    try:
        file = _beside(path, ".lock").open("ab")
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise StoreError(f"{path} is in use by another broker") from None
        raise _unusable(path, error) from error
    return file


def _files(path: Path) -> tuple[Path, Path, Path]:
    return path, _beside(path, "-wal"), _beside(path, "-shm")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _sync_directory(path: Path) -> None:
    """Makes renamings last."""
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextmanager
def _told_as_store_error(path: Path, *, opening: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unusable(path, error) from error
    except sqlite3.Error as error:
        raise _translated(path, error, opening) from error


def _translated(path: Path, error: sqlite3.Error, opening: bool) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    reason = _one_line(str(error))
    if _is_full(error):
        return StoreFull(f"{path}: no room to write ({reason})")
    if primary == sqlite3.SQLITE_BUSY:
        return StoreError(f"{path} is in use by another broker")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or (opening and primary in _NONSENSE):
        return _corrupt(path, reason)
    return StoreError(f"cannot use {path}: {reason}")


def _is_full(error: Exception) -> bool:
    """A write that failed for a quota or a limit on file sizes is reported as a bad one, not as a full disk."""
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)


def _unusable(path: Path, error: OSError) -> StoreError:
    kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
    return kind(f"cannot use {path}: {_one_line(error.strerror or str(error))}")


def _corrupt(path: Path, what: str) -> StoreCorrupt:
    return StoreCorrupt(f"cannot use {path}: {what}; {RECOVERY}")


def _one_line(text: str) -> str:
    """The text without SQLite's heading and without what damaged bytes may look like."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    return " ".join(words).removeprefix("*** in database main *** ")
