"""A SQLite file: how it is made, checked and opened, and its transactions.

It is in WAL mode with synchronous=FULL: what a transaction wrote is on disk when it ends, and readers in other
processes go on meanwhile. A new file is made under another name, so one that is too short is damaged.

Each transaction that changes something has a number: the id of the only row of a table (`DatabaseKind.counter`). A mark
beside the file says which number was acknowledged last (mark.py). A file that is behind it is refused and left alone.

Locks of POSIX are a process's, and end when it closes any handle of the file. So a file is looked at from outside only
where this process is not connected to it, or SQLite would believe that nobody is.
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
    """As in 'it is not the file of ..'."""
    application_id: int
    format: int
    """Of files that are made."""
    tables: Mapping[str, str]
    counter: str
    """The table with one row whose id counts the transactions, from 1 on."""
    first_row: Callable[[], tuple[object, ...]]
    """Of that table, without its id."""
    log_pages: int
    """The log is written back, and starts over, after so many."""
    busy_seconds: float
    """So long one waits for a transaction of another process; it takes milliseconds."""
    troubles: Troubles
    other_format: Callable[[Path, str], TidingsError]
    older: tuple[int, ...] = ()
    """Formats that are read as well; `renew_format` makes one of `format` of such a file."""
    exclusive: bool = False
    """Nobody else is ever connected: then the log needs no index."""


class Database:
    """A connection for one thread at a time, not always the same. `path` is in every error.

    `lock` is the file with the mark. Whoever makes a file, or is the only one who may write, has it locked.
    """

    def __init__(self, path: Path, lock: Path, kind: DatabaseKind, *, writable: bool = True) -> None:
        self.path = path
        self.kind = kind
        self.checked = False
        """Set by who has looked at all of the content: nonsense is not the file's fault then."""
        self._lock_path = lock
        self._writable = writable
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._mark: CommitMark | None = None
        self._unchanging: tuple[int, int] | None = None
        self._locked: tuple[int, int] | None = None
        """Device and number of the file on which the connection has locks."""
        try:
            with self.told():
                self._open()
        except BaseException:
            self.close()
            raise

    # --- Transactions

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[None]:
        """All or nothing, and on disk at the end; for readers a view that does not change."""
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
        """A transaction that `commit` ends. Its parts are savepoints."""
        self.execute("BEGIN IMMEDIATE")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """All or nothing, within a transaction. After some errors SQLite rolls back all of it: see `in_transaction`."""
        self.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self.execute("ROLLBACK TO part")
                self.execute("RELEASE part")
            raise
        self.execute("RELEASE part")

    @property
    def in_transaction(self) -> bool:
        return self._opened().in_transaction

    def commit(self) -> None:
        """On disk when it returns; after an error nothing of the transaction is left."""
        try:
            self._commit(changed=True)
        except BaseException:
            self.roll_back()
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
        """An error if SQLite finds a fault."""
        with self.transaction():
            ((finding,),) = self.execute("PRAGMA quick_check(1)")
        if finding != "ok":
            raise self.kind.troubles.damaged(self.path, one_line(finding))

    def renew_format(self) -> None:
        """Before something is written that older versions do not know: they look at the header of the file itself."""
        with self._lock, self.told():
            if self.execute("PRAGMA user_version") != [(self.kind.format,)]:
                self.execute(f"PRAGMA user_version = {self.kind.format}")
                self._shorten_log()

    def sync_mark(self) -> None:
        """From now on a power cut does not hide what is lost of all that was acknowledged so far."""
        if self._mark is not None:
            self._mark.sync()

    def close(self) -> None:
        with self._lock:
            self._disconnect()
            mark, self._mark = self._mark, None
            if mark is not None:
                mark.close()

    def _commit(self, *, changed: bool) -> None:
        if changed:
            counter = self.kind.counter
            self.execute(f"UPDATE {counter} SET id = id + 1")  # noqa: S608
            number = self._number()
        self.execute("COMMIT")
        if changed and self._mark is not None:
            self._mark.put(number)

    def _number(self) -> int:
        """0 if its row is gone, which is for the owner of the content to tell."""
        ((number,),) = self.execute(f"SELECT COALESCE(MAX(id), 0) FROM {self.kind.counter}")  # noqa: S608
        return int(number)

    def roll_back(self) -> None:
        """SQLite has done so itself after some errors."""
        with suppress(sqlite3.Error, TidingsError):
            if self._opened().in_transaction:
                self.execute("ROLLBACK")

    def _shorten_log(self) -> None:
        """On a full disk the log may take the very room that is needed."""
        with suppress(sqlite3.Error, TidingsError):
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- Opening

    def _open(self) -> None:
        with _OPENING:
            status = self.path.stat()
            file = status.st_dev, status.st_ino
            marked = read_mark(self._lock_path)  # before the file is looked at, which may grow
            if all(database._locked != file for database in _DATABASES):
                _check_header(self.path, self.kind, writable=self._writable)
                if self._writable:
                    self._check_log(marked)
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
                self._locked = file
                _DATABASES.add(self)
            self._check_schema()
            self._check_number(marked)
            if self._writable and self._mark is None:
                self._mark = CommitMark(self._lock_path)

    def _check_log(self, marked: int) -> None:
        """Who may write takes the log over when it leaves, damaged or not: a connection that may not looks first."""
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
                f"it ends with transaction {number}, and transaction {marked} was acknowledged: "
                "its log (-wal) is damaged or missing, or the file is older than its lock file",
            )

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
            with suppress(sqlite3.Error):  # what was written is in the log, if not in the file
                connection.close()
        self._locked = None

    def _configure(self) -> None:
        if self.kind.exclusive:
            self.execute(
                "PRAGMA locking_mode = EXCLUSIVE"
            )  # before the log is used: then it needs no -shm file
        self.execute("PRAGMA mmap_size = 0")
        self.execute("PRAGMA cell_size_check = ON")
        self.execute("SELECT COUNT(*) FROM sqlite_master")  # the first use of the file
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
        """Errors of SQLite as those of the file's kind."""
        return self.kind.troubles.told(self.path, checked=self.checked)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise self.kind.troubles.error(f"{self.path} is closed")
        return self._connection

    def _log_path(self) -> Path:
        return beside(self.path, "-wal")


_OPENING = threading.Lock()
_DATABASES: WeakSet[Database] = WeakSet()
"""Those that have been connected in this process."""


def make_database(path: Path, lock: Path, kind: DatabaseKind) -> None:
    """A new file, whole or not at all."""
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
    connection.execute("PRAGMA journal_mode = WAL")  # last: all of the above is in the file itself


def _check_header(path: Path, kind: DatabaseKind, *, writable: bool) -> None:
    """An error if SQLite should not even look at the file: it might recover what is not ours."""
    with path.open(
        "r+b" if writable else "rb"
    ) as file:  # also PermissionError, which SQLite tells when it writes
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise kind.troubles.damaged(path, f"it is cut off after {len(header)} bytes")
    if not header.startswith(_MAGIC) or header[_APPLICATION] != kind.application_id.to_bytes(4):
        raise kind.troubles.damaged(path, f"it is not the file of {kind.what}")
    version = int.from_bytes(header[_FORMAT])
    if version not in (kind.format, *kind.older):
        raise kind.other_format(path, f"it has format {version}, this version reads format {kind.format}")
    if header[_VERSIONS] != _WITH_LOG:
        raise kind.troubles.damaged(path, "its header is damaged")
