"""Random work on an archive against a list that does the same: append, seal, trim, commit, gaps, kills, reopenings."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from archive_events import facts, kept_events, make_event
from tidings.core.errors import ArchiveAhead, ArchiveError, ArchiveTrimmed
from tidings.core.events.event import Event
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings

SEEDS = range(6)
STEPS = 40
POINTS = [
    "inserted",
    "appended",
    "writing",
    "written",
    "renamed",
    "listed",
    "sealed",
    "unlisting",
    "unlisted",
    "removed",
]


class Death(BaseException):
    """The writer's process ends here, as far as its files can tell."""


class Mortal(Archive):
    dies_at = ""

    def _reached(self, point: str) -> None:
        if point == self.dies_at:
            raise Death(point)


class Twin:
    """All that an archive should be."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.first = 0
        self.marks: dict[str, int] = {}
        self.consumers: dict[str, int] = {}
        self.gaps: list[tuple[int, str, int | None]] = []


class Work:
    """One archive, its twin, and readers of which some are old."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.directory = directory
        self.twin = Twin()
        self.settings = ArchiveSettings(
            segment_rows=self.draw.choice([7, 30]),
            segment_bytes=self.draw.choice([2_000, 10_000_000]),
            retain_bytes=self.draw.choice([None, 9_000, 30_000]),
        )
        self.archive = Mortal.open(directory, self.settings)
        self.readers = [ArchiveReader(directory)]
        self.id = self.archive.id

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()

    def step(self) -> None:
        acts = [self.append] * 5 + [self.seal, self.maintain, self.commit, self.gap, self.reopen, self.read]
        self.archive.dies_at = self.draw.choice(POINTS) if self.draw.random() < 0.25 else ""
        try:
            self.draw.choice(acts)()
        except Death:
            self.survive()
        self.compare()

    def append(self) -> None:
        count = self.draw.choice([0, 1, 2, 20, 40])
        start = len(self.twin.events)
        events = [make_event(start + number, self.draw.choice([0, 8, 400])) for number in range(count)]
        marks = {self.draw.choice("abc"): self.draw.randrange(1000)} if self.draw.random() < 0.5 else {}
        try:
            assert self.archive.append(events, time.time_ns(), marks=marks) == start
        except Death as death:
            if str(death) == "inserted":  # in the transaction: nothing of it
                raise
            self.note(events, marks)
            raise
        self.note(events, marks)

    def note(self, events: list[Event], marks: dict[str, int]) -> None:
        self.twin.events += events
        self.twin.marks |= marks

    def seal(self) -> None:
        self.archive.seal()

    def maintain(self) -> None:
        self.archive.maintain()

    def commit(self) -> None:
        name, end = self.draw.choice(["x", "y"]), len(self.twin.events)
        offset = self.draw.randint(max(0, end - 60), end)
        self.draw.choice(self.readers).commit(name, offset)
        self.twin.consumers[name] = max(self.twin.consumers.get(name, 0), offset)

    def gap(self) -> None:
        missing = self.draw.choice([None, 3])
        self.archive.note_gap("why", missing)
        self.twin.gaps.append((len(self.twin.events), "why", missing))

    def reopen(self) -> None:
        self.archive.close()
        self.archive = Mortal.open(self.directory, self.settings)

    def survive(self) -> None:
        """What is left when a process dies: its files, without what was not committed."""
        self.compare()
        self.reopen()
        listed = [segment.path.name for segment in self.readers[0].segments()]
        assert sorted(os.listdir(self.directory / "segments")) == listed

    def read(self) -> None:
        if len(self.readers) < 4:
            self.readers.append(ArchiveReader(self.directory))
        end = len(self.twin.events)
        start, stop = sorted(self.draw.randint(0, end + 3) for _ in range(2))
        reader = self.draw.choice(self.readers)
        first = reader.bounds().first
        if start < first or stop > end:
            with pytest.raises(ArchiveTrimmed if start < first else ArchiveAhead):
                reader.read(start, stop)
        else:
            self.compare_range(reader, start, stop)

    def compare(self) -> None:
        reader = self.draw.choice(self.readers)
        first, end = reader.bounds()
        held = min(self.twin.consumers.values(), default=end)
        assert end == len(self.twin.events)
        assert self.twin.first <= first <= (end if held is None else max(held, self.twin.first))
        self.twin.first = first
        self.compare_range(reader, self.draw.choice([first, max(first, end - 40)]), end)
        assert reader.id == self.id
        assert reader.consumers() == self.twin.consumers
        assert [(gap.offset, gap.reason, gap.missing) for gap in reader.gaps()] == self.twin.gaps
        assert self.archive.marks() == self.twin.marks

    def compare_range(self, reader: ArchiveReader, start: int, stop: int) -> None:
        events = kept_events(reader, start, stop, self.draw.choice([1, 10, 1000]))
        assert [facts(event) for event in events] == [facts(event) for event in self.twin.events[start:stop]]

    def end(self) -> None:
        self.archive.dies_at = ""
        self.archive.maintain()
        assert self.readers[0].verify() == []
        self.archive.close()
        for reader in self.readers:
            reader.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_archive_is_a_list_that_is_never_lost(seed: int, tmp_path: Path) -> None:
    work = Work(tmp_path / "archive", seed)
    work.run()
    work.end()


class Forgetful(Mortal):
    """Planted: a batch of 20 loses its last event."""

    def append(self, events, notified_ns, *, marks=None):  # type: ignore[no-untyped-def]
        return super().append(events[:19] if len(events) == 20 else events, notified_ns, marks=marks)


class Hasty(Mortal):
    """Planted: sealed rows leave the tail, and nobody lists them."""

    def _reached(self, point: str) -> None:
        super()._reached(point)
        if point == "listed":
            self._database.execute("DELETE FROM segments WHERE first = (SELECT MAX(first) FROM segments)")


@pytest.mark.parametrize("kind", [Forgetful, Hasty])
def test_a_planted_fault_is_found(kind: type[Mortal], tmp_path: Path) -> None:
    work = Work(tmp_path / "archive", 1)
    work.archive.close()
    work.archive = kind.open(tmp_path / "archive", work.settings)
    work.reopen = lambda: None  # type: ignore[method-assign]
    with pytest.raises((AssertionError, ArchiveError)):
        work.run()
    work.archive.close()
