"""Offsets of several archives, keyed by archive id and checked against what each archive has.

The id belongs to the archive, not to its path, so another archive under the same path is noticed.
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
"""A broker that does not answer within this time counts as unreachable."""

Position = dict[str, int]
"""The next offset of each archive, keyed and sorted by id: Spark compares positions as text."""


class OffsetBounds(Protocol):
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...


class OffsetReader(Protocol):
    """What this module needs of a reader, be it of a directory or of a broker."""

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
    """Open the archive until the end of the block."""
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
    """All archives of a source, opened."""

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
        """Raise PipelineError unless `offsets` has exactly the ids of these archives."""
        for archive in offsets:
            if archive not in self.readers:
                have = ", ".join(self.named(known) for known in self.readers)
                raise PipelineError(f"{what} names archive {archive}, but this source reads {have}; {advice}")
        for archive in self.readers:
            if archive not in offsets:
                raise PipelineError(f"{what} has no offset for {self.named(archive)}; {advice}")

    def at(self, offsets: Offsets, bounds: Mapping[str, OffsetBounds], option: str) -> Position:
        """Resolve an option's offsets now. An offset beyond the end is an error; a trimmed one is not checked here."""
        if not isinstance(offsets, int):
            self.check_known(offsets, f"option {option}", "write one offset per archive id")
        position: Position = {}
        for archive, has in bounds.items():
            offset = offsets if isinstance(offsets, int) else offsets[archive]
            position[archive] = {EARLIEST: has.first, LATEST: has.end}.get(offset, offset)
        self.check_not_ahead(position, bounds, f"option {option}")
        return position

    def at_instant(self, published_ns: int, bounds: Mapping[str, OffsetBounds]) -> Position:
        """Return the first offsets that were published at this time or later."""
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
                    f"{what} go backwards from {offset} to {end[archive]} in {self.named(archive)}"
                )

    def kept(
        self,
        start: Position,
        end: Position,
        bounds: Mapping[str, OffsetBounds],
        options: SourceOptions,
        *,
        log_loss: bool = True,
    ) -> Position:
        """Return `start`, or the first offset still kept where older ones are gone and that is allowed."""
        found: Position = {}
        for archive, offset in start.items():
            first = min(bounds[archive].first, end[archive])
            if offset < first:
                loss = lost(offset, first, bounds[archive].first, self.named(archive))
                if options.fail_on_data_loss:
                    raise PipelineError(loss)
                if log_loss:
                    log.warning("%s", loss)
            found[archive] = max(offset, first)
        return found


class ArchiveConnection:
    """The driver's connection to the archives: opened when needed, and again after a connection is lost.

    It waits for a broker that it has reached before. A broker that was never reached is more likely a wrong address,
    and is tried once.
    """

    def __init__(self, options: SourceOptions, advice: str) -> None:
        self._options = options
        self._advice = advice
        self._opened: Archives | None = None
        self._reached = False

    def ask(self, question: Callable[[Archives], Answer], *, known: bool = False) -> Answer:
        """Answer a question about the archives. `known`: the caller has a position, so the broker was reached
        before."""
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
        f"{stop - start} events (offsets {start} to {stop - 1}) are no longer in {archive}, which starts at offset "
        f"{first}: set failOnDataLoss=false to continue without them"
    )
