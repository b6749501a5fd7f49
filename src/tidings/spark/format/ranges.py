"""Ranges of offsets: how a read is split into tasks, and how a task reads its range."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidings.core.errors import ArchiveTrimmed, ConnectionFailed, PipelineError
from tidings.spark.format.columns import RowSelection, spark_batch
from tidings.spark.format.offsets import Archives, OffsetReader, Position, log, lost, opened
from tidings.spark.format.options import SourceOptions
from tidings.spark.format.tracebacks import hide_traceback
from tidings.spark.format.waiting import RetryBudget

ROWS_PER_TASK = 500_000
"""Kept small because a failed task is repeated as a whole."""
ROWS_WORTH_A_TASK = 20_000
NEAR = 0.25
"""A cut moves by up to this share of a task's size to reach the end of a segment."""


@dataclass(frozen=True)
class ArchiveRange(InputPartition):  # type: ignore[misc]
    """Offsets from `start` to `stop` (exclusive) of an archive; always the same rows."""

    index: int
    archive: str
    start: int
    stop: int


def plan_ranges(
    archives: Archives, start: Position, end: Position, options: SourceOptions
) -> list[InputPartition]:
    rows = {archive: end[archive] - offset for archive, offset in start.items() if end[archive] > offset}
    total = sum(rows.values())
    tasks = task_count(total, options.min_partitions)
    ranges: list[InputPartition] = []
    for archive, count in rows.items():
        share = -(-tasks * count // total)
        borders = _borders(archives.readers[archive])
        cuts = cut(start[archive], end[archive], share, borders)
        index = archives.locations[archive].index
        ranges += [ArchiveRange(index, archive, low, high) for low, high in cuts]
    return ranges


def task_count(rows: int, min_partitions: int | None) -> int:
    """Return at least the requested number, or one per core where that pays; 0 without rows."""
    wanted = min_partitions or min(os.cpu_count() or 1, -(-rows // ROWS_WORTH_A_TASK))
    return min(max(wanted, -(-rows // ROWS_PER_TASK)), rows)


def cut(start: int, stop: int, count: int, borders: Sequence[int]) -> list[tuple[int, int]]:
    """Return `count` ranges of similar size, cut at the ends of segments where one is near."""
    size = (stop - start) / count
    cuts = [start]
    for index in range(1, count):
        even = start + (stop - start) * index // count
        cuts.append(_snapped(even, size * NEAR, borders))
    return list(zip(cuts, [*cuts[1:], stop], strict=True))


def _snapped(offset: int, reach: float, borders: Sequence[int]) -> int:
    at = bisect_left(borders, offset)
    near = [border for border in borders[max(at - 1, 0) : at + 1] if abs(border - offset) <= reach]
    return min(near, key=lambda border: abs(border - offset), default=offset)


def _borders(reader: OffsetReader) -> list[int]:
    """Return where segments begin; brokers do not report that."""
    segments = getattr(reader, "segments", None)
    return sorted(segment.first for segment in segments()) if segments is not None else []


def read_range(options: SourceOptions, wanted: InputPartition, advice: str) -> Iterator[pa.RecordBatch]:
    """Read the rows of one range, in a worker."""
    if not isinstance(wanted, ArchiveRange):
        return  # Spark makes a partition of its own if the plan has no ranges
    selection = RowSelection(options.topics, options.where)
    with hide_traceback():
        for batch in _batches(options, wanted, selection.columns, RetryBudget(options.timeout_s, advice)):
            selected = selection(batch)
            if selected.num_rows:
                yield spark_batch(selected, wanted.index, headers=options.include_headers)


def _batches(
    options: SourceOptions, wanted: ArchiveRange, columns: Sequence[str], patience: RetryBudget
) -> Iterator[pa.RecordBatch]:
    """Read the range, resuming after a lost connection: a range always has the same rows."""
    left = wanted
    while True:
        try:
            with opened(options.locations[left.index], options.timeout_s) as reader:
                for batch in _kept_batches(reader, left, options, columns):
                    if batch.num_rows:
                        yield batch
                        left = replace(left, start=batch.column("offset")[-1].as_py() + 1)
                        patience.renew()
                return
        except ConnectionFailed as error:
            patience.wait(error)


def _kept_batches(
    reader: OffsetReader, wanted: ArchiveRange, options: SourceOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    place = options.locations[wanted.index].text
    if reader.id != wanted.archive:
        raise PipelineError(
            f"{place} was archive {wanted.archive} when the read was planned, and is archive {reader.id} now"
        )
    position = wanted.start
    while position < wanted.stop:
        try:
            for batch in reader.read(position, wanted.stop, columns=columns):
                yield batch
                position += batch.num_rows
            return
        except ArchiveTrimmed:  # since the plan was made
            first = reader.bounds().first
            stop = min(first, wanted.stop)
            loss = lost(position, stop, first, place)
            if options.fail_on_data_loss or stop <= position:
                raise PipelineError(loss) from None
            log.warning("%s", loss)
            position = stop
