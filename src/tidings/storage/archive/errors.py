"""Troubles with the files of an archive, told as its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tidings.core.errors import ArchiveCorrupt, ArchiveError, ArchiveFull
from tidings.storage.troubles import Troubles, one_line

TROUBLES = Troubles(ArchiveError, ArchiveFull, ArchiveCorrupt)


@contextmanager
def told_as_archive_error(path: Path) -> Iterator[None]:
    """`path`: the file that is worked on."""
    with TROUBLES.told(path):
        try:
            yield
        except pa.ArrowException as error:
            raise ArchiveCorrupt(f"{path}: {one_line(str(error))}") from error
