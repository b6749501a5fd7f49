"""Translates errors of files and of SQLite to the error types of their owner."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tidings.core.errors import TidingsError

_FULL_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# SQLite reports a write that failed because of a quota or a file size limit as an I/O error, not as a full disk.
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# For a file whose content has not been verified, these mean that it is damaged.
_NONSENSE = {
    None,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_RANGE,
}


class Troubles(NamedTuple):
    """The error types and texts of one kind of files."""

    error: type[TidingsError]
    full: type[TidingsError]
    corrupt: type[TidingsError]
    unusable_text: str = "cannot use {path}: {reason}"
    damaged_text: str = "{path} is damaged: {reason}"
    busy_text: str = "{path} is locked by another process"

    @contextmanager
    def told(self, path: Path | str, *, checked: bool = False) -> Iterator[None]:
        """Translate errors of the block, which works on `path`; `checked` if its content has been verified."""
        try:
            yield
        except OSError as error:
            raise self.of_file(path, error) from error
        except sqlite3.Error as error:
            raise self._of_database(path, error, checked) from error
        except UnicodeDecodeError as error:  # raised for a message of SQLite that quotes damaged bytes
            raise self.damaged(path, "a text in it is not valid UTF-8") from error

    def of_file(self, path: Path | str, error: OSError) -> TidingsError:
        kind = self.full if error.errno in _FULL_ERRNO else self.error
        return kind(self.unusable_text.format(path=path, reason=one_line(error.strerror or str(error))))

    def unusable(self, path: Path | str, reason: str) -> TidingsError:
        return self.error(self.unusable_text.format(path=path, reason=reason))

    def damaged(self, path: Path | str, reason: str) -> TidingsError:
        return self.corrupt(self.damaged_text.format(path=path, reason=reason))

    def busy(self, path: Path | str) -> TidingsError:
        return self.error(self.busy_text.format(path=path))

    def _of_database(self, path: Path | str, error: sqlite3.Error, checked: bool) -> TidingsError:
        code = getattr(error, "sqlite_errorcode", None)
        primary = None if code is None else code & 0xFF
        reason = one_line(str(error))
        if is_full(error):
            return self.full(f"{path}: no room to write ({reason})")
        if primary == sqlite3.SQLITE_BUSY:
            return self.busy(path)
        if primary == sqlite3.SQLITE_READONLY:
            return self.error(f"{path} is read-only")
        if primary in _DAMAGED or (primary in _NONSENSE and not checked):
            return self.damaged(path, reason)
        return self.unusable(path, reason)


def is_full(error: BaseException) -> bool:
    """Return True if SQLite found no room to write; then nothing of the transaction is in its log."""
    return getattr(error, "sqlite_errorcode", None) in _FULL


def one_line(text: str) -> str:
    """Return the text without SQLite's heading, line breaks and unprintable characters from damaged bytes."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    return " ".join(words).removeprefix("*** in database main *** ")
