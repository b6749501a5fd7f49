"""Looks at everything an archive holds, and tells every problem, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidings.archive.database import Database
from tidings.archive.errors import told_as_archive_error
from tidings.archive.facts import Segment
from tidings.archive.files import first_in_name, segment_paths
from tidings.archive.listing import check_contiguous, check_tail, read_bounds, read_segments
from tidings.archive.segment_file import GROUP_ROWS, SegmentFile
from tidings.model.errors import ArchiveError


def find_problems(database: Database, directory: Path, progress: Callable[[float], None]) -> list[str]:
    """The database first, then the files of the segments in order."""
    problems: list[str] = []
    segments: list[Segment] = []
    with _told(problems):
        database.check_pages()
    with _told(problems), database.transaction():
        bounds = read_bounds(database)
        segments = read_segments(database)
        check_tail(database, check_contiguous(database.path, bounds, segments), bounds.end)
    for number, segment in enumerate(segments):
        progress(number / len(segments))
        problems.extend(_segment_problems(database, segment))
    with _told(problems):
        problems.extend(_unlisted(database, directory))
    progress(1.0)
    return problems


def _segment_problems(database: Database, segment: Segment) -> list[str]:
    problems: list[str] = []
    with _told(problems), told_as_archive_error(segment.path), SegmentFile(segment, trusting=False) as file:
        for _ in file.batches(segment.first, segment.last + 1, GROUP_ROWS):
            pass
    with _told(problems), database.transaction():
        if segment.last < read_bounds(database).first:
            return []  # trimmed meanwhile
    return problems


def _unlisted(database: Database, directory: Path) -> Iterator[str]:
    """Files that nobody seals or trims at this moment: a writer's own are older or newer than what is kept."""
    paths = segment_paths(directory)
    with database.transaction():
        first, _ = read_bounds(database)
        segments = read_segments(database)
    listed = {segment.path for segment in segments}
    end = segments[-1].last + 1 if segments else first
    for path in paths:
        offset = first_in_name(path)
        if path not in listed and offset is not None and offset >= first and offset != end:
            yield f"{path} is not listed: the database lost what was written last, or the file is not of this archive"


@contextmanager
def _told(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except ArchiveError as error:
        problems.append(str(error))
