"""The tasks of an audit of archives.

Events go to reducers by source: each reducer sees whole sources and numbers their events. One task then checks the
order between archives on these numbers, as it does between the subscribers of a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import msgspec
import numpy as np

from tidings.core.events.event import source_text
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE
from tidings.scenarios.trace.checkers.per_source import FIFO
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER, ShownRows, components, find_inversions
from tidings.scenarios.trace.coded import Array, Mask, highest_before, segment_starts
from tidings.scenarios.trace.verdict import Case, Found, Witness, first_cases
from tidings.spark.audit.stages import Piece
from tidings.spark.audit.tasks import FOUND, decoded
from tidings.spark.audit.trace import packed
from tidings.storage.archive.reader import ArchiveReader

BATCH_ROWS = 65_536
VERIFIED, SIZE, NUMBERED = "verified", "size", "numbered"
_PLACES = 2**40
"""More than the offsets of an archive."""

ROW = np.dtype(
    [
        ("archive", "<i4"),
        ("source", "<i4"),
        ("topic", "<i4"),
        ("incarnation", "<i8"),
        ("sequence", "<i8"),
        ("offset", "<i8"),
        ("ordered", "?"),
        ("out_of_order", "?"),
    ]
)
NUMBERED_ROW = np.dtype([("archive", "<i4"), ("offset", "<i8"), ("event", "<i4")])


class ArchivePart(msgspec.Struct):
    """The rows of one read; sources and topics are indices into these lists."""

    sources: list[str]
    topics: list[str]
    rows: bytes


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """`everything`: also check events recorded without an order, and sources across all their topics."""

    directories: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]
    reducers: int
    checks: tuple[str, ...]
    everything: bool


COLUMNS = ("source", "incarnation", "sequence", "topic", "out_of_order", "order")
"""What the checks need beside the offset."""


def verify(job: ArchiveJob, index: int) -> Iterator[Piece]:
    with ArchiveReader(job.directories[index]) as reader:
        yield Piece(0, index, VERIFIED, msgspec.msgpack.encode(reader.verify(lambda share: None)))


def read_archive(job: ArchiveJob, item: tuple[int, int, int]) -> Iterator[Piece]:
    """Read a range of offsets, and send each event to the reducer of its source."""
    index, first, end = item
    with ArchiveReader(job.directories[index]) as reader:
        for batch in reader.read(first, end, BATCH_ROWS, COLUMNS):
            yield from _by_source(job, index, batch)


def _by_source(job: ArchiveJob, index: int, batch: Any) -> Iterator[Piece]:
    source = batch.column("source").dictionary_encode()
    topic = batch.column("topic").dictionary_encode()
    # Strip only the tilde of an incarnation: a name may contain one, too.
    texts = source.dictionary.to_pylist()
    names = [name for text in texts for name in (text, text.rpartition("~")[0])]
    incarnation = batch.column("incarnation").to_numpy()
    codes = source.indices.to_numpy() * 2 + (incarnation != 0)
    reducer = np.array([crc32(name.encode()) % job.reducers for name in names], dtype=np.int64)[codes]
    rows = np.empty(len(batch), ROW)
    rows["archive"], rows["source"], rows["incarnation"] = index, codes, incarnation
    rows["topic"] = topic.indices.to_numpy()
    for name in ("sequence", "offset", "out_of_order"):
        rows[name] = batch.column(name).to_numpy(zero_copy_only=False)
    rows["ordered"] = batch.column("order").is_valid().to_numpy(zero_copy_only=False)
    for number in np.unique(reducer).tolist():
        part = ArchivePart(names, topic.dictionary.to_pylist(), rows[reducer == number].tobytes())
        place = index * _PLACES + int(rows["offset"][0])
        yield Piece(number, place, "", msgspec.msgpack.encode(part))


class _Sources:
    """All events of some sources, by archive and offset."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        names: dict[str, int] = {}
        topics: dict[str, int] = {}
        parts: list[Any] = [np.empty(0, ROW)]
        for part in decoded(pieces, ArchivePart):
            rows = np.frombuffer(part.rows, ROW).copy()
            rows["source"] = _renumbered(names, part.sources)[rows["source"]]
            rows["topic"] = _renumbered(topics, part.topics)[rows["topic"]]
            parts.append(rows)
        self.rows = np.concatenate(parts)
        self.names = list(names)
        self.topics = len(topics)
        order = np.lexsort((self.rows["sequence"], self.rows["incarnation"], self.rows["source"]))
        keys = self.rows[["source", "incarnation", "sequence"]][order]
        starts = np.ones(len(keys), dtype=np.bool_)
        starts[1:] = keys[1:] != keys[:-1]
        # An event's number is also its rank within its source.
        self.event = np.empty(len(keys), dtype=np.int64)
        self.event[order] = np.cumsum(starts) - 1
        self.size = int(np.count_nonzero(starts))
        places = np.lexsort((np.arange(len(keys)), self.event, self.rows["archive"]))
        pairs = self.rows["archive"][places].astype(np.int64) * max(self.size, 1) + self.event[places]
        first = segment_starts(pairs)
        self.repeated: Mask = np.zeros(len(keys), dtype=np.bool_)
        self.repeated[places[~first]] = True
        self.first_place = np.empty(len(keys), dtype=np.int64)
        self.first_place[places] = places[np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))]

    def event_id(self, place: int) -> str:
        row = self.rows[place]
        return f"{source_text(self.names[row['source']], int(row['incarnation']))}:{row['sequence']}"


