"""SQLite's log: what a crash left unfinished is dropped, and damage that would take more than that is told."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apart import run_apart
from archive_events import kept_numbers, make_events
from tidings.archive import Archive, ArchiveReader, ArchiveSettings, log_check
from tidings.model.errors import ArchiveCorrupt

HEADER, FRAME_HEADER, PAGE = 32, 24, 4096
FRAME = FRAME_HEADER + PAGE
BATCHES, BATCH = 6, 10
SETTINGS = ArchiveSettings(segment_rows=1000)


class Killed:
    """The files of archives, as a kill leaves them after each batch."""

    def __init__(self, tmp_path: Path, *, starts_over: bool = False) -> None:
        self.directory = tmp_path / "archive"
        archive = Archive.open(tmp_path / "living", SETTINGS)
        self.logs: list[bytes] = []
        self.indexes: list[bytes] = []
        for number in range(BATCHES):
            archive.append(make_events(number * BATCH, BATCH, 800), 1, marks={"batch": number})
            if starts_over and number == BATCHES - 3:
                archive._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self.logs.append((tmp_path / "living" / "archive.sqlite-wal").read_bytes())
            self.indexes.append((tmp_path / "living" / "archive.sqlite-shm").read_bytes())
        shutil.copytree(tmp_path / "living", self.directory)
        self.log_path = self.directory / "archive.sqlite-wal"
        self.index_path = self.directory / "archive.sqlite-shm"
        self.database = (self.directory / "archive.sqlite").read_bytes()
        archive.close()

    def put(self, log: bytes, index: bytes | None) -> None:
        (self.directory / "archive.sqlite").write_bytes(self.database)
        self.log_path.write_bytes(log)
        self.index_path.unlink(missing_ok=True)
        if index is not None:
            self.index_path.write_bytes(index)

    def check_told(self, log: bytes, index: bytes | None, message: str = "") -> str:
        """By every way to open it, and nothing is changed."""
        self.put(log, index)
        for opening in (ArchiveReader, Archive.open):
            with pytest.raises(
                ArchiveCorrupt, match=rf"archive\.sqlite-wal is damaged: .*{message}"
            ) as caught:
                opening(self.directory)
            assert "\n" not in str(caught.value) and "transactions that were acknowledged" in str(
                caught.value
            )
        assert self.log_path.read_bytes() == log
        return str(caught.value)

    def check_holds(self, log: bytes, index: bytes | None, batches: int) -> None:
        self.put(log, index)
        with ArchiveReader(self.directory) as reader:
            assert kept_numbers(reader) == list(range(batches * BATCH))
        with Archive.open(self.directory, SETTINGS) as archive, ArchiveReader(self.directory) as reader:
            assert archive.marks() == {"batch": batches - 1}
            assert archive.append(make_events(batches * BATCH, 1), 1) == batches * BATCH
            assert reader.verify() == []


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return Killed(tmp_path)


def flipped(content: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    return bytes(changed)


def frames(log: bytes) -> int:
    return (len(log) - HEADER) // FRAME


def places(log: bytes, first: int, last: int, draw: random.Random) -> list[int]:
    """In the headers of frames `first` to `last`, counted from 0, and in their pages."""
    starts = [HEADER + FRAME * number for number in range(first, last + 1)]
    heads = [start + draw.randrange(FRAME_HEADER) for start in starts for _ in range(2)]
    return heads + [start + FRAME_HEADER + draw.randrange(PAGE) for start in starts]


def test_any_flipped_bit_is_told(killed: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_check, "CHUNK_FRAMES", 7)
    draw = random.Random(1)
    log, index = killed.logs[-1], killed.indexes[-1]
    for at in (*range(HEADER), *places(log, 0, frames(log) - 1, draw)):
        message = killed.check_told(flipped(log, at, draw.randrange(8)), index)
        number = 1 + (at - HEADER) // FRAME
        assert (f"frame {number} (at byte" if number > 0 else "its header has a wrong checksum") in message
    killed.check_holds(log, index, BATCHES)


def test_it_says_how_many_transactions_are_behind(killed: Killed) -> None:
    before, log = killed.logs[2:4]
    message = rf"frame {frames(before) + 1} \(at byte {len(before)}\) has a wrong checksum.*at least 3\)"
    killed.check_told(flipped(killed.logs[-1], len(before) + 100, 0), killed.indexes[-1], message)
    message = r"frame 1 \(at byte 32\) has a wrong checksum.*at least 4\)"
    killed.check_told(flipped(log, HEADER + 9, 7), killed.indexes[3], message)


def test_a_commit_does_not_take_the_log_either(killed: Killed) -> None:
    reader = ArchiveReader(killed.directory)
    reader.close()
    damaged = flipped(killed.logs[-1], len(killed.logs[1]) + 50, 3)
    killed.put(damaged, killed.indexes[-1])
    with pytest.raises(ArchiveCorrupt, match=r"archive\.sqlite-wal is damaged"):
        reader.commit("me", 3)
    assert killed.log_path.read_bytes() == damaged


def test_frames_of_an_older_log_are_no_matter(tmp_path: Path) -> None:
    killed = Killed(tmp_path, starts_over=True)
    draw = random.Random(2)
    log, index = killed.logs[-1], killed.indexes[-1]
    salts = [log[at + 8 : at + 16] for at in range(HEADER, len(log), FRAME)]
    end = salts.index(next(other for other in salts if other != salts[0]))
    assert 0 < end < frames(log) - 5, "the log did not start over"
    for some_index in (index, None):
        killed.check_holds(log, some_index, BATCHES)
        for at in places(log, end, frames(log) - 1, draw)[::4]:
            killed.check_holds(flipped(log, at, draw.randrange(8)), some_index, BATCHES)
        for at in places(log, 0, end - 1, draw):
            killed.check_told(flipped(log, at, draw.randrange(7)), some_index)


def torn(before: bytes, after: bytes, draw: random.Random) -> list[bytes]:
    """What a kill in the midst of a batch can leave of the log, where the file was that long already or not."""
    old = before + draw.randbytes(len(after) - len(before))
    cuts = [*range(len(before), len(after), FRAME // 2), len(after) - PAGE, len(after) - 1]
    return [after[:cut] for cut in cuts] + [after[:cut] + old[cut:] for cut in cuts]


def test_a_transaction_that_a_kill_cut_off_is_dropped(killed: Killed) -> None:
    """With the last cuts the frame that ends it is there, but for its page."""
    before, after = killed.logs[3:5]
    for log in torn(before, after, random.Random(3)):
        killed.check_holds(log, killed.indexes[3], 4)
    killed.check_holds(after, killed.indexes[3], 5)  # killed before the index was written


def test_after_a_power_cut_the_index_is_older_than_the_log(killed: Killed) -> None:
    before, after = killed.logs[3:5]
    for index in (killed.indexes[1], b"", bytes(32768), killed.indexes[1][:3]):
        for log in torn(before, after, random.Random(4))[::3]:
            killed.check_holds(log, index, 4)
        killed.check_told(flipped(after, len(killed.logs[2]) + 1000, 5), index, "at least 2")


def test_without_an_index_the_last_transaction_is_told_too(killed: Killed) -> None:
    before, after = killed.logs[3:5]
    for at in places(after, frames(before), frames(after) - 1, random.Random(5)):
        if (at - HEADER) % FRAME not in range(4, 8):  # there, nothing may be left of its end
            killed.check_told(flipped(after, at, 6), None, "at least 1")
    for cut in range(len(before), len(after), FRAME // 2):
        killed.check_holds(after[:cut], None, 4)


def test_a_log_that_is_cut_off_is_told(killed: Killed) -> None:
    before, after = killed.logs[3:5]
    killed.check_told(
        before, killed.indexes[4], rf"frame {frames(before) + 1} \(at byte {len(before)}\) is missing"
    )
    killed.check_told(after[:HEADER], killed.indexes[4], "frame 1 .* is missing")


@pytest.mark.parametrize("copy", [0, 1])
def test_one_sound_copy_in_the_index_is_enough(killed: Killed, copy: int) -> None:
    log = flipped(killed.logs[-1], len(killed.logs[-2]) + 200, 1)
    killed.check_told(log, flipped(killed.indexes[-1], 48 * copy + 17, 2))


def test_a_log_without_content(killed: Killed) -> None:
    killed.database = (killed.directory.with_name("living") / "archive.sqlite").read_bytes()
    for log in (b"", bytes(HEADER), bytes(HEADER + 3 * FRAME), killed.logs[0][:HEADER], killed.logs[0][:10]):
        killed.check_holds(log, b"", BATCHES)


def test_the_way_out_that_the_documentation_tells(killed: Killed) -> None:
    message = killed.check_told(flipped(killed.logs[-1], len(killed.logs[2]) + 7, 0), killed.indexes[-1])
    (found,) = re.findall(r"at byte (\d+)", message)
    killed.index_path.unlink()
    os.truncate(killed.log_path, int(found))
    killed.check_holds(killed.log_path.read_bytes(), None, 3)


def summed(order: str, content: bytes, one: int = 0, other: int = 0) -> tuple[int, int]:
    """SQLite's checksum, word by word."""
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + other) & 0xFFFFFFFF
        other = (other + second + one) & 0xFFFFFFFF
    return one, other


