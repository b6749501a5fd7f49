"""Events: what an application publishes and is notified of, and the publication that carries one.

One layout serves both. `Publication` is what brokers handle: the header decoded, attributes and payload left
as they came, so that an event which is only forwarded is never decoded or encoded again. `Event` is what
applications see: everything decoded and checked.

Attributes whose names start with `~` are internal: what wraps a service (an order) puts them there. Applications
neither publish them nor see them among an event's attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from tidings.model.errors import AttributeValueError, TopicError, WireError
from tidings.model.predicates import Scalar
from tidings.model.topics import check_topic

MAX_ATTRIBUTES = 256
MAX_NAME_BYTES = 256
MAX_EVENT_BYTES = 1024 * 1024
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
RESERVED_ATTRIBUTE = "topic"
INTERNAL_PREFIX = "~"
HEADER_ATTRIBUTE = "~header"
"""True in what is left of an event whose attributes and payload its receiver did not ask for."""
ORDER_ATTRIBUTE = "~order"
"""The timestamp of an event in its order."""
NOOP_ATTRIBUTE = "~noop"
"""In an event that only stands for a number in an order: no application is shown it."""

Counter = Annotated[int, Meta(ge=0, le=INT_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
AttributeMap = dict[str, Any]
"""The values are Scalars; msgspec has no union of str and bytes, so they are checked after decoding."""
if TYPE_CHECKING:
    _MostlyPlain = AttributeMap
else:
    _MostlyPlain = dict[str, bool | int | float | str | None]
    """What the decoder checks by itself; an event with bytes among its attributes is decoded again (`_Loose`)."""


class EventId(NamedTuple):
    """Unique for ever: a source that restarts without its state takes a new incarnation."""

    source: str
    incarnation: int
    sequence: int

    def __str__(self) -> str:
        return f"{source_text(self.source, self.incarnation)}:{self.sequence}"


def source_text(source: str, incarnation: int) -> str:
    """How traces name a source: its name, with the incarnation where it is not the first."""
    return source if incarnation == 0 else f"{source}~{incarnation}"


class Publication(Struct, array_like=True, eq=False, gc=False):
    """An event on its way. The fields up to `packed_payload` are the event; the rest stays in the process.

    Every hop of every event reads these, hence fields and not a dictionary beside them. It is a run of one
    (model/run.py).
    """

    count: ClassVar[int] = 1
    source: Name
    incarnation: Counter
    sequence: Counter
    topic: Annotated[str, Meta(min_length=2, max_length=1024)]
    published_at: Counter
    packed_attributes: Raw
    packed_payload: Raw

    raw: Any = None
    """The whole encoding, as it came or was made."""
    size_bytes: int = 0
    decoded: Any = None
    """The attributes once somebody asked for them."""
    selection: Any = None
    """Which interests match (protocol/matching.py), valid while `selection_token` is the matcher's."""
    selection_token: Any = None
    text_id: str = ""
    """`str(id)`, once a trace asked for it."""
    stripped: Any = None
    """What `strip_publication` made of it."""
    hidden: bool | None = None
    """Is it for protocols alone? None while nobody has looked: `is_hidden` does, and so does `event`."""

    @property
    def id(self) -> EventId:
        return EventId(self.source, self.incarnation, self.sequence)

    @property
    def first(self) -> int:
        return self.sequence

    @property
    def last(self) -> int:
        return self.sequence

    def attributes(self) -> Mapping[str, Scalar]:
        """The attributes with the topic among them, as filters see them; WireError if they do not decode."""
        cached: Mapping[str, Scalar] | None = self.decoded
        if cached is None:
            try:
                decoded = _decode_attributes(self.packed_attributes)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                raise WireError(f"event {self.id}: attributes do not decode: {error}") from None
            decoded[RESERVED_ATTRIBUTE] = self.topic
            cached = self.decoded = decoded
        return cached

    def event(self) -> Event:
        """The decoded event for an application."""
        event, internal = _decode_apart(self.raw)
        self.hidden = internal is not None and _hides(internal)
        return event


