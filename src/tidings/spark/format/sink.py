"""`format("tidings")` as a sink: publishes every row of a batch or of a stream as an event.

    frame.writeStream.format("tidings").option("url", "tidings://broker:7400").option("topic", "/news").start()

sink_rows.py describes the columns. Options: `url` (required), `topic` (for all rows; otherwise a column), `token`,
`tlsCa`, `name` (the prefix of the publishers' names; by default the query's name), `durable` (instead of `name`: a name
that belongs to this query alone, sink_name.py), and `timeout` (how many seconds to wait for a broker that is
unreachable or does not confirm; 30).

Each partition of a batch publishes as the source `NAME-QUERY-PARTITION-DIGEST`, where QUERY is the query's id and
DIGEST is of the rows, which are numbered from 1; the incarnation is the batch's number. A task returns when all its
rows are confirmed. When Spark replays a batch or runs a task again, the same events are published again. Other rows
get another source: a digest does not grow, so as part of the incarnation it could make a later attempt look like
an earlier incarnation of the same source, which audits report as disorder. The sink therefore promises

* over guaranteed brokers: every row exactly once, however often tasks fail, workers die, brokers restart and batches
  are replayed, as long as the rows of a partition come again in the same order. Where they do not (after a shuffle
  they may not), no row is lost, but rows that were already published are published again: where that matters, sort
  the rows within their partitions, in `foreachBatch`.
* over best-effort and epidemic brokers: a broker drops duplicates of what it has, unless it restarted in between;
  events lost on the way are lost, as always in these modes.
* over brokers that have sequencers, and over nats://, mqtt:// and redis://: at least once; a duplicate has another
  incarnation.

A batch write has an id of its own instead of the query's: if the whole job fails and is started again, its rows
are published again. In `foreachBatch` it has the id of the query and the number of the batch; two equal writes in one
batch need different names. What a failed task has published stays published.
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
from tidings.spark.format.options import SCHEMES, check_durable_name, parse_timeout
from tidings.spark.format.sink_name import claim_name
from tidings.spark.format.sink_publishing import DIGEST_DIGITS, SinkTarget, Spool, publish
from tidings.spark.format.sink_rows import SinkColumns
from tidings.spark.format.tracebacks import hide_traceback

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KNOWN = ("url", "topic", "token", "tlsCa", "name", "durable", "timeout")
OF_SPARK = ("queryname", "checkpointlocation")
"""Settings of the query itself that Spark passes on."""
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
    durable: bool = False
    """The name belongs to the query."""


@dataclass(frozen=True)
class PublishedRows(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports to the driver."""

    rows: int


@hide_traceback()
def sink_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """Return the writer of a batch. Raises a one-line PipelineError if options or columns are wrong or no broker
    answers."""
    if overwrite:
        raise PipelineError("published events cannot be overwritten: write with mode('append')")
    parsed = parse_sink_options(options)
    sink = BatchSink(parsed, SinkColumns(schema, parsed.topic))
    parsed.target.probe()
    return sink


@hide_traceback()
def sink_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    """Return the writer of a stream. In output mode complete, every batch publishes the whole result again.

    Spark makes two of these for every batch, so no broker is contacted here.
    """
    parsed = parse_sink_options(options)
    return StreamSink(parsed, SinkColumns(schema, parsed.topic))


class BatchSink(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._job = secrets.token_hex(QUERY_CHARACTERS // 2)

    @hide_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        context = _task_context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        inside_a_query = query is not None and batch is not None
        if self._options.durable and not inside_a_query:
            raise PipelineError(
                "option durable is only for streams: a batch write has no checkpoint with which it could go on"
            )
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

    @hide_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        context = _task_context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise PipelineError("the sink needs the id of its query, but Spark does not provide it")
        # An unreachable broker at the very first batch is more likely a mistake than a restart.
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
            if options.durable:
                claim_name(options.target, options.name, query, patience_s)
            publish(options.target, source, batch, spool, patience_s)
        return PublishedRows(spool.count)


def source_name(name: str, query: str, partition: int, digest: str) -> str:
    """Return the source of these rows: the same whenever they come again, another for other rows."""
    return f"{name}-{query.replace('-', '')[:QUERY_CHARACTERS]}-{partition}-{digest}"


# --- Options


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    given = _known(options)
    if not given.get("url"):
        raise PipelineError("missing option url: the broker's address, such as tidings://host:port")
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
    durable = given.get("durable")
    if durable is None:
        return SinkOptions(target, topic, _name(given))
    check_durable_name(durable)
    if "name" in given:
        raise PipelineError("options name and durable exclude each other: durable is the name")
    if target.url.partition("://")[0] not in SCHEMES:
        raise PipelineError("option durable needs a guaranteed network of tidings: a url tidings://host:port")
    return SinkOptions(target, topic, durable, durable=True)


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under our spelling: Spark passes names in lower case."""
    spelling = {name.lower(): name for name in KNOWN} | {name: name for name in OF_SPARK}
    given: dict[str, str] = {}
    for key, value in options.items():
        name = spelling.get(key.lower())
        if name is None:
            near = get_close_matches(key.lower(), [known.lower() for known in KNOWN], n=1)
            hint = f"did you mean {spelling[near[0]]}?" if near else f"known options: {', '.join(KNOWN)}"
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
            f"option name {name[:MAX_NAME_CHARACTERS]!r} is not a publisher's name: "
            f"expected 1 to {MAX_NAME_CHARACTERS} printable characters without ~"
        )
    return name


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_CHARACTERS and text.isprintable() and "~" not in text
