"""Events: what applications publish and receive, and the publication that carries one.

Both share one layout. Brokers handle a `Publication`: its first fields are decoded, attributes and payload stay as they
came, so forwarding an event never decodes or encodes it again. Applications see an `Event`: everything is decoded and
checked. A payload is plain bytes, or has a content type and other details (core/events/payload.py). Events with plain
payloads decode in one go; only what does not is decoded for the details.

After its seven fields an event may have a header for protocols: its position in an order (the layout's fingerprint and
the timestamp) and its kind. Whatever numbers the event adds the header; applications never do. Attribute names that
start with `~` are reserved.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from tidings.core.errors import AttributeValueError, NotHeld, PayloadError, TopicError, WireError
from tidings.core.events.payload import JSON, Payload, PayloadItem, TypedPayload, encodable, unpack_item
from tidings.core.events.position import OrderPosition
from tidings.core.events.timestamp import Timestamp
from tidings.core.events.topics import check_topic
from tidings.core.filters.language.predicates import Scalar

MAX_ATTRIBUTES = 256
MAX_NAME_BYTES = 256
MAX_EVENT_BYTES = 1024 * 1024
"""The limit for an event without its header."""
MAX_HEADER_BYTES = 64 * 1024
"""Larger than any header: a timestamp has at most 4,096 entries."""
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
RESERVED_ATTRIBUTE = "topic"
RESERVED_PREFIX = "~"
MAX_NO_OPS = 1024
"""How many numbers of an order one event without a body can stand for."""
WHOLE = 0
"""The kind of an event or a run that has its body."""
BARE = -1
"""The kind of an event or a run without its body, for receivers that asked for headers only. A kind above 0 is no
event: it counts the numbers of an order that have none (no-ops)."""

Counter = Annotated[int, Meta(ge=0, le=INT_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
Kind = Annotated[int, Meta(ge=BARE, le=MAX_NO_OPS)]
AttributeMap = dict[str, Any]
"""The values are Scalars. msgspec has no union of str and bytes, so we check them after decoding."""
if TYPE_CHECKING:
    from datetime import timedelta

    from tidings.core.events.run import Stretch

    _MostlyPlain = dict[str, Scalar]
else:
    _MostlyPlain = dict[str, bool | int | float | str | None]
    """What the decoder can check by itself; an event with bytes among its attributes is decoded again as `_Loose`."""


class EventId(NamedTuple):
    """Identifies an event forever: a source that restarts without its state takes a new incarnation."""

    source: str
    incarnation: int
    sequence: int

    def __str__(self) -> str:
        return f"{source_text(self.source, self.incarnation)}:{self.sequence}"


def source_text(source: str, incarnation: int) -> str:
    """Return the name of a source in traces: with its incarnation, unless that is the first."""
    return source if incarnation == 0 else f"{source}~{incarnation}"


class Publication(Struct, array_like=True, eq=False, gc=False):
    """An event in transit. The fields up to `packed_payload` are the event, those up to `kind` its header, if it has
    one; the rest never leaves the process.

    Every hop of every event reads the rest, so they are fields and not a dictionary. A publication is a run of one
    event (core/events/run.py).
    """

    count: ClassVar[int] = 1
    source: Name
    incarnation: Counter
    sequence: Counter
    topic: Annotated[str, Meta(min_length=2, max_length=1024)]
    published_at: Counter
    packed_attributes: Raw
    packed_payload: Raw

    layout: Counter = 0
    """The fingerprint of the stamp's layout."""
    stamp: Timestamp | None = None
    """The event's position in its order; None if it has none."""
    kind: Kind = WHOLE

    raw: Any = None
    """The complete encoding, as received or created."""
    size_bytes: int = 0
    decoded: Any = None
    """The attributes, once requested."""
    selection: Any = None
    """Which interests match (core/overlay/matching.py), valid while `selection_token` is the matcher's."""
    selection_token: Any = None
    text_id: str = ""
    """`str(id)`, once a trace has requested it."""
    bared: Any = None
    """The result of `bare_publication`."""

    @property
    def id(self) -> EventId:
        """The event's permanent identity: source, incarnation, sequence."""
        return EventId(self.source, self.incarnation, self.sequence)

    @property
    def first(self) -> int:
        return self.sequence

    @property
    def last(self) -> int:
        """The same as `sequence`: an event is a run of one."""
        return self.sequence

    @property
    def packed_header(self) -> bytes:
        """The encoded header; empty if the event has none."""
        has_none = self.stamp is None and self.kind == WHOLE
        return b"" if has_none else _encode((self.layout, self.stamp, self.kind))

    @property
    def numbers(self) -> int:
        """How many numbers of its order this event takes."""
        return max(self.kind, 1)

    def __str__(self) -> str:
        return f"event {self.id}"

    def attributes(self) -> Mapping[str, Scalar]:
        """Return the attributes and the topic, as filters see them; raise WireError if they do not decode."""
        cached: Mapping[str, Scalar] | None = self.decoded
        if cached is None:
            try:
                decoded = _decode_attributes(self.packed_attributes)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                raise WireError(f"event {self.id}: attributes do not decode: {error}") from None
            decoded[RESERVED_ATTRIBUTE] = self.topic
            cached = self.decoded = decoded
        return cached

    @property
    def expires_at(self) -> int | None:
        """When the event expires, in nanoseconds since 1970; None if it never does, or its payload does not decode."""
        if not self.has_typed_payload:
            return None
        try:
            item = unpack_item(self.packed_payload)
        except PayloadError:
            return None
        return item.expires_at or None if isinstance(item, TypedPayload) else None

    def event(self) -> Event:
        """Return the decoded event, for applications."""
        return decode_event(self.raw, is_typed=self.has_typed_payload)

    @property
    def has_typed_payload(self) -> bool:
        """True if the payload has a content type or other details."""
        return memoryview(self.packed_payload)[0] not in _BIN


