"""Troubles with files and with SQLite, told as errors of an archive."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tidings.model.errors import ArchiveCorrupt, ArchiveError, ArchiveFull

_FULL_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# A write that failed for a quota or a limit on file sizes is reported as a bad one, not as a full disk.
_FULL_SQLITE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE}
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_RANGE,
}


@contextmanager
def told_as_archive_error(path: Path) -> Iterator[None]:
    """`path`: the file that is worked on."""
    try:
        yield
    except OSError as error:
        raise file_error(path, error) from error
    except sqlite3.Error as error:
        raise _database_error(path, error) from error
    except UnicodeDecodeError as error:  # of a message of SQLite that quotes damaged bytes
        raise ArchiveCorrupt(f"{path} is damaged: it has bytes that should be text and are none") from error
    except pa.ArrowException as error:
        raise ArchiveCorrupt(f"{path}: {one_line(str(error))}") from error


def file_error(path: Path, error: OSError) -> ArchiveError:
    kind = ArchiveFull if error.errno in _FULL_ERRNO else ArchiveError
    return kind(f"cannot use {path}: {one_line(error.strerror or str(error))}")


def is_full(error: BaseException) -> bool:
    """Said of an error of SQLite: nothing of the transaction is in its log."""
    return getattr(error, "sqlite_errorcode", None) in _FULL_SQLITE


def _database_error(path: Path, error: sqlite3.Error) -> ArchiveError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    reason = one_line(str(error))
    if is_full(error):
        return ArchiveFull(f"{path}: no room to write ({reason})")
    if primary == sqlite3.SQLITE_BUSY:
        return ArchiveError(f"{path}: another process keeps it locked")
    if primary == sqlite3.SQLITE_READONLY:
        return ArchiveError(f"{path}: it may not be written")
    if primary is None or primary in _DAMAGED:
        return ArchiveCorrupt(f"{path} is damaged: {reason}")
    return ArchiveError(f"cannot use {path}: {reason}")


def one_line(text: str) -> str:
    """The text without SQLite's heading and without what damaged bytes may look like."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    return " ".join(words).removeprefix("*** in database main *** ")
