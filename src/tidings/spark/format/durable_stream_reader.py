"""`format("tidings")` with the option `durable` as a stream: a durable subscription whose name keeps the position.

A position is a number of the subscription and the id of its reading (core/overlay/guaranteed/share_reading.py). Events
stay on the disk of the broker that keeps the subscription until Spark commits the batch after theirs, so a batch can be
read again after a crash, through any broker:

    latestOffset(start)      takes events: they count as delivered
    read, in workers         fetches them by number, as often as Spark likes
    commit(end)              acknowledges everything before `end`; Spark says it one batch late, and never for the last

Spark does not keep where the first batch begins: there is none before it, so that is where the reading began.

With its checkpoint a query goes on exactly where it was. Without it, a new reading begins with the first event that is
not acknowledged; what the last batches may have processed comes again, with a higher attempt.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from tidings.core.errors import PipelineError
from tidings.core.events.event import INT_MAX
from tidings.drivers.sockets.share_client import ShareConnection
from tidings.spark.format.durable import DurableReader, plan_numbers, read_numbers
from tidings.spark.format.stream_reader import POSITION, RESTART_ADVICE, CheckedStreamReader
from tidings.spark.format.tracebacks import hide_traceback

DURABLE, NUMBER, READING = "durable", "number", "reading"
BEGINNING = 0
"""The number of a position from which nothing was read yet."""
NumberPosition = dict[str, Any]
"""The name, the next number and the reading's id, sorted: Spark compares positions as text."""


class DurableStreamReader(CheckedStreamReader):
    _driver: DurableReader | None = None
    _target: int | None = None
    """Where a query with the trigger availableNow ends."""
    _ends_now = False
    """The trigger is availableNow, and the end is not known yet."""

    def __getstate__(self) -> dict[str, Any]:
        """Send only the options to the workers."""
        return {**self.__dict__, "_driver": None, "_target": None}

    def initialOffset(self) -> NumberPosition:  # noqa: N802
        """Return where a reading begins that nobody has begun yet: Spark asks again if it died in the first batch."""
        with hide_traceback():
            return self._position(BEGINNING, secrets.randbits(62) | 1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends_now = True

    def latestOffset(self, start: NumberPosition, limit: ReadLimit) -> NumberPosition:  # noqa: N802
        with hide_traceback():
            reading, number = self._checked(start, POSITION)
            now = self._reader.ask(reading, ShareConnection.reach, begins=number == BEGINNING)
            if self._ends_now:
                self._target, self._ends_now = now.end, False
            first = number or now.done_below
            count = limit.max_rows if isinstance(limit, ReadMaxRows) else INT_MAX - first
            stop = 0 if self._target is None else max(self._target, first)
            taken = self._reader.ask(reading, lambda share: share.reach(first, count=count, stop=stop))
            return self._position(taken.stop, reading)

    def partitions(self, start: NumberPosition, end: NumberPosition) -> list[InputPartition]:
        with hide_traceback():
            started_by, number = self._checked(start, POSITION)
            reading, stop = self._checked(end, POSITION)
            if stop < number or (number != BEGINNING and started_by != reading):
                raise PipelineError(
                    f"the positions in the checkpoint go from {start} to {end}; {RESTART_ADVICE}"
                )
            first = number or self._reader.ask(reading, ShareConnection.reach).done_below
            taken = self._reader.ask(
                reading, lambda share: share.reach(first, count=max(stop - first, 0), stop=stop)
            )
            if taken.stop != stop:
                raise PipelineError(
                    f"{POSITION} is ahead of {self._options.durable!r}, which ends at {taken.end}; {RESTART_ADVICE}"
                )
            return plan_numbers(reading, first, stop, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_numbers(self._options, partition)

    def commit(self, end: NumberPosition) -> None:
        with hide_traceback():
            reading, number = self._checked(end, "the position to commit")
            self._reader.ask(reading, lambda share: share.reach(done_below=number))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.leave()

    @property
    def _reader(self) -> DurableReader:
        if self._driver is None:
            self._driver = DurableReader(self._options)
        return self._driver

    def _position(self, number: int, reading: int) -> NumberPosition:
        return {DURABLE: self._options.durable, NUMBER: number, READING: reading}

    def _checked(self, position: object, what: str) -> tuple[int, int]:
        """Return the reading and the number; PipelineError if the position was edited or is of something else."""
        name = self._options.durable
        if not isinstance(position, dict) or set(position) != {DURABLE, NUMBER, READING}:
            raise PipelineError(
                f"{what} is not of a durable subscription: {str(position)[:200]!r}; {RESTART_ADVICE}"
            )
        if position[DURABLE] != name:
            raise PipelineError(f"{what} is of {position[DURABLE]!r}, not of {name!r}; {RESTART_ADVICE}")
        for number in (position[READING], position[NUMBER]):
            if type(number) is not int or not 0 <= number <= INT_MAX:
                raise PipelineError(
                    f"{what} is malformed: {str(number)[:200]!r} is not a number; {RESTART_ADVICE}"
                )
        return position[READING], position[NUMBER]
