"""Translates errors of an archive's files to its own error types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tidings.core.errors import ArchiveCorrupt, ArchiveError, ArchiveFull
from tidings.storage.troubles import Troubles, one_line

TROUBLES = Troubles(ArchiveError, ArchiveFull, ArchiveCorrupt)


@contextmanager
def raised_as_archive_error(path: Path) -> Iterator[None]:
    """Translate errors of the block, which works on the file `path`."""
    with TROUBLES.told(path):
        try:
            yield
        except pa.ArrowException as error:
            raise ArchiveCorrupt(f"{path}: {one_line(str(error))}") from error
