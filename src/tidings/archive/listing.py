"""What an archive's database holds, asked by writer and readers alike, inside a transaction of theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidings.archive.database import fields_checksum
from tidings.archive.facts import Bounds, Segment
from tidings.archive.files import segment_path
from tidings.archive.rows import BATCH_BYTES, Row, row_checksum, unpack_row
from tidings.model.errors import ArchiveCorrupt
from tidings.storage.database import Database

_SEGMENT_COLUMNS = (
    "first, last, size_bytes, first_notified_ns, last_notified_ns, max_published_ns, sha256, checksum"
)
FETCH_ROWS = 16


class TailSize(NamedTuple):
    rows: int
    size_bytes: int


class About(NamedTuple):
    """The one row about the archive; for each table of notes, the sum of its rows (notes.py)."""

    archive: str
    first: int
    ending: int
    consumers: int
    gaps: int
    marks: int


def read_about(database: Database) -> About:
    rows = database.execute("SELECT archive, first, ending, consumers, gaps, marks, checksum FROM about")
    if len(rows) != 1 or fields_checksum(rows[0][:-1]) != rows[0][-1]:
        raise ArchiveCorrupt(f"{database.path} is damaged: its name and bounds have a wrong checksum")
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
    """The offset at which the tail starts."""
    ((last,),) = database.execute("SELECT MAX(last) FROM segments")
    return read_bounds(database).first if last is None else int(last) + 1


def tail_size(database: Database) -> TailSize:
    return TailSize(*database.execute("SELECT COUNT(*), COALESCE(SUM(LENGTH(value)), 0) FROM tail")[0])


def sealed_bytes(database: Database) -> int:
    return int(database.execute("SELECT COALESCE(SUM(size_bytes), 0) FROM segments")[0][0])


def read_segments(database: Database, above: int = -1, limit: int = -1) -> list[Segment]:
    """The segments that hold offsets above `above`, in order, at most `limit` of them."""
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


def read_tail(database: Database, start: int, stop: int, max_rows: int) -> list[Row]:
    """Rows of the tail from offset `start`, fewer than asked for where they are large, at least one."""
    rows: list[Row] = []
    size_bytes = 0
    for packed in _packed_rows(database, start, min(stop, start + max_rows)):
        try:
            rows.extend(map(unpack_row, packed))
        except msgspec.MsgspecError as error:
            offset = start + len(rows)
            raise ArchiveCorrupt(
                f"{database.path} is damaged: offset {offset} does not decode: {error}"
            ) from None
        size_bytes += sum(map(len, packed))
        if size_bytes >= BATCH_BYTES:
            break
    return rows


def check_contiguous(path: Path, bounds: Bounds, segments: Iterable[Segment]) -> int:
    """The offset after the last of the segments; ArchiveCorrupt if they leave something out."""
    expected = bounds.first
    for segment in segments:
        if segment.first != expected or segment.last < expected:
            raise ArchiveCorrupt(f"{path} is damaged: no segment is listed for offset {expected}")
        expected = segment.last + 1
    if expected > bounds.end:
        raise ArchiveCorrupt(f"{path} is damaged: it lists offset {expected - 1} and ends at {bounds.end}")
    return expected


def check_tail(database: Database, first: int, end: int) -> None:
    """ArchiveCorrupt unless the tail holds offsets [first, end) whole, and no other."""
    for problem in tail_problems(database, first, end):
        raise ArchiveCorrupt(problem)


def tail_problems(database: Database, first: int, end: int) -> Iterator[str]:
    """All that is wrong with a tail that should hold offsets [first, end)."""
    expected = first
    with closing(database.iterate("SELECT offset, checksum, value FROM tail ORDER BY offset")) as cursor:
        for offset, checksum, packed in cursor:
            if not first <= offset < end:
                yield f"{database.path} is damaged: it has offset {offset} and should have {first} to {end - 1}"
                continue
            if offset > expected:
                yield f"{database.path} is damaged: offsets {expected} to {offset - 1} are missing"
            if not _is_whole(offset, checksum, packed):
                yield f"{database.path} is damaged: offset {offset} has a wrong checksum"
            expected = offset + 1
    if expected < end:
        yield f"{database.path} is damaged: offsets {expected} to {end - 1} are missing"


def _packed_rows(database: Database, start: int, stop: int) -> Iterator[list[bytes]]:
    """A few rows at a time, checked: they may be large."""
    sql = "SELECT offset, checksum, value FROM tail WHERE offset >= ? AND offset < ? ORDER BY offset"
    with closing(database.iterate(sql, start, stop)) as cursor:
        while start < stop:
            rows = cursor.fetchmany(FETCH_ROWS)
            for expected, (offset, checksum, packed) in enumerate(rows, start):
                if offset != expected:
                    raise _lost(database.path, expected)
                if not _is_whole(offset, checksum, packed):
                    raise ArchiveCorrupt(f"{database.path} is damaged: offset {offset} has a wrong checksum")
            if not rows:
                raise _lost(database.path, start)
            yield [packed for _, _, packed in rows]
            start += len(rows)


def _is_whole(offset: int, checksum: object, packed: object) -> bool:
    return type(packed) is bytes and row_checksum(offset, packed) == checksum


def _lost(path: Path, offset: int) -> ArchiveCorrupt:
    return ArchiveCorrupt(f"{path} is damaged: offset {offset} is missing")


def _segment(path: Path, row: tuple[int, int, int, int, int, int, str, int]) -> Segment:
    *fields, checksum = row
    if checksum != fields_checksum(fields):
        raise ArchiveCorrupt(
            f"{path} is damaged: the entry of the segment of offset {row[0]} has a wrong checksum"
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