class Event(Struct, array_like=True, dict=True):
    """What an application gets."""

    count: ClassVar[int] = 1
    source: Name
    incarnation: Counter
    sequence: Counter
    topic: str
    published_at: Counter
    attributes: _MostlyPlain
    """Without the internal ones, once `decode_event` is done."""
    payload: bytes

    @property
    def last(self) -> int:
        return self.sequence

    @property
    def id(self) -> EventId:
        return EventId(self.source, self.incarnation, self.sequence)

    @property
    def internal(self) -> AttributeMap:
        """The attributes whose names start with `~`: for what wraps a service."""
        internal: AttributeMap = self.__dict__.get("internal", {})
        return internal

    @property
    def order(self) -> Any:
        """The event's place in the order of its subscription, where that has one."""
        return self.__dict__.get("order")

    @property
    def out_of_order(self) -> bool:
        """True if a later event of the same source was shown before."""
        return "out_of_order" in self.__dict__

    @property
    def recovered_by(self) -> str | None:
        """Which recovery algorithm brought the event, where it was lost on its way; None: none was needed."""
        return self.__dict__.get("recovered_by")


class _Loose(Struct, array_like=True, gc=False):
    """An event with whatever attributes."""

    source: Name
    incarnation: Counter
    sequence: Counter
    topic: str
    published_at: Counter
    attributes: AttributeMap
    payload: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_attributes = msgspec.msgpack.Decoder(AttributeMap).decode
_decode_packed_attributes = msgspec.msgpack.Decoder(dict[str, Raw]).decode
_decode_publication = msgspec.msgpack.Decoder(Publication).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode
_decode_loose = msgspec.msgpack.Decoder(_Loose).decode
_decode_bytes = msgspec.msgpack.Decoder(bytes).decode
_NO_PAYLOAD = Raw(_encode(b""))

# What most publications carry, checked by the decoder itself. A union of str and bytes is beyond it, and it
# counts a name's length in characters: what it refuses gets the full check.
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
    payload: bytes,
    published_at: int,
) -> Publication:
    """A checked publication with its encoding."""
    check_event(topic, attributes, payload)
    try:
        packed = Raw(_encode(attributes))
    except UnicodeEncodeError as error:
        raise not_text(error) from None
    fields = (source, incarnation, sequence, topic, published_at, packed, Raw(_encode(payload)))
    raw = _encode(fields)
    check_event_size(len(raw))
    return Publication(*fields, raw=Raw(raw), size_bytes=len(raw))


def check_event(
    topic: str, attributes: Mapping[str, Scalar], payload: bytes, *, internal: bool = True
) -> None:
    """TopicError or AttributeValueError for what cannot be published; text is checked by encoding it.

    Not `internal`: names of attributes that are reserved are refused, too.
    """
    try:
        check_topic(topic)
    except TypeError:  # it cannot even be looked up among those that were checked before
        raise TopicError(f"topic {topic!r} is not a string") from None
    check_attributes(attributes, internal=internal)
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise AttributeValueError(f"payload must be bytes, not {type(payload).__name__}")


def check_event_size(size_bytes: int) -> None:
    if size_bytes > MAX_EVENT_BYTES:
        raise AttributeValueError(f"the event has {size_bytes} bytes; at most {MAX_EVENT_BYTES} are carried")


def not_text(error: UnicodeEncodeError) -> AttributeValueError:
    return AttributeValueError(f"an attribute is not valid Unicode text: {error.object!r}")


def check_attributes(attributes: Mapping[str, Scalar], *, internal: bool = True) -> None:
    """AttributeValueError for a name or a value that an event cannot carry; text is checked by encoding it."""
    try:
        values = attributes.values()
    except AttributeError:
        raise _no_mapping(attributes) from None
    _check_names(tuple(attributes), internal)
    for value in values:
        kind = type(value)
        if (kind is int and not INT_MIN <= value <= INT_MAX) or kind not in _PLAIN_TYPES:  # type: ignore[operator]
            _check_values(attributes)


