"""SQLite's log: what a crash left unfinished is dropped, and a loss of more than that is told by the commit mark."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from apart import run_apart
from archive_events import kept_numbers, make_events
from tidings.core.errors import ArchiveCorrupt
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings
from tidings.storage.mark import read_mark

HEADER, FRAME_HEADER, PAGE = 32, 24, 4096
FRAME = FRAME_HEADER + PAGE
BATCHES, BATCH = 6, 10
SETTINGS = ArchiveSettings(segment_rows=1000)
NEW = 1
"""The number of the transaction that made the archive."""


class Killed:
    """The files of archives, as a kill leaves them after each batch."""

    def __init__(self, tmp_path: Path, *, starts_over: bool = False) -> None:
        self.directory = tmp_path / "archive"
        archive = Archive.open(tmp_path / "living", SETTINGS)
        self.logs: list[bytes] = []
        self.marks: list[bytes] = []
        for number in range(BATCHES):
            archive.append(make_events(number * BATCH, BATCH, 800), 1, marks={"batch": number})
            if starts_over and number == BATCHES - 3:
                archive._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self.logs.append((tmp_path / "living" / "archive.sqlite-wal").read_bytes())
            self.marks.append((tmp_path / "living" / "archive.lock").read_bytes())
        shutil.copytree(tmp_path / "living", self.directory)
        self.log_path = self.directory / "archive.sqlite-wal"
        self.index_path = self.directory / "archive.sqlite-shm"
        self.mark_path = self.directory / "archive.lock"
        self.index = self.index_path.read_bytes()
        self.database = (self.directory / "archive.sqlite").read_bytes()
        archive.close()

    def put(self, log: bytes | None, mark: bytes | None, *, index: bool = False) -> None:
        (self.directory / "archive.sqlite").write_bytes(self.database)
        for path, content in (
            (self.log_path, log),
            (self.mark_path, mark),
            (self.index_path, self.index if index else None),
        ):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)

    def check_told(
        self, log: bytes | None, mark: bytes, found: int | None = None, *, index: bool = False
    ) -> None:
        """By every way to open it, and nothing is changed. `found`: how many batches there are."""
        self.put(log, mark, index=index)
        for opening in (ArchiveReader, Archive.open):
            with pytest.raises(ArchiveCorrupt, match=r"archive\.sqlite is damaged: it ends with") as caught:
                opening(self.directory)
            message = str(caught.value)
            assert (
                "\n" not in message and f"transaction {read_mark(self.mark_path)} was acknowledged" in message
            )
            assert found is None or f"ends with transaction {NEW + found}, " in message
        assert log is None or self.log_path.read_bytes() == log
        assert (self.directory / "archive.sqlite").read_bytes() == self.database

    def check_holds(self, log: bytes, mark: bytes | None, batches: int, *, index: bool = False) -> None:
        self.put(log, mark, index=index)
        with ArchiveReader(self.directory) as reader:
            assert kept_numbers(reader) == list(range(batches * BATCH))
        with Archive.open(self.directory, SETTINGS) as archive, ArchiveReader(self.directory) as reader:
            assert archive.marks() == ({"batch": batches - 1} if batches else {})
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


def places(first: int, last: int, draw: random.Random) -> list[int]:
    """In the headers of frames `first` to `last`, counted from 0, and in their pages."""
    starts = [HEADER + FRAME * number for number in range(first, last + 1)]
    heads = [start + draw.randrange(FRAME_HEADER) for start in starts for _ in range(2)]
    return heads + [start + FRAME_HEADER + draw.randrange(PAGE) for start in starts]


def test_any_flipped_bit_is_told(killed: Killed) -> None:
    """With SQLite's index beside the log, and without."""
    draw = random.Random(1)
    log, mark = killed.logs[-1], killed.marks[-1]
    for at in (*range(HEADER), *places(0, frames(log) - 1, draw)):
        before = sum(len(earlier) <= at for earlier in killed.logs)
        killed.check_told(flipped(log, at, draw.randrange(8)), mark, before, index=draw.random() < 0.5)
    killed.check_holds(log, mark, BATCHES, index=True)


def test_a_log_that_is_cut_off_or_gone_is_told(killed: Killed) -> None:
    mark, draw = killed.marks[-1], random.Random(2)
    for number, log in enumerate(killed.logs[:-1], 1):
        killed.check_told(log, mark, number, index=draw.random() < 0.5)
        cut = draw.randrange(len(log), len(killed.logs[number]))
        killed.check_told(killed.logs[number][:cut], mark, number)
    for gone in (None, b"", bytes(HEADER), killed.logs[0][:HEADER], killed.logs[0][:10]):
        killed.put(gone, mark)
        with pytest.raises(ArchiveCorrupt, match="transaction 7 was acknowledged"):
            Archive.open(killed.directory)


