"""Events: what an application publishes and is notified of, and the publication that carries one.

One layout serves both. `Publication` is what brokers handle: the header decoded, attributes and payload left
as they came, so that an event which is only forwarded is never decoded or encoded again. `Event` is what
applications see: everything decoded and checked.

An event may have a header for protocols behind its seven fields: its place in an order (the layout's fingerprint and
the timestamp) and what kind of thing it is. A header is made by what numbers an event, never by applications. Names of
attributes that start with `~` are reserved.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from tidings.core.errors import AttributeValueError, TopicError, WireError
from tidings.core.events.position import OrderPosition
from tidings.core.events.timestamp import Timestamp
from tidings.core.events.topics import check_topic
from tidings.core.filters.language.predicates import Scalar

MAX_ATTRIBUTES = 256
MAX_NAME_BYTES = 256
MAX_EVENT_BYTES = 1024 * 1024
"""Without its header."""
MAX_HEADER_BYTES = 64 * 1024
"""More than fit into one: a timestamp has at most 4,096 entries."""
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
RESERVED_ATTRIBUTE = "topic"
RESERVED_PREFIX = "~"
MAX_NO_OPS = 1024
"""Numbers that one event without a body stands for."""
WHOLE = 0
"""The kind of an event, or of a run, that has its body."""
BARE = -1
"""The kind of what is left of one whose attributes and payload its receiver did not ask for. Kinds above 0: no event,
but so many numbers of an order that have none (no-ops)."""

Counter = Annotated[int, Meta(ge=0, le=INT_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
Kind = Annotated[int, Meta(ge=BARE, le=MAX_NO_OPS)]
AttributeMap = dict[str, Any]
"""The values are Scalars; msgspec has no union of str and bytes, so they are checked after decoding."""
if TYPE_CHECKING:
    from tidings.core.events.run import Stretch

    _MostlyPlain = dict[str, Scalar]
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
    """An event on its way. The fields up to `packed_payload` are the event, those up to `kind` its header, if it has
    one; the rest stays in the process.

    Every hop of every event reads these, hence fields and not a dictionary beside them. It is a run of one
    (core/events/run.py).
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
    """The fingerprint of the layout of the stamp."""
    stamp: Timestamp | None = None
    """The event's place in its order; None: it has none."""
    kind: Kind = WHOLE

    raw: Any = None
    """The whole encoding, as it came or was made."""
    size_bytes: int = 0
    decoded: Any = None
    """The attributes once somebody asked for them."""
    selection: Any = None
    """Which interests match (core/overlay/matching.py), valid while `selection_token` is the matcher's."""
    selection_token: Any = None
    text_id: str = ""
    """`str(id)`, once a trace asked for it."""
    bared: Any = None
    """What `bare_publication` made of it."""

    @property
    def id(self) -> EventId:
        """Unique for ever: source, incarnation, sequence."""
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
        """Empty: it has none."""
        has_none = self.stamp is None and self.kind == WHOLE
        return b"" if has_none else _encode((self.layout, self.stamp, self.kind))

    @property
    def numbers(self) -> int:
        """How many numbers of its order it stands for."""
        return max(self.kind, 1)

    def __str__(self) -> str:
        return f"event {self.id}"

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
        return decode_event(self.raw)


# The slot itself under its other names: each event is asked for them many times, and a property costs a call.
Publication.first = Publication.last = Publication.sequence  # type: ignore[method-assign, assignment]


class Event(Struct, array_like=True, dict=True):
    """What an application gets."""

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
        """Unique for ever: source, incarnation, sequence."""
        return EventId(self.source, self.incarnation, self.sequence)

    @property
    def carrier(self) -> Any:
        """What brought the event, with its header: for what wraps a service, not in streams."""
        return self.__dict__.get("carrier")

    @property
    def order(self) -> OrderPosition | None:
        """The event's position in the order of its subscription, where that has one."""
        found: OrderPosition | None = self.__dict__.get("order")
        if found is None and "places" in self.__dict__:  # of the run that it came in
            found = self.__dict__["order"] = self.__dict__["places"].of(self.sequence)
        return found

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
_decode_publication = msgspec.msgpack.Decoder(Publication).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode
_decode_loose = msgspec.msgpack.Decoder(_Loose).decode
_decode_bytes = msgspec.msgpack.Decoder(bytes).decode
_NO_BODY = (Raw(_encode({})), Raw(_encode(b"")))
EVENT_ITEMS, _HEADED_ITEMS = 0x97, b"\x9a"
"""The first byte of an event: an array of seven, or of ten with a header."""

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


_BYTES = (bytes, bytearray, memoryview)


def check_event(topic: str, attributes: Mapping[str, Scalar], payload: bytes) -> None:
    """TopicError or AttributeValueError for what cannot be published; text is checked by encoding it."""
    check_published_topic(topic)
    check_content(attributes, payload)


def check_published_topic(topic: str) -> None:
    try:
        check_topic(topic)
    except TypeError:  # it cannot even be looked up among those that were checked before
        raise TopicError(f"topic {topic!r} is not a string") from None


def check_content(attributes: Mapping[str, Scalar], payload: bytes) -> None:
    if attributes or attributes.__class__ is not dict:
        check_attributes(attributes, _check_published_names)
    if payload.__class__ is not bytes and not isinstance(payload, _BYTES):
        raise AttributeValueError(f"payload must be bytes, not {type(payload).__name__}")


def no_event(given: object) -> TypeError:
    """For what a `publish_many` got in the place of an event."""
    return TypeError(f"events must be (topic, attributes, payload) each, not {reprlib.repr(given)}")


