"""The commit mark: how far a database had come, kept in the lock file beside it.

SQLite replays its log up to the first frame that does not verify, and drops the rest in silence. For what a crash left
unfinished that is right. But one flipped bit, a log that was cut or removed, or an older copy take transactions away
that were acknowledged. So each transaction has a number, which it writes into the database; when it is on disk, and
before anybody hears of it, the number goes into the mark. A mark beyond the database means that something is gone.

- A kill leaves mark and database equal, or the mark one behind. That is harmless: the transaction was not acknowledged.
- A power cut may leave an older mark, for it is synchronised now and then only: harmless too, but less is noticed.
- Two slots, in two sectors, take turns. One that is torn has a wrong checksum and does not count.
- No mark, as with files of before, says nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from zlib import crc32

SYNC_EVERY = 1_000
"""Commits."""
_SLOT = Struct("<QI")  # number, checksum
_SLOTS, _SLOT_DISTANCE = 2, 512


class CommitMark:
    """The mark in file `path`, for writing. Whoever commits may have one: the higher number counts."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def put(self, number: int) -> None:
        """Never fails: without it less is noticed, and the transaction is on disk."""
        slot = _SLOT.pack(number, crc32(number.to_bytes(8, "little")))
        with suppress(OSError):
            os.pwrite(self._handle, slot, number % _SLOTS * _SLOT_DISTANCE)
        if number % SYNC_EVERY == 0:
            self.sync()

    def sync(self) -> None:
        with suppress(OSError):
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def read_mark(path: Path) -> int:
    """0 if there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    found = 0
    for start in range(0, _SLOTS * _SLOT_DISTANCE, _SLOT_DISTANCE):
        slot = content[start : start + _SLOT.size]
        if len(slot) == _SLOT.size and crc32(slot[:8]) == _SLOT.unpack(slot)[1]:
            found = max(found, _SLOT.unpack(slot)[0])
    return found


def clear_mark(path: Path) -> None:
    """The database begins anew."""
    with suppress(FileNotFoundError):
        os.truncate(path, 0)