def test_a_commit_does_not_take_the_log_either(killed: Killed) -> None:
    reader = ArchiveReader(killed.directory)
    reader.close()
    damaged = flipped(killed.logs[-1], len(killed.logs[1]) + 50, 3)
    killed.put(damaged, killed.marks[-1])
    with pytest.raises(ArchiveCorrupt, match="was acknowledged"):
        reader.commit("me", 3)
    assert killed.log_path.read_bytes() == damaged


def test_a_commit_of_a_reader_is_marked_too(killed: Killed) -> None:
    killed.put(killed.logs[-1], killed.marks[-1])
    with ArchiveReader(killed.directory) as reader:
        reader.commit("me", 3)
        log, mark = killed.log_path.read_bytes(), killed.mark_path.read_bytes()
    killed.check_told(killed.logs[-1], mark, BATCHES)
    killed.check_holds(log, mark, BATCHES)


def test_frames_of_an_older_log_are_no_matter(tmp_path: Path) -> None:
    killed = Killed(tmp_path, starts_over=True)
    draw = random.Random(2)
    log, mark = killed.logs[-1], killed.marks[-1]
    salts = [log[at + 8 : at + 16] for at in range(HEADER, len(log), FRAME)]
    end = salts.index(next(other for other in salts if other != salts[0]))
    assert 0 < end < frames(log) - 5, "the log did not start over"
    killed.check_holds(log, mark, BATCHES)
    for at in places(end, frames(log) - 1, draw)[::4]:
        killed.check_holds(flipped(log, at, draw.randrange(8)), mark, BATCHES)
    for at in places(0, end - 1, draw):
        killed.check_told(flipped(log, at, draw.randrange(7)), mark)


def torn(before: bytes, after: bytes, draw: random.Random) -> list[bytes]:
    """What a kill in the midst of a batch can leave of the log, where the file was that long already or not."""
    old = before + draw.randbytes(len(after) - len(before))
    cuts = [*range(len(before), len(after), FRAME // 2), len(after) - PAGE, len(after) - 1]
    return [after[:cut] for cut in cuts] + [after[:cut] + old[cut:] for cut in cuts]


def test_a_transaction_that_a_kill_cut_off_is_dropped(killed: Killed) -> None:
    before, after = killed.logs[3:5]
    for log in torn(before, after, random.Random(3)):
        killed.check_holds(log, killed.marks[3], 4)
    killed.check_holds(after, killed.marks[3], 5)  # killed before the mark was written


def test_a_torn_mark_and_an_old_one_are_harmless(killed: Killed) -> None:
    """A mark is written after its transaction; a power cut leaves an older one, or half of one."""
    log, mark = killed.logs[-1], killed.marks[-1]
    for old in (None, b"", *killed.marks[:-1]):
        killed.check_holds(log, old, BATCHES)
    draw = random.Random(4)
    for at in range(len(mark)):
        if any(mark[at : at + 12]):
            killed.check_holds(log, flipped(mark, at, draw.randrange(8)), BATCHES)
    killed.check_holds(log, mark[:5], BATCHES)


def test_one_sound_slot_of_the_mark_is_enough(killed: Killed) -> None:
    slots = [at for at in range(0, len(killed.marks[-1]), 512) if any(killed.marks[-1][at : at + 12])]
    assert len(slots) == 2
    for at in slots:
        killed.check_told(killed.logs[1], flipped(killed.marks[-1], at, 3), 2)


def test_the_way_out_that_the_documentation_tells(killed: Killed) -> None:
    killed.check_told(flipped(killed.logs[-1], len(killed.logs[2]) + 7, 0), killed.marks[-1], 3)
    killed.mark_path.unlink()
    killed.check_holds(killed.log_path.read_bytes(), None, 3)


def test_a_loss_of_notes_alone_is_told(killed: Killed) -> None:
    """Not only events are acknowledged."""
    killed.put(killed.logs[-1], killed.marks[-1])
    archive = Archive.open(killed.directory, SETTINGS)
    database, log = killed.directory / "archive.sqlite", killed.log_path
    before = database.read_bytes(), log.read_bytes() if log.exists() else None
    archive.note_gap("away")
    mark = killed.mark_path.read_bytes()
    archive.close()
    killed.database = before[0]
    killed.check_told(before[1], mark, BATCHES)


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
