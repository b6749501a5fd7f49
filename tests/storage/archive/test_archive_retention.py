"""Retention: by age, by size, from the front, in whole segments, and never what a consumer still needs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from archive_events import SECOND_NS, START_NS, kept_numbers, make_events
from tidings.core.errors import ArchiveError, ArchiveTrimmed
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings, Segment
from tidings.storage.archive.retention import count_removable
from tidings.storage.archive.upkeep import TRIM_SEGMENTS


class Clock:
    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns

    def go(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)


def segment(first: int, last: int, notified_s: float, size_bytes: int) -> Segment:
    return Segment(
        first, last, Path("x"), last - first + 1, size_bytes, 0, int(notified_s * SECOND_NS), 0, ""
    )


SEGMENTS = [segment(0, 9, 10, 100), segment(10, 19, 20, 200), segment(20, 29, 30, 300)]
TABLE = [
    # retain_s, retain_bytes, now_s, tail_bytes, held_from, removed
    (None, None, 1000, 0, None, 0),
    (5, None, 15, 0, None, 0),
    (5, None, 15.5, 0, None, 1),
    (5, None, 26, 0, None, 2),
    (5, None, 99, 0, None, 3),
    (5, None, 99, 0, 0, 0),
    (5, None, 99, 0, 9, 0),
    (5, None, 99, 0, 10, 1),
    (5, None, 99, 0, 25, 2),
    (5, None, 99, 0, 30, 3),
    (None, 600, 0, 0, None, 0),
    (None, 599, 0, 0, None, 1),
    (None, 600, 0, 1, None, 1),
    (None, 499, 0, 0, None, 2),
    (None, 1, 0, 0, None, 3),
    (None, 1, 0, 0, 10, 1),
    (5, 499, 15.5, 0, None, 2),
]


@pytest.mark.parametrize(("retain_s", "retain_bytes", "now_s", "tail_bytes", "held_from", "removed"), TABLE)
def test_which_segments_go(
    retain_s: float | None,
    retain_bytes: int | None,
    now_s: float,
    tail_bytes: int,
    held_from: int | None,
    removed: int,
) -> None:
    settings = ArchiveSettings(retain_s=retain_s, retain_bytes=retain_bytes)
    now_ns = int(now_s * SECOND_NS)
    assert removed == count_removable(
        SEGMENTS, settings, now_ns=now_ns, size_bytes=600 + tail_bytes, held_from=held_from
    )


def files(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "segments"))


def test_by_age(tmp_path: Path) -> None:
    clock = Clock()
    settings = ArchiveSettings(segment_rows=10, retain_s=100)
    with Archive.open(tmp_path, settings, clock=clock) as archive, ArchiveReader(tmp_path) as reader:
        for number in range(5):
            archive.append(make_events(number * 10, 10), clock.now_ns)
            clock.go(30)
        assert reader.bounds() == (10, 50)  # the last sealing found the first segment 120 s old
        archive.maintain()
        assert reader.bounds() == (20, 50)
        assert files(tmp_path) == [segment.path.name for segment in reader.segments()]
        with pytest.raises(ArchiveTrimmed, match="the first is 20"):
            reader.read(0, 50)
        assert kept_numbers(reader) == list(range(20, 50))
        clock.go(1000)
        archive.maintain()
        assert reader.bounds() == (50, 50) and files(tmp_path) == []
        assert archive.append(make_events(50, 3), clock.now_ns) == 50
    with Archive.open(tmp_path, settings, clock=clock) as archive, ArchiveReader(tmp_path) as reader:
        assert reader.bounds() == (50, 53) and kept_numbers(reader) == [50, 51, 52]


def test_a_slow_archive_seals_by_age_what_retention_is_to_remove(tmp_path: Path) -> None:
    clock = Clock()
    with Archive.open(tmp_path, ArchiveSettings(retain_s=100), clock=clock) as archive:
        archive.append(make_events(0, 3), clock.now_ns)
        clock.go(90)
        archive.append(make_events(3, 3), clock.now_ns)
        archive.maintain()
        assert files(tmp_path) == []
        clock.go(11)
        archive.maintain()
        assert archive.bounds() == (0, 6) and len(files(tmp_path)) == 1
        clock.go(90)
        archive.maintain()
        assert archive.bounds() == (6, 6) and files(tmp_path) == []


def test_by_size(tmp_path: Path) -> None:
    with (
        Archive.open(tmp_path, ArchiveSettings(segment_rows=10)) as archive,
        ArchiveReader(tmp_path) as reader,
    ):
        archive.append(make_events(0, 40), 1)
        sizes = [segment.size_bytes for segment in reader.segments()]
    settings = ArchiveSettings(segment_rows=10, retain_bytes=sum(sizes[2:]))
    with Archive.open(tmp_path, settings) as archive:
        archive.maintain()
        assert archive.bounds() == (20, 40)
        assert len(files(tmp_path)) == 2


def test_many_segments_at_once(tmp_path: Path) -> None:
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=1)) as archive:
        archive.append(make_events(0, 2 * TRIM_SEGMENTS + 3), 1)
        assert len(files(tmp_path)) == 2 * TRIM_SEGMENTS + 3
    with Archive.open(tmp_path, ArchiveSettings(retain_bytes=1)) as archive:
        archive.maintain()
        assert files(tmp_path) == [] and archive.bounds().first == 2 * TRIM_SEGMENTS + 3


def test_consumers_hold_what_they_need_until_they_expire(tmp_path: Path) -> None:
    settings = ArchiveSettings(segment_rows=10, retain_bytes=1, consumer_expiry_s=3600)
    clock = Clock()
    with Archive.open(tmp_path, settings, clock=clock) as archive, ArchiveReader(tmp_path) as reader:
        archive.append(make_events(0, 5), 1)
        reader.commit("slow", 0)
        reader.commit("fast", 5)
        clock.now_ns = time.time_ns()  # a commit has the time of the machine
        archive.append(make_events(5, 45), 1)
        assert archive.bounds() == (0, 50)
        reader.commit("fast", 50)
        reader.commit("slow", 25)
        archive.maintain()
        assert archive.bounds() == (20, 50)
        clock.go(3000)
        archive.maintain()
        assert archive.bounds() == (20, 50) and reader.consumers() == {"fast": 50, "slow": 25}
        clock.go(1000)
        archive.maintain()
        assert archive.bounds() == (50, 50) and reader.consumers() == {}


def test_a_file_that_cannot_be_removed_is_tried_again(tmp_path: Path) -> None:
    settings = ArchiveSettings(segment_rows=10, retain_bytes=1)
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=10)) as archive:
        archive.append(make_events(0, 20), 1)
    with Archive.open(tmp_path, settings) as archive:
        stuck = tmp_path / "segments" / files(tmp_path)[0]
        stuck.unlink()
        stuck.mkdir()
        with pytest.raises(ArchiveError, match="Is a directory"):
            archive.maintain()
        assert archive.bounds() == (20, 20) and archive.trouble
        stuck.rmdir()
        stuck.touch()
        archive.maintain()
        assert files(tmp_path) == [] and not archive.trouble
