"""The job of one process, and the notes that workers take: they outlive a worker that is killed."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

import msgspec

TOPIC = "/bench/jobs"
GROUP = "workers"
PAYLOAD_BYTES = 128
HEAD = Struct("=QQ")
NOTE = Struct("=QQQQ")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a `work.process`, passed as JSON."""

    system: str
    role: str
    url: str
    notes: str = ""
    """The file of this worker's notes."""
    events: int = 0
    rate: float = 0
    """How many events per second are published; 0: the queue is filled before."""
    work_ms: float = 0
    ahead: int = 1
    """How many events a worker may have besides the one that it works on."""


def payload(number: int) -> bytes:
    """Return a payload with the event's number and the time, which all processes read from one clock."""
    return HEAD.pack(number, time.monotonic_ns()).ljust(PAYLOAD_BYTES, b"\0")


class Note(NamedTuple):
    """One event in the hands of one worker."""

    number: int
    published_at: int
    began_at: int
    done_at: int
    """0: it was never done here."""


class Notes:
    """What one worker did, in a mapped file: written even if the process is killed."""

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._count = 0

    @classmethod
    def make(cls, path: Path, events: int) -> Self:
        """Make a file for so many events, and as many repetitions."""
        with path.open("wb") as file:
            file.truncate(NOTE.size * 2 * max(1, events))
        return cls(path)

    def begin(self, body: bytes) -> int:
        number, published_at = HEAD.unpack_from(body)
        at = self._count * NOTE.size
        self._count += 1
        NOTE.pack_into(self._memory, at, number + 1, published_at, time.monotonic_ns(), 0)
        return at

    def finish(self, at: int) -> None:
        number, published_at, began_at, _ = NOTE.unpack_from(self._memory, at)
        NOTE.pack_into(self._memory, at, number, published_at, began_at, time.monotonic_ns())

    def __iter__(self) -> Iterator[Note]:
        for found in NOTE.iter_unpack(self._memory):
            if not found[0]:
                return
            yield Note(found[0] - 1, *found[1:])

    @property
    def done(self) -> int:
        """Events done so far, as the parent sees it; cheap enough to poll."""
        while self._count * NOTE.size < len(self._memory):
            if not NOTE.unpack_from(self._memory, self._count * NOTE.size)[3]:
                break
            self._count += 1
        return self._count
