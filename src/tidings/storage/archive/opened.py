"""What the writer and the readers of an archive have in common."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tidings.storage.archive.facts import ArchiveGap, Bounds
from tidings.storage.archive.listing import read_bounds
from tidings.storage.archive.notes import read_gaps, read_marks
from tidings.storage.database import Database


class Opened:
    id: str
    """32 hexadecimal digits, chosen when the archive was created."""
    _database: Database

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    def bounds(self) -> Bounds:
        with self._database.transaction():
            return read_bounds(self._database)

    def marks(self) -> dict[str, int]:
        """Return the latest value of each mark that was given to `append`."""
        with self._database.transaction():
            return read_marks(self._database)

    def gaps(self) -> list[ArchiveGap]:
        with self._database.transaction():
            return read_gaps(self._database)
