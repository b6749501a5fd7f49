"""Appending, numbering, marks, gaps, times, consumers; and one clear line for a directory that is no archive."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from archive_events import START_NS, kept_numbers, make_event, make_events
from tidings.core.errors import ArchiveAhead, ArchiveCorrupt, ArchiveError, ArchiveTrimmed
from tidings.core.events.event import Event
from tidings.storage.archive import Archive, ArchiveGap, ArchiveReader, ArchiveSettings
from tidings.storage.archive import archive as archive_module
from tidings.storage.archive import reader as reader_module

SMALL = ArchiveSettings(segment_rows=10)


def test_offsets_are_contiguous_through_reopenings(tmp_path: Path) -> None:
    with Archive.open(tmp_path, SMALL) as archive:
        assert len(archive.id) == 32 and int(archive.id, 16) >= 0
        assert archive.bounds() == (0, 0)
        assert archive.append(make_events(0, 7), 1) == 0
        assert archive.append([], 1) == 7
        assert archive.append(make_events(7, 16), 2) == 7
        identity = archive.id
    with Archive.open(tmp_path, SMALL, create=False) as archive:
        assert archive.id == identity
        assert archive.append([make_event(23)], 3) == 23
    with ArchiveReader(tmp_path) as reader:
        assert reader.id == identity
        assert [(segment.first, segment.last, segment.rows) for segment in reader.segments()] == [
            (0, 9, 10),
            (10, 19, 10),
        ]
        assert kept_numbers(reader) == list(range(24))
        assert [segment.last_notified_ns for segment in reader.segments()] == [2, 2]
        assert [segment.max_published_ns - START_NS for segment in reader.segments()] == [9, 19]
        assert all(segment.path.stat().st_size == segment.size_bytes for segment in reader.segments())


def test_every_range_in_every_size_of_batches(tmp_path: Path) -> None:
    with Archive.open(tmp_path, SMALL) as archive:
        archive.append(make_events(0, 25), 1)
        with ArchiveReader(tmp_path) as reader:
            for start in range(26):
                for stop in range(start, 26, 3):
                    offsets = [
                        offset
                        for batch in reader.read(start, stop, 4)
                        for offset in batch.column("offset").to_pylist()
                    ]
                    assert offsets == list(range(start, stop))


def test_offsets_that_are_not_there(tmp_path: Path) -> None:
    with Archive.open(tmp_path, SMALL) as archive, ArchiveReader(tmp_path) as reader:
        archive.append(make_events(0, 5), 1)
        with pytest.raises(ArchiveAhead, match=r"offset 5 does not exist yet; archive .* ends at 5"):
            reader.read(0, 6)
        for start, stop, rows in ((-1, 3, 1), (3, 2, 1), (0, 3, 0)):
            with pytest.raises(ArchiveError, match="cannot read offsets"):
                reader.read(start, stop, rows)


def test_marks_are_written_with_their_events(tmp_path: Path) -> None:
    with Archive.open(tmp_path) as archive:
        archive.append(make_events(0, 2), 1, marks={"a": 1, "b": -(2**63)})
        archive.append([], 1, marks={"a": 2**63 - 1, "c": 5})
        archive.append([], 1, marks={"c": None, "d": None})
        for bad in ({"": 1}, {"a": 2**63}, {"a": "1"}, {"\ud800": 1}, {"x" * 2000: 1}):
            with pytest.raises(ArchiveError):
                archive.append(make_events(2, 1), 1, marks=bad)  # type: ignore[arg-type]
        assert archive.bounds() == (0, 2)
    with Archive.open(tmp_path) as archive:
        assert archive.marks() == {"a": 2**63 - 1, "b": -(2**63)}


def test_gaps_are_kept_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_GAPS", 3)
    with Archive.open(tmp_path, clock=lambda: 42) as archive:
        archive.note_gap("the broker was gone")
        archive.append(make_events(0, 4), 1)
        archive.note_gap("full \ud800", 7)
        with pytest.raises(ArchiveError, match="missing events, not -1"):
            archive.note_gap("no", -1)
    with Archive.open(tmp_path, clock=lambda: 42) as archive:
        archive.note_gap("x" * 5000, 1)
        archive.append(make_events(4, 1), 1)
        archive.note_gap("more", 2)
        expected = [
            ArchiveGap(0, 42, "the broker was gone", None),
            ArchiveGap(4, 42, "full ?", 7),
            ArchiveGap(5, 42, "more", 3),
        ]
        assert archive.gaps() == expected
    with ArchiveReader(tmp_path) as reader:
        assert reader.gaps() == expected


def test_the_first_offset_of_a_time(tmp_path: Path) -> None:
    times = [50, 10, 60, 60, 20, 70, 5, 80, 90, 30, 65, 95, 100, 1, 97]
    events = [Event("s", 0, number, "/t", time, {}, b"") for number, time in enumerate(times)]
    with (
        Archive.open(tmp_path, ArchiveSettings(segment_rows=4)) as archive,
        ArchiveReader(tmp_path) as reader,
    ):
        assert reader.offset_at(0) == 0
        archive.append(events, 1)
        assert len(reader.segments()) == 3
        for wanted in range(103):
            late = [offset for offset, time in enumerate(times) if time >= wanted]
            assert reader.offset_at(wanted) == (late[0] if late else len(times))


def test_consumers_never_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_CONSUMERS", 2)
    with Archive.open(tmp_path, SMALL) as archive, ArchiveReader(tmp_path) as reader:
        archive.append(make_events(0, 15), 1)
        reader.commit("a", 7)
        reader.commit("a", 3)
        reader.commit("ü", 15)
        assert reader.consumers() == {"a": 7, "ü": 15}
        with pytest.raises(ArchiveAhead, match="ends at 15"):
            reader.commit("a", 16)
        with pytest.raises(ArchiveError, match="has 2 consumers, the limit is 2"):
            reader.commit("c", 1)
        for name, offset in (("", 1), ("x" * 2000, 1), ("\ud800", 1), ("a", -1)):
            with pytest.raises(ArchiveError):
                reader.commit(name, offset)
        assert reader.consumers() == {"a": 7, "ü": 15}


def test_a_closed_archive_says_so(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path)
    reader = ArchiveReader(tmp_path)
    archive.close()
    archive.close()
    reader.close()
    for act in (archive.bounds, archive.seal, archive.maintain, reader.bounds, lambda: reader.read(0, 0)):
        with pytest.raises(ArchiveError, match="is closed"):
            act()
    with pytest.raises(ArchiveError, match="is closed"):
        archive.append([make_event(0)], 1)


@pytest.mark.parametrize(
    "field", ["segment_rows", "segment_bytes", "retain_s", "retain_bytes", "max_tail_rows"]
)
def test_settings_are_positive(field: str) -> None:
    for value in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ArchiveError, match=f"{field} must be a positive number"):
            ArchiveSettings(**{field: value})


def _sealed_archive(directory: Path) -> None:
    with Archive.open(directory, SMALL) as archive:
        archive.append(make_events(0, 25), 1)


def _newer(directory: Path) -> None:
    _sealed_archive(directory)
    with sqlite3.connect(directory / "archive.sqlite") as connection:
        connection.execute("PRAGMA user_version = 5")
    connection.close()


def _spoil(offset: int, content: bytes) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        _sealed_archive(directory)
        with (directory / "archive.sqlite").open("r+b") as file:
            file.seek(offset)
            file.write(content)

    return spoil


def _truncate(size: int) -> Callable[[Path], None]:
    def truncate(directory: Path) -> None:
        _sealed_archive(directory)
        os.truncate(directory / "archive.sqlite", size)

    return truncate


def _other_tables(directory: Path) -> None:
    _sealed_archive(directory)
    with sqlite3.connect(directory / "archive.sqlite") as connection:
        connection.execute("DROP TABLE gaps")
    connection.close()


def _no_database(directory: Path) -> None:
    _sealed_archive(directory)
    (directory / "archive.sqlite").unlink()


def _no_segments(directory: Path) -> None:
    _sealed_archive(directory)
    shutil.rmtree(directory / "segments")


def _foreign_files(directory: Path) -> None:
    directory.mkdir()
    (directory / "holiday.jpg").touch()


BAD_DIRECTORIES: dict[str, tuple[Callable[[Path], object], type[ArchiveError], str]] = {
    "a file": (Path.touch, ArchiveError, "File exists|not a directory|Not a directory"),
    "other files": (_foreign_files, ArchiveError, "is not an archive"),
    "a newer archive": (_newer, ArchiveError, "has format 5, this version reads format 4"),
    "another database": (_spoil(68, b"\0\0\0\1"), ArchiveCorrupt, "it is not an archive"),
    "no database at all": (_spoil(0, b"hello"), ArchiveCorrupt, "it is not an archive"),
    "an empty database": (_truncate(0), ArchiveCorrupt, "ends after 0 bytes"),
    "half a database": (_truncate(4096), ArchiveCorrupt, "damaged"),
    "a damaged database": (_spoil(100, bytes(4000)), ArchiveCorrupt, "damaged"),
    "other tables": (_other_tables, ArchiveCorrupt, "its tables are not those of an archive"),
    "a database that is gone": (_no_database, ArchiveCorrupt, "is missing, but .* has segments"),
}


@pytest.mark.parametrize("name", BAD_DIRECTORIES)
def test_a_directory_that_cannot_be_used_gets_one_clear_line(name: str, tmp_path: Path) -> None:
    make, kind, message = BAD_DIRECTORIES[name]
    make(tmp_path / "archive")
    for opening in (Archive.open, ArchiveReader):
        with pytest.raises(ArchiveError, match=message) as caught:
            opening(tmp_path / "archive")
        assert type(caught.value) is kind
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_segments_and_missing_directories(tmp_path: Path) -> None:
    _no_segments(tmp_path / "archive")
    with pytest.raises(ArchiveCorrupt, match="segments is missing"):
        Archive.open(tmp_path / "archive")
    for opening in (lambda path: Archive.open(path, create=False), ArchiveReader):
        with pytest.raises(ArchiveError, match=r"there is no archive .*: no such directory"):
            opening(tmp_path / "nothing")
        assert not (tmp_path / "nothing").exists()
    (tmp_path / "empty").mkdir()
    for opening in (lambda path: Archive.open(path, create=False), ArchiveReader):
        with pytest.raises(ArchiveError, match=r"is not an archive: it has no archive\.sqlite"):
            opening(tmp_path / "empty")


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with Archive.open(tmp_path), pytest.raises(ArchiveError, match="in use by another writer"):
        Archive.open(tmp_path)
    Archive.open(tmp_path).close()


def test_trimmed_offsets_are_told_with_the_first_that_is_kept(tmp_path: Path) -> None:
    settings = ArchiveSettings(segment_rows=10, retain_bytes=1)
    with Archive.open(tmp_path, settings) as archive, ArchiveReader(tmp_path) as reader:
        archive.append(make_events(0, 25), 1)
        assert reader.bounds() == (20, 25)
        with pytest.raises(ArchiveTrimmed, match=r"offset 19 is no longer in archive .*; the first is 20"):
            reader.read(19, 25)
        assert kept_numbers(reader) == list(range(20, 25))
