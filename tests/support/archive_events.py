"""Events for archives, each known by its number; and what an archive holds, as plain values to compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tidings.core.events.event import Event
from tidings.core.events.position import OrderPosition
from tidings.core.events.run import Arrival
from tidings.storage.archive import ArchiveReader, events_of
from tidings.storage.archive.packing import LeaveOut, pack, refuse, unpack_row
from tidings.storage.archive.rows import Rows, batch_of

SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS


def make_event(number: int, payload_bytes: int = 8) -> Event:
    """Event `number`: every field follows from it."""
    attributes: dict[str, Any] = {
        "number": number,
        "kind": f"k{number % 7}",
        "half": number / 2,
        "none": None,
    }
    payload = number.to_bytes(8) * (payload_bytes // 8)
    event = Event(
        f"source-{number % 3}", number % 2, number, f"/t/{number % 5}", START_NS + number, attributes, payload
    )
    if number % 4 == 0:
        event.__dict__["order"] = OrderPosition(topic=event.topic, number=number, after={"/o": number - 1})
    if number % 6 == 0:
        event.__dict__["out_of_order"] = True
    return event


def make_events(first: int, count: int, payload_bytes: int = 8) -> list[Event]:
    return [make_event(number, payload_bytes) for number in range(first, first + count)]


def as_batch(
    first: int, came: Iterable[Event | Arrival], notified_ns: int, leave_out: LeaveOut = refuse
) -> pa.RecordBatch:
    """What an archive with these events alone would give."""
    parts = [unpack_row(row.value) for row in pack(came, notified_ns, leave_out)]
    return batch_of(first, Rows(parts, 0, sum(part.count for part in parts)))


def facts(event: Event) -> tuple[Any, ...]:
    """All of an event that an archive keeps; floats by their text, so that NaN equals itself."""
    order = event.order
    place = None if order is None else (order.topic, order.number, dict(order.after))
    typed = {name: (type(value).__name__, repr(value)) for name, value in event.attributes.items()}
    payload = bytes(event.payload)
    return event.id, event.topic, event.published_at, typed, payload, event.out_of_order, place


def kept_events(reader: ArchiveReader, start: int, stop: int, batch_rows: int = 16_384) -> list[Event]:
    """The events of a range, whose batches were looked at: whole, in order, of the right size."""
    events: list[Event] = []
    for batch in reader.read(start, stop, batch_rows):
        batch.validate(full=True)
        assert 1 <= batch.num_rows <= batch_rows
        position = start + len(events)
        assert batch.column("offset").to_pylist() == list(range(position, position + batch.num_rows))
        events.extend(events_of(batch))
    assert len(events) == stop - start
    return events


def kept_numbers(reader: ArchiveReader) -> list[int]:
    """The numbers of all events, each of which is as `make_event` made it (but for the size of its payload)."""
    events = kept_events(reader, *reader.bounds())
    for event in events:
        assert facts(event) == facts(make_event(event.sequence, len(event.payload)))
    return [event.sequence for event in events]