def _check_values(attributes: Mapping[str, Scalar]) -> None:
    """Which of them cannot be carried, and why."""
    for name, value in attributes.items():
        kind = type(value)
        if not isinstance(value, bool | int | float | str | bytes | None):
            raise AttributeValueError(
                f"attribute {name!r} has the unknown type {kind.__name__}; "
                "known are bool, int, float, str, bytes and None"
            )
        if kind is int and not INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
            raise AttributeValueError(f"attribute {name!r}: {value!r} does not fit into 64 bits")


def _no_mapping(attributes: object) -> AttributeValueError:
    kind = type(attributes).__name__
    return AttributeValueError(f"attributes must be a mapping of names to values, not {kind}")


_PLAIN_TYPES = frozenset((bool, int, float, str, bytes, type(None)))


@lru_cache(maxsize=4096)
def _check_names(names: tuple[str, ...], internal: bool) -> None:
    """Sources publish the same names again and again."""
    if not internal:
        check_not_internal(names)
    if len(names) > MAX_ATTRIBUTES:
        raise AttributeValueError(f"{len(names)} attributes; at most {MAX_ATTRIBUTES} are carried")
    for name in names:
        _check_name(name)


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise AttributeValueError(f"attribute name {name!r} is not a non-empty string")
    if name == RESERVED_ATTRIBUTE:
        raise AttributeValueError(f"attribute name {name!r} is reserved for the event's topic")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise AttributeValueError(f"attribute name {name[:40]!r}... is longer than {MAX_NAME_BYTES} bytes")


def check_not_internal(names: Iterable[str]) -> None:
    """AttributeValueError for the name of an attribute that applications may not publish."""
    try:
        for name in names:
            if isinstance(name, str) and name.startswith(INTERNAL_PREFIX):
                raise AttributeValueError(
                    f"attribute name {name!r}: names that start with {INTERNAL_PREFIX!r} are reserved"
                )
    except TypeError:
        raise _no_mapping(names) from None


def decode_publication(raw: Raw | bytes) -> Publication:
    """The header of an encoded event; WireError if it is none."""
    try:
        publication = _decode_publication(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not an event: {error}") from None
    publication.raw = raw
    publication.size_bytes = len(memoryview(raw))
    # A longer array would have filled what is ours alone.
    publication.decoded = publication.selection = publication.selection_token = None
    publication.stripped = publication.hidden = None
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
) -> Publication:
    """The publication of an event that came in parts, checked; WireError if no publisher may send it."""
    fields = (source, incarnation, sequence, topic, published_at, Raw(packed_attributes), payload)
    publication = decode_publication(Raw(_encode(fields)))
    if len(memoryview(publication.packed_attributes)) != len(packed_attributes):
        raise WireError(f"event {publication.id}: its attributes are not one map")
    check_publication(publication)
    return publication


def strip_publication(publication: Publication) -> Publication:
    """The event's header: its internal attributes and HEADER_ATTRIBUTE, and no payload. It is made once.

    What cannot be stripped comes back whole: its reader will say what is wrong with it.
    """
    if publication.stripped is None:
        publication.stripped = _make_stripped(publication)
    stripped: Publication | None = publication.stripped
    return publication if stripped is None else stripped


def _make_stripped(publication: Publication) -> Publication | None:
    try:
        attributes = _decode_packed_attributes(publication.packed_attributes)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    kept: AttributeMap = {
        name: packed for name, packed in attributes.items() if name.startswith(INTERNAL_PREFIX)
    }
    kept[HEADER_ATTRIBUTE] = True
    fields = (
        publication.source,
        publication.incarnation,
        publication.sequence,
        publication.topic,
        publication.published_at,
        Raw(_encode(kept)),
        _NO_PAYLOAD,
    )
    raw = _encode(fields)
    if len(raw) > MAX_EVENT_BYTES:
        return None
    return Publication(*fields, raw=Raw(raw), size_bytes=len(raw), text_id=publication.text_id, hidden=True)


