"""Turns rows of a DataFrame into events: which columns there may be, and what a row becomes.

| column | type | what it is |
| --- | --- | --- |
| `value` | binary, string | the payload; required, never null |
| `topic` | string | the topic, unless the option `topic` names one for all rows; never null |
| `key` | binary, string | the attribute `key`, as bytes or as a string; null: none |
| `attributes` | map<string,string> | attributes, their types read from the text: `12`, `12.5`, `true`, `BBC`, `"12"` |
| `headers` | array<struct<key:string,value:binary>> (or value:string) | attributes, as bytes or as strings |

Columns that only the source sets (`partition`, `offset`, `timestamp`, `source`, `sequence`, `order`, `attempt`) are
ignored, so that what was read can be written. Any other column is rejected. Several columns may name an attribute if
its value is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidings.core.errors import PipelineError, TidingsError
from tidings.core.events.event import INT_MAX, check_not_reserved, make_publication
from tidings.core.events.text import attribute_text, attribute_value
from tidings.core.events.topics import check_topic
from tidings.core.filters.language.predicates import Scalar

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TYPES = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "key": ("binary", "string"),
    "attributes": ("map<string,string>",),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
}
LEFT_OUT = ("partition", "offset", "timestamp", "source", "sequence", "order", "attempt")
KEY = "key"

Outgoing = tuple[str, dict[str, Scalar], bytes]
"""Topic, attributes, payload."""


class SinkColumns:
    """Finds the columns of a DataFrame; PipelineError if they are not what the sink accepts."""

    def __init__(self, schema: StructType, topic: str | None) -> None:
        self._topic = topic
        self._places: dict[str, int] = {}
        for place, field in enumerate(schema.fields):
            name = field.name.lower()
            if name in LEFT_OUT:
                continue
            _check_type(field.name, field.dataType.simpleString())
            if name in self._places:
                raise PipelineError(f"duplicate column {name}")
            self._places[name] = place
        if "value" not in self._places:
            raise PipelineError(
                "missing column value (binary or string): it becomes the payload of the events"
            )
        if topic is None and "topic" not in self._places:
            raise PipelineError("events need a topic: set the option topic, or add a column topic")

    def events(self, batches: Iterable[pa.RecordBatch], source: str, partition: int) -> Iterator[Outgoing]:
        """Yield each row as an event that `source` may publish; PipelineError names the first row that cannot be
        one."""
        number = 0
        for batch in batches:
            columns = {name: batch.column(place).to_pylist() for name, place in self._places.items()}
            for values in zip(*columns.values(), strict=True):
                row = dict(zip(columns, values, strict=True))
                topic = self._topic if self._topic is not None else row["topic"]
                try:
                    event = _event(topic, row)
                    # With the longest possible numbers, so that an event that is too long is found now, not half-way.
                    make_publication(source, INT_MAX, INT_MAX, *event, INT_MAX)
                except TidingsError as error:
                    about = "" if topic is None else f" (topic {topic!r})"
                    raise PipelineError(f"row {number} of partition {partition}{about}: {error}") from None
                yield event
                number += 1


def _check_type(name: str, found: str) -> None:
    wanted = TYPES.get(name.lower())
    if wanted is None:
        raise PipelineError(
            f"unknown column {name} ({found}): events have {', '.join(TYPES)}; put other data into attributes or value"
        )
    if found not in wanted:
        raise PipelineError(f"column {name} is {found}: it must be {' or '.join(wanted)}")


def _event(topic: str | None, row: dict[str, Any]) -> Outgoing:
    if topic is None:
        raise PipelineError("the topic is null")
    check_topic(topic)
    value = row["value"]
    if value is None:
        raise PipelineError(
            "the value is null: events need a payload, which may be empty (coalesce(value, ''))"
        )
    return topic, _attributes(row), value.encode() if isinstance(value, str) else value


def _attributes(row: dict[str, Any]) -> dict[str, Scalar]:
    """Return the attributes sorted by name: a row that is computed again may bring them in another order."""
    found: dict[str, Scalar] = {}
    for name, text in row.get("attributes") or ():
        found[name] = attribute_value(text)
    for header in row.get("headers") or ():
        if header is None or header["key"] is None:
            raise PipelineError("a header or its key is null")
        _add(found, header["key"], header["value"], "headers")
    if row.get(KEY) is not None:
        _add(found, KEY, row[KEY], "key")
    check_not_reserved(tuple(found))
    return dict(sorted(found.items()))


def _add(found: dict[str, Scalar], name: str, value: str | bytes | None, column: str) -> None:
    """Add an attribute; one that is already there keeps its type, which may come from the event that was read."""
    if name not in found:
        found[name] = value
    elif not _same(found[name], value):
        raise PipelineError(
            f"attribute {name!r} is {value!r} in column {column}, but {found[name]!r} in another"
        )


def _same(typed: Scalar, value: str | bytes | None) -> bool:
    if typed is None or value is None:
        return typed is value
    carried = value.encode() if isinstance(value, str) else value
    raw = typed.encode() if isinstance(typed, str) else typed
    return carried in (raw, (attribute_text(typed) or "").encode())
