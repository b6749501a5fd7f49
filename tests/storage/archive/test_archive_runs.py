"""An archive written with runs, cut anywhere, is the archive that is written event by event: rows, files, bounds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from breadth import few
from tidings.core.errors import ArchiveError, WireError
from tidings.core.events.event import INT_MAX, Event
from tidings.core.events.position import OrderPosition
from tidings.core.events.run import MAX_RUN_BYTES, Arrival, RunMaker
from tidings.core.filters.language.predicates import Scalar
from tidings.storage.archive import SCHEMA, Archive, ArchiveReader, ArchiveSettings, listing, packing
from tidings.storage.archive import archive as archive_module
from tidings.storage.archive import upkeep as upkeep_module
from tidings.storage.archive.rows import Rows

STEPS = 40
POINTS = [
    "inserted",
    "appended",
    "writing",
    "written",
    "in place",
    "listed",
    "sealed",
    "unlisting",
    "unlisted",
]
SECOND_NS = 1_000_000_000


class Death(BaseException):
    """The writer's process ends here, as far as its files can tell."""


class Mortal(Archive):
    dies_at = ""

    def _reached(self, point: str) -> None:
        if point == self.dies_at:
            raise Death(point)


def fail(error: WireError) -> None:
    raise AssertionError(error)


class Places(NamedTuple):
    """Consecutive numbers of an order, from that of sequence `first` on."""

    first: int
    number: int

    def of(self, sequence: int) -> OrderPosition:
        after = {"/o": self.number // 200, "/p": 4}
        return OrderPosition(topic="/x", number=self.number + sequence - self.first, after=after)


class Sources:
    """Events of a few sources, some late, some with an order."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.makers = [RunMaker("a", 0), RunMaker("b", 3), RunMaker("b", 4)]
        self.sequences = [1, 1, 1]
        self.number = 0

    def next(self) -> tuple[list[Event | Arrival], list[Event]]:
        """As they come, in runs that are cut anywhere or alone; and one by one."""
        whole = self.run()
        events = [event for arrival in whole for event in arrival.events(fail) if event is not None]
        if self.draw.random() < 0.2:
            return list(events), events
        return [part for arrival in whole for part in self.cut(arrival)], events

    def run(self) -> list[Arrival]:
        which, late = self.draw.randrange(3), self.draw.random() < 0.2
        maker, count = self.makers[which], self.draw.choice([1, 1, 2, 5, 40])
        places = self.places(self.sequences[which], count) if self.draw.random() < 0.3 else None
        for _ in range(count):
            topic = self.draw.choice(["/x", "/x", "/y/é"])
            maker.add(
                self.sequences[which], topic, self.attributes(), self.payload(), self.draw.randrange(99)
            )
            self.sequences[which] += 1
        return [Arrival(made, late, places) for made in maker.take_all()]

    def places(self, first: int, count: int) -> Places:
        """Often those behind the last ones."""
        number = self.number + self.draw.choice([1, 1, 7])
        self.number = number + count - 1
        return Places(first, number)

    def cut(self, arrival: Arrival) -> Iterator[Arrival]:
        while arrival.count > 1 and self.draw.random() < 0.6:
            part, arrival = arrival.split(self.draw.randrange(1, arrival.count))
            yield part
        yield arrival

    def attributes(self) -> dict[str, Scalar]:
        values: list[Scalar] = [None, True, 7, -0.5, "text", "1", "topic", float("nan"), 2**63 - 1]
        names = self.draw.sample(["a", "b", "topics", "c~", "ü"], self.draw.randrange(4))
        found = {name: self.draw.choice(values) for name in names}
        return found | {"bytes": b"\0"} if self.draw.random() < 0.02 else found

    def payload(self) -> bytes:
        return bytes(self.draw.choice([0, 8, 8, 300, 9_000]))


class Pair:
    """The same events in two archives, both with the same sealing and retention."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.sources = Sources(self.draw)
        self.now_ns = 1_000 * SECOND_NS
        rows, retain_s = self.draw.choice([7, 50, 300]), self.draw.choice([None, 20.0])
        self.settings = ArchiveSettings(segment_rows=rows, retain_s=retain_s)
        self.places = directory / "runs", directory / "apart"
        self.runs = Mortal.open(self.places[0], self.settings, clock=self.clock)
        self.apart = Archive.open(self.places[1], self.settings, clock=self.clock)
        self.apart._database.execute("PRAGMA synchronous = OFF")  # it is never killed
        self.readers = [ArchiveReader(place) for place in self.places]

    def clock(self) -> int:
        return self.now_ns

    def run(self) -> None:
        for _ in range(STEPS):
            self.now_ns += self.draw.choice([0, 1, 9]) * SECOND_NS
            self.draw.choice([self.append, self.append, self.append, self.seal, self.maintain, self.gap])()
            self.compare()

    def append(self) -> None:
        drawn = [self.sources.next() for _ in range(self.draw.randrange(4))]
        came = [one for some, _ in drawn for one in some]
        marks = {"m": self.draw.randrange(9)}
        self.runs.dies_at = self.draw.choice(POINTS) if self.draw.random() < 0.3 else ""
        try:
            self.runs.append(came, self.now_ns, marks=marks)
        except Death as death:
            self.reopen()
            if str(death) == "inserted":
                return
        self.runs.dies_at = ""
        for event in [event for _, events in drawn for event in events]:
            self.apart.append([event], self.now_ns)
        self.apart.append([], self.now_ns, marks=marks)
        self.maintain()

    def reopen(self) -> None:
        self.runs.close()
        self.runs = Mortal.open(self.places[0], self.settings, clock=self.clock)

    def seal(self) -> None:
        for archive in (self.runs, self.apart):
            archive.seal()

    def maintain(self) -> None:
        for archive in (self.runs, self.apart):
            archive.maintain()

    def gap(self) -> None:
        for archive in (self.runs, self.apart):
            archive.note_gap("why", 3)

    def compare(self) -> None:
        runs, apart = self.readers
        first, end = bounds = apart.bounds()
        assert runs.bounds() == bounds
        assert runs.gaps() == apart.gaps()
        assert self.runs.marks() == self.apart.marks()
        files = [[(file.first, file.last, file.sha256) for file in each.segments()] for each in self.readers]
        assert files[0] == files[1]
        for low, high in [(first, end), sorted(self.draw.randint(first, end) for _ in range(2))]:
            batch_rows = self.draw.choice([3, 1_000]) if high - low < 50 else 16_384
            tables = [
                pa.Table.from_batches(each.read(low, high, batch_rows), SCHEMA) for each in self.readers
            ]
            assert tables[0].num_rows == high - low and tables[0].equals(tables[1])
        when = self.draw.randrange(99)
        assert runs.offset_at(when) == apart.offset_at(when)

    def end(self) -> None:
        self.reopen()
        self.compare()
        assert self.readers[0].verify() == []

    def close(self) -> None:
        for opened in (self.runs, self.apart, *self.readers):
            opened.close()


@pytest.mark.parametrize("seed", few(range(30), 6))
def test_runs_cut_anywhere_become_the_rows_of_their_events(seed: int, tmp_path: Path) -> None:
    with closing(Pair(tmp_path, seed)) as pair:
        pair.run()
        pair.end()


def _unplaced(split):  # type: ignore[no-untyped-def]
    return lambda self, count: tuple(Arrival(part.stretch, part.late) for part in split(self, count))


def _drop_one(split):  # type: ignore[no-untyped-def]
    def planted(self: Arrival, count: int) -> tuple[Arrival, Arrival]:
        part, rest = split(self, count)
        return part, (rest.split(1)[1] if rest.count > 1 else rest)

    return planted


PLANTED = {
    "the row that is partly sealed goes": (
        upkeep_module, "drop_sealed",
        lambda _: lambda database, end: database.execute("DELETE FROM tail WHERE offset < ?", end),
    ),
    "rows that are sealed stay": (upkeep_module, "drop_sealed", lambda _: lambda database, end: None),
    "a row's order is that of each event": (
        packing.TailRow, "orders", lambda _: lambda self: [self.order] * self.count,
    ),
    "how a row's first event came holds for all": (
        packing._Packer, "_continues", lambda _: lambda self, late, order: True,
    ),
    "reading begins where a row begins": (
        listing, "Rows", lambda _: lambda parts, skip, limit: Rows(parts, 0, limit),
    ),
    "a row has one event": (
        archive_module, "accumulate",
        lambda real: lambda counts, initial: real((min(count, 1) for count in counts), initial=initial),
    ),
    "the event behind a cut is lost": (Arrival, "split", _drop_one),
    "parts of a run have no places": (Arrival, "split", _unplaced),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, plant = PLANTED[name]
    monkeypatch.setattr(place, attribute, plant(getattr(place, attribute)))
    with pytest.raises((AssertionError, ArchiveError)):  # noqa: PT012 - one of the seeds shows it
        for seed in range(6):
            with closing(Pair(tmp_path / str(seed), seed)) as pair:
                pair.run()
                pair.end()


def test_a_run_is_one_row_and_a_long_one_not_copied_into_many(tmp_path: Path) -> None:
    maker = RunMaker("a", 0)
    for sequence in range(1, 1_001):
        maker.add(sequence, "/x", {"n": sequence}, bytes(128), 5)
    runs = maker.take_all()
    rows = packing.pack(map(Arrival, runs), 1)
    assert len(rows) == len(runs) and sum(row.count for row in rows) == 1_000
    assert all(len(row.value) < MAX_RUN_BYTES + 100 for row in rows)
    singles = packing.pack([event for run in runs for event in Arrival(run).events(fail)], 1)
    assert sum(row.count for row in singles) == 1_000
    assert all(len(row.value) <= packing.ROW_BYTES + 100 for row in singles)
    assert len(singles) <= len(runs)


def test_places_that_end_within_a_run_are_refused(tmp_path: Path) -> None:
    maker = RunMaker("a", 0)
    for sequence in (1, 2, 3):
        maker.add(sequence, "/x", {}, b"", 5)
    (run,) = maker.take_all()
    with Archive.open(tmp_path) as archive, ArchiveReader(tmp_path) as reader:
        with pytest.raises(ArchiveError, match="event a:1 cannot be archived"):
            archive.append([Arrival(run, places=Places(1, INT_MAX - 1))], 1)
        assert archive.append([Arrival(run, places=Places(1, INT_MAX - 2))], 1) == 0
        (batch,) = reader.read(0, 3)
        assert [order["number"] for order in batch.column("order").to_pylist()] == [
            INT_MAX - 2,
            INT_MAX - 1,
            INT_MAX,
        ]
