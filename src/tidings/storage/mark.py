"""The commit mark: the last acknowledged transaction of a database, kept in the lock file beside it.

SQLite replays its log up to the first frame that fails verification, and silently drops the rest. That is right for
what a crash left unfinished. But a flipped bit, a truncated or deleted log, or an older copy loses transactions that
were acknowledged. So each transaction writes its number into the database; once it is on disk, and before it is
acknowledged, the number is written to the mark. A mark ahead of the database means that data is gone.

- After a kill the mark equals the database or is one behind. That is harmless: the transaction was not acknowledged.
- After a power cut the mark may be older, because it is synced only now and then. That is harmless, but detects less.
- Two slots, in two sectors, are written in turn. A torn one has a wrong checksum and does not count.
- A missing mark, as with files made before marks existed, proves nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from zlib import crc32

SYNC_EVERY = 1_000
"""Commits between two syncs of the mark."""
_SLOT = Struct("<QI")  # number, checksum
_SLOTS, _SLOT_DISTANCE = 2, 512


class CommitMark:
    """Writes the mark in file `path`. Every process that commits may have one: the higher number counts."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def put(self, number: int) -> None:
        """Write the number. Never fails: the transaction is on disk, and without the mark only less is detected."""
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
    """Return the number in the mark; 0 if there is none."""
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
    """Remove the mark, for a new database."""
    with suppress(FileNotFoundError):
        os.truncate(path, 0)