def order_stamp(carried: Publication | Event) -> object:
    """The encoded timestamp of an event in its order; None: it has none. WireError if it does not decode."""
    if isinstance(carried, Event):
        return carried.internal.get(ORDER_ATTRIBUTE)
    return carried.attributes().get(ORDER_ATTRIBUTE)


def is_header(carried: Publication | Event) -> bool:
    """Is it what is left of an event that was not asked for as a whole, or a no-op?"""
    return _hides(carried.internal) if isinstance(carried, Event) else is_hidden(carried)


def is_hidden(publication: Publication) -> bool:
    """Is it for protocols alone, a no-op or a header? Looked up once, mostly without decoding anything."""
    if publication.hidden is None:
        publication.hidden = _find_hidden(publication)
    return publication.hidden


def _find_hidden(publication: Publication) -> bool:
    packed = bytes(publication.packed_attributes)
    if packed.find(_PACKED_NOOP) < 0 and packed.find(_PACKED_HEADER) < 0:  # twice as fast as `in`
        return False
    try:
        return _hides(_decode_attributes(packed))  # the bytes might be of a value
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


_PACKED_NOOP, _PACKED_HEADER = NOOP_ATTRIBUTE.encode(), HEADER_ATTRIBUTE.encode()


def _hides(attributes: AttributeMap) -> bool:
    return NOOP_ATTRIBUTE in attributes or HEADER_ATTRIBUTE in attributes


def decode_event(raw: Raw | bytes | memoryview) -> Event:
    """A whole encoded event as applications see it; WireError if it is none."""
    return _decode_apart(raw)[0]


def _decode_apart(raw: Raw | bytes | memoryview) -> tuple[Event, AttributeMap | None]:
    """The event, and its internal attributes if it has some."""
    try:
        event = _decode_event(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        event = _decode_closely(raw)
    for name in event.attributes:
        if name >= INTERNAL_PREFIX:  # few names sort behind it: they get a closer look
            return event, set_internal_apart(event)
    return event, None


def _decode_closely(raw: Raw | bytes | memoryview) -> Event:
    """One with bytes among its attributes, or none at all."""
    try:
        loose = _decode_loose(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not an event: {error}") from None
    event = Event(*msgspec.structs.astuple(loose))
    for value in event.attributes.values():
        if type(value) not in _PLAIN_TYPES:
            raise WireError(f"event {event.id} has an attribute of the unknown type {type(value).__name__}")
    return event


def set_internal_apart(event: Event) -> AttributeMap | None:
    """Move the internal attributes to where applications do not look."""
    attributes: AttributeMap = {}
    internal: AttributeMap = {}
    for name, value in event.attributes.items():
        (internal if name.startswith(INTERNAL_PREFIX) else attributes)[name] = value
    if not internal:
        return None
    event.attributes = attributes
    event.__dict__["internal"] = internal
    return internal


def check_publication(publication: Publication) -> None:
    """WireError unless everything in the publication is what a publisher may send: what a broker checks once."""
    if publication.size_bytes > MAX_EVENT_BYTES:
        size_bytes = publication.size_bytes
        raise WireError(f"event {publication.id} has {size_bytes} bytes, the limit is {MAX_EVENT_BYTES}")
    try:
        attributes = _decode_plain_attributes(publication.packed_attributes)
        _decode_bytes(publication.packed_payload)
        check_topic(publication.topic)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TopicError):
        _check_every_field(publication)
        return
    if RESERVED_ATTRIBUTE in attributes:
        _check_every_field(publication)
    attributes[RESERVED_ATTRIBUTE] = publication.topic
    publication.decoded = attributes


def _check_every_field(publication: Publication) -> None:
    """The full check, which says what is wrong."""
    event = decode_event(publication.raw)
    try:
        check_topic(event.topic)
        check_attributes({**event.attributes, **event.internal})
    except (TopicError, AttributeValueError) as error:
        raise WireError(f"event {event.id}: {error}") from None