def check_event_size(size_bytes: int) -> None:
    if size_bytes > MAX_EVENT_BYTES:
        raise AttributeValueError(f"the event has {size_bytes} bytes; at most {MAX_EVENT_BYTES} are carried")


def not_text(error: UnicodeEncodeError) -> AttributeValueError:
    return AttributeValueError(f"an attribute is not valid Unicode text: {error.object!r}")


@lru_cache(maxsize=4096)
def _check_names(names: tuple[str, ...]) -> None:
    """Cached, as sources publish the same names again and again."""
    if len(names) > MAX_ATTRIBUTES:
        raise AttributeValueError(f"{len(names)} attributes; at most {MAX_ATTRIBUTES} are carried")
    for name in names:
        _check_name(name)


@lru_cache(maxsize=4096)
def _check_published_names(names: tuple[str, ...]) -> None:
    _check_names(names)
    check_not_reserved(names)


def check_attributes(
    attributes: Mapping[str, Scalar], check_names: Callable[[tuple[str, ...]], None] = _check_names
) -> None:
    """AttributeValueError for a name or a value that an event cannot carry; text is checked by encoding it."""
    try:
        values = attributes.values()
    except AttributeError:
        raise _no_mapping(attributes) from None
    check_names(tuple(attributes))
    for value in values:
        kind = value.__class__
        if kind not in _SIMPLE_TYPES and (kind is not int or not INT_MIN <= value <= INT_MAX):  # type: ignore[operator]
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


_SIMPLE_TYPES = frozenset((bool, float, str, bytes, type(None)))
"""Those whose values all can be carried."""
_PLAIN_TYPES = _SIMPLE_TYPES | {int}


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise AttributeValueError(f"attribute name {name!r} is not a non-empty string")
    if name == RESERVED_ATTRIBUTE:
        raise AttributeValueError(f"attribute name {name!r} is reserved for the event's topic")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise AttributeValueError(f"attribute name {name[:40]!r}... is longer than {MAX_NAME_BYTES} bytes")


def check_not_reserved(names: tuple[str, ...]) -> None:
    """AttributeValueError for the name of an attribute that applications may not publish. Nobody else looks."""
    for name in names:
        if name.startswith(RESERVED_PREFIX):
            raise AttributeValueError(
                f"attribute name {name!r}: names that start with {RESERVED_PREFIX!r} are reserved"
            )


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
    """The publication of an event that came in parts, checked; WireError if no publisher may send it."""
    fields = [source, incarnation, sequence, topic, published_at, Raw(packed_attributes), payload]
    if packed_header:
        fields += _decode_packed_header(packed_header)
    publication = decode_publication(Raw(_encode(fields)))
    if len(memoryview(publication.packed_attributes)) != len(packed_attributes):
        raise WireError(f"event {publication.id}: its attributes are not one map")
    check_publication(publication)
    return publication


# --- Headers


def stamp_publication(publication: Publication, layout: int, stamp: Timestamp) -> Publication:
    """The event at this place in an order."""
    return _with_header(publication, layout, stamp, WHOLE)


def make_no_ops(
    source: str, incarnation: int, sequence: int, topic: str, layout: int, stamp: Timestamp, count: int
) -> Publication:
    """In the place of `count` events, from the stamp's number on, that nobody will publish."""
    fields = (source, incarnation, sequence, topic, 0, *_NO_BODY)
    return _with_header(Publication(*fields, raw=Raw(_encode(fields))), layout, stamp, count)


def bare_publication(publication: Publication) -> Publication:
    """What is left of the event for whoever needs its header only. It is made once."""
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
        raise WireError(f"not the header of an event: {error}") from None
    return header


def _with_header(publication: Publication, layout: int, stamp: Timestamp | None, kind: int) -> Publication:
    """One without a header, with this one behind what it is."""
    publication.layout, publication.stamp, publication.kind = layout, stamp, kind
    event, header = memoryview(publication.raw), memoryview(publication.packed_header)
    # The items of one array behind those of the other.
    publication.raw = Raw(b"".join((_HEADED_ITEMS, event[1:], header[1:])))
    publication.size_bytes = len(memoryview(publication.raw))
    return publication


def check_header(stretch: Stretch) -> None:
    """WireError unless a publisher may send the header of this event or run."""
    stamp, kind = stretch.stamp, stretch.kind
    if kind == BARE or (kind and stamp is None):
        raise WireError(f"{stretch}: nobody publishes an event without its body")
    if stamp is not None:
        problem = stamp.problem(stretch.numbers)
        if problem:
            raise WireError(f"{stretch} has {problem}")


def decode_event(raw: Raw | bytes | memoryview) -> Event:
    """A whole encoded event as applications see it; WireError if it is none."""
    try:
        return _decode_event(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _decode_closely(raw)


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


def check_size(publication: Publication) -> None:
    """WireError if the event is too large."""
    most = MAX_EVENT_BYTES if publication.stamp is None else MAX_EVENT_BYTES + MAX_HEADER_BYTES
    if publication.size_bytes > most:
        size_bytes = publication.size_bytes
        raise WireError(f"event {publication.id} has {size_bytes} bytes, the limit is {MAX_EVENT_BYTES}")


def check_publication(publication: Publication) -> None:
    """WireError unless everything in the publication is what a publisher may send: what a broker checks once."""
    check_size(publication)
    check_header(publication)
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
        check_attributes(event.attributes)
    except (TopicError, AttributeValueError) as error:
        raise WireError(f"event {event.id}: {error}") from None
