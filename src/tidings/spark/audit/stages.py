"""Work in stages: items are mapped to pieces, pieces go to reducers, each reducer makes new pieces of what it got.

The same functions run in this process or on Spark (`audit_spark`). A piece is a few numbers and bytes: columns
packed by numpy, or MessagePack; Spark moves one such row for what would be ten thousand of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tidings.core.errors import PipelineError, TidingsError

Progress = Callable[[float], None]
PROBLEM = "problem"
"""The tag of a piece that says why there is no result."""


class Piece(NamedTuple):
    """`reducer` is where it goes, `place` orders what a reducer gets, `tag` says what it is."""

    reducer: int
    place: int
    tag: str
    body: bytes


SCHEMA = pa.schema(
    [
        pa.field("reducer", pa.int32(), False),
        pa.field("place", pa.int64(), False),
        pa.field("tag", pa.string(), False),
        pa.field("body", pa.binary(), False),
    ]
)

Run = Callable[[Any], Iterable[Piece]]
Reduce = Callable[[int, list[Piece]], Iterable[Piece]]


class AuditStage(Protocol):
    """Pieces that are still to be made."""

    def to_reducers(self, reducers: int, reduce: Reduce) -> AuditStage:
        """All pieces go to their reducers, each of which gets them in the order of `place`."""
        ...

    def tagged(self, *tags: str) -> AuditStage:
        """Only these, and what went wrong."""
        ...

    def kept(self) -> AuditStage:
        """The same, made once however often it is used."""
        ...

    def collect(self, progress: Progress = ...) -> list[Piece]:
        """The pieces, now; the error of the first task that had one."""
        ...


class Stages(Protocol):
    def map(self, run: Run, items: Sequence[Any]) -> AuditStage: ...


def checked(run: Run) -> Run:
    """A mistake in the input becomes a piece that tells of it: Spark would wrap the error into a traceback."""

    def run_checked(item: Any) -> Iterator[Piece]:
        try:
            yield from run(item)
        except TidingsError as error:
            yield Piece(0, -1, PROBLEM, str(error).encode())

    return run_checked


def run_reducer(reducer: int, pieces: Iterable[Piece], reduce: Reduce) -> Iterator[Piece]:
    """What a reducer makes of its pieces; what went wrong before is passed on instead."""
    got = list(pieces)
    problems = [piece for piece in got if piece.tag == PROBLEM]
    if problems:
        yield from problems
        return
    try:
        yield from reduce(reducer, got)
    except TidingsError as error:
        yield Piece(0, -1, PROBLEM, str(error).encode())


def without_problems(pieces: list[Piece]) -> list[Piece]:
    for piece in pieces:
        if piece.tag == PROBLEM:
            raise PipelineError(piece.body.decode())
    return pieces


def part_of(progress: Progress, low: float, high: float) -> Progress:
    """What reports a share of a part as the share of the whole."""
    return lambda share: progress(low + (high - low) * share)


class HereStages:
    """Everything in this process, one after the other; for what is small, and where there is no Java."""

    def map(self, run: Run, items: Sequence[Any]) -> HereStage:
        def make(progress: Progress) -> list[Piece]:
            made: list[Piece] = []
            for done, item in enumerate(items, 1):
                made += checked(run)(item)
                progress(done / len(items))
            return made

        return HereStage(make)


class HereStage:
    def __init__(self, make: Callable[[Progress], list[Piece]]) -> None:
        self._make = make

    def to_reducers(self, reducers: int, reduce: Reduce) -> HereStage:
        def make(progress: Progress) -> list[Piece]:
            pieces = self._make(part_of(progress, 0.0, 0.5))
            pieces.sort(key=lambda piece: (piece.reducer, piece.place))
            made: list[Piece] = []
            for done, (reducer, group) in enumerate(groupby(pieces, key=lambda piece: piece.reducer), 1):
                made += run_reducer(reducer, group, reduce)
                progress(min(0.5 + 0.5 * done / reducers, 1.0))
            return made

        return HereStage(make)

    def tagged(self, *tags: str) -> HereStage:
        return HereStage(
            lambda progress: [piece for piece in self._make(progress) if piece.tag in (*tags, PROBLEM)]
        )

    def kept(self) -> HereStage:
        made: list[Piece] | None = None

        def make(progress: Progress) -> list[Piece]:
            nonlocal made
            if made is None:
                made = self._make(progress)
            return list(made)  # whoever gets them may sort them

        return HereStage(make)

    def collect(self, progress: Progress = lambda share: None) -> list[Piece]:
        pieces = without_problems(self._make(progress))
        progress(1.0)
        return pieces