# Aliases of the slot itself: these are read many times per event, and a property costs a call.
Publication.first = Publication.last = Publication.sequence  # type: ignore[method-assign, assignment]


Value = TypeVar("Value")


class Event(Struct, array_like=True, dict=True):
    """An event as applications receive it."""

    count: ClassVar[int] = 1
    source: Name
    incarnation: Counter
    sequence: Counter
    topic: str
    published_at: Counter
    attributes: _MostlyPlain
    payload: bytes

    @property
    def last(self) -> int:
        """The same as `sequence`: an event is a run of one."""
        return self.sequence

    @property
    def id(self) -> EventId:
        """The event's permanent identity: source, incarnation, sequence."""
        return EventId(self.source, self.incarnation, self.sequence)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return Struct.__eq__(self, other) and self.payload_item == other.payload_item

    @property
    def payload_item(self) -> PayloadItem:
        """The payload with its details, if it has any: what publishes it again as it was."""
        found: PayloadItem = self.__dict__.get("typed", self.payload)
        return found

    @property
    def content_type(self) -> str:
        """What the payload is, as a media type ('application/json'); empty for plain bytes."""
        typed: TypedPayload | None = self.__dict__.get("typed")
        return "" if typed is None else typed.content_type

    @property
    def expires_at(self) -> int | None:
        """When the event expires, in nanoseconds since 1970; None if it never does."""
        typed: TypedPayload | None = self.__dict__.get("typed")
        return None if typed is None else typed.expires_at or None

    @property
    def reply_to(self) -> str:
        """The topic to which an answer to this request goes; empty if the event is no request."""
        typed: TypedPayload | None = self.__dict__.get("typed")
        return "" if typed is None else typed.reply_to

    @property
    def request(self) -> str:
        """The id of the request that this event is or answers; empty if it is neither."""
        typed: TypedPayload | None = self.__dict__.get("typed")
        return "" if typed is None else typed.request

    @property
    def text(self) -> str:
        """The payload as text.

        Raises:
            PayloadError: It is not UTF-8.
        """
        try:
            return self.payload.decode()
        except UnicodeDecodeError as error:
            raise PayloadError(f"event {self.id}: its payload is not UTF-8 text: {error}") from None

    def json(self) -> Any:
        """Return the payload decoded from JSON.

        Raises:
            PayloadError: It is not JSON.
        """
        return self._from_json(Any, "JSON")

    def decode(self, kind: type[Value]) -> Value:
        """Return the payload as a value of this type: a msgspec Struct, a dataclass or any other that msgspec decodes.

        A payload without a content type is read as JSON, unless `kind` is bytes or str.

        Raises:
            PayloadError: It is not JSON, or is JSON that does not fit the type.
        """
        if self.content_type != JSON and kind in (bytes, str):
            return self.payload if kind is bytes else self.text  # type: ignore[return-value]
        return self._from_json(kind, getattr(kind, "__name__", str(kind)))

    def _from_json(self, kind: type[Value], name: str) -> Value:
        try:
            return msgspec.json.decode(self.payload, type=kind)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise PayloadError(f"event {self.id}: its payload does not decode as {name}: {error}") from None
        except TypeError as error:
            raise PayloadError(f"event {self.id}: payloads do not decode as {name}: {error}") from None

    @property
    def carrier(self) -> Any:
        """The publication that brought the event, with its header. For wrappers of a service; not set in streams."""
        return self.__dict__.get("carrier")

    @property
    def order(self) -> OrderPosition | None:
        """The event's position in the order of its subscription; None if that has none."""
        found: OrderPosition | None = self.__dict__.get("order")
        if found is None and "places" in self.__dict__:  # set for all events of one run
            found = self.__dict__["order"] = self.__dict__["places"].of(self.sequence)
        return found

    @property
    def out_of_order(self) -> bool:
        """True if a later event of the same source was delivered before this one."""
        return "out_of_order" in self.__dict__

    @property
    def recovered_by(self) -> str | None:
        """The recovery algorithm that brought the event after it was lost; None if it was not lost."""
        return self.__dict__.get("recovered_by")

    @property
    def attempt(self) -> int:
        """How often a durable subscription or group has delivered the event, this time included."""
        held = self.__dict__.get("held")
        return 1 if held is None else held.attempt

    @property
    def redelivered(self) -> bool:
        """True if it was delivered before, and its holder went, gave it back or gave it up before it was done."""
        return self.attempt > 1

    async def ack(self) -> None:
        """Acknowledge an event of a stream with `ack="manual"`: it will not be delivered again.

        Raises:
            NotHeld: It was acknowledged before, or somebody else holds it now, or was done with it first.
        """
        await self._held().ack()

    async def nack(self, after: float | timedelta = 0.0) -> None:
        """Give an event of a stream with `ack="manual"` back: it is delivered again. If this was its last delivery
        (`max_deliveries`), it is given up at once instead.

        Args:
            after: When, in seconds or as a timedelta from now.

        Raises:
            NotHeld: It was acknowledged before, or somebody else holds it now.
        """
        await self._held().nack(after)

    def _held(self) -> Any:
        held = self.__dict__.get("held")
        if held is None:
            raise NotHeld(
                "only events of a durable subscription or a group are acknowledged: subscribe with durable= or group="
            )
        return held


