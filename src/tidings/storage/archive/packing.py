"""Packs events into rows of the tail: many in one row, as they came.

A row has consecutive events with the same notification time and `late` flag and with consecutive order numbers, as the
concatenation of their encodings, which are not encoded again. All events are decoded once, a whole run at a time, so
that nothing is stored that could not be read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any
from zlib import crc32

import msgspec
from msgspec import Meta, Raw, Struct

from tidings.core.errors import ArchiveError, AttributeValueError, PayloadError, WireError
from tidings.core.events.event import (
    INT_MAX,
    RESERVED_ATTRIBUTE,
    AttributeMap,
    Counter,
    Event,
    Name,
    PlainMap,
    Publication,
    check_attributes,
)
from tidings.core.events.payload import TypedPayload
from tidings.core.events.position import Int64, OrderPosition
from tidings.core.events.run import Arrival, Stretch

ROW_BYTES = 64 * 1024
"""The limit of a row's events, unless it has a single one. Reading one event decodes its whole row."""

_OLD_ROW = 0x9A
"""The first byte of a row in format 2: an array of ten."""
_ARRAY_32 = b"\xdd"
_ARRAY_OF_ONE = b"\x91"
_ARRAY_HEADERS = {0xDC: 3, 0xDD: 5}
"""Sizes by first byte; the header of a short array has 1 byte."""
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_UNKEEPABLE = (
    *_UNREADABLE,
    AttributeValueError,
    PayloadError,
    WireError,
    TypeError,
    ValueError,
    OverflowError,
)

LeaveOut = Callable[[WireError], None]


class TailRow(Struct, array_like=True, gc=False):
    """A row of the tail, without the offset of its first event."""

    count: Annotated[int, Meta(ge=1, le=INT_MAX)]
    notified_ns: Int64
    out_of_order: bool
    order: OrderPosition | None
    """The position of the first event; the others have the numbers after it."""
    events: memoryview

    def orders(self) -> list[OrderPosition | None]:
        order = self.order
        return [None] * self.count if order is None else [order.later(place) for place in range(self.count)]


class Packed(Struct, frozen=True, gc=False):
    """An encoded row for the tail."""

    count: int
    value: bytes


class KeptEvent(Struct, array_like=True, gc=False):
    """An event as it is read back; its attributes stay packed until a column needs them."""

    source: Name
    incarnation: Counter
    sequence: Counter
    topic: str
    published_ns: Counter
    packed: Raw
    payload: bytes


class _TypedEvent(KeptEvent, array_like=True, gc=False):
    """The same, where a payload may have a content type or other details."""

    payload: bytes | TypedPayload  # type: ignore[assignment]


class _Plain(Struct, array_like=True, gc=False):
    """An event whose attributes the decoder checks itself, except for the reserved name."""

    source: Name
    incarnation: Counter
    sequence: Counter
    topic: str
    published_ns: Counter
    attributes: PlainMap
    payload: memoryview | TypedPayload


class _Loose(_Plain, array_like=True, gc=False):
    attributes: AttributeMap


class _OldRow(Struct, array_like=True, gc=False):
    """A row in format 2: one event."""

    published_ns: Counter
    notified_ns: Int64
    source: Name
    incarnation: Counter
    sequence: Counter
    topic: str
    packed: bytes
    payload: bytes
    out_of_order: bool
    order: OrderPosition | None

    def as_row(self) -> TailRow:
        fields = (self.source, self.incarnation, self.sequence, self.topic, self.published_ns)
        event = _encode((*fields, Raw(self.packed), self.payload))
        return TailRow(1, self.notified_ns, self.out_of_order, self.order, memoryview(event))


_encode = msgspec.msgpack.Encoder().encode
_decode_plain = msgspec.msgpack.Decoder(list[_Plain]).decode
_decode_loose = msgspec.msgpack.Decoder(list[_Loose]).decode
_decode_kept = msgspec.msgpack.Decoder(list[KeptEvent]).decode
_decode_typed = msgspec.msgpack.Decoder(list[_TypedEvent]).decode
_decode_row = msgspec.msgpack.Decoder(TailRow).decode
_decode_old_row = msgspec.msgpack.Decoder(_OldRow).decode
_decode_order = msgspec.msgpack.Decoder(OrderPosition).decode

# --- Writing


def refuse(error: WireError) -> None:
    raise ArchiveError(str(error))


def pack(came: Iterable[Event | Arrival], notified_ns: int, leave_out: LeaveOut = refuse) -> list[Packed]:
    """Return rows for the tail; call `leave_out` for each event that could not be read back."""
    packer = _Packer(notified_ns)
    for one in came:
        if isinstance(one, Event):
            try:
                packer.add(1, _encoded(one), late=one.out_of_order, order=_order(one.order))
            except _UNKEEPABLE as error:
                leave_out(_no_event(str(one.id), error))
        else:
            for first, count, events in _sound(one.stretch, leave_out):
                try:
                    packer.add(count, events, late=one.late, order=_first_order(one.places, first, count))
                except _UNKEEPABLE as error:
                    leave_out(_no_event(f"{one.stretch.source}:{first}", error))
    return packer.finish()


