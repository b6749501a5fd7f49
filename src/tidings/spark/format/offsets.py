"""Offsets of several archives: by the id of each, checked against what each has.

The id is of the archive, not of its path, so that another archive under the same path is noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from tidings.core.errors import ConnectionFailed, PipelineError
from tidings.spark.format.options import EARLIEST, LATEST, Location, Offsets, SourceOptions
from tidings.spark.format.waiting import RetryBudget

log = logging.getLogger("tidings.spark")

Answer = TypeVar("Answer")
ANSWER_SECONDS = 10.0
"""A broker that says nothing for so long is away."""

Position = dict[str, int]
"""The next offset of each archive, by its id, sorted: Spark compares positions as texts."""


class OffsetBounds(Protocol):
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...


class OffsetReader(Protocol):
    """What is read here, of a directory or of a broker."""

    @property
    def id(self) -> str: ...
    def bounds(self) -> OffsetBounds: ...
    def read(
        self, start: int, stop: int, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]: ...
    def offset_at(self, published_ns: int) -> int: ...
    def commit(self, consumer: str, offset: int) -> None: ...


@contextmanager
def opened(location: Location, timeout_s: float) -> Iterator[OffsetReader]:
    """The archive there, until the end of the block."""
    with ExitStack() as stack:
        yield _enter(location, timeout_s, stack)


def _enter(location: Location, timeout_s: float, stack: ExitStack) -> OffsetReader:
    reader: Any
    if location.remote:
        from tidings.drivers.sockets.archive_client import RemoteArchive

        reader = RemoteArchive(
            location.text,
            token=location.token,
            tls_ca=location.tls_ca,
            timeout_s=min(timeout_s, ANSWER_SECONDS),
        )
    else:
        from tidings.storage.archive.reader import ArchiveReader

        reader = ArchiveReader(location.text)
    stack.callback(reader.close)
    return reader  # type: ignore[no-any-return]


class Archives:
    """All archives of a source, open."""

    def __init__(self, options: SourceOptions) -> None:
        self.readers: dict[str, OffsetReader] = {}
        self.locations: dict[str, Location] = {}
        with ExitStack() as stack:
            for location in options.locations:
                reader = _enter(location, options.timeout_s, stack)
                if reader.id in self.locations:
                    other = self.locations[reader.id]
                    raise PipelineError(
                        f"{other.text} and {location.text} are the same archive ({reader.id})"
                    )
                self.readers[reader.id] = reader
                self.locations[reader.id] = location
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def bounds(self) -> dict[str, OffsetBounds]:
        return {archive: self.readers[archive].bounds() for archive in sorted(self.readers)}

    def named(self, archive: str) -> str:
        return f"{self.locations[archive].text} (archive {archive})"

    def check_known(self, offsets: Mapping[Any, Any], what: str, advice: str) -> None:
        """PipelineError unless there is a sound offset for each archive, and for no other."""
        for archive in offsets:
            if archive not in self.readers:
                have = ", ".join(self.named(known) for known in self.readers)
                raise PipelineError(
                    f"{what} names archive {archive}, and there is {have}: it is of another archive; {advice}"
                )
        for archive in self.readers:
            if archive not in offsets:
                raise PipelineError(f"{what} has no offset for {self.named(archive)}; {advice}")

    def at(self, offsets: Offsets, bounds: Mapping[str, OffsetBounds], option: str) -> Position:
        """What an option means now. An offset beyond the end is an error; one that is trimmed is not, here."""
        if not isinstance(offsets, int):
            self.check_known(offsets, f"option {option}", "write one offset for each archive's id")
        position: Position = {}
        for archive, has in bounds.items():
            offset = offsets if isinstance(offsets, int) else offsets[archive]
            position[archive] = {EARLIEST: has.first, LATEST: has.end}.get(offset, offset)
        self.check_not_ahead(position, bounds, f"option {option}")
        return position

    def at_instant(self, published_ns: int, bounds: Mapping[str, OffsetBounds]) -> Position:
        """The first offsets that were published then or later."""
        return {
            archive: min(max(self.readers[archive].offset_at(published_ns), has.first), has.end)
            for archive, has in bounds.items()
        }

    def check_not_ahead(self, position: Position, bounds: Mapping[str, OffsetBounds], what: str) -> None:
        for archive, offset in position.items():
            if offset > bounds[archive].end:
                raise PipelineError(
                    f"{what}: offset {offset} is ahead of the log of {self.named(archive)}, "
                    f"which ends at {bounds[archive].end}"
                )

    def check_forward(self, start: Position, end: Position, what: str) -> None:
        for archive, offset in start.items():
            if end[archive] < offset:
                raise PipelineError(
                    f"{what} go backwards, from {offset} to {end[archive]}, in {self.named(archive)}"
                )

    def kept(
        self,
        start: Position,
        end: Position,
        bounds: Mapping[str, OffsetBounds],
        options: SourceOptions,
        *,
        told: bool = True,
    ) -> Position:
        """`start`, or where some of it is not kept any more and that is allowed, the first that is."""
        found: Position = {}
        for archive, offset in start.items():
            first = min(bounds[archive].first, end[archive])
            if offset < first:
                loss = lost(offset, first, bounds[archive].first, self.named(archive))
                if options.fail_on_data_loss:
                    raise PipelineError(loss)
                if told:
                    log.warning("%s", loss)
            found[archive] = max(offset, first)
        return found


class ArchiveConnection:
    """To the archives, for the driver's questions: opened when something is asked, and again when a connection is lost.

    A broker that was there is waited for. One that is not known to have been is likelier a wrong address, and is
    tried once.
    """

    def __init__(self, options: SourceOptions, advice: str) -> None:
        self._options = options
        self._advice = advice
        self._opened: Archives | None = None
        self._reached = False

    def ask(self, question: Callable[[Archives], Answer], *, known: bool = False) -> Answer:
        """`known`: whoever asks has a position, which is from there."""
        patience = RetryBudget(self._options.timeout_s, self._advice)
        while True:
            try:
                if self._opened is None:
                    self._opened = Archives(self._options)
                    self._reached = True
                return question(self._opened)
            except ConnectionFailed as error:
                self.close()
                if not (known or self._reached):
                    raise
                patience.wait(error)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def lost(start: int, stop: int, first: int, archive: str) -> str:
    return (
        f"{stop - start} events, offsets {start} to {stop - 1}, are not kept any more by {archive}, whose first is "
        f"{first}: failOnDataLoss=false goes on without them"
    )