class TypedEvent(Event, array_like=True, dict=True):
    """An event as it is decoded if its payload may have details; it becomes an `Event` at once."""

    payload: bytes | TypedPayload  # type: ignore[assignment]

    def settle(self) -> None:
        """Make this an Event."""
        item = self.payload
        self.__class__ = Event  # type: ignore[assignment]
        if isinstance(item, TypedPayload):
            self.payload = item.data
            self.__dict__["typed"] = item


def give_payload(event: Event, item: PayloadItem) -> None:
    """Give the event this payload, with its details if it has any."""
    if isinstance(item, TypedPayload):
        event.payload = item.data
        event.__dict__["typed"] = item
    else:
        event.payload = item


class _Loose(Struct, array_like=True, gc=False):
    """An event with attributes of any type."""

    source: Name
    incarnation: Counter
    sequence: Counter
    topic: str
    published_at: Counter
    attributes: AttributeMap
    payload: bytes | TypedPayload


_encode = msgspec.msgpack.Encoder().encode
_decode_attributes = msgspec.msgpack.Decoder(AttributeMap).decode
_decode_publication = msgspec.msgpack.Decoder(Publication).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode
_decode_typed = msgspec.msgpack.Decoder(TypedEvent).decode
_decode_loose = msgspec.msgpack.Decoder(_Loose).decode
_BIN = (0xC4, 0xC5, 0xC6)
"""The first byte of an encoded payload that is plain bytes."""
_NO_BODY = (Raw(_encode({})), Raw(_encode(b"")))
EVENT_ITEMS, _HEADED_ITEMS = 0x97, b"\x9a"
"""The first byte of an encoded event: an array of seven items, or of ten with a header."""
_HEADER_ITEMS = 3

