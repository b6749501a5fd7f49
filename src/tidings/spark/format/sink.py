"""`format("tidings")` as a sink: every row of a batch or of a stream is published as an event.

    frame.writeStream.format("tidings").option("url", "tidings://broker:7400").option("topic", "/news").start()

Columns are described in sink_rows.py. Options: `url` (required), `topic` (of all rows; otherwise each has its own),
`token`, `tlsCa`, `name` (what the names of the publishers begin with; otherwise the name of the query), and `timeout`
(how many seconds a broker that is away, or does not confirm, is waited for; 30).

Each partition of a batch publishes as the source `NAME-QUERY-PARTITION-DIGEST`, where QUERY is the query's id and
DIGEST is of the rows, which are numbered from 1; the incarnation is the batch's number. A task returns when all its
rows are confirmed; a batch that Spark replays, and a task that it runs again, publish the same events again. Other rows
have another source: a digest does not grow, and as a part of the incarnation it could make a later attempt look like
an earlier life of the same source, which audits take for disorder. So what is promised is

* over guaranteed brokers: every row exactly once, however often tasks fail, workers die, brokers restart and batches
  are replayed, as long as the rows of a partition come again in the same order. Where they do not (after a shuffle
  they may), no row is lost, and those that were published before are published again: sort them within their
  partitions, in `foreachBatch`, where that matters.
* over best-effort and epidemic brokers: what these brokers have, they do not take again (unless they restarted in
  between); what they lose on the way is lost, as anything else there.
* over brokers that have sequencers, and over nats://, mqtt:// and redis://: at least once; what is repeated has another
  incarnation.

A batch write has an id of its own instead of the query's: if the job fails as a whole and is started again, its rows
are published again. In `foreachBatch` it has the id of the query and the number of the batch; two equal writes in one
batch need different names. What a failed task has published remains published.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidings.core.errors import PipelineError, TidingsError
from tidings.core.events.topics import check_topic
from tidings.spark.format.options import parse_timeout
from tidings.spark.format.sink_publishing import DIGEST_DIGITS, SinkTarget, Spool, publish
from tidings.spark.format.sink_rows import SinkColumns
from tidings.spark.format.telling import told_plainly

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KNOWN = ("url", "topic", "token", "tlsCa", "name", "timeout")
OF_SPARK = ("queryname", "checkpointlocation")
"""What Spark passes on of a query's own settings."""
DEFAULT_NAME = "spark"
MAX_NAME_CHARACTERS = 40
QUERY_CHARACTERS = 12
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a query's batch."""


@dataclass(frozen=True)
class SinkOptions:
    target: SinkTarget
    topic: str | None
    name: str


@dataclass(frozen=True)
class PublishedRows(WriterCommitMessage):  # type: ignore[misc]
    """What a task tells the driver."""

    rows: int


@told_plainly()
def sink_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """PipelineError, in one line, for what is wrong with the options or the columns, or if there is no broker."""
    if overwrite:
        raise PipelineError("events that are published stay published: write with mode('append')")
    parsed = parse_sink_options(options)
    sink = BatchSink(parsed, SinkColumns(schema, parsed.topic))
    parsed.target.probe()
    return sink


@told_plainly()
def sink_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    """As `sink_writer`. With output mode complete every batch publishes the whole result again, as it says.

    Spark makes two of these for every batch: no broker is asked here.
    """
    parsed = parse_sink_options(options)
    return StreamSink(parsed, SinkColumns(schema, parsed.topic))


class BatchSink(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._job = secrets.token_hex(QUERY_CHARACTERS // 2)

    @told_plainly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        context = _task_context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        inside_a_query = query is not None and batch is not None
        return _write(
            self._options,
            self._columns,
            iterator,
            query=query if inside_a_query else self._job,
            batch=int(batch) if inside_a_query else 0,
            partition=context.partitionId(),
            patience_s=self._options.target.timeout_s,
        )


class StreamSink(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    @told_plainly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        context = _task_context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise PipelineError("this sink needs the id of its query, and Spark does not tell it")
        # A broker that is not there for the very first batch is a mistake rather than a broker that restarts.
        patience_s = self._options.target.timeout_s if int(batch) > 0 else 0.0
        return _write(
            self._options,
            self._columns,
            iterator,
            query=query,
            batch=int(batch),
            partition=context.partitionId(),
            patience_s=patience_s,
        )


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    return context


def _write(
    options: SinkOptions,
    columns: SinkColumns,
    batches: Iterator[pa.RecordBatch],
    *,
    query: str,
    batch: int,
    partition: int,
    patience_s: float,
) -> PublishedRows:
    with Spool() as spool:
        longest = source_name(options.name, query, partition, "0" * DIGEST_DIGITS)
        spool.fill(columns.events(batches, longest, partition))
        if spool.count:
            source = source_name(options.name, query, partition, spool.digest)
            publish(options.target, source, batch, spool, patience_s)
        return PublishedRows(spool.count)


def source_name(name: str, query: str, partition: int, digest: str) -> str:
    """Who publishes these rows: the same whenever they come again, another for others."""
    return f"{name}-{query.replace('-', '')[:QUERY_CHARACTERS]}-{partition}-{digest}"


# --- Options


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    given = _known(options)
    if not given.get("url"):
        raise PipelineError("the option url is missing: which broker, as tidings://host:port")
    target = SinkTarget(
        given["url"], given.get("token", ""), given.get("tlsCa") or None, parse_timeout(given.get("timeout"))
    )
    target.check()
    topic = given.get("topic")
    if topic is not None:
        try:
            check_topic(topic)
        except TidingsError as error:
            raise PipelineError(f"option topic: {error}") from None
    return SinkOptions(target, topic, _name(given))


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """By their own spelling: Spark hands options over in lower case."""
    spelling = {name.lower(): name for name in KNOWN} | {name: name for name in OF_SPARK}
    given: dict[str, str] = {}
    for key, value in options.items():
        name = spelling.get(key.lower())
        if name is None:
            near = get_close_matches(key.lower(), [known.lower() for known in KNOWN], n=1)
            hint = f"did you mean {spelling[near[0]]}?" if near else f"known are {', '.join(KNOWN)}"
            raise PipelineError(f"unknown option {key!r}: {hint}")
        given[name] = value.strip()
    return given


def _name(given: Mapping[str, str]) -> str:
    name = given.get("name")
    if name is None:
        of_query = given.get("queryname", "")
        return of_query if _is_name(of_query) else DEFAULT_NAME
    if not _is_name(name):
        raise PipelineError(
            f"option name {name[:MAX_NAME_CHARACTERS]!r} is none for a publisher: "
            f"it has 1 to {MAX_NAME_CHARACTERS} printable characters, and no ~"
        )
    return name


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARACTERS and text.isprintable() and "~" not in text
