"""Troubles with files and with SQLite, told as errors of whoever keeps them."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tidings.core.errors import TidingsError

_FULL_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# A write that failed for a quota or a limit on file sizes is reported as a bad one, not as a full disk.
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# Said of a file that nobody has checked, these mean that its content makes no sense.
_NONSENSE = {
    None,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_RANGE,
}


class Troubles(NamedTuple):
    """The errors of one kind of files, and what they say."""

    error: type[TidingsError]
    full: type[TidingsError]
    corrupt: type[TidingsError]
    unusable_text: str = "cannot use {path}: {reason}"
    damaged_text: str = "{path} is damaged: {reason}"
    busy_text: str = "{path}: another process keeps it locked"

    @contextmanager
    def told(self, path: Path | str, *, checked: bool = False) -> Iterator[None]:
        """`path`: what is worked on. `checked`: its content was found sound, so nonsense is not its fault."""
        try:
            yield
        except OSError as error:
            raise self.of_file(path, error) from error
        except sqlite3.Error as error:
            raise self._of_database(path, error, checked) from error
        except UnicodeDecodeError as error:  # of a message of SQLite that quotes damaged bytes
            raise self.damaged(path, "it has bytes that should be text and are none") from error

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
            return self.error(f"{path}: it may not be written")
        if primary in _DAMAGED or (primary in _NONSENSE and not checked):
            return self.damaged(path, reason)
        return self.unusable(path, reason)


def is_full(error: BaseException) -> bool:
    """Said of an error of SQLite: nothing of the transaction is in its log."""
    return getattr(error, "sqlite_errorcode", None) in _FULL


def one_line(text: str) -> str:
    """The text without SQLite's heading and without what damaged bytes may look like."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    return " ".join(words).removeprefix("*** in database main *** ")
