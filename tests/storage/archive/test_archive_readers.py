"""Readers beside a writer: through sealing and trimming, in other processes and threads, without rights to write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from apart import obey_file_modes, run_apart
from archive_events import facts, kept_events, kept_numbers, make_event, make_events
from archive_killing import WAIT_S, Told, start, wait_killed, wait_told, write
from tidings.core.errors import ArchiveError, ArchiveTrimmed
from tidings.core.events.event import Event
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings, events_of

SETTINGS = ArchiveSettings(segment_rows=1000)


def test_a_range_that_is_sealed_while_it_is_read(tmp_path: Path) -> None:
    with Archive.open(tmp_path, SETTINGS) as archive, ArchiveReader(tmp_path) as reader:
        archive.append(make_events(0, 100), 1)
        batches = reader.read(0, 100, 7)
        events = [event for _ in range(5) for event in events_of(next(batches))]
        archive.seal()
        archive.append(make_events(100, 100), 1)
        events += [event for batch in batches for event in events_of(batch)]
        assert [facts(event) for event in events] == [facts(event) for event in make_events(0, 100)]
        assert kept_numbers(reader) == list(range(200))


class Collected(list[Event]):
    def extend_from(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            self.extend(events_of(batch))


def test_a_range_that_is_trimmed_while_it_is_read(tmp_path: Path) -> None:
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=50)) as archive:
        archive.append(make_events(0, 200), 1)
    with ArchiveReader(tmp_path) as reader:
        batches = reader.read(0, 200, 20)
        events = Collected(events_of(next(batches)))
        with Archive.open(tmp_path, ArchiveSettings(segment_rows=50, retain_bytes=1)) as archive:
            archive.maintain()
            assert archive.bounds() == (200, 200)
            with pytest.raises(
                ArchiveTrimmed, match=r"offset 50 is no longer in archive .*; the first is 200"
            ):
                events.extend_from(batches)
            # the file that was open was read to its end
            assert [event.sequence for event in events] == list(range(50))
            assert reader.offset_at(0) == 200
            assert reader.verify() == []


class Trimming(ArchiveReader):
    """Right after it looked up a segment, that is trimmed."""

    trim: threading.Event | None = None

    def _opened(self, *arguments: object) -> object:  # type: ignore[override]
        if self.trim is not None:
            self.trim = None
            with Archive.open(self.directory, ArchiveSettings(segment_rows=50, retain_bytes=1)) as archive:
                archive.maintain()
        return super()._opened(*arguments)  # type: ignore[arg-type]


def test_a_segment_that_is_trimmed_between_list_and_file(tmp_path: Path) -> None:
    for act in ("read", "offset_at"):
        with Archive.open(tmp_path / act, ArchiveSettings(segment_rows=50)) as archive:
            archive.append(make_events(0, 120), 1)
        with Trimming(tmp_path / act) as reader:
            reader.trim = threading.Event()
            if act == "read":
                with pytest.raises(ArchiveTrimmed, match="the first is 100"):
                    list(reader.read(10, 20))
            else:
                assert reader.offset_at(1) == 100


def test_readers_in_threads_beside_a_writer(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path, ArchiveSettings(segment_rows=64))
    shared = ArchiveReader(tmp_path)
    done = threading.Event()

    def follow(reader: ArchiveReader) -> int:
        position = 0
        while not done.is_set() or position < reader.bounds().end:
            end = reader.bounds().end
            assert [event.sequence for event in kept_events(reader, position, end, 50)] == list(
                range(position, end)
            )
            position = end
        return position

    with ThreadPoolExecutor(3) as pool:
        readers = [shared, shared, ArchiveReader(tmp_path)]
        ends = [pool.submit(follow, reader) for reader in readers]
        try:
            for number in range(0, 1000, 20):
                archive.append(make_events(number, 20), 1)
                shared.commit("follower", number)
        finally:
            done.set()
        assert [end.result(WAIT_S) for end in ends] == [1000] * 3
    archive.close()


def test_a_reader_beside_a_writing_process(tmp_path: Path) -> None:
    told = Told(tmp_path / "told")
    process = start(write, tmp_path / "archive", told.path, "sound", 7, "", 0)
    try:
        wait_told(told, process, 100)
        with ArchiveReader(tmp_path / "archive") as reader:
            for size in (300, 600, 900):
                wait_told(told, process, size)
                done, _ = told.read()
                first, end = reader.bounds()
                assert end >= done
                check_range_or_trimmed(reader, first, end)
    finally:
        process.kill()
    wait_killed(process)


def check_range_or_trimmed(reader: ArchiveReader, first: int, end: int) -> None:
    try:
        assert [event.sequence for event in kept_events(reader, first, end)] == list(range(first, end))
    except ArchiveTrimmed:
        assert reader.bounds().first > first


def read_only(directory: Path, killed: bool) -> None:
    obey_file_modes()
    with ArchiveReader(directory) as reader:
        assert kept_numbers(reader) == list(range(25))
        assert reader.verify() == []
        with pytest.raises(ArchiveError, match=r"archive\.sqlite") as caught:
            reader.commit("me", 3)
        assert "\n" not in str(caught.value)
        with pytest.raises(ArchiveError, match="Permission denied"):
            Archive.open(directory)
        if killed:
            return
        change_modes(directory, 0o755, 0o644)  # a writer comes by, and later goes
        with Archive.open(directory) as archive:
            archive.append([make_event(25)], 1)
            change_modes(directory, 0o555, 0o444)
            assert kept_numbers(reader) == list(range(26))
            change_modes(directory, 0o755, 0o644)
    with ArchiveReader(directory) as reader:
        assert kept_numbers(reader) == list(range(26))


def change_modes(directory: Path, folders: int, files: int) -> None:
    paths = list(directory.rglob("*"))
    for path in paths:
        if path.is_file():
            path.chmod(files)
    for path in (*(path for path in paths if path.is_dir()), directory):
        path.chmod(folders)


@pytest.mark.parametrize("killed", [False, True])
def test_a_directory_that_may_only_be_read(tmp_path: Path, killed: bool) -> None:
    directory = tmp_path / "archive"
    archive = Archive.open(directory, ArchiveSettings(segment_rows=10))
    archive.append(make_events(0, 25), 1)
    if not killed:  # else there is a log, as a kill leaves it
        archive.close()
    change_modes(directory, 0o555, 0o444)
    try:
        run_apart(read_only, directory, killed)
    finally:
        change_modes(directory, 0o755, 0o644)
        archive.close()


def test_columns_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    with Archive.open(tmp_path / "archive", ArchiveSettings(segment_rows=5)) as archive:
        archive.append(make_events(0, 8), 1)
    with ArchiveReader(tmp_path / "archive") as reader:
        whole = pa.Table.from_batches(reader.read(0, 8))
        some = pa.Table.from_batches(reader.read(0, 8, columns=("topic", "sequence")))
        assert some == whole.select(["offset", "sequence", "topic"])
        with pytest.raises(ArchiveError, match="no column 'colour'"):
            reader.read(0, 8, columns=("colour",))
