"""Work in stages: items are mapped to pieces, pieces go to reducers, and each reducer makes new pieces.

The same functions run in this process or on Spark (`on_spark`). A piece is a few numbers and bytes: columns packed by
numpy, or MessagePack. Spark moves one such row instead of ten thousand of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tidings.core.errors import PipelineError, TidingsError

Progress = Callable[[float], None]
PROBLEM = "problem"
"""The tag of a piece that carries an error."""


class Piece(NamedTuple):
    """`reducer` says where it goes, `place` orders the pieces of a reducer, `tag` says what it is."""

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
    """Pieces that are not computed yet."""

    def to_reducers(self, reducers: int, reduce: Reduce) -> AuditStage:
        """Send all pieces to their reducers, each of which gets them in the order of `place`."""
        ...

    def tagged(self, *tags: str) -> AuditStage:
        """Keep only the pieces with these tags, and errors."""
        ...

    def kept(self) -> AuditStage:
        """Compute the pieces once, however often they are used."""
        ...

    def collect(self, progress: Progress = ...) -> list[Piece]:
        """Compute and return the pieces; raises the error of the first task that failed."""
        ...


class Stages(Protocol):
    def map(self, run: Run, items: Sequence[Any]) -> AuditStage: ...


def checked(run: Run) -> Run:
    """Turn errors in the input into pieces: Spark would wrap them into a traceback."""

    def run_checked(item: Any) -> Iterator[Piece]:
        try:
            yield from run(item)
        except TidingsError as error:
            yield Piece(0, -1, PROBLEM, str(error).encode())

    return run_checked


def run_reducer(reducer: int, pieces: Iterable[Piece], reduce: Reduce) -> Iterator[Piece]:
    """Run a reducer on its pieces; errors of earlier stages are passed on instead."""
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
    """Return a callback that reports progress within a part as progress of the whole."""
    return lambda share: progress(low + (high - low) * share)


class HereStages:
    """Runs everything in this process, one task after the other: for small inputs, and where there is no Java."""

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
            return list(made)  # a copy: callers sort it in place

        return HereStage(make)

    def collect(self, progress: Progress = lambda share: None) -> list[Piece]:
        pieces = without_problems(self._make(progress))
        progress(1.0)
        return pieces
