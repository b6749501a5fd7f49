"""kill -9 of the writer, at every step and at random moments: what was appended is there, contiguous, once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from archive_events import kept_numbers, make_events
from archive_killing import (
    SETTINGS,
    Told,
    check_after_kill,
    hold,
    make_and_die,
    start,
    wait_killed,
    wait_told,
    write,
)
from tidings.core.errors import ArchiveError
from tidings.storage.archive import Archive, ArchiveReader

POINTS = [
    "inserted", "appended", "writing", "written", "in place", "listed", "sealed", "unlisting", "unlisted", "removed",
]  # fmt: skip
RANDOM_KILLS = 8
MAX_TOLD_BYTES = 500
"""About 25 batches."""


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_loses_and_repeats_nothing(point: str, tmp_path: Path) -> None:
    told = Told(tmp_path / "told")
    for times in (1, 3):
        wait_killed(start(write, tmp_path / "archive", told.path, "sound", times, point, times))
        check_after_kill(tmp_path / "archive", told)
    assert told.read()[0] > 0 or point == "inserted"


def kill_at_random(directory: Path, told: Told, kind: str, draw: random.Random) -> None:
    process = start(write, directory, told.path, kind, draw.randrange(1 << 30), "", 0)
    try:
        wait_told(told, process, told.size() + draw.randrange(MAX_TOLD_BYTES))
        time.sleep(draw.uniform(0, 0.01))
    finally:
        process.kill()
    wait_killed(process)


def test_kills_at_random_moments_lose_and_repeat_nothing(tmp_path: Path) -> None:
    draw = random.Random(1)
    told = Told(tmp_path / "told")
    for _ in range(RANDOM_KILLS):
        kill_at_random(tmp_path / "archive", told, "sound", draw)
        check_after_kill(tmp_path / "archive", told)
    with ArchiveReader(tmp_path / "archive") as reader:
        assert reader.bounds().first > 0, "nothing was ever trimmed"


@pytest.mark.parametrize("kind", ["hasty", "halving"])
def test_a_planted_writer_is_found_out(kind: str, tmp_path: Path) -> None:
    draw = random.Random(2)
    for number in range(40):
        directory = tmp_path / f"archive-{number}"
        told = Told(tmp_path / f"told-{number}")
        kill_at_random(directory, told, kind, draw)
        try:
            check_after_kill(directory, told)
        except AssertionError:
            return
    pytest.fail("no kill showed it")


@pytest.mark.parametrize("step", ["lock_writer", "check_free", "make_database", "_fill", "sync_directory"])
def test_a_kill_while_an_archive_is_made_leaves_none_or_a_whole_one(step: str, tmp_path: Path) -> None:
    wait_killed(start(make_and_die, tmp_path / "archive", step))
    with Archive.open(tmp_path / "archive", SETTINGS) as archive:
        archive.append(make_events(0, 3), 1)
    with ArchiveReader(tmp_path / "archive") as reader:
        assert kept_numbers(reader) == [0, 1, 2]


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    told = Told(tmp_path / "told")
    process = start(hold, tmp_path / "archive", told.path)
    try:
        wait_told(told, process, 0)
        with pytest.raises(ArchiveError, match=r"archive .* is in use by another writer$"):
            Archive.open(tmp_path / "archive")
        with ArchiveReader(tmp_path / "archive") as reader:
            assert reader.bounds() == (0, 0)
    finally:
        process.kill()
    wait_killed(process)
    Archive.open(tmp_path / "archive").close()
