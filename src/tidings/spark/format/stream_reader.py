"""`format("tidings")` as a stream: one position per micro-batch, from which everything else is derived.

After a crash Spark asks again, in a new process, for the ranges of the batch that it had begun. A range of an archive
always reads the same, and the reader keeps no state that matters: connections are reopened when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidings.core.errors import BrokerAway, PipelineError, TidingsError
from tidings.spark.format.offsets import Answer, ArchiveConnection, Archives, OffsetBounds, Position
from tidings.spark.format.options import LATEST, SourceOptions, parse_options
from tidings.spark.format.ranges import plan_ranges, read_range
from tidings.spark.format.source import check_schema
from tidings.spark.format.tracebacks import hide_traceback
from tidings.spark.format.waiting import RESUME_ADVICE

POSITION = "the position in the checkpoint"
RESTART_ADVICE = "to start over, use another checkpointLocation"


class CheckedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream reader whose options are checked, and how many rows a batch may have."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._mistake: TidingsError | None = None
        try:
            check_schema(schema)
            self._parsed = parse_options(options, streaming=True)
        except TidingsError as error:  # raised later: Spark would hide an error of a constructor
            self._mistake = error

    @property
    def _options(self) -> SourceOptions:
        if self._mistake is not None:
            with hide_traceback():
                raise self._mistake
        return self._parsed

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)


class ArchiveStreamReader(CheckedStreamReader):
    _opened: ArchiveConnection | None = None
    _target: Position | None = None
    """Where a query with the trigger availableNow ends."""
    _ends_now = False
    """The trigger is availableNow, but no broker has answered yet."""

    def __getstate__(self) -> dict[str, Any]:
        """Send only the options to the workers."""
        return {**self.__dict__, "_opened": None, "_target": None}

    def initialOffset(self) -> Position:  # noqa: N802
        start = self._asked(self._initial)
        self.commit(start)  # the archive keeps what this consumer has not read
        return start

    def _initial(self, archives: Archives) -> Position:
        options, bounds = self._options, archives.bounds()
        if options.start_ns is not None:
            start = archives.at_instant(options.start_ns, bounds)
        else:
            start = archives.at(LATEST if options.start is None else options.start, bounds, "startingOffsets")
        return archives.kept(start, _ends(bounds), bounds, options)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query. Spark calls this before it says whether there is a checkpoint, and so whether to
        wait."""
        with hide_traceback():
            try:
                self._target = self._connection.ask(_latest)
            except BrokerAway:
                self._ends_now = True

    def reportLatestOffset(self) -> Position:  # noqa: N802
        return self._asked(_latest)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Position:  # noqa: N802
        begin, ends = self._asked(lambda archives: self._available(archives, start), known=True)
        return limited(begin, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends

    def _available(self, archives: Archives, start: dict[str, Any]) -> tuple[Position, Position]:
        bounds = archives.bounds()
        begin = checked(archives, start, POSITION)
        archives.check_not_ahead(begin, bounds, POSITION)
        ends = _ends(bounds)
        if self._ends_now:
            self._target, self._ends_now = ends, False
        if self._target is not None:
            ends = {archive: min(end, self._target[archive]) for archive, end in ends.items()}
        ends = {archive: max(end, begin[archive]) for archive, end in ends.items()}
        return archives.kept(begin, ends, bounds, self._options, log_loss=False), ends  # `_plan` logs it

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._asked(lambda archives: self._plan(archives, start, end), known=True)

    def _plan(self, archives: Archives, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        bounds = archives.bounds()
        begin, until = checked(archives, start, POSITION), checked(archives, end, POSITION)
        archives.check_forward(begin, until, "the positions in the checkpoint")
        archives.check_not_ahead(until, bounds, POSITION)
        begin = archives.kept(begin, until, bounds, self._options)
        return plan_ranges(archives, begin, until, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, RESUME_ADVICE)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.consumer is not None:
            self._asked(lambda archives: self._commit(archives, end), known=True)

    def _commit(self, archives: Archives, end: dict[str, Any]) -> None:
        for archive, offset in checked(archives, end, "the position to commit").items():
            archives.readers[archive].commit(self._options.consumer or "", offset)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _connection(self) -> ArchiveConnection:
        if self._opened is None:
            self._opened = ArchiveConnection(self._options, RESUME_ADVICE)
        return self._opened

    def _asked(self, question: Callable[[Archives], Answer], *, known: bool = False) -> Answer:
        with hide_traceback():
            return self._connection.ask(question, known=known)


def _latest(archives: Archives) -> Position:
    return _ends(archives.bounds())


def _ends(bounds: Mapping[str, OffsetBounds]) -> Position:
    return {archive: has.end for archive, has in bounds.items()}


def checked(archives: Archives, position: object, what: str) -> Position:
    """Return the position, sorted by archive; PipelineError if it was edited or belongs to another archive."""
    if not isinstance(position, dict):
        raise PipelineError(f"{what} is malformed: {str(position)[:200]!r}; {RESTART_ADVICE}")
    archives.check_known(position, what, RESTART_ADVICE)
    for offset in position.values():
        if type(offset) is not int or offset < 0:
            raise PipelineError(
                f"{what} is malformed: {str(offset)[:200]!r} is not an offset; {RESTART_ADVICE}"
            )
    return {archive: position[archive] for archive in sorted(position)}


def limited(start: Position, ends: Position, max_rows: int) -> Position:
    """Limit the offsets of a batch to `max_rows`: each archive gets its share of the backlog, so none starves."""
    waiting = {archive: ends[archive] - offset for archive, offset in start.items()}
    total = sum(waiting.values())
    if total <= max_rows:
        return ends
    shares = {archive: max_rows * count // total for archive, count in waiting.items()}
    spare = max_rows - sum(shares.values())
    for archive in sorted(waiting, key=lambda archive: (shares[archive] - waiting[archive], archive)):
        more = min(spare, waiting[archive] - shares[archive])
        shares[archive] += more
        spare -= more
    return {archive: offset + shares[archive] for archive, offset in start.items()}
