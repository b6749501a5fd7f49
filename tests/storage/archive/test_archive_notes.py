"""Marks, gaps and consumers: what is damaged in them is told, not believed. And no bit of the database can change
something without being noticed."""

from __future__ import annotations

import enum
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from archive_events import kept_numbers, make_events
from tidings.core.errors import ArchiveCorrupt, ArchiveError
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings
from tidings.storage.archive import notes as notes_module
from tidings.storage.archive.database import fields_checksum

ROWS = 24
SETTINGS = ArchiveSettings(segment_rows=10)
RANDOM_FLIPS = 300


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Archive.open(tmp_path / "archive", SETTINGS, clock=lambda: 42) as archive:
        archive.append(make_events(0, ROWS), 1, marks={"0:one": 123456789, "1:two": -7, "~alive": 2**62})
        archive.note_gap("no recorder for 9 s")
        archive.note_gap("the recorder did not keep up", 7)
        with ArchiveReader(tmp_path / "archive") as reader:
            reader.commit("audit", 12)
            reader.commit("report", 20)
    return tmp_path / "archive"


def sql(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(directory / "archive.sqlite")) as connection, connection:
        connection.execute(statement)


DAMAGES = {
    "a mark": ("UPDATE marks SET value = value + 1 WHERE name = '0:one'", "row '0:one' of its table marks"),
    "its name": ("UPDATE marks SET name = '0:onf' WHERE name = '0:one'", "row '0:onf' of its table marks"),
    "its checksum": ("UPDATE marks SET checksum = checksum + 1 WHERE value = -7", "row '1:two' of its table marks"),
    "another type": ("UPDATE marks SET value = CAST('x' AS BLOB) WHERE value = -7", "row '1:two' of its table marks"),
    "a mark less": ("DELETE FROM marks WHERE name = '1:two'", "its table marks has lost rows"),
    "no marks": ("DELETE FROM marks", "its table marks has lost rows"),
    "a mark more": (f"INSERT INTO marks VALUES ('a', 1, {fields_checksum(('a', 1))})", "has extra ones"),
    "a reason": ("UPDATE gaps SET reason = 'x' WHERE id = 2", "row 2 of its table gaps"),
    "an unknown number": ("UPDATE gaps SET missing = NULL WHERE id = 2", "row 2 of its table gaps"),
    "the order of gaps": ("UPDATE gaps SET id = 3 WHERE id = 1", "row 3 of its table gaps"),
    "a gap less": ("DELETE FROM gaps WHERE id = 1", "its table gaps has lost rows"),
    "an offset": ("UPDATE consumers SET offset = 13 WHERE name = 'audit'", "row 'audit' of its table consumers"),
    "a time": ("UPDATE consumers SET committed_ns = 1 WHERE name = 'audit'", "row 'audit' of its table consumers"),
    "a consumer less": ("DELETE FROM consumers WHERE name = 'audit'", "its table consumers has lost rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_with_table_and_row(name: str, directory: Path) -> None:
    statement, message = DAMAGES[name]
    sql(directory, statement)
    with pytest.raises(ArchiveCorrupt, match=rf"archive\.sqlite is damaged: .*{message}"):
        Archive.open(directory)
    with ArchiveReader(directory) as reader:
        (problem,) = reader.verify()
        assert message in problem
        assert kept_numbers(reader) == list(range(ROWS))  # the events are none the worse
        for table, read in (("gaps", reader.gaps), ("consumers", reader.consumers)):
            if f"table {table}" in problem:
                with pytest.raises(ArchiveCorrupt, match=message):
                    read()
            else:
                assert len(read()) == 2


def test_damage_is_told_to_a_writer_that_is_open(directory: Path) -> None:
    with Archive.open(directory, SETTINGS) as archive, ArchiveReader(directory) as reader:
        sql(directory, DAMAGES["a mark"][0])
        for act in (archive.marks, lambda: archive.append(make_events(ROWS, 1), 1, marks={"0:one": 2**40})):
            with pytest.raises(ArchiveCorrupt, match="row '0:one' of its table marks"):
                act()
        assert archive.bounds().end == ROWS
        sql(directory, DAMAGES["an offset"][0])
        with pytest.raises(ArchiveCorrupt, match="row 'audit' of its table consumers"):
            reader.commit("audit", 14)
        sql(directory, "UPDATE gaps SET offset = 1 WHERE id = 2")
        with pytest.raises(ArchiveCorrupt, match="row 2 of its table gaps"):
            archive.note_gap("more")


@pytest.mark.parametrize("damage", ["an offset", "a time", "a consumer less"])
def test_nothing_is_given_up_for_a_damaged_consumer(damage: str, directory: Path) -> None:
    with Archive.open(directory, ArchiveSettings(segment_rows=10, retain_bytes=1)) as archive:
        sql(directory, DAMAGES[damage][0])
        with pytest.raises(ArchiveCorrupt, match="its table consumers"):
            archive.maintain()
        assert archive.bounds() == (0, ROWS)


def test_rows_of_every_kind_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "LOOKUP_ROWS", 3)
    draw = random.Random(1)
    expected: dict[str, int] = {}
    with Archive.open(tmp_path) as archive, ArchiveReader(tmp_path) as reader:
        for _ in range(30):
            marks = {
                f"m{draw.randrange(20)}": draw.choice([None, draw.randrange(-5, 5)])
                for _ in range(draw.randrange(9))
            }
            archive.append([], 1, marks=marks)
            expected = {name: value for name, value in (expected | marks).items() if value is not None}
            assert archive.marks() == expected
        assert reader.verify() == []


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


def test_values_that_only_look_different_are_no_damage(tmp_path: Path) -> None:
    """SQLite gives back plain text and plain numbers."""
    with Archive.open(tmp_path) as archive, ArchiveReader(tmp_path) as reader:
        archive.append(
            make_events(0, 5), 1, marks={Colour.RED: Size.LARGE, "nul\0": True, "\U0001f600'\"": 0}
        )
        archive.note_gap("a\nb \ud800", True)
        reader.commit(Colour.RED, Size.LARGE)
        assert archive.marks() == {"red": 3, "nul\0": 1, "\U0001f600'\"": 0}
        assert reader.consumers() == {"red": 3} and reader.gaps()[0].missing == 1
        assert reader.verify() == []
    Archive.open(tmp_path).close()


def seen(directory: Path) -> tuple[Any, ...]:
    """All that an archive shows, to readers and to its writer."""
    with ArchiveReader(directory) as reader:
        events = [batch.to_pydict() for batch in reader.read(*reader.bounds())]
        problems = reader.verify()
        if problems:
            raise ArchiveCorrupt(problems[0])
        shown = reader.id, reader.bounds(), events, reader.gaps(), reader.consumers(), reader.segments()
    with Archive.open(directory, create=False) as archive:
        return *shown, archive.marks()


class Flips:
    """Bits of a database that was closed, each flipped for itself."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "archive.sqlite"
        self.sound = self.path.read_bytes()
        self.shown = seen(directory)
        self.messages: list[str] = []

    def check(self, at: int, bit: int) -> None:
        content = bytearray(self.sound)
        content[at] ^= 1 << bit
        self.path.write_bytes(content)
        try:
            shown = seen(self.directory)
        except ArchiveError as error:
            self.messages.append(str(error))
        else:
            assert shown == self.shown, f"bit {bit} of byte {at} changes what is shown, and nobody says so"

    def check_told(self, at_least: float) -> None:
        assert len(self.messages) > at_least
        assert all(str(self.path) in message and "\n" not in message for message in self.messages)

    def page(self, table: str) -> range:
        with closing(sqlite3.connect(self.path)) as connection:
            ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        return range((page - 1) * 4096, page * 4096)


@pytest.mark.parametrize("table", ["about", "consumers", "gaps", "marks"])
def test_any_flipped_bit_of_a_note_is_told_or_changes_nothing(table: str, directory: Path) -> None:
    draw = random.Random(table)
    flips = Flips(directory)
    places = [at for at in flips.page(table) if flips.sound[at]]
    for at in places:
        flips.check(at, draw.randrange(8))
    flips.check_told(len(places) / 2)


def test_any_flipped_bit_of_the_database_is_told_or_changes_nothing(directory: Path) -> None:
    draw = random.Random(7)
    flips = Flips(directory)
    places = [at for at, byte in enumerate(flips.sound) if byte]
    for at in draw.sample(places, RANDOM_FLIPS):
        flips.check(at, draw.randrange(8))
    flips.check_told(RANDOM_FLIPS / 4)


@pytest.mark.parametrize("opening", [ArchiveReader, Archive.open])
def test_a_schema_that_is_no_text_any_more_is_told(
    directory: Path, opening: Callable[[Path], object]
) -> None:
    """SQLite quotes it in its message, which then is no text either."""
    content = (directory / "archive.sqlite").read_bytes()
    for at in range(content.index(b"CREATE TABLE gaps"), content.index(b"noted_ns INTEGER"), 5):
        changed = bytearray(content)
        changed[at] ^= 0x80
        (directory / "archive.sqlite").write_bytes(changed)
        with pytest.raises(ArchiveCorrupt, match=r"archive\.sqlite is damaged"):
            opening(directory)


def test_an_archive_of_the_first_format_is_refused(directory: Path) -> None:
    sql(directory, "PRAGMA user_version = 1")
    for opening in (ArchiveReader, Archive.open):
        with pytest.raises(ArchiveError, match="has format 1, this version reads format 4") as caught:
            opening(directory)
        assert type(caught.value) is ArchiveError
