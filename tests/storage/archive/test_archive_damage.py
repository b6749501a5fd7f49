"""Damaged files: reading never skips or changes a row, it names file and offsets; `verify` finds them all."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archive_events import facts, kept_events, kept_numbers, make_event, make_events
from tidings.core.errors import ArchiveCorrupt, ArchiveError
from tidings.core.events.event import Event
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings, Segment
from tidings.storage.archive.files import segment_path
from tidings.storage.archive.segment_file import SegmentFile

ROWS, SEALED, SEGMENT = 45, 40, 10
SETTINGS = ArchiveSettings(segment_rows=SEGMENT)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Archive.open(tmp_path / "archive", SETTINGS) as archive:
        for event in make_events(0, ROWS):  # each in a row of its own
            archive.append([event], 1)
    return tmp_path / "archive"


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """A sound Parquet file with other content."""
    pq.write_table(change(pq.read_table(path)), path, compression="zstd", write_page_checksum=True)


def flip_byte(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def swap(path: Path) -> None:
    other = segment_path(path.parents[1], 30)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero_end(path: Path) -> None:
    """What a file system may leave of a file that was not synchronised."""
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "torn": tear,
    "zeros at its end": zero_end,
    "empty": lambda path: os.truncate(path, 0),
    "swapped": swap,
    "a row less": lambda path: rewrite(path, lambda table: table.slice(1)),
    "in another order": lambda path: rewrite(path, lambda table: table.take(list(reversed(range(SEGMENT))))),
    "another payload": lambda path: rewrite(
        path, lambda table: table.set_column(7, table.schema.field(7), pa.array([b"x"] * SEGMENT))
    ),
    "a column less": lambda path: rewrite(path, lambda table: table.drop_columns(["payload"])),
    "a byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "text": lambda path: path.write_text("hello"),
    "a directory": lambda path: (path.unlink(), path.mkdir())[0],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_segment_is_told_with_file_and_offsets(name: str, directory: Path) -> None:
    path = segment_path(directory, 20)
    with ArchiveReader(directory) as reader:
        assert kept_numbers(reader) == list(range(ROWS))  # what was found sound once is looked at again
        DAMAGES[name](path)
        for start in (0, 20, 25):
            with pytest.raises(ArchiveError) as caught:
                list(reader.read(start, ROWS))
            assert str(path) in str(caught.value) and "\n" not in str(caught.value)
            if name != "a directory":
                assert isinstance(caught.value, ArchiveCorrupt) and "offsets 20 to 29" in str(caught.value)
        assert [facts(event) for event in kept_events(reader, 0, 20)] == [
            facts(e) for e in make_events(0, 20)
        ]
        if name != "swapped":
            assert kept_events(reader, 30, ROWS)[0].sequence == 30
        problems = reader.verify()
        assert len(problems) == (2 if name == "swapped" else 1)
        assert str(path) in problems[0]


def test_any_flipped_bit_of_a_segment_is_noticed(directory: Path) -> None:
    draw = random.Random(3)
    path = segment_path(directory, 10)
    sound = path.read_bytes()
    with ArchiveReader(directory) as reader:
        for _ in range(60):
            flip_byte(path, draw)
            with pytest.raises(ArchiveCorrupt, match="its content has changed since it was sealed"):
                list(reader.read(10, 11))
            path.write_bytes(sound)
        assert reader.verify() == []


def test_page_checksums_notice_what_happens_after_the_file_was_checked(directory: Path) -> None:
    """The sha256 is made right for the damaged file: the pages' own checksums and the offsets are left."""
    draw = random.Random(4)
    with ArchiveReader(directory) as reader:
        segment = reader.segments()[1]
    sound = segment.path.read_bytes()
    seen = 0
    for _ in range(60):
        flip_byte(segment.path, draw)
        sha256 = hashlib.sha256(segment.path.read_bytes()).hexdigest()
        changed = Segment(**{**_fields(segment), "sha256": sha256})
        try:
            with SegmentFile(changed) as file:
                rows = pa.Table.from_batches(file.batches(10, 20, 100))
        except ArchiveCorrupt:
            seen += 1
        else:  # in the footer's statistics, or in nothing that is read
            assert rows.column("sequence").to_pylist() == list(range(10, 20))
        segment.path.write_bytes(sound)
    assert seen > 30