def _renumbered(numbers: dict[str, int], names: Sequence[str]) -> Array:
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def check_sources(job: ArchiveJob, reducer: int, pieces: list[Piece]) -> Iterator[Piece]:
    sources = _Sources(pieces)
    for index, name in enumerate(job.checks):
        if name == EXACTLY_ONCE:
            yield Piece(index, reducer, FOUND, msgspec.msgpack.encode(_find_repeated(job, sources)))
        elif name == FIFO:
            yield Piece(index, reducer, FOUND, msgspec.msgpack.encode(_find_unordered(job, sources)))
        else:
            rows = sources.rows
            kept = ~rows["out_of_order"] & ~sources.repeated & (rows["ordered"] | job.everything)
            columns = (rows["archive"][kept], rows["offset"][kept], sources.event[kept])
            yield Piece(0, 2 * reducer, SIZE, msgspec.msgpack.encode(sources.size))
            yield Piece(0, 2 * reducer + 1, NUMBERED, packed(NUMBERED_ROW, *columns))


def _find_repeated(job: ArchiveJob, sources: _Sources) -> Found:
    rows = sources.rows

    def describe(place: int) -> Case:
        archive, event_id = job.directories[rows["archive"][place]], sources.event_id(place)
        offsets = (int(rows["offset"][sources.first_place[place]]), int(rows["offset"][place]))
        text = f"event {event_id} of archive {archive} is at offset {offsets[0]} and again at {offsets[1]}"
        return Case(_key(rows, place), Witness(text, (event_id,), (archive,), offsets))

    repeated = np.flatnonzero(sources.repeated)
    return Found(len(repeated), first_cases(repeated.tolist(), describe))


def _find_unordered(job: ArchiveJob, sources: _Sources) -> Found:
    rows = sources.rows
    places = np.flatnonzero(~rows["out_of_order"] & ~sources.repeated)
    # Total order keeps a source's order within each topic, not across topics.
    topic = np.where(rows["ordered"] & (not job.everything), rows["topic"] + 1, 0)
    stream = (rows["archive"].astype(np.int64) * len(sources.names) + rows["source"]) * (
        sources.topics + 1
    ) + topic
    order = places[np.argsort(stream[places], kind="stable")]
    rank = sources.event[order]
    broken = np.flatnonzero(rank <= highest_before(stream[order], rank))

    def describe(place: int) -> Case:
        earlier = place - 1
        while rank[earlier] < rank[place]:
            earlier -= 1
        pair = (sources.event_id(order[earlier]), sources.event_id(order[place]))
        offsets = (int(rows["offset"][order[earlier]]), int(rows["offset"][order[place]]))
        archive = job.directories[rows["archive"][order[place]]]
        text = f"archive {archive} has {pair[0]} at offset {offsets[0]}, then {pair[1]} at {offsets[1]}"
        return Case(_key(rows, order[place]), Witness(text, pair, (archive,), offsets))

    in_order = broken[np.argsort(order[broken], kind="stable")]
    return Found(len(broken), first_cases(in_order.tolist(), describe))


def _key(rows: Any, place: int) -> tuple[int, ...]:
    return (int(rows["archive"][place]), int(rows["offset"][place]))


class _EventNames:
    """Names of events by number, read from an archive; only witnesses need them."""

    def __init__(self, job: ArchiveJob, shown: ShownRows) -> None:
        self._job = job
        self._shown = shown

    def name(self, event: int) -> str:
        place = int(np.flatnonzero(self._shown.event == event)[0])
        offset = int(self._shown.position[place])
        with ArchiveReader(self._job.directories[self._shown.subscriber[place]]) as reader:
            (batch,) = reader.read(offset, offset + 1)
        return f"{batch.column('source')[0]}:{batch.column('sequence')[0]}"


def check_order(job: ArchiveJob, reducer: int, pieces: list[Piece]) -> Iterator[Piece]:
    """Check the order between archives: sources were numbered separately, and are now numbered one after the other."""
    parts: list[Any] = []
    size = 0
    for before, piece in zip(pieces[::2], pieces[1::2], strict=True):
        rows = np.frombuffer(piece.body, NUMBERED_ROW)
        parts.append((rows["archive"], rows["offset"], rows["event"].astype(np.int64) + size))
        size += msgspec.msgpack.decode(before.body, type=int)
    archive, offset, event = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    order = np.lexsort((offset, archive))
    archive, offset, event = archive[order], offset[order], event[order]
    same = archive[1:] == archive[:-1]
    component = components((event[:-1][same], event[1:][same]), size)[event]
    kept = component >= 0
    shown = ShownRows(component[kept], archive[kept], event[kept], offset[kept])
    found = find_inversions(_EventNames(job, shown), job.directories, shown)
    yield Piece(job.checks.index(TOTAL_ORDER), reducer, FOUND, msgspec.msgpack.encode(found))
