"""No room: `append` keeps all of a batch or nothing and goes on later; sealing is tried again; the tail is bounded."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path

import pytest

from apart import mount_small_disk, run_apart
from archive_events import kept_events, make_event
from archive_killing import Told
from tidings.core.errors import ArchiveError, ArchiveFull
from tidings.core.events.event import Event
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings
from tidings.storage.archive import archive as archive_module

NOISE = random.Random(5).randbytes(1_000_000)
"""What cannot be compressed."""


def noise(number: int, size_bytes: int) -> Event:
    event = make_event(number)
    start = number * size_bytes % (len(NOISE) - size_bytes)
    event.payload = NOISE[start : start + size_bytes]
    return event


def limit_files(size_bytes: int) -> None:
    """Every file of this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))


def lift_limit() -> None:
    limit_files(resource.getrlimit(resource.RLIMIT_FSIZE)[1])


def check_holds(directory: Path, end: int) -> None:
    with ArchiveReader(directory) as reader:
        assert reader.bounds() == (0, end)
        assert [event.sequence for event in kept_events(reader, 0, end)] == list(range(end))
        assert reader.verify() == []


def append_noise(archive: Archive, count: int, size_bytes: int) -> None:
    """Until something stops it."""
    for _ in range(1000):
        end = archive.bounds().end
        batch = [noise(end + number, size_bytes) for number in range(count)]
        assert archive.append(batch, 1, marks={"end": end + count}) == end


def append_with_limit(directory: Path) -> None:
    archive = Archive.open(directory, ArchiveSettings(segment_rows=1_000_000))
    archive.append([make_event(0)], 1, marks={"end": 1})
    limit_files(400_000)
    with pytest.raises(ArchiveFull, match=r"archive\.sqlite: no room to write"):
        append_noise(archive, 2, 20_000)
    end = archive.bounds().end
    assert 3 <= end < 101 and archive.marks() == {"end": end}
    for _ in range(3):
        with pytest.raises(ArchiveFull):
            archive.append([noise(end + number, 20_000) for number in range(30)], 1, marks={"end": 0})
    assert archive.bounds() == (0, end) and archive.marks() == {"end": end}
    lift_limit()
    check_holds(directory, end)
    assert archive.append([noise(end, 20_000)], 1) == end
    archive.seal()
    check_holds(directory, end + 1)
    archive.close()


def test_a_full_disk_keeps_nothing_of_a_batch(tmp_path: Path) -> None:
    run_apart(append_with_limit, tmp_path / "archive")


def seal_with_limit(directory: Path) -> None:
    archive_module.RETRY_S = 0.0
    settings = ArchiveSettings(segment_rows=10, max_tail_rows=16)
    with Archive.open(directory, ArchiveSettings(segment_rows=1000)) as archive:
        archive.append([noise(number, 50_000) for number in range(8)], 1)
    archive = Archive.open(directory, settings)
    limit_files(200_000)  # the log starts over: small batches fit, a segment does not
    for end in range(8, 16):
        assert archive.append([make_event(end)], 1) == end
        assert ("File too large" in archive.trouble) == (end >= 9)
    with pytest.raises(
        ArchiveFull, match=r"16 events wait to be sealed, but sealing fails: .*File too large"
    ):
        archive.append([make_event(16)], 1)
    with pytest.raises(ArchiveFull, match="File too large"):
        archive.seal()
    with pytest.raises(ArchiveFull, match="File too large"):
        archive.maintain()
    assert os.listdir(directory / "segments") == []
    lift_limit()
    check_holds(directory, 16)
    assert archive.append([make_event(16)], 1) == 16
    archive.maintain()
    assert archive.trouble == ""
    assert len(os.listdir(directory / "segments")) == 1
    check_holds(directory, 17)


def test_while_sealing_fails_the_tail_takes_more_up_to_its_bound(tmp_path: Path) -> None:
    run_apart(seal_with_limit, tmp_path / "archive")


class FullAt(Archive):
    """There is no room from a point on."""

    point = ""

    def _reached(self, point: str) -> None:
        if point == self.point:
            limit_files(1)


def list_with_limit(directory: Path, told: Path) -> None:
    archive = FullAt.open(directory, ArchiveSettings(segment_rows=10))
    archive.append([make_event(number) for number in range(9)], 1)
    archive.point = "listed"
    with pytest.raises(ArchiveFull):
        archive.seal()
    lift_limit()
    assert os.listdir(directory / "segments") == []
    check_holds(directory, 9)
    archive.point = ""
    archive.seal()
    assert len(os.listdir(directory / "segments")) == 1
    check_holds(directory, 9)
    archive.point = "inserted"
    with pytest.raises(ArchiveFull):
        archive.append([make_event(9)], 1)
    archive.point = ""
    with pytest.raises(ArchiveFull):
        archive.note_gap("there is no room for this either")
    lift_limit()
    assert archive.gaps() == [] and archive.append([make_event(9)], 1) == 9
    check_holds(directory, 10)
    Told(told).tell(True, 10)


def test_a_transaction_that_finds_no_room_leaves_everything_as_it_was(tmp_path: Path) -> None:
    run_apart(list_with_limit, tmp_path / "archive", tmp_path / "told")
    assert Told(tmp_path / "told").read() == (10, 10)


def fill_disk(directory: Path) -> None:
    directory.mkdir()
    mount_small_disk(directory, 4_000_000)
    archive_module.RETRY_S = 0.0
    archive = Archive.open(directory / "archive", ArchiveSettings(segment_rows=20))
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(1_500_000))
    with pytest.raises(ArchiveFull):
        append_noise(archive, 5, 10_000)
    end = archive.bounds().end
    check_holds(directory / "archive", end)
    with pytest.raises(ArchiveFull):
        archive.append([noise(end + number, 10_000) for number in range(200)], 1)
    ballast.unlink()
    assert archive.append([noise(end, 10_000)], 1) == end
    archive.seal()
    archive.close()
    check_holds(directory / "archive", end + 1)
    Archive.open(directory / "archive").close()


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    run_apart(fill_disk, tmp_path / "disk")


def make_without_room(directory: Path) -> None:
    limit_files(1000)
    with pytest.raises(ArchiveFull):
        Archive.open(directory)
    lift_limit()
    with Archive.open(directory) as archive:
        archive.append([make_event(0)], 1)
    check_holds(directory, 1)


def test_an_archive_that_there_was_no_room_to_make(tmp_path: Path) -> None:
    run_apart(make_without_room, tmp_path / "archive")


def test_sealing_that_fails_for_another_reason_is_tried_again(tmp_path: Path) -> None:
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=2)) as archive:
        (tmp_path / "segments" / ".sealing").mkdir()
        assert archive.append([make_event(0), make_event(1)], 1) == 0
        assert "Is a directory" in archive.trouble
        with pytest.raises(ArchiveError, match="Is a directory"):
            archive.maintain()
        (tmp_path / "segments" / ".sealing").rmdir()
        assert archive.append([make_event(2)], 1) == 2
        assert archive.trouble, "it is not tried again at once"
        archive.maintain()
        assert archive.trouble == ""
    check_holds(tmp_path, 3)