class _Packer:
    """Fills rows."""

    def __init__(self, notified_ns: int) -> None:
        self._notified_ns = notified_ns
        self._rows: list[Packed] = []
        self._events: list[bytes | memoryview] = []
        self._count = self._size_bytes = 0
        self._late = False
        self._order: OrderPosition | None = None

    def add(
        self,
        count: int,
        events: bytes | memoryview,
        *,
        late: bool = False,
        order: OrderPosition | None = None,
    ) -> None:
        if self._count and not (self._continues(late, order) and self._size_bytes + len(events) <= ROW_BYTES):
            self._close()
        if not self._count:
            self._late, self._order = late, order
        self._events.append(events)
        self._count += count
        self._size_bytes += len(events)

    def finish(self) -> list[Packed]:
        if self._count:
            self._close()
        return self._rows

    def _continues(self, late: bool, order: OrderPosition | None) -> bool:
        """Return True if the open row can take the events: it has one `late` flag and consecutive order numbers."""
        if self._order is None or order is None:
            return late == self._late and order is self._order
        return late == self._late and order == self._order.later(self._count)

    def _close(self) -> None:
        row = (self._count, self._notified_ns, self._late, self._order, b"".join(self._events))
        try:
            value = _encode(row)
            _decode_row(value)
        except _UNKEEPABLE as error:
            raise ArchiveError(f"cannot archive events notified at {self._notified_ns!r}: {error}") from None
        self._rows.append(Packed(self._count, value))
        self._events.clear()
        self._count = self._size_bytes = 0


def _encoded(event: Event) -> bytes:
    fields = (event.source, event.incarnation, event.sequence, event.topic, event.published_at)
    payload = event.payload_item
    item = payload.item if isinstance(payload, TypedPayload) else payload
    encoded = _encode((*fields, event.attributes, item))
    _check(_ARRAY_OF_ONE + encoded, 1)
    return encoded


def _order(position: OrderPosition | None) -> OrderPosition | None:
    """Return the position, checked because an application may have made it."""
    return None if position is None else _decode_order(_encode(position))


def _first_order(places: Any, first: int, count: int) -> OrderPosition | None:
    """Return the position of the first event, or None; the position of the last must be valid, too."""
    if places is None or _order(places.of(first + count - 1)) is None:
        return None
    return _order(places.of(first))


def _sound(stretch: Stretch, leave_out: LeaveOut) -> Iterator[tuple[int, int, bytes | memoryview]]:
    """Yield (first sequence, count, encodings) of the stretch, without events that could not be read back."""
    if isinstance(stretch, Publication):
        yield from _sound_events(stretch.first, [memoryview(stretch.raw)], leave_out)
        return
    try:
        _check(stretch.body, stretch.count)
    except _UNKEEPABLE:
        try:
            pieces = stretch.pieces()
        except WireError as error:
            leave_out(error)
        else:
            yield from _sound_events(stretch.first, pieces, leave_out)
    else:
        yield stretch.first, stretch.count, stretch.body[_ARRAY_HEADERS.get(stretch.body[0], 1) :]


def _sound_events(
    first: int, pieces: Iterable[memoryview], leave_out: LeaveOut
) -> Iterator[tuple[int, int, memoryview]]:
    for sequence, piece in enumerate(pieces, first):
        try:
            _check(b"".join((_ARRAY_OF_ONE, piece)), 1)
        except _UNKEEPABLE as error:
            leave_out(_no_event(None, error))
        else:
            yield sequence, 1, piece


def _no_event(name: str | None, error: Exception) -> WireError:
    return WireError(f"{'an event' if name is None else f'event {name}'} cannot be archived: {error}")


def _check(events: bytes | memoryview, count: int) -> None:
    """Raise an error unless this array has `count` events, all of which can be read back."""
    found: Sequence[_Plain]
    doubtful: Sequence[_Plain]
    try:
        found = _decode_plain(events)
        doubtful = [event for event in found if RESERVED_ATTRIBUTE in event.attributes]
    except _UNREADABLE:
        found = doubtful = _decode_loose(events)
    for event in doubtful:
        check_attributes(event.attributes)
    if len(found) != count:
        raise WireError(f"expected {count} events, found {len(found)}")


# --- Reading


def unpack_row(value: bytes) -> TailRow:
    """Decode a row; msgspec.MsgspecError if it is invalid."""
    return _decode_old_row(value).as_row() if value[:1] == bytes((_OLD_ROW,)) else _decode_row(value)


def unpack_events(rows: Sequence[TailRow]) -> tuple[Sequence[KeptEvent], list[TypedPayload | None] | None]:
    """Decode the events of all rows at once; msgspec.MsgspecError if they are invalid.

    Also return what their payloads have besides data; None if all are plain bytes.
    """
    count = sum(row.count for row in rows)
    body = b"".join((_ARRAY_32, count.to_bytes(4, "big"), *[row.events for row in rows]))
    try:
        return _decode_kept(body), None
    except msgspec.ValidationError:
        events = _decode_typed(body)
    return events, [_without_details(event) for event in events]


def _without_details(event: _TypedEvent) -> TypedPayload | None:
    """Reduce the payload to its data, and return the whole if that had details."""
    item: bytes | TypedPayload = event.payload
    if not isinstance(item, TypedPayload):
        return None
    event.payload = item.data
    return item


def row_checksum(offset: int, value: bytes) -> int:
    """Return a checksum that includes the offset, so that a row under another offset counts as damaged."""
    return crc32(value, offset & 0xFFFFFFFF)
