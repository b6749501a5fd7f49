"""Creates, checks and opens a SQLite file, and runs its transactions.

It is in WAL mode with synchronous=FULL: what a transaction wrote is on disk when it ends, and readers in other
processes are not blocked. A new file is created under another name, so a file that is too short is damaged.

Each transaction that changes something has a number: the id of the only row of a table (`DatabaseKind.counter`). A mark
beside the file has the last acknowledged number (mark.py). A file behind its mark is rejected and left as it is.

POSIX locks belong to a process and end when it closes any handle of the file. So this code reads a file directly only
if the process is not connected to it; otherwise SQLite would lose its locks.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tidings.core.errors import TidingsError
from tidings.storage.files import beside, replaced
from tidings.storage.mark import CommitMark, clear_mark, read_mark
from tidings.storage.troubles import Troubles, is_full, one_line

PAGE_BYTES = 4096
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_VERSIONS, _WITH_LOG = slice(18, 20), b"\2\2"
_FORMAT = slice(60, 64)
_APPLICATION = slice(68, 72)


@dataclass(frozen=True)
class DatabaseKind:
    """What all files of one use have in common."""

    what: str
    """For errors, as in 'it is not ..'."""
    application_id: int
    format: int
    """The format of new files."""
    tables: Mapping[str, str]
    counter: str
    """The table with one row whose id counts the transactions, from 1."""
    first_row: Callable[[], tuple[object, ...]]
    """The first content of that row, without its id."""
    log_pages: int
    """After this many pages the log is written back and starts over."""
    busy_seconds: float
    """How long to wait for a transaction of another process, which takes milliseconds."""
    troubles: Troubles
    other_format: Callable[[Path, str], TidingsError]
    older: tuple[int, ...] = ()
    """Older formats that can be read; `renew_format` upgrades such a file to `format`."""
    exclusive: bool = False
    """No other connection ever exists, so the log needs no index file."""


class Database:
    """A connection for one thread at a time, not always the same one. Every error names `path`.

    `lock` is the file with the mark. The process that creates the database, or is its only writer, has it locked.
    """

    def __init__(self, path: Path, lock: Path, kind: DatabaseKind, *, writable: bool = True) -> None:
        self.path = path
        self.kind = kind
        self.checked = False
        """Set by the owner once it has verified all content: later errors are then not due to damage."""
        self._lock_path = lock
        self._writable = writable
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._mark: CommitMark | None = None
        self._unchanging: tuple[int, int] | None = None
        self._locked: tuple[int, int] | None = None
        """Device and inode of the file on which the connection has locks."""
        try:
            with self.told():
                self._open()
        except BaseException:
            self.close()
            raise

    # --- Transactions

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[None]:
        """Run a transaction: atomic, on disk at the end, and for readers a consistent view."""
        with self._lock, self.told():
            self._leave_unchanging()
            try:
                self.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                before = self._opened().total_changes
                yield
                self._commit(changed=self._opened().total_changes != before)
            except BaseException as error:
                self.roll_back()
                if is_full(error):
                    self._shorten_log()
                raise

    def begin(self) -> None:
        """Begin a transaction that `commit` ends."""
        self.execute("BEGIN IMMEDIATE")

    @property
    def in_transaction(self) -> bool:
        return self._opened().in_transaction

    def commit(self, columns: str = "", *values: object) -> None:
        """Commit to disk, and set more `columns` of the counter's row; after an error, nothing of the transaction is
        left."""
        try:
            self._commit(columns, *values, changed=True)
        except BaseException:
            self.roll_back()
            raise

    def execute(self, sql: str, *values: object) -> list[Any]:
        """Return all rows at once: an unfinished query would keep the log from starting over."""
        return self._opened().execute(sql, values).fetchall()

    def iterate(self, sql: str, *values: object) -> sqlite3.Cursor:
        """Return a cursor, which the caller closes before the transaction ends."""
        return self._opened().execute(sql, values)

    def insert(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        self._opened().executemany(sql, rows)

    def check_pages(self) -> None:
        """Raise an error if SQLite finds damage."""
        with self.transaction():
            ((finding,),) = self.execute("PRAGMA quick_check(1)")
        if finding != "ok":
            raise self.kind.troubles.damaged(self.path, one_line(finding))

    def renew_format(self) -> None:
        """Upgrade the format before writing what older versions cannot read: they check the header of the file."""
        with self._lock, self.told():
            if self.execute("PRAGMA user_version") != [(self.kind.format,)]:
                self.execute(f"PRAGMA user_version = {self.kind.format}")
                self._shorten_log()

    def sync_mark(self) -> None:
        """Sync the mark: from now on, losses of transactions acknowledged so far are noticed even after a power cut."""
        if self._mark is not None:
            self._mark.sync()

    def close(self) -> None:
        with self._lock:
            self._disconnect()
            mark, self._mark = self._mark, None
            if mark is not None:
                mark.close()

    def _commit(self, columns: str = "", *values: object, changed: bool) -> None:
        if changed:
            counted = f"UPDATE {self.kind.counter} SET id = id + 1{columns} RETURNING id"  # noqa: S608
            numbers = self.execute(counted, *values)
        self.execute("COMMIT")
        if changed and self._mark is not None:
            self._mark.put(max((number for (number,) in numbers), default=0))

    def _number(self) -> int:
        """Return the transaction number; 0 if its row is gone, which the owner of the content reports."""
        ((number,),) = self.execute(f"SELECT COALESCE(MAX(id), 0) FROM {self.kind.counter}")  # noqa: S608
        return int(number)

    def roll_back(self) -> None:
        """Roll back, unless SQLite already has, as it does after some errors."""
        with suppress(sqlite3.Error, TidingsError):
            if self._opened().in_transaction:
                self.execute("ROLLBACK")

    def _shorten_log(self) -> None:
        """Empty the log, which may occupy the room needed on a full disk."""
        with suppress(sqlite3.Error, TidingsError):
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- Opening

    def _open(self) -> None:
        with _OPENING:
            status = self.path.stat()
            file = status.st_dev, status.st_ino
            marked = read_mark(self._lock_path)  # before the file, which may grow in the meantime
            if all(database._locked != file for database in _DATABASES):
                _check_header(self.path, self.kind, writable=self._writable)
                if self._writable:
                    self._check_log(marked)
            try:
                self._connect("mode=rw" if self._writable else "mode=ro")
            except sqlite3.OperationalError:
                # A reader may lack permission to create the log's files; if there are none, there is no log to read.
                if self._writable or self._log_path().exists():
                    raise
                self._unchanging = self._version()
                self._connect("mode=ro&immutable=1")
            else:
                self._unchanging = None
                self._locked = file
                _DATABASES.add(self)
            self._check_schema()
            self._check_number(marked)
            if self._writable and self._mark is None:
                self._mark = CommitMark(self._lock_path)

    def _check_log(self, marked: int) -> None:
        """Check the log read-only first: a writing connection would write it back on closing, damaged or not."""
        if not (marked and self._log_path().exists() and self._log_path().stat().st_size):
            return
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=self.kind.busy_seconds)) as self._connection:
            self._check_number(marked)
        self._connection = None
        if self.kind.exclusive:
            beside(self.path, "-shm").unlink(missing_ok=True)

    def _check_number(self, marked: int) -> None:
        number = self._number()
        if 0 < number < marked:
            raise self.kind.troubles.damaged(
                self.path,
                f"it ends with transaction {number}, but transaction {marked} was acknowledged: "
                "its log (-wal) is damaged or missing, or the file is older than its lock file",
            )

    def _leave_unchanging(self) -> None:
        """Reopen a file that was opened as immutable once a process has changed it."""
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
            timeout=self.kind.busy_seconds,
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
            with suppress(sqlite3.Error):  # all committed data is in the log, if not in the file
                connection.close()
        self._locked = None

    def _configure(self) -> None:
        if self.kind.exclusive:
            # before the log is used, so that it needs no -shm file
            self.execute("PRAGMA locking_mode = EXCLUSIVE")
        self.execute("PRAGMA mmap_size = 0")
        self.execute("PRAGMA cell_size_check = ON")
        self.execute("SELECT COUNT(*) FROM sqlite_master")  # the first access to the file
        if self._writable:
            self.execute("PRAGMA synchronous = FULL")
            self.execute("PRAGMA secure_delete = OFF")
            self.execute(f"PRAGMA wal_autocheckpoint = {self.kind.log_pages}")
            self.execute(f"PRAGMA journal_size_limit = {self.kind.log_pages * PAGE_BYTES}")

    def _check_schema(self) -> None:
        schema = self.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")
        if schema != [("table", name, name, sql) for name, sql in sorted(self.kind.tables.items())]:
            raise self.kind.troubles.damaged(self.path, f"its tables are not those of {self.kind.what}")

    def told(self) -> AbstractContextManager[None]:
        """Translate SQLite's errors to those of the file's kind."""
        return self.kind.troubles.told(self.path, checked=self.checked)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise self.kind.troubles.error(f"{self.path} is closed")
        return self._connection

    def _log_path(self) -> Path:
        return beside(self.path, "-wal")


_OPENING = threading.Lock()
_DATABASES: WeakSet[Database] = WeakSet()
"""All that have been connected in this process."""


def make_database(path: Path, lock: Path, kind: DatabaseKind) -> None:
    """Create a new file atomically."""
    draft = beside(path, ".new")
    for suffix in ("", "-wal", "-shm", "-journal"):
        beside(draft, suffix).unlink(missing_ok=True)
    clear_mark(lock)
    with replaced(path, draft), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        _fill(connection, kind)


def _fill(connection: sqlite3.Connection, kind: DatabaseKind) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("BEGIN")
    connection.execute(f"PRAGMA application_id = {kind.application_id}")
    connection.execute(f"PRAGMA user_version = {kind.format}")
    for sql in kind.tables.values():
        connection.execute(sql)
    row = (1, *kind.first_row())
    connection.execute(f"INSERT INTO {kind.counter} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")  # last, so that all of the above is in the file itself


def _check_header(path: Path, kind: DatabaseKind, *, writable: bool) -> None:
    """Raise an error if SQLite must not open the file: it might start to recover a file that is not ours."""
    # `r+b` raises PermissionError now; SQLite would only when it writes
    with path.open("r+b" if writable else "rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise kind.troubles.damaged(path, f"it ends after {len(header)} bytes")
    if not header.startswith(_MAGIC) or header[_APPLICATION] != kind.application_id.to_bytes(4):
        raise kind.troubles.damaged(path, f"it is not {kind.what}")
    version = int.from_bytes(header[_FORMAT])
    if version not in (kind.format, *kind.older):
        raise kind.other_format(path, f"it has format {version}, this version reads format {kind.format}")
    if header[_VERSIONS] != _WITH_LOG:
        raise kind.troubles.damaged(path, "its header is damaged")
