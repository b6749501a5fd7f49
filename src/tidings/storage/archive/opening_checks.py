"""What a writer does when it opens an archive: check the database, and remove files that a crash left."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.core.errors import ArchiveCorrupt
from tidings.storage.archive.errors import raised_as_archive_error
from tidings.storage.archive.facts import Bounds
from tidings.storage.archive.files import SEALING_NAME, SEGMENTS_NAME, first_in_name, segment_paths
from tidings.storage.archive.listing import check_contiguous, check_tail, read_bounds, read_segments
from tidings.storage.archive.notes import check_notes
from tidings.storage.database import Database

UNLISTED = "is not listed: the database lost its latest entries, or the file belongs to another archive"


def check_and_clean(database: Database, directory: Path) -> None:
    """Raise ArchiveCorrupt unless segments and tail together have every offset once; then remove leftovers."""
    database.check_pages()
    with database.transaction():
        bounds = read_bounds(database)
        segments = read_segments(database)
        tail_first = check_contiguous(database.path, bounds, segments)
        check_tail(database, tail_first, bounds.end)
        check_notes(database)
    listed = {segment.path for segment in segments}
    paths = segment_paths(directory)
    with raised_as_archive_error(directory):
        (directory / SEGMENTS_NAME / SEALING_NAME).unlink(missing_ok=True)
    for path in paths:
        if path not in listed:
            _remove_leftover(path, bounds, tail_first)


def _remove_leftover(path: Path, bounds: Bounds, tail_first: int) -> None:
    """Remove a file whose rows were trimmed or are still in the tail. Any other is one that the list has lost."""
    first = first_in_name(path)
    assert first is not None
    if first >= bounds.first and not (first == tail_first and _last(path, first) < bounds.end):
        raise ArchiveCorrupt(f"{path} {UNLISTED}")
    with raised_as_archive_error(path):
        path.unlink()


def _last(path: Path, first: int) -> int:
    try:
        return first + int(pq.read_metadata(path).num_rows) - 1
    except (pa.ArrowException, OSError) as error:
        raise ArchiveCorrupt(f"{path} is not listed and cannot be read: {error}") from None
