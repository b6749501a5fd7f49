"""The SQLite file of an archive: how it is made, checked and opened, and its transactions.

The file is in WAL mode with synchronous=FULL: what a transaction wrote is on disk when it ends, and readers in
other processes go on meanwhile. A new file is made under another name, so one that is too short is damaged.

Locks of POSIX are a process's, and end when it closes any handle of the file. So a file is looked at from outside only
where this process is not connected to it, or SQLite would believe that nobody is.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakSet
from zlib import crc32

from tidings.archive.errors import is_full, one_line, told_as_archive_error
from tidings.archive.files import DATABASE_NAME, DRAFT_NAME, sync_directory
from tidings.archive.log_check import check_log
from tidings.model.errors import ArchiveCorrupt, ArchiveError

APPLICATION_ID = 0x74696461  # "tida"
FORMAT = 2
BUSY_SECONDS = 10.0
"""So long one waits for a transaction of another process; it takes milliseconds."""
PAGE_BYTES = 4096
LOG_PAGES = 2048

_TABLES = {
    "about": "CREATE TABLE about (id INTEGER PRIMARY KEY, archive TEXT NOT NULL,"
    " first INTEGER NOT NULL, ending INTEGER NOT NULL, consumers INTEGER NOT NULL, gaps INTEGER NOT NULL,"
    " marks INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "consumers": "CREATE TABLE consumers (name TEXT PRIMARY KEY, offset INTEGER NOT NULL,"
    " committed_ns INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "gaps": "CREATE TABLE gaps (id INTEGER PRIMARY KEY, offset INTEGER NOT NULL, noted_ns INTEGER NOT NULL,"
    " reason TEXT NOT NULL, missing INTEGER, checksum INTEGER NOT NULL)",
    "marks": "CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL, checksum INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "segments": "CREATE TABLE segments (first INTEGER PRIMARY KEY, last INTEGER NOT NULL,"
    " size_bytes INTEGER NOT NULL, first_notified_ns INTEGER NOT NULL, last_notified_ns INTEGER NOT NULL,"
    " max_published_ns INTEGER NOT NULL, sha256 TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "tail": "CREATE TABLE tail (offset INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, value BLOB NOT NULL)",
}
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_VERSION = slice(60, 64)
_APPLICATION = slice(68, 72)


class Database:
    """A connection for one thread at a time, not always the same. `path` is in every error."""

    def __init__(self, directory: Path, *, writable: bool) -> None:
        self.path = directory / DATABASE_NAME
        self._writable = writable
        self._lock = threading.RLock()
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._unchanging: tuple[int, int] | None = None
        self._locked: tuple[int, int] | None = None
        """Device and number of the file on which the connection has locks."""
        with told_as_archive_error(self.path):
            self._open()
        try:
            with self.transaction():
                self._check_schema()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[None]:
        """All or nothing, and on disk at the end; for readers a view that does not change."""
        with self._lock, told_as_archive_error(self.path):
            self._leave_unchanging()
            self.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield
                self.execute("COMMIT")
            except BaseException as error:
                self._roll_back()
                if is_full(error):
                    self._shorten_log()
                raise

    def execute(self, sql: str, *values: object) -> list[Any]:
        """All rows at once: an unfinished query would keep the log from starting over."""
        return self._opened().execute(sql, values).fetchall()

    def iterate(self, sql: str, *values: object) -> sqlite3.Cursor:
        """Row by row; the caller closes the cursor before the transaction ends."""
        return self._opened().execute(sql, values)

    def insert(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        self._opened().executemany(sql, rows)

    def check_pages(self) -> None:
        """ArchiveCorrupt if SQLite finds a fault."""
        with self.transaction():
            ((finding,),) = self.execute("PRAGMA quick_check(1)")
        if finding != "ok":
            raise ArchiveCorrupt(f"{self.path} is damaged: {one_line(finding)}")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()

    def _open(self) -> None:
        with _OPENING:
            status = self.path.stat()
            self._check_files((status.st_dev, status.st_ino))
            try:
                self._connect("mode=rw" if self._writable else "mode=ro")
            except sqlite3.OperationalError:
                # Where a reader may not create the log's files and nobody else has, there is no log to read.
                if self._writable or self._log_path().exists():
                    raise
                self._unchanging = self._version()
                self._connect("mode=ro&immutable=1")
            else:
                self._unchanging = None
                self._locked = status.st_dev, status.st_ino
                _DATABASES.add(self)

    def _check_files(self, file: tuple[int, int]) -> None:
        if all(database._locked != file for database in _DATABASES):
            _check_header(self.path)
            check_log(self.path, PAGE_BYTES)

    def _leave_unchanging(self) -> None:
        """A file that was opened as one that nobody changes is opened anew once somebody does."""
        if self._unchanging is not None and (
            self._log_path().exists() or self._version() != self._unchanging
        ):
            self._disconnect()
            self._open()

    def _version(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_mtime_ns, status.st_ino

    def _connect(self, options: str) -> None:
        self._connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?{options}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._configure()
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):  # what was written is in the log, if not in the file
                connection.close()
        self._locked = None

    def _configure(self) -> None:
        self.execute("PRAGMA mmap_size = 0")
        self.execute("PRAGMA cell_size_check = ON")
        self.execute("SELECT COUNT(*) FROM sqlite_master")  # the first use of the file
        if self._writable:
            self.execute("PRAGMA synchronous = FULL")
            self.execute("PRAGMA secure_delete = OFF")
            self.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            self.execute(f"PRAGMA journal_size_limit = {LOG_PAGES * PAGE_BYTES}")

    def _check_schema(self) -> None:
        schema = self.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        if schema != sorted(_TABLES.items()):
            raise ArchiveCorrupt(f"{self.path} is damaged: its tables are not those of an archive")

    def _roll_back(self) -> None:
        """SQLite has done so itself after some errors."""
        with suppress(sqlite3.Error, ArchiveError):
            if self._opened().in_transaction:
                self.execute("ROLLBACK")

    def _shorten_log(self) -> None:
        """On a full disk the log may take the very room that is needed."""
        with suppress(sqlite3.Error, ArchiveError):
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ArchiveError(f"archive {self.path.parent} is closed")
        return self._connection

    def _log_path(self) -> Path:
        return self.path.with_name(f"{DATABASE_NAME}-wal")


_OPENING = threading.Lock()
_DATABASES: WeakSet[Database] = WeakSet()
"""Those that have been connected in this process."""


def make_database(directory: Path) -> None:
    """A new archive's file, whole or not at all."""
    draft = directory / DRAFT_NAME
    with told_as_archive_error(draft):
        for left in (draft, draft.with_name(f"{DRAFT_NAME}-wal"), draft.with_name(f"{DRAFT_NAME}-journal")):
            left.unlink(missing_ok=True)
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            _fill(connection)
        finally:
            connection.close()
        draft.rename(directory / DATABASE_NAME)
        sync_directory(directory)


def _fill(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("BEGIN")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for sql in _TABLES.values():
        connection.execute(sql)
    about = (uuid4().hex, 0, 0, 0, 0, 0)
    connection.execute("INSERT INTO about VALUES (1, ?, ?, ?, ?, ?, ?, ?)", (*about, fields_checksum(about)))
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")  # last: all of the above is in the file itself


def fields_checksum(fields: Iterable[object]) -> int:
    """Of a row; a value of another type is another value."""
    return crc32(repr(tuple(fields)).encode())


def _check_header(path: Path) -> None:
    """ArchiveError if SQLite should not even look at the file."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise ArchiveCorrupt(f"{path} is damaged: it is cut off after {len(header)} bytes")
    if not header.startswith(_MAGIC) or header[_APPLICATION] != APPLICATION_ID.to_bytes(4):
        raise ArchiveCorrupt(f"{path} is not the file of an archive")
    version = int.from_bytes(header[_VERSION])
    if version != FORMAT:
        raise ArchiveError(f"{path} has format {version}, this version reads format {FORMAT}")
