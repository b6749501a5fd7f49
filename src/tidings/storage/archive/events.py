"""Converts archived rows back to events."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from tidings.core.errors import ArchiveCorrupt
from tidings.core.events.event import Event, give_payload
from tidings.core.events.payload import TypedPayload
from tidings.core.events.position import OrderPosition
from tidings.core.filters.language.predicates import Scalar
from tidings.storage.archive.rows import DETAILS, decode_attributes

_COLUMNS = (
    "offset",
    "source",
    "incarnation",
    "sequence",
    "topic",
    "packed",
    "payload",
    "published_ns",
    "out_of_order",
    "order",
    *DETAILS,
)


def events_of(batch: pa.RecordBatch) -> Iterator[Event]:
    """Yield the events of a batch in SCHEMA, with their typed attributes, `order` and `out_of_order`."""
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    for offset, text, incarnation, sequence, topic, packed, payload, published, late, order, *details in zip(
        *columns, strict=True
    ):
        source = text.removesuffix(f"~{incarnation}") if incarnation else text
        attributes = _attributes(offset, packed)
        event = Event(source, incarnation, sequence, topic, published, attributes, payload)
        if late:
            event.__dict__["out_of_order"] = True
        if order is not None:
            event.__dict__["order"] = OrderPosition(order["topic"], order["number"], dict(order["after"]))
        if any(detail is not None for detail in details):
            content_type, expires_at, reply_to, request = details
            give_payload(
                event,
                TypedPayload(payload, content_type or "", expires_at or 0, reply_to or "", request or ""),
            )
        yield event


def _attributes(offset: int, packed: bytes) -> dict[str, Scalar]:
    try:
        return decode_attributes(packed)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ArchiveCorrupt(f"offset {offset}: cannot decode its attributes: {error}") from None
