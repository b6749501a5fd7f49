"""Checks everything in an archive and reports every problem, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from tidings.core.errors import ArchiveError
from tidings.storage.archive.errors import raised_as_archive_error
from tidings.storage.archive.facts import Segment
from tidings.storage.archive.files import first_in_name, segment_paths
from tidings.storage.archive.listing import (
    check_contiguous,
    read_bounds,
    read_segments,
    sealed_end,
    tail_problems,
)
from tidings.storage.archive.notes import note_problems
from tidings.storage.archive.opening_checks import UNLISTED
from tidings.storage.archive.segment_file import GROUP_ROWS, SegmentFile
from tidings.storage.database import Database

MAX_PROBLEMS = 1_000


def find_problems(database: Database, directory: Path, progress: Callable[[float], None]) -> list[str]:
    """Return the problems of the database, then of the segments' files in order; at most MAX_PROBLEMS."""
    return list(islice(_problems(database, directory, progress), MAX_PROBLEMS))


def _problems(database: Database, directory: Path, progress: Callable[[float], None]) -> Iterator[str]:
    found: list[str] = []
    segments: list[Segment] = []
    with _collected(found):
        database.check_pages()
    with _collected(found), database.transaction():
        segments = _listed(database, found)
        found.extend(_database_problems(database, segments))
    yield from found
    for number, segment in enumerate(segments):
        progress(number / len(segments))
        yield from _segment_problems(database, segment)
    yield from _unlisted(database, directory)
    progress(1.0)


def _listed(database: Database, problems: list[str]) -> list[Segment]:
    """Read the list of segments entry by entry, so that a damaged one does not hide the others."""
    segments: list[Segment] = []
    for (last,) in database.execute("SELECT last FROM segments ORDER BY first"):
        with _collected(problems):
            segments.extend(read_segments(database, last - 1, 1))
    return segments


def _database_problems(database: Database, segments: list[Segment]) -> Iterator[str]:
    bounds = read_bounds(database)
    try:
        tail_first = check_contiguous(database.path, bounds, segments)
    except ArchiveError as error:
        yield str(error)
        tail_first = sealed_end(database)
    yield from islice(tail_problems(database, tail_first, bounds.end), MAX_PROBLEMS)
    yield from note_problems(database)


def _segment_problems(database: Database, segment: Segment) -> list[str]:
    problems: list[str] = []
    with (
        _collected(problems),
        raised_as_archive_error(segment.path),
        SegmentFile(segment, trusting=False) as file,
    ):
        for _ in file.batches(segment.first, segment.last + 1, GROUP_ROWS):
            pass
    with _collected(problems), database.transaction():
        if segment.last < read_bounds(database).first:
            return []  # trimmed in the meantime
    return problems


def _unlisted(database: Database, directory: Path) -> list[str]:
    """Report unlisted files, except one that a writer is sealing (at the tail's start) or trimming (before `first`)."""
    problems: list[str] = []
    with _collected(problems):
        paths = segment_paths(directory)
        with database.transaction():
            first = read_bounds(database).first
            tail_first = sealed_end(database)
            listed = {offset for (offset,) in database.execute("SELECT first FROM segments")}
        for path in paths:
            offset = first_in_name(path)
            if offset is not None and offset >= first and offset != tail_first and offset not in listed:
                problems.append(f"{path} {UNLISTED}")
    return problems


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except ArchiveError as error:
        problems.append(str(error))
