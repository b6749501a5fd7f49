"""Rows of an archive: how an event is kept in the tail, and the one way from there to Arrow.

The tail and the sealed segments give the same rows because both come from `batch_of`: a segment holds what
the tail would have given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated
from zlib import crc32

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct

from tidings.model.errors import ArchiveError, AttributeValueError
from tidings.model.event import (
    INT_MAX,
    INT_MIN,
    INTERNAL_PREFIX,
    AttributeMap,
    Counter,
    Event,
    Name,
    check_attributes,
    source_text,
)
from tidings.model.text import attribute_text

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
    ]
)
OFFSET = "offset"
"""The column by which rows are known: it is always read."""
BATCH_BYTES = 8 * 1024 * 1024
"""Batches and row groups end early at this size of their rows, so that large payloads stay within memory."""

_Int64 = Annotated[int, Meta(ge=INT_MIN, le=INT_MAX)]


class Order(Struct, array_like=True, frozen=True):
    """An event's place in its order, as it was archived."""

    topic: str
    number: _Int64
    after: dict[str, _Int64]


class Row(Struct, array_like=True, gc=False):
    """What the tail keeps of an event beside its offset."""

    published_ns: Counter
    notified_ns: _Int64
    source: Name
    incarnation: Counter
    sequence: Counter
    topic: str
    packed: bytes
    payload: bytes
    out_of_order: bool
    order: Order | None


_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(Row).decode
decode_attributes = msgspec.msgpack.Decoder(AttributeMap).decode


def pack_row(event: Event, notified_ns: int) -> bytes:
    """The event for the tail; ArchiveError for one that could not be read back."""
    try:
        attributes = _without_internal(event.attributes)
        check_attributes(attributes)
        order = event.order
        packed = _encode(
            (
                event.published_at,
                notified_ns,
                event.source,
                event.incarnation,
                event.sequence,
                event.topic,
                _encode(attributes),
                event.payload,
                event.out_of_order,
                None if order is None else (order.topic, order.number, order.after),
            )
        )
        _decode_row(packed)
    except (AttributeValueError, msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise ArchiveError(f"event {event.id} cannot be archived: {error}") from None
    return packed


def unpack_row(packed: bytes) -> Row:
    """msgspec.MsgspecError if it is none."""
    return _decode_row(packed)


def row_checksum(offset: int, packed: bytes) -> int:
    """It starts from the offset: a row under another's offset is as wrong as a damaged one."""
    return crc32(packed, offset & 0xFFFFFFFF)


def batch_of(first: int, rows: Sequence[Row]) -> pa.RecordBatch:
    """The rows in SCHEMA, with offsets from `first`."""
    columns = [
        pa.array(range(first, first + len(rows)), pa.int64()),
        pa.array(
            [source_text(row.source, row.incarnation) if row.incarnation else row.source for row in rows],
            pa.string(),
        ),
        pa.array([row.incarnation for row in rows], pa.int64()),
        pa.array([row.sequence for row in rows], pa.int64()),
        pa.array([row.topic for row in rows], pa.string()),
        _attributes_column(rows),
        pa.array([row.packed for row in rows], pa.binary()),
        pa.array([row.payload for row in rows], pa.binary()),
        pa.array([row.published_ns for row in rows], pa.int64()),
        pa.array([row.notified_ns for row in rows], pa.int64()),
        pa.array([row.out_of_order for row in rows], pa.bool_()),
        _order_column(rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _without_internal(attributes: AttributeMap) -> AttributeMap:
    for name in attributes:
        if name >= INTERNAL_PREFIX:  # few names sort behind it
            return {name: value for name, value in attributes.items() if not name.startswith(INTERNAL_PREFIX)}
    return attributes


def _attributes_column(rows: Iterable[Row]) -> pa.Array:
    names: list[str] = []
    texts: list[str | None] = []
    ends = [0]
    for row in rows:
        for name, value in decode_attributes(row.packed).items():
            names.append(name)
            texts.append(attribute_text(value))
        ends.append(len(names))
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(texts, pa.string())
    )


def _order_column(rows: Sequence[Row]) -> pa.Array:
    orders = [row.order or _NO_ORDER for row in rows]
    names: list[str] = []
    numbers: list[int] = []
    ends = [0]
    for order in orders:
        names.extend(order.after)
        numbers.extend(order.after.values())
        ends.append(len(names))
    after = pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(numbers, pa.int64()), AFTER_TYPE
    )
    parts = [
        pa.array([order.topic for order in orders], pa.string()),
        pa.array([order.number for order in orders], pa.int64()),
        after,
    ]
    return pa.StructArray.from_arrays(
        parts, fields=list(ORDER_TYPE), mask=pa.array([row.order is None for row in rows], pa.bool_())
    )


_NO_ORDER = Order("", 0, {})


def projected(columns: Sequence[str] | None) -> pa.Schema:
    """The schema with these columns and the offset alone, in its own order; ArchiveError for one it has not."""
    if columns is None:
        return SCHEMA
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown:
        raise ArchiveError(f"an archive has no column {unknown[0]!r}; it has {', '.join(SCHEMA.names)}")
    return pa.schema([field for field in SCHEMA if field.name in columns or field.name == OFFSET])