def _fields(segment: Segment) -> dict[str, object]:
    return {name: getattr(segment, name) for name in Segment.__slots__}


def sql(directory: Path, *statements: str) -> None:
    with closing(sqlite3.connect(directory / "archive.sqlite")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


TAIL_DAMAGES = {
    "a changed row": ("UPDATE tail SET value = CAST(x'00' || value AS BLOB) WHERE offset = 42", 42),
    "text for bytes": ("UPDATE tail SET value = 'text' WHERE offset = 42", 42),
    "a row less": ("DELETE FROM tail WHERE offset = 42", 42),
    "the last row less": ("DELETE FROM tail WHERE offset = 44", 44),
    "the first row less": ("DELETE FROM tail WHERE offset = 40", 40),
    "a row twice": ("UPDATE tail SET (checksum, value) = (SELECT checksum, value FROM tail WHERE offset = 41)"
                    " WHERE offset = 42", 42),
}  # fmt: skip


@pytest.mark.parametrize("name", TAIL_DAMAGES)
def test_a_damaged_tail_is_told_with_the_offset(name: str, directory: Path) -> None:
    statement, offset = TAIL_DAMAGES[name]
    sql(directory, statement)
    with ArchiveReader(directory) as reader:
        with pytest.raises(ArchiveCorrupt, match=f"archive.sqlite is damaged: offset {offset} "):
            list(reader.read(0, ROWS))
        assert kept_events(reader, 0, 40)
        (problem,) = reader.verify()
        assert str(offset) in problem and "archive.sqlite" in problem
    with pytest.raises(ArchiveCorrupt, match=f"archive.sqlite is damaged: offsets? {offset} "):
        Archive.open(directory)


def append_many(directory: Path) -> None:
    """Three rows of ten events each, from offset 45 on."""
    with Archive.open(directory, ArchiveSettings(segment_rows=1_000)) as archive:
        for first in (45, 55, 65):
            archive.append(
                [Event("s", 0, number, "/t", 1, {}, b"") for number in range(first, first + 10)], 1
            )


def misplaced(offset: int, to: int) -> str:
    """The row as it would be at another offset, with the checksum that belongs there."""
    return f"INSERT INTO tail SELECT {to}, crc(value, {to}), value FROM tail WHERE offset = {offset}"


ROW_DAMAGES = {
    "a row less": ("DELETE FROM tail WHERE offset = 55", "offsets? 55 "),
    "a row elsewhere": ("UPDATE tail SET offset = 56 WHERE offset = 55", "offsets? 5[56] "),
    "an event in two rows": (misplaced(55, 50), "offsets? 5[05] "),
    "a row behind the end": (misplaced(65, 75), "offset 75 "),
    "the first row again": (misplaced(45, 30), "offset 30 "),
    "another number of events": (
        "UPDATE tail SET value = CAST(x'9509' || SUBSTR(value, 3) AS BLOB) WHERE offset = 55", "offset 55 ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROW_DAMAGES)
def test_damage_to_rows_of_many_events_is_told(name: str, directory: Path) -> None:
    statement, message = ROW_DAMAGES[name]
    append_many(directory)
    with closing(sqlite3.connect(directory / "archive.sqlite")) as connection, connection:
        connection.create_function("crc", 2, lambda value, offset: zlib.crc32(value, offset))
        connection.execute(statement)
    with ArchiveReader(directory) as reader:
        problems = reader.verify()
        assert problems and all("archive.sqlite is damaged" in problem for problem in problems)
        assert any(re.search(message, problem) for problem in problems)
        end = reader.bounds().end
        if name in ("a row behind the end", "the first row again"):  # that is where nobody reads
            assert [event.sequence for event in kept_events(reader, 45, end)] == list(range(45, end))
        else:
            with pytest.raises(ArchiveCorrupt, match=message):
                list(reader.read(45, end))
    with pytest.raises(ArchiveCorrupt, match=r"archive\.sqlite is damaged"):
        Archive.open(directory)


def numbers_unless_told(reader: ArchiveReader) -> list[int] | None:
    try:
        return kept_numbers(reader)
    except ArchiveError:
        return None


LIST_DAMAGES = {
    "a segment less": ("DELETE FROM segments WHERE first = 20", "for offset 20"),
    "the last segment less": ("DELETE FROM segments WHERE first = 30", "offset"),
    "a changed entry": ("UPDATE segments SET last_notified_ns = 7 WHERE first = 20", "segment at offset 20"),
    "another sha256": ("UPDATE segments SET sha256 = 'x' WHERE first = 20", "segment at offset 20"),
    "an end that is too early": ("UPDATE about SET ending = 30", "its id and bounds"),
    "an end that is too late": ("UPDATE about SET ending = 50", "its id and bounds"),
    "another name": ("UPDATE about SET archive = 'x'", "its id and bounds"),
    "a first that is too early": ("UPDATE segments SET first = 5 WHERE first = 0", "offset"),
    "no name": ("DELETE FROM about", "its id and bounds"),
}


@pytest.mark.parametrize("name", LIST_DAMAGES)
def test_a_damaged_list_is_told(name: str, directory: Path) -> None:
    statement, message = LIST_DAMAGES[name]
    sql(directory, statement)
    with pytest.raises(ArchiveCorrupt, match=message) as caught:
        Archive.open(directory)
    assert str(directory) in str(caught.value)
    if message == "its id and bounds":
        with pytest.raises(ArchiveCorrupt, match=message):
            ArchiveReader(directory)
        return
    with ArchiveReader(directory) as reader:
        assert any("archive.sqlite" in problem for problem in reader.verify())
        assert numbers_unless_told(reader) in (None, list(range(ROWS)))


def test_verify_finds_all_of_many_problems(directory: Path) -> None:
    segment_path(directory, 0).unlink()
    tear(segment_path(directory, 10))
    sql(
        directory,
        "UPDATE segments SET sha256 = 'x' WHERE first = 20",
        "UPDATE tail SET checksum = 0 WHERE offset IN (41, 43)",
        "DELETE FROM tail WHERE offset = 42",
    )
    shutil.copy(segment_path(directory, 30), segment_path(directory, 90))
    shares: list[float] = []
    with ArchiveReader(directory) as reader:
        problems = reader.verify(shares.append)
    expected = [
        "segment at offset 20",
        "for offset 20",
        "offset 41 has a wrong checksum",
        "offsets 42 to 42 are missing",
        "offset 43 has a wrong checksum",
        "offsets 0 to 9: the file is missing",
        "offsets 10 to 19: it has",
        f"{segment_path(directory, 90)} is not listed",
    ]
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_leftovers_are_removed_and_strangers_are_not(directory: Path) -> None:
    (directory / "segments" / ".sealing").write_text("half of a segment")
    (directory / "segments" / "README").write_text("not ours")
    leftover = segment_path(directory, SEALED)
    with Archive.open(directory, ArchiveSettings(segment_rows=100)) as archive:
        archive.seal()
        content = leftover.read_bytes()
        assert archive.append(make_events(ROWS, 3), 1) == ROWS
    assert sorted(os.listdir(directory / "segments"))[-1] == "README"
    stranger = segment_path(directory, ROWS)
    stranger.write_bytes(content)  # five rows where the tail has three: the list must have lost it
    with pytest.raises(ArchiveCorrupt, match="is not listed: the database lost its latest entries"):
        Archive.open(directory)
    assert stranger.exists()
    with Archive.open(directory.with_name("other"), SETTINGS) as archive:
        archive.append(make_events(0, 2), 1)
        archive.seal()
    shutil.copy(segment_path(directory.with_name("other"), 0), stranger)  # two of the three: a crash left it
    with Archive.open(directory, SETTINGS) as archive, ArchiveReader(directory) as reader:
        assert not stranger.exists()
        assert kept_numbers(reader) == list(range(ROWS + 3))
        assert archive.append([make_event(ROWS + 3)], 1) == ROWS + 3


def test_a_lost_log_is_noticed_where_a_segment_shows_it(directory: Path) -> None:
    """The database as it was before the last segments were listed: their files must not be taken for leftovers."""
    old = directory / "archive.sqlite"
    before = old.read_bytes()
    with Archive.open(directory, SETTINGS) as archive:
        archive.append(make_events(ROWS, 20), 1)
    old.write_bytes(before)
    with pytest.raises(ArchiveCorrupt, match="was acknowledged"):
        Archive.open(directory)
    (directory / "archive.lock").unlink()  # and without its mark
    with pytest.raises(ArchiveCorrupt, match="is not listed"):
        Archive.open(directory)
    assert len(list((directory / "segments").iterdir())) == 6