# The attributes of most publications, which the decoder can check by itself. It cannot express a union of str and
# bytes, and it counts a name's length in characters, so whatever it rejects gets the full check.
_PlainName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES // 4)]
_PlainInt = Annotated[int, Meta(ge=INT_MIN, le=INT_MAX)]
PlainMap = Annotated[dict[_PlainName, bool | _PlainInt | float | str | None], Meta(max_length=MAX_ATTRIBUTES)]
_decode_plain_attributes = msgspec.msgpack.Decoder(PlainMap).decode


def make_publication(
    source: str,
    incarnation: int,
    sequence: int,
    topic: str,
    attributes: Mapping[str, Scalar],
    payload: Payload,
    published_at: int,
) -> Publication:
    """Check and encode an event; raise TopicError, AttributeValueError or PayloadError if it cannot be published."""
    check_published_topic(topic)
    check_content(attributes)
    item = encodable(payload)
    try:
        packed = Raw(_encode(attributes))
    except UnicodeEncodeError as error:
        raise not_text(error) from None
    fields = (source, incarnation, sequence, topic, published_at, packed, Raw(_encode(item)))
    raw = _encode(fields)
    check_event_size(len(raw))
    return Publication(*fields, raw=Raw(raw), size_bytes=len(raw))


def check_published_topic(topic: str) -> None:
    try:
        check_topic(topic)
    except TypeError:  # it is not hashable, so the cache of checked topics cannot look it up
        raise TopicError(f"topic {topic!r} is not a string") from None


def check_content(attributes: Mapping[str, Scalar]) -> None:
    """Raise AttributeValueError if these attributes cannot be published. Encoding checks the text later."""
    if attributes or attributes.__class__ is not dict:
        check_attributes(attributes, _check_published_names)


def no_event(given: object) -> TypeError:
    """Return the error for an argument of `publish_many` that is not an event."""
    return TypeError(f"each event must be (topic, attributes, payload), not {reprlib.repr(given)}")


def check_event_size(size_bytes: int) -> None:
    if size_bytes > MAX_EVENT_BYTES:
        raise AttributeValueError(f"the event has {size_bytes} bytes; at most {MAX_EVENT_BYTES} are allowed")


def not_text(error: UnicodeEncodeError) -> AttributeValueError:
    return AttributeValueError(f"an attribute is not valid Unicode text: {error.object!r}")


@lru_cache(maxsize=4096)
def _check_names(names: tuple[str, ...]) -> None:
    """Check attribute names; cached, because sources publish the same names again and again."""
    if len(names) > MAX_ATTRIBUTES:
        raise AttributeValueError(f"{len(names)} attributes; at most {MAX_ATTRIBUTES} are allowed")
    for name in names:
        _check_name(name)


@lru_cache(maxsize=4096)
def _check_published_names(names: tuple[str, ...]) -> None:
    _check_names(names)
    check_not_reserved(names)


def check_attributes(
    attributes: Mapping[str, Scalar], check_names: Callable[[tuple[str, ...]], None] = _check_names
) -> None:
    """Raise AttributeValueError if an event cannot carry a name or a value. Encoding checks the text later."""
    try:
        values = attributes.values()
    except AttributeError:
        raise _not_a_mapping(attributes) from None
    check_names(tuple(attributes))
    for value in values:
        kind = value.__class__
        if kind not in _SIMPLE_TYPES and (kind is not int or not INT_MIN <= value <= INT_MAX):  # type: ignore[operator]
            _check_values(attributes)


