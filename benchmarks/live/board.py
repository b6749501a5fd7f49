"""Shared memory in which the processes of a measurement count what they published and read, at no cost to the
systems."""

from __future__ import annotations

import mmap
from pathlib import Path
from struct import Struct
from typing import Self

SLOT = Struct("=Q")


class Board:
    """One number per process, readers first. Each number is written by one process only."""

    def __init__(self, path: str | Path, readers: int, publishers: int) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._readers = range(readers)
        self._publishers = range(readers, readers + publishers)

    @classmethod
    def make(cls, path: Path, readers: int, publishers: int) -> Self:
        path.write_bytes(bytes(SLOT.size * max(1, readers + publishers)))
        return cls(path, readers, publishers)

    def put(self, slot: int, count: int) -> None:
        SLOT.pack_into(self._memory, slot * SLOT.size, count)

    def get(self, slot: int) -> int:
        count: int = SLOT.unpack_from(self._memory, slot * SLOT.size)[0]
        return count

    @property
    def published(self) -> int:
        return sum(map(self.get, self._publishers))

    @property
    def read(self) -> int:
        """Events read by the slowest reader."""
        return min(map(self.get, self._readers), default=0)

    @property
    def read_by_all(self) -> int:
        return sum(map(self.get, self._readers))