def in_order(log: bytes, order: str) -> bytes:
    """The log as a machine with this order of bytes would have written it."""
    start = struct.pack(">I", 0x377F0682 + (order == ">")) + log[4:24]
    sums = summed(order, start)
    result = start + struct.pack(">II", *sums)
    for at in range(HEADER, len(log), FRAME):
        head, page = log[at : at + 16], log[at + FRAME_HEADER : at + FRAME]
        sums = summed(order, head[:8] + page, *sums)
        result += head + struct.pack(">II", *sums) + page
    return result


def test_logs_of_machines_of_both_kinds(killed: Killed) -> None:
    logs = {order: in_order(killed.logs[-1], order) for order in "<>"}
    assert killed.logs[-1] in logs.values()
    for log in logs.values():
        killed.check_holds(log, None, BATCHES)
        killed.check_told(flipped(log, HEADER + 3 * FRAME + 500, 1), None, "frame 4 ")


def read_beside(directory: Path) -> None:
    with ArchiveReader(directory) as reader:
        assert kept_numbers(reader) == list(range(25))
    reader.commit("beside", 5)


def test_a_log_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    """It was replayed when it was opened, and whoever looks at it now may see half of what is written."""
    with Archive.open(tmp_path / "archive", SETTINGS) as archive:
        for number in range(0, 25, 5):
            archive.append(make_events(number, 5), 1)
        log = tmp_path / "archive" / "archive.sqlite-wal"
        with log.open("r+b") as file:
            file.seek(HEADER + 8)
            file.write(bytes(8))  # salts: nobody reads them but who replays the log
        read_beside(tmp_path / "archive")
        if sys.platform == "linux":  # elsewhere another process cannot know
            run_apart(read_beside, tmp_path / "archive")
    read_beside(tmp_path / "archive")


