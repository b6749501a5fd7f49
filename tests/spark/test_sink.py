"""The sink on a real Spark and a real guaranteed broker: every row once, whatever Spark does again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker_thread import BrokerThread
from one_line import told_in_one_line
from sink_queries import ROWS, add_files, finish, forget_last_commit, numbers, start
from tidings.core.events.event import MAX_EVENT_BYTES, Event

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(data=tmp_path / "broker") as running:
        yield running


def batches(events: list[Event]) -> list[int]:
    """Which batches published, in their order."""
    return list(dict.fromkeys(event.incarnation for event in events))


def test_a_batch_is_written(spark: Any, broker: BrokerThread) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "cast(id as string) value",
        "concat('/numbers/', id % 3) topic",
        "encode(cast(id % 7 as string), 'utf-8') key",
        "map('number', cast(id as string), 'name', 'BBC') attributes",
        "array(struct('trace' as key, X'00FF' as value)) headers",
        "id offset",
    )
    frame.write.format("tidings").option("url", broker.url).option("name", "batch").mode("append").save()
    shown = broker.settled()
    assert sorted(numbers(shown)) == list(range(100))
    sources: dict[str, list[int]] = {}
    for event in shown:
        number = int(event.payload)
        sources.setdefault(event.source, []).append(number)
        assert event.topic == f"/numbers/{number % 3}"
        key = b"%d" % (number % 7)
        assert event.attributes == {"key": key, "name": "BBC", "number": number, "trace": b"\x00\xff"}
    assert sorted(sources.values()) == [list(range(50)), list(range(50, 100))]
    assert all(name.startswith("batch-") for name in sources)
    assert {name.split("-")[2] for name in sources} == {"0", "1"}


def test_a_replayed_batch_is_published_once(spark: Any, broker: BrokerThread, tmp_path: Path) -> None:
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    add_files(files, 0, 1, 2)
    finish(start(spark, files, checkpoint, broker))
    assert numbers(broker.settled()) == list(range(3 * ROWS))
    assert broker.repeated == 0
    assert forget_last_commit(checkpoint) == 2
    finish(start(spark, files, checkpoint, broker))
    assert broker.repeated == ROWS  # it was published again
    forget_last_commit(checkpoint)
    broker.restart()  # and now the broker does not know that it had it
    add_files(files, 3)
    finish(start(spark, files, checkpoint, broker))
    shown = broker.settled()
    assert numbers(shown) == list(range(4 * ROWS))
    assert batches(shown) == [0, 1, 2, 3]
    sources = {event.source for event in shown}
    assert len(sources) == 4  # each batch has rows of its own
    assert len({source.rpartition("-")[0] for source in sources}) == 1
    assert shown[0].source.startswith("numbers-")


def test_a_batch_within_for_each_batch_is_published_once(
    spark: Any,
    broker: BrokerThread,
    tmp_path: Path,
) -> None:
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    url = broker.url

    def write(frame: Any, batch: int) -> None:
        frame.repartition(2).sortWithinPartitions("value").write.format("tidings").option("url", url).option(
            "topic", "/numbers"
        ).mode("append").save()

    def run() -> None:
        writer = spark.readStream.text(str(files)).writeStream.foreachBatch(write)
        finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())

    add_files(files, 0)
    run()
    forget_last_commit(checkpoint)
    run()
    assert sorted(numbers(broker.settled())) == list(range(ROWS))
    assert broker.repeated == ROWS


def test_a_task_that_dies_half_way_is_run_again(spark: Any, broker: BrokerThread) -> None:
    """Each task is killed in its first attempt when a part of its rows is with the broker."""
    from pyspark.sql.datasource import DataSource

    class Deadly(DataSource):
        @classmethod
        def name(cls) -> str:
            return "deadly"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            from pyspark import TaskContext

            from tidings.spark.format import sink_publishing
            from tidings.spark.format.sink import BatchSink, sink_writer

            class DeadlySink(BatchSink):
                def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
                    first_attempt = TaskContext.get().attemptNumber() == 0
                    if first_attempt:
                        wait = sink_publishing._Sending._wait_for_first

                        async def wait_and_die(sending: Any) -> None:
                            await wait(sending)
                            os._exit(1)

                        sink_publishing.CHUNK_EVENTS = 20
                        sink_publishing._Sending._wait_for_first = wait_and_die
                    return BatchSink.write(self, iterator)

            made = sink_writer(self.options, schema, overwrite)
            return DeadlySink(made._options, made._columns)

    spark.dataSource.register(Deadly)
    frame = spark.range(0, 400, 1, 2).selectExpr("cast(id as string) value")
    options = {"url": broker.url, "topic": "/numbers"}
    frame.write.format("deadly").options(**options).mode("append").save()
    shown = broker.settled()
    assert Counter(numbers(shown)) == Counter(range(400))
    assert broker.repeated >= 2 * 20  # what was confirmed before the end came


MISTAKES = [
    ("'' value", {"tokn": "x"}, "unknown option 'tokn': did you mean token?"),
    ("'' value", {"url": "tidings://127.0.0.1:1"}, "cannot reach tidings://127.0.0.1:1: connection refused"),
    ("id value", {}, "column value is bigint: it must be binary or string"),
    (
        "if(id = 3, null, cast(id as string)) value",
        {},
        "row 1 of partition 1 (topic '/a'): the value is null",
    ),
    (
        f"if(id = 1, repeat('x', {MAX_EVENT_BYTES}), '') value",
        {},
        "row 1 of partition 0 (topic '/a'): the event has 1048",
    ),
]


@pytest.mark.parametrize(("columns", "options", "words"), MISTAKES)
def test_a_mistake_is_told_in_one_line(
    spark: Any, broker: BrokerThread, columns: str, options: dict[str, str], words: str
) -> None:
    frame = spark.range(0, 4, 1, 2).selectExpr(*columns.split("; "))
    writer = frame.write.format("tidings").options(**{"url": broker.url, "topic": "/a", **options})
    with pytest.raises(Exception) as raised:
        writer.mode("append").save()
    told_in_one_line(raised.value, words)
    assert not {b"2", b"3"} & set(broker.payloads())  # of a partition with a bad row nothing is published


def test_nothing_is_overwritten(spark: Any, broker: BrokerThread) -> None:
    writer = spark.range(1).selectExpr("'' value").write.format("tidings")
    with pytest.raises(Exception) as raised:
        writer.options(url=broker.url, topic="/a").mode("overwrite").save()
    told_in_one_line(raised.value, "published events cannot be overwritten: write with mode('append')")


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("value; 1 size", {}, "unknown column size (int): events have"),
        ("value", {"url": "tidings://127.0.0.1:1"}, "cannot reach tidings://127.0.0.1:1: connection refused"),
    ],
)
def test_a_mistake_in_a_stream_is_told_in_one_line(
    spark: Any, broker: BrokerThread, tmp_path: Path, columns: str, options: dict[str, str], words: str
) -> None:
    """Also that a broker is away at the very first batch, which is not waited for."""
    add_files(tmp_path / "files", 0)
    frame = spark.readStream.text(str(tmp_path / "files")).selectExpr(*columns.split("; "))
    given = {
        "url": broker.url,
        "topic": "/a",
        "checkpointLocation": str(tmp_path / "checkpoint"),
        **options,
    }
    query = frame.writeStream.format("tidings").options(**given).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="STREAM_FAILED") as raised:
        finish(query)
    told_in_one_line(raised.value, words)