def _check_values(attributes: Mapping[str, Scalar]) -> None:
    """Raise AttributeValueError for the first value that an event cannot carry."""
    for name, value in attributes.items():
        kind = type(value)
        if not isinstance(value, bool | int | float | str | bytes | None):
            raise AttributeValueError(
                f"attribute {name!r} has the unknown type {kind.__name__}; "
                "use bool, int, float, str, bytes or None"
            )
        if kind is int and not INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
            raise AttributeValueError(f"attribute {name!r}: {value!r} does not fit into 64 bits")


def _not_a_mapping(attributes: object) -> AttributeValueError:
    kind = type(attributes).__name__
    return AttributeValueError(f"attributes must be a mapping of names to values, not {kind}")


_SIMPLE_TYPES = frozenset((bool, float, str, bytes, type(None)))
"""Types whose values an event can always carry."""
_PLAIN_TYPES = _SIMPLE_TYPES | {int}


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise AttributeValueError(f"attribute name {name!r} is not a non-empty string")
    if name == RESERVED_ATTRIBUTE:
        raise AttributeValueError(f"attribute name {name!r} is reserved for the event's topic")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise AttributeValueError(f"attribute name {name[:40]!r}... is longer than {MAX_NAME_BYTES} bytes")


def check_not_reserved(names: tuple[str, ...]) -> None:
    """Raise AttributeValueError for a name that is reserved for protocols. No other check rejects these names."""
    for name in names:
        if name.startswith(RESERVED_PREFIX):
            raise AttributeValueError(
                f"attribute name {name!r}: names that start with {RESERVED_PREFIX!r} are reserved"
            )


