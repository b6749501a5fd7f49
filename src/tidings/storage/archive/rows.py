"""Converts events of the tail to the Arrow rows of an archive.

The tail and the sealed segments return the same rows because both come from `batch_of`: a segment has what the tail
would have returned. Many events are decoded at once, and only what the columns need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain

import msgspec
import pyarrow as pa

from tidings.core.errors import ArchiveError
from tidings.core.events.event import AttributeMap, source_text
from tidings.core.events.position import OrderPosition
from tidings.core.events.text import attribute_texts
from tidings.storage.archive.packing import TailRow, unpack_events

ATTRIBUTES_TYPE = pa.map_(pa.string(), pa.string())
AFTER_TYPE = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
ORDER_TYPE = pa.struct(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("after", AFTER_TYPE, nullable=False),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("incarnation", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("attributes", ATTRIBUTES_TYPE, nullable=False),
        pa.field("packed", pa.binary(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("published_ns", pa.int64(), nullable=False),
        pa.field("notified_ns", pa.int64(), nullable=False),
        pa.field("out_of_order", pa.bool_(), nullable=False),
        pa.field("order", ORDER_TYPE, nullable=True),
        pa.field("content_type", pa.string(), nullable=True),
        pa.field("expires_ns", pa.int64(), nullable=True),
        pa.field("reply_to", pa.string(), nullable=True),
        pa.field("request", pa.string(), nullable=True),
    ]
)
DETAILS = ("content_type", "expires_ns", "reply_to", "request")
"""Columns about the payload, null where it has none of it. Older segments do not have them."""
OFFSET = "offset"
"""The column that identifies a row: it is always read."""
BATCH_BYTES = 8 * 1024 * 1024
"""Batches and row groups end early at this size, so that large payloads fit into memory."""


_encode = msgspec.msgpack.Encoder().encode
decode_attributes = msgspec.msgpack.Decoder(AttributeMap).decode


class Rows:
    """Events of the tail: at most `limit` of those in `parts`, after the first `skip`. msgspec.MsgspecError."""

    def __init__(self, parts: Sequence[TailRow], skip: int, limit: int) -> None:
        kept = slice(skip, skip + limit)
        events, details = unpack_events(parts)
        self.events = events[kept]
        self._details = None if details is None else details[kept]
        self.notified_ns = _spread(((part.notified_ns, part.count) for part in parts), kept)
        self.out_of_order = _spread(((part.out_of_order, part.count) for part in parts), kept)
        self.orders = list(chain.from_iterable(part.orders() for part in parts))[kept]
        self.size_bytes = sum(len(part.events) for part in parts)

    def __len__(self) -> int:
        return len(self.events)

    @cached_property
    def attributes(self) -> list[AttributeMap]:
        return [decode_attributes(event.packed) for event in self.events]

    def packed(self) -> list[bytes]:
        return [bytes(event.packed) for event in self.events]

    def details(self, field: str, kind: pa.DataType) -> pa.Array:
        """Return a detail of the payloads, null where it is empty."""
        if self._details is None:
            return pa.nulls(len(self), kind)
        return pa.array([None if one is None else getattr(one, field) or None for one in self._details], kind)

    def sources(self) -> list[str]:
        pairs = [(event.source, event.incarnation) for event in self.events]
        texts = {pair: source_text(*pair) for pair in set(pairs)}
        return list(map(texts.__getitem__, pairs))


def _spread(values: Iterable[tuple[int, int]], kept: slice) -> list[int]:
    return list(chain.from_iterable([value] * count for value, count in values))[kept]


def batch_of(first: int, rows: Rows, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return the rows with these columns of SCHEMA and with offsets from `first`."""
    columns = [
        pa.array(range(first, first + len(rows)), pa.int64())
        if field.name == OFFSET
        else _COLUMNS[field.name](rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _attributes_column(rows: Rows) -> pa.Array:
    maps = rows.attributes
    ends = list(accumulate(map(len, maps), initial=0))
    names = list(chain.from_iterable(maps))
    texts = attribute_texts(chain.from_iterable(map(dict.values, maps)))
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(texts, pa.string())
    )


def _order_column(rows: Rows) -> pa.Array:
    orders = [order or _NO_ORDER for order in rows.orders]
    maps = [order.after for order in orders]
    after = pa.MapArray.from_arrays(
        pa.array(list(accumulate(map(len, maps), initial=0)), pa.int32()),
        pa.array(list(chain.from_iterable(maps)), pa.string()),
        pa.array([number for numbers in maps for number in numbers.values()], pa.int64()),
        AFTER_TYPE,
    )
    parts = [
        pa.array([order.topic for order in orders], pa.string()),
        pa.array([order.number for order in orders], pa.int64()),
        after,
    ]
    none = pa.array([order is None for order in rows.orders], pa.bool_())
    return pa.StructArray.from_arrays(parts, fields=list(ORDER_TYPE), mask=none)


_NO_ORDER = OrderPosition("", 0, {})
_COLUMNS: dict[str, Callable[[Rows], pa.Array]] = {
    "source": lambda rows: pa.array(rows.sources(), pa.string()),
    "incarnation": lambda rows: pa.array([event.incarnation for event in rows.events], pa.int64()),
    "sequence": lambda rows: pa.array([event.sequence for event in rows.events], pa.int64()),
    "topic": lambda rows: pa.array([event.topic for event in rows.events], pa.string()),
    "attributes": _attributes_column,
    "packed": lambda rows: pa.array(rows.packed(), pa.binary()),
    "payload": lambda rows: pa.array([event.payload for event in rows.events], pa.binary()),
    "published_ns": lambda rows: pa.array([event.published_ns for event in rows.events], pa.int64()),
    "notified_ns": lambda rows: pa.array(rows.notified_ns, pa.int64()),
    "out_of_order": lambda rows: pa.array(rows.out_of_order, pa.bool_()),
    "order": _order_column,
    "content_type": lambda rows: rows.details("content_type", pa.string()),
    "expires_ns": lambda rows: rows.details("expires_at", pa.int64()),
    "reply_to": lambda rows: rows.details("reply_to", pa.string()),
    "request": lambda rows: rows.details("request", pa.string()),
}


def projected(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema with only these columns and the offset, in its own order; ArchiveError for an unknown one."""
    if columns is None:
        return SCHEMA
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown:
        raise ArchiveError(f"an archive has no column {unknown[0]!r}; it has {', '.join(SCHEMA.names)}")
    return pa.schema([field for field in SCHEMA if field.name in columns or field.name == OFFSET])


def published_at(batches: Iterable[pa.RecordBatch]) -> int:
    """Return when the event of a single row was published."""
    (row,) = (published for batch in batches for published in batch.column("published_ns").to_pylist())
    return int(row)