def append_five(directory: Path) -> None:
    with Archive.open(directory, SETTINGS) as archive:
        archive.append(make_events(archive.bounds().end, 5), 1)


def other_reader(directory: Path) -> None:
    ArchiveReader(directory).close()


def a_commit(directory: Path) -> None:
    with ArchiveReader(directory) as reader:
        reader.commit("me", 1)


@pytest.mark.parametrize("act", [other_reader, a_commit])
def test_readers_of_one_process_keep_each_others_locks(tmp_path: Path, act: Callable[[Path], None]) -> None:
    """Without them a writer that ends takes the log away, and the reader reads an old one for ever."""
    append_five(tmp_path / "archive")
    with ArchiveReader(tmp_path / "archive") as reader:
        assert reader.bounds() == (0, 5)
        act(tmp_path / "archive")
        for end in (10, 15):
            run_apart(append_five, tmp_path / "archive")
            assert reader.bounds() == (0, end)
            assert kept_numbers(reader) == list(range(end))


def test_a_log_that_changes_while_it_is_read_is_read_again(
    killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed.put(flipped(killed.logs[-1], HEADER + 5, 1), killed.indexes[-1])
    walk, walks = log_check._walk, []

    def walk_beside_a_writer(*arguments: Any) -> Any:
        walks.append(walk(*arguments))
        killed.log_path.write_bytes(killed.logs[-1])
        return walks[-1]

    monkeypatch.setattr(log_check, "_walk", walk_beside_a_writer)
    log_check.check_log(killed.directory / "archive.sqlite", PAGE)
    assert len(walks) == 2
