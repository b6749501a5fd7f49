"""Columns, rows and options of the sink, without Spark: what becomes an event, and what is refused, in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidings.core.errors import PipelineError
from tidings.core.events.event import MAX_EVENT_BYTES
from tidings.core.events.text import attribute_text
from tidings.spark.format.sink import parse_sink_options, sink_stream_writer, sink_writer
from tidings.spark.format.sink_rows import Outgoing, SinkColumns

TEXT, BYTES, ATTRIBUTES = StringType(), BinaryType(), MapType(StringType(), StringType())
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BYTES)]))
ARROW = {
    "value": pa.binary(),
    "topic": pa.string(),
    "key": pa.binary(),
    "attributes": pa.map_(pa.string(), pa.string()),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
SPARK: dict[str, DataType] = {
    "value": BYTES,
    "topic": TEXT,
    "key": BYTES,
    "attributes": ATTRIBUTES,
    "headers": HEADERS,
}
URL = "tidings://127.0.0.1:1"


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def events(rows: list[dict[str, Any]], topic: str | None = None) -> list[Outgoing]:
    """These rows, in two Arrow batches, as events."""
    names = list(rows[0])
    columns = SinkColumns(schema(**{name: SPARK[name] for name in names}), topic)
    arrow = pa.schema([(name, ARROW[name]) for name in names])
    half = len(rows) // 2
    batches = [pa.RecordBatch.from_pylist(part, arrow) for part in (rows[:half], rows[half:])]
    return list(columns.events(batches, "source", 3))


def row(**changes: Any) -> dict[str, Any]:
    return {"value": b"x", "topic": "/a", "key": None, "attributes": None, "headers": None} | changes


def test_rows_become_events() -> None:
    full = row(
        value=b"payload",
        key=b"k",
        attributes=[("size", "12"), ("name", "BBC"), ("share", "0.5"), ("text", '"12"'), ("none", None)],
        headers=[{"key": "trace", "value": b"\x00"}, {"key": "empty", "value": None}],
    )
    typed = {"size": 12, "name": "BBC", "share": 0.5, "text": "12", "none": None}
    assert events([full, row(topic="/b", value=b"")]) == [
        ("/a", typed | {"key": b"k", "trace": b"\x00", "empty": None}, b"payload"),
        ("/b", {}, b""),
    ]
    assert events([row(topic=None)], topic="/for/all") == [("/for/all", {}, b"x")]
    assert list(events([full])[0][1]) == sorted({*typed, "key", "trace", "empty"})


def test_text_columns_are_carried_as_text() -> None:
    columns = SinkColumns(
        schema(value=TEXT, key=TEXT, Partition=IntegerType(), timestamp=TimestampType()), "/a"
    )
    batch = pa.RecordBatch.from_pylist(
        [{"value": "ä", "key": "007", "Partition": 1, "timestamp": None}],
        pa.schema(
            [
                ("value", pa.string()),
                ("key", pa.string()),
                ("Partition", pa.int32()),
                ("timestamp", pa.int64()),
            ]
        ),
    )
    assert list(columns.events([batch], "source", 0)) == [("/a", {"key": "007"}, "ä".encode())]


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary()


@given(st.dictionaries(st.sampled_from(["key", "size", "ä"]), scalars))
def test_what_the_source_reads_is_written_as_it_was(attributes: dict[str, Any]) -> None:
    """The source shows attributes three times: typed as text, as headers, and the key; they agree."""
    attributes = {name: value for name, value in attributes.items() if not _surrogates(value)}
    texts = {name: attribute_text(value) for name, value in attributes.items()}
    headers = [
        {"key": name, "value": None if text is None else text.encode()} for name, text in texts.items()
    ]
    key = texts.get("key")
    [(_, found, _)] = events(
        [row(attributes=list(texts.items()), headers=headers, key=None if key is None else key.encode())]
    )
    assert repr(found) == repr(dict(sorted(attributes.items())))  # NaN is itself in text


def _surrogates(value: object) -> bool:
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row(value=None), r"row 2 of partition 3 \(topic '/a'\): the value is null"),
        (row(topic=None), "row 2 of partition 3: the topic is null"),
        (row(topic="a"), r"row 2 of partition 3 \(topic 'a'\): topic 'a' must start with '/'"),
        (row(topic="/a/*"), "has a wildcard"),
        (row(value=bytes(MAX_EVENT_BYTES)), rf"\(topic '/a'\): the event has 1048\d+ bytes; at most {MAX_EVENT_BYTES}"),
        (row(attributes=[("~order", "1")]), "'~order': names that start with '~' are reserved"),
        (row(attributes=[("topic", "/b")]), "'topic' is reserved"),
        (row(attributes=[("n", str(2**64))]), "does not fit into 64 bits"),
        (row(attributes=[("n", '"torn')]), "starts with a quote but is not a JSON string"),
        (row(attributes=[("key", "b")], key=b"c"), "'key' is b'c' in column key, but 'b' in another"),
        (row(headers=[{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]), "'h' is b'2' in column headers"),
        (row(headers=[None]), "a header or its key is null"),
        (row(headers=[{"key": None, "value": b""}]), "a header or its key is null"),
        (row(attributes=[(f"a{n}", "1") for n in range(300)]), "300 attributes; at most 256"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_an_event_is_named(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words) as raised:
        events([row(), row(), bad, row()])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        ({"topic": TEXT}, None, "missing column value (binary or string)"),
        ({"value": TEXT}, None, "set the option topic, or add a column topic"),
        ({"value": LongType()}, "/a", "column value is bigint: it must be binary or string"),
        ({"value": TEXT, "topic": BYTES}, "/a", "column topic is binary: it must be string"),
        ({"value": TEXT, "key": LongType()}, "/a", "column key is bigint: it must be binary or string"),
        (
            {"value": TEXT, "attributes": MapType(StringType(), LongType())},
            "/a",
            "column attributes is map<string,bigint>: it must be map<string,string>",
        ),
        ({"value": TEXT, "headers": TEXT}, "/a", "column headers is string: it must be array<struct<"),
        ({"value": TEXT, "price": LongType()}, "/a", "unknown column price (bigint): events have"),
        ({"value": TEXT, "Value": TEXT}, "/a", "duplicate column value"),
    ],
)
def test_wrong_columns_are_named_on_the_driver(
    columns: Mapping[str, DataType], topic: str | None, words: str
) -> None:
    options = {"url": URL} | ({} if topic is None else {"topic": topic})
    for make in (sink_writer, sink_stream_writer):
        with pytest.raises(PipelineError) as raised:
            make(options, schema(**columns), False)
        assert words in str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "missing option url"),
        ({"url": URL, "tpoic": "/a"}, "unknown option 'tpoic': did you mean topic?"),
        ({"url": URL, "tlsc": "x"}, "did you mean tlsCa?"),
        (
            {"url": URL, "zzz": "x"},
            "unknown option 'zzz': known options: url, topic, token, tlsCa, name, durable, timeout",
        ),
        ({"url": "127.0.0.1:7400"}, "option url: '127.0.0.1:7400' is not a broker's URL"),
        ({"url": "tidings://h:port"}, "option url: 'h:port' is not an address"),
        ({"url": URL, "topic": "news"}, "option topic: topic 'news' must start with '/'"),
        ({"url": URL, "timeout": "soon"}, "option timeout 'soon' must be a number of seconds above 0"),
        ({"url": URL, "timeout": "-1"}, "option timeout '-1'"),
        ({"url": URL, "timeout": "nan"}, "option timeout 'nan'"),
        ({"url": URL, "name": "a~b"}, "option name 'a~b' is not a publisher's name"),
        ({"url": URL, "name": "n" * 41}, "1 to 40 printable characters"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(PipelineError) as raised:
        sink_stream_writer(options, schema(value=TEXT, topic=TEXT), False)
    assert words in str(raised.value)


def test_options_are_taken_in_any_case_and_the_query_gives_its_name() -> None:
    found = parse_sink_options(
        {"URL": URL, "TLSCA": "ca.pem", "Token": "secret", "timeout": "2.5", "checkpointLocation": "/x"}
    )
    assert (found.target.tls_ca, found.target.timeout_s, found.name) == ("ca.pem", 2.5, "spark")
    assert "secret" not in repr(found)
    assert parse_sink_options({"url": URL, "queryName": "orders"}).name == "orders"
    assert parse_sink_options({"url": URL, "queryName": "o" * 99}).name == "spark"
    assert parse_sink_options({"url": URL, "queryName": "orders", "name": "mine"}).name == "mine"


def test_a_batch_write_does_not_overwrite_and_asks_the_broker_first() -> None:
    with pytest.raises(PipelineError, match=r"write with mode\('append'\)"):
        sink_writer({"url": URL, "topic": "/a"}, schema(value=TEXT), True)
    with pytest.raises(PipelineError, match=r"cannot reach tidings://127\.0\.0\.1:1: connection refused"):
        sink_writer({"url": URL, "topic": "/a"}, schema(value=TEXT), False)
