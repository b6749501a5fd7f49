"""Reads and writes the tables of an archive's database, for the writer and for readers, inside their transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidings.core.errors import ArchiveCorrupt
from tidings.storage.archive.database import fields_checksum
from tidings.storage.archive.facts import Bounds, Segment
from tidings.storage.archive.files import segment_path
from tidings.storage.archive.packing import TailRow, row_checksum, unpack_row
from tidings.storage.archive.rows import BATCH_BYTES, Rows
from tidings.storage.database import Database

_SEGMENT_COLUMNS = (
    "first, last, size_bytes, first_notified_ns, last_notified_ns, max_published_ns, sha256, checksum"
)
_ROWS_FROM = (
    "SELECT offset, checksum, value FROM tail"
    " WHERE offset >= COALESCE((SELECT MAX(offset) FROM tail WHERE offset <= ?), ?) AND offset < ? ORDER BY offset"
)
"""The rows from the one that contains the first offset."""


class TailSize(NamedTuple):
    events: int
    size_bytes: int


class About(NamedTuple):
    """The one row about the archive; for each table of notes it has the sum of the rows (notes.py)."""

    archive: str
    first: int
    ending: int
    consumers: int
    gaps: int
    marks: int


def read_about(database: Database) -> About:
    rows = database.execute("SELECT archive, first, ending, consumers, gaps, marks, checksum FROM about")
    if len(rows) != 1 or fields_checksum(rows[0][:-1]) != rows[0][-1]:
        raise ArchiveCorrupt(f"{database.path} is damaged: its id and bounds have a wrong checksum")
    return About(*rows[0][:-1])


def write_about(database: Database, about: About) -> None:
    database.execute(
        "UPDATE about SET archive = ?, first = ?, ending = ?, consumers = ?, gaps = ?, marks = ?, checksum = ?",
        *about,
        fields_checksum(about),
    )


def read_id(database: Database) -> str:
    return read_about(database).archive


def read_bounds(database: Database) -> Bounds:
    about = read_about(database)
    return Bounds(about.first, about.ending)


def write_bounds(database: Database, bounds: Bounds) -> None:
    write_about(database, read_about(database)._replace(first=bounds.first, ending=bounds.end))


def sealed_end(database: Database) -> int:
    """Return the offset at which the tail starts."""
    ((last,),) = database.execute("SELECT MAX(last) FROM segments")
    return read_bounds(database).first if last is None else int(last) + 1


def tail_size(database: Database) -> TailSize:
    ((size_bytes,),) = database.execute("SELECT COALESCE(SUM(LENGTH(value)), 0) FROM tail")
    return TailSize(read_bounds(database).end - sealed_end(database), size_bytes)


def sealed_bytes(database: Database) -> int:
    return int(database.execute("SELECT COALESCE(SUM(size_bytes), 0) FROM segments")[0][0])


def read_segments(database: Database, above: int = -1, limit: int = -1) -> list[Segment]:
    """Return at most `limit` segments with offsets above `above`, in order."""
    rows = database.execute(
        f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE last > ? ORDER BY first LIMIT ?",  # noqa: S608
        above,
        limit,
    )
    return [_segment(database.path, row) for row in rows]


def insert_segment(database: Database, segment: Segment) -> None:
    fields = (
        segment.first,
        segment.last,
        segment.size_bytes,
        segment.first_notified_ns,
        segment.last_notified_ns,
        segment.max_published_ns,
        segment.sha256,
    )
    database.execute(
        f"INSERT INTO segments ({_SEGMENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        *fields,
        fields_checksum(fields),
    )


def read_tail(database: Database, start: int, stop: int, max_rows: int) -> Rows:
    """Return rows of the tail from offset `start`: at least one, and fewer than requested if they are large."""
    parts: list[TailRow] = []
    size_bytes, end = 0, start
    stop = min(stop, start + max_rows)
    for offset, part in _tail_rows(database, start, stop):
        if not parts:
            skip = start - offset
        parts.append(part)
        end = offset + part.count
        size_bytes += len(part.events)
        if size_bytes >= BATCH_BYTES:
            break
    try:
        return Rows(parts, skip, min(stop, end) - start)
    except _NONSENSE as error:
        raise ArchiveCorrupt(
            f"{database.path} is damaged: cannot decode offsets {start} to {end - 1}: {error}"
        ) from None


def drop_sealed(database: Database, end: int) -> None:
    """Delete the rows of the tail that end before `end`. A row that is sealed only in part stays as it is."""
    if end == read_bounds(database).end:
        database.execute("DELETE FROM tail")
    else:
        database.execute(
            "DELETE FROM tail WHERE offset < (SELECT MAX(offset) FROM tail WHERE offset <= ?)", end
        )


def check_contiguous(path: Path, bounds: Bounds, segments: Iterable[Segment]) -> int:
    """Return the offset after the last segment; ArchiveCorrupt if an offset is missing."""
    expected = bounds.first
    for segment in segments:
        if segment.first != expected or segment.last < expected:
            raise ArchiveCorrupt(f"{path} is damaged: it lists no segment for offset {expected}")
        expected = segment.last + 1
    if expected > bounds.end:
        raise ArchiveCorrupt(f"{path} is damaged: it lists offset {expected - 1}, but ends at {bounds.end}")
    return expected


def check_tail(database: Database, first: int, end: int) -> None:
    """Raise ArchiveCorrupt unless the tail has exactly the offsets [first, end), undamaged."""
    for problem in tail_problems(database, first, end):
        raise ArchiveCorrupt(problem)


def tail_problems(database: Database, first: int, end: int) -> Iterator[str]:
    """Yield the problems of a tail that should have offsets [first, end); its first row may begin before."""
    expected = first
    with closing(database.iterate("SELECT offset, checksum, value FROM tail ORDER BY offset")) as cursor:
        for offset, checksum, value in cursor:
            is_whole, count = _is_whole(offset, checksum, value), _count(value)
            if not first < offset + count <= end:
                yield f"{database.path} is damaged: it has offset {offset}, expected {first} to {end - 1}"
                continue
            if offset > expected:
                yield f"{database.path} is damaged: offsets {expected} to {offset - 1} are missing"
            elif offset < expected and expected > first:
                yield f"{database.path} is damaged: offsets {offset} to {expected - 1} occur twice"
            if not is_whole:
                yield f"{database.path} is damaged: offset {offset} has a wrong checksum"
            expected = offset + count
    if expected < end:
        yield f"{database.path} is damaged: offsets {expected} to {end - 1} are missing"


def _tail_rows(database: Database, start: int, stop: int) -> Iterator[tuple[int, TailRow]]:
    """Yield the checked rows with offsets [start, stop), one at a time because they may be large."""
    expected = start
    with closing(database.iterate(_ROWS_FROM, start, start, stop)) as cursor:
        for offset, checksum, value in cursor:
            if offset > expected:
                break
            if not _is_whole(offset, checksum, value):
                raise ArchiveCorrupt(f"{database.path} is damaged: offset {offset} has a wrong checksum")
            part = _unpacked(database.path, offset, value)
            if offset != expected > start or offset + part.count <= expected:
                break
            yield offset, part
            expected = offset + part.count
    if expected < stop:
        raise ArchiveCorrupt(f"{database.path} is damaged: offset {expected} is missing")


def _unpacked(path: Path, offset: int, value: bytes) -> TailRow:
    try:
        return unpack_row(value)
    except _NONSENSE as error:
        raise ArchiveCorrupt(f"{path} is damaged: offset {offset} cannot be decoded: {error}") from None


def _is_whole(offset: int, checksum: object, value: object) -> bool:
    return type(value) is bytes and row_checksum(offset, value) == checksum


def _count(value: object) -> int:
    """Return the number of events in a row; 1 if a damaged row does not show it."""
    try:
        return unpack_row(value).count if type(value) is bytes else 1
    except _NONSENSE:
        return 1


_NONSENSE = (msgspec.MsgspecError, UnicodeError, RecursionError)


def _segment(path: Path, row: tuple[int, int, int, int, int, int, str, int]) -> Segment:
    *fields, checksum = row
    if checksum != fields_checksum(fields):
        raise ArchiveCorrupt(
            f"{path} is damaged: the entry of the segment at offset {row[0]} has a wrong checksum"
        )
    first, last, size_bytes, first_notified_ns, last_notified_ns, max_published_ns, sha256 = row[:-1]
    return Segment(
        first,
        last,
        segment_path(path.parent, first),
        last - first + 1,
        size_bytes,
        first_notified_ns,
        last_notified_ns,
        max_published_ns,
        sha256,
    )
