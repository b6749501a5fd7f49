"""Columns of the source against a twin that goes row by row, for every type of attribute and every slice."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from archive_events import as_batch
from tidings.core.errors import ArchiveCorrupt
from tidings.core.events.event import Event
from tidings.core.events.position import OrderPosition
from tidings.core.events.text import attribute_text
from tidings.core.events.topics import TopicPattern
from tidings.core.filters.language.filter import Filter
from tidings.spark.format.columns import COLUMNS, RowSelection, spark_batch

VALUES = [
    *(None, True, False, 0, -7, 2**63 - 1, 0.5, float("inf"), float("nan"), "", "plain", "12", "true", "é\n"),
    *('"quoted"', "X'00'", "X'oops", 'a"b', b"", b"\x00\xff", b"12"),
]
TOPICS = ("/a", "/a/b", "/a/b/c", "/é")


def random_event(random: Random, number: int) -> Event:
    names = random.sample(["key", "x", "y", "Key", "z"], random.randrange(5))
    event = Event(
        source="p",
        incarnation=random.randrange(2),
        sequence=number,
        topic=random.choice(TOPICS),
        published_at=random.choice([0, 999, 1_700_000_000_123_456_789]),
        attributes={name: random.choice(VALUES) for name in names},
        payload=random.randbytes(random.randrange(5)),
    )
    if random.random() < 0.5:
        after = {topic: random.randrange(9) for topic in random.sample(TOPICS, random.randrange(3))}
        event.__dict__["order"] = OrderPosition(topic="/a", number=number, after=after)
    return event


def archived(events: list[Event]) -> pa.RecordBatch:
    return as_batch(5, events, 1)


def raw(value: Any) -> bytes | None:
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    text = attribute_text(value)
    return None if text is None else text.encode()


def twin(event: Event, offset: int, partition: int) -> dict[str, Any]:
    attributes, order = event.attributes, event.order
    return {
        "key": raw(attributes.get("key")),
        "value": event.payload,
        "topic": event.topic,
        "partition": partition,
        "offset": offset,
        "timestamp": event.published_at // 1000,
        "headers": [{"key": name, "value": raw(value)} for name, value in attributes.items()],
        "source": "p~1" if event.incarnation else "p",
        "sequence": event.sequence,
        "attributes": [(name, attribute_text(value)) for name, value in attributes.items()],
        "order": order and {"topic": order.topic, "number": order.number, "after": list(order.after.items())},
        "attempt": 1,
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).view(pa.int64())).to_pylist()


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_is_what_its_rows_are(seed: int) -> None:
    random = Random(seed)
    events = [random_event(random, number) for number in range(random.randrange(40))]
    expected = [twin(event, 5 + at, 3) for at, event in enumerate(events)]
    batch = archived(events)
    low = random.randrange(len(events) + 1)
    high = random.randrange(low, len(events) + 1)
    for start, stop in ((0, len(events)), (low, high)):
        found = spark_batch(batch.slice(start, stop - start), 3, headers=True)
        found.validate(full=True)
        assert found.schema.equals(COLUMNS)
        assert rows_of(found) == expected[start:stop]
        without = [{**row, "headers": None} for row in expected[start:stop]]
        assert rows_of(spark_batch(batch.slice(start, stop - start), 3)) == without


def test_the_types_are_exactly_those_that_spark_makes_of_the_schema() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from tidings.spark.format.source import SCHEMA

    assert to_arrow_schema(SCHEMA, timezone="UTC").equals(COLUMNS)
    assert SCHEMA.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "headers:array<struct<key:string,value:binary>>,source:string,sequence:bigint,"
        "attributes:map<string,string>,order:struct<topic:string,number:bigint,after:map<string,bigint>>,attempt:int>"
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "where", [None, "x = 12", "x = '12' OR y IS NULL", "topic LIKE '/a/%' AND key <> 'plain'"]
)
@pytest.mark.parametrize("patterns", [None, ("/a",), ("/a/*", "/é"), ("/a/**",), ("/none",)])
def test_a_selection_is_what_its_topics_and_its_filter_say(
    seed: int, where: str | None, patterns: tuple[str, ...] | None
) -> None:
    random = Random(seed)
    events = [random_event(random, number) for number in range(30)]
    topics = None if patterns is None else tuple(map(TopicPattern, patterns))
    found = RowSelection(topics, where)(archived(events)).column("sequence").to_pylist()
    chosen = Filter(where) if where else None
    expected = [
        event.sequence
        for event in events
        if (topics is None or any(pattern.matches(event.topic) for pattern in topics))
        and (chosen is None or chosen.matches({**event.attributes, "topic": event.topic}))
    ]
    assert found == expected


def test_attributes_that_do_not_decode_are_named_by_their_offset() -> None:
    batch = archived([random_event(Random(1), number) for number in range(3)])
    damaged = batch.set_column(
        6, batch.schema.field("packed"), pa.array([b"\x80", b"\xc1", b"\x80"], pa.binary())
    )
    with pytest.raises(ArchiveCorrupt, match="cannot decode the attributes at offset 6"):
        RowSelection(None, "x = 1")(damaged)
