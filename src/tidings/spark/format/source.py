"""`format("tidings")` as a source: its schema, and the batch read of a range of offsets.

`pushFilters` is left out on purpose: Spark keeps pushed filters with the relation, so a second use of one `load()`
would get the filters of the first. Ranges, topics and filters are options instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tidings.core.errors import PipelineError
from tidings.spark.format.offsets import ArchiveConnection, Archives, OffsetBounds, Position
from tidings.spark.format.options import EARLIEST, SourceOptions, parse_options
from tidings.spark.format.ranges import plan_ranges, read_range
from tidings.spark.format.tracebacks import hide_traceback
from tidings.spark.format.waiting import RERUN_ADVICE

HEADER = StructType().add("key", StringType()).add("value", BinaryType())
ORDER = (
    StructType()
    .add("topic", StringType())
    .add("number", LongType())
    .add("after", MapType(StringType(), LongType()))
)
SCHEMA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("headers", ArrayType(HEADER))
    .add("source", StringType())
    .add("sequence", LongType())
    .add("attributes", MapType(StringType(), StringType()))
    .add("order", ORDER)
    .add("attempt", IntegerType())
)
"""The columns of Spark's Kafka source in its order, without `timestampType`, followed by ours."""


def checked_schema(options: Mapping[str, str]) -> StructType:
    """Return the schema after checking the options: Spark asks for it when `load()` is called."""
    with hide_traceback():
        parse_options(options)
    return SCHEMA


def check_schema(schema: StructType) -> None:
    if schema != SCHEMA:
        raise PipelineError(
            "the columns of format tidings are fixed: remove schema(...) and select the columns you need"
        )


class ArchiveBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads what the archives hold when the read is planned, which Spark does once per `load()`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        with hide_traceback():
            check_schema(schema)
            self._options = parse_options(options, streaming=False)

    def partitions(self) -> list[InputPartition]:
        with hide_traceback(), closing(ArchiveConnection(self._options, RERUN_ADVICE)) as connection:
            return connection.ask(self._plan)

    def _plan(self, archives: Archives) -> list[InputPartition]:
        options, bounds = self._options, archives.bounds()
        start, end = batch_range(archives, bounds, options)
        return plan_ranges(archives, archives.kept(start, end, bounds, options), end, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, RERUN_ADVICE)


def batch_range(
    archives: Archives, bounds: Mapping[str, OffsetBounds], options: SourceOptions
) -> tuple[Position, Position]:
    """Return the start and the end (exclusive) of a batch. Swapped times read nothing; swapped offsets are an error."""
    if options.start_ns is not None:
        start = archives.at_instant(options.start_ns, bounds)
    else:
        start = archives.at(EARLIEST if options.start is None else options.start, bounds, "startingOffsets")
    if options.end_ns is not None:
        end = archives.at_instant(options.end_ns, bounds)
    else:
        end = archives.at(options.end, bounds, "endingOffsets")
    if options.start_ns is None and options.end_ns is None:
        archives.check_forward(start, end, "options startingOffsets and endingOffsets")
    return start, {archive: max(offset, start[archive]) for archive, offset in end.items()}