def decode_publication(raw: Raw | bytes) -> Publication:
    """Decode the first fields of an encoded event; raise WireError if it is not an event."""
    try:
        publication = _decode_publication(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not an event: {error}") from None
    publication.raw = raw
    view = memoryview(raw)
    publication.size_bytes = len(view)
    if view[0] != EVENT_ITEMS:  # a longer array may have set the fields that must not come from outside
        publication.decoded = publication.selection = publication.selection_token = None
        publication.bared = None
        publication.text_id = ""
    return publication


def rebuild_publication(
    source: str,
    incarnation: int,
    sequence: int,
    topic: str,
    published_at: int,
    packed_attributes: bytes,
    payload: bytes,
    packed_header: bytes = b"",
) -> Publication:
    """Rebuild and check an event that came in parts; raise WireError if a publisher may not send it.

    What came with the header is its event's own and, after it, the details of the payload (`separate_payload`).
    """
    item: Any = payload
    header: list[Any] = []
    if packed_header:
        header = _decode_packed_header(packed_header)
        if len(header) > _HEADER_ITEMS:
            item = [payload, *header[_HEADER_ITEMS:]]
            header = header[:_HEADER_ITEMS] if header[1] is not None or header[2] else []
    fields = [source, incarnation, sequence, topic, published_at, Raw(packed_attributes), item, *header]
    publication = decode_publication(Raw(_encode(fields)))
    if len(memoryview(publication.packed_attributes)) != len(packed_attributes):
        raise WireError(f"event {publication.id}: its attributes must be a single map")
    check_publication(publication)
    return publication


def separate_payload(publication: Publication) -> tuple[bytes, bytes]:
    """Return the payload's data, and the header with the details of the payload, for `rebuild_publication`.

    Raise WireError if the payload does not decode.
    """
    try:
        item = unpack_item(publication.packed_payload)
    except PayloadError as error:
        raise WireError(f"event {publication.id}: {error}") from None
    if not isinstance(item, TypedPayload):
        return item, publication.packed_header
    header = (publication.layout, publication.stamp, publication.kind)
    return item.data, _encode((*header, *item.rest))


# --- Headers


def stamp_publication(publication: Publication, layout: int, stamp: Timestamp) -> Publication:
    """Give the event this position in an order."""
    return _with_header(publication, layout, stamp, WHOLE)


def make_no_ops(
    source: str, incarnation: int, sequence: int, topic: str, layout: int, stamp: Timestamp, count: int
) -> Publication:
    """Make the stand-in for `count` events, from the stamp's number on, that will never be published."""
    fields = (source, incarnation, sequence, topic, 0, *_NO_BODY)
    return _with_header(Publication(*fields, raw=Raw(_encode(fields))), layout, stamp, count)


def bare_publication(publication: Publication) -> Publication:
    """Return the event without its body, for receivers that need only the header. Created once."""
    if publication.bared is None:
        fields = (
            publication.source,
            publication.incarnation,
            publication.sequence,
            publication.topic,
            publication.published_at,
            *_NO_BODY,
        )
        whole = Publication(*fields, raw=Raw(_encode(fields)), text_id=publication.text_id)
        kind = publication.kind or BARE
        publication.bared = _with_header(whole, publication.layout, publication.stamp, kind)
    bared: Publication = publication.bared
    return bared


def _decode_packed_header(packed: bytes) -> list[Any]:
    try:
        header: list[Any] = msgspec.msgpack.decode(packed, type=list[Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not an event's header: {error}") from None
    return header


def _with_header(publication: Publication, layout: int, stamp: Timestamp | None, kind: int) -> Publication:
    """Append this header to a publication that has none."""
    publication.layout, publication.stamp, publication.kind = layout, stamp, kind
    event, header = memoryview(publication.raw), memoryview(publication.packed_header)
    # Appends the items of the header's array to those of the event's.
    publication.raw = Raw(b"".join((_HEADED_ITEMS, event[1:], header[1:])))
    publication.size_bytes = len(memoryview(publication.raw))
    return publication


def check_header(stretch: Stretch) -> None:
    """Raise WireError unless a publisher may send this event's or run's header."""
    stamp, kind = stretch.stamp, stretch.kind
    if kind == BARE or (kind and stamp is None):
        raise WireError(f"{stretch} cannot be published without its body")
    if stamp is not None:
        problem = stamp.problem(stretch.numbers)
        if problem:
            raise WireError(f"{stretch} has {problem}")


def decode_event(raw: Raw | bytes | memoryview, *, is_typed: bool = False) -> Event:
    """Decode an event completely, for applications; raise WireError if it is not an event.

    `is_typed`: its payload is known not to be plain bytes, so that need not be tried.
    """
    if not is_typed:
        try:
            return _decode_event(raw)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    try:
        event = _decode_typed(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _decode_loosely(raw)
    event.settle()
    return event


def _decode_loosely(raw: Raw | bytes | memoryview) -> Event:
    """Decode an event that may have bytes among its attributes; raise WireError if it is not an event."""
    try:
        loose = _decode_loose(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not an event: {error}") from None
    event = Event(*msgspec.structs.astuple(loose))
    give_payload(event, loose.payload)
    for value in event.attributes.values():
        if type(value) not in _PLAIN_TYPES:
            raise WireError(f"event {event.id} has an attribute of the unknown type {type(value).__name__}")
    return event


def check_size(publication: Publication) -> None:
    """Raise WireError if the event is too large."""
    limit_bytes = MAX_EVENT_BYTES if publication.stamp is None else MAX_EVENT_BYTES + MAX_HEADER_BYTES
    if publication.size_bytes > limit_bytes:
        size_bytes = publication.size_bytes
        raise WireError(f"event {publication.id} has {size_bytes} bytes; the limit is {MAX_EVENT_BYTES}")


def check_publication(publication: Publication) -> PayloadItem:
    """Return the payload; raise WireError unless a publisher may send all of this. The publisher's broker checks it
    once."""
    if publication.size_bytes > MAX_EVENT_BYTES:
        check_size(publication)
    if publication.stamp is not None or publication.kind != WHOLE:
        check_header(publication)
    try:
        attributes = _decode_plain_attributes(publication.packed_attributes)
        payload = unpack_item(publication.packed_payload)
        check_topic(publication.topic)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TopicError, PayloadError):
        return _check_every_field(publication)
    if RESERVED_ATTRIBUTE in attributes:
        _check_every_field(publication)
    attributes[RESERVED_ATTRIBUTE] = publication.topic
    publication.decoded = attributes
    return payload


def _check_every_field(publication: Publication) -> PayloadItem:
    """Run the full check, which can say what is wrong."""
    try:
        payload = unpack_item(publication.packed_payload)
        event = decode_event(publication.raw)
        check_topic(event.topic)
        check_attributes(event.attributes)
    except (TopicError, AttributeValueError, PayloadError) as error:
        raise WireError(f"event {publication.id}: {error}") from None
    return payload
