"""Runs: consecutive events of one source as one object. The publisher makes it once; it is cut, but never rebuilt.

The body is the array of the events' encodings (event.py), one after the other: any stretch is a slice of it, and one
decode reads all of it. A run whose events share one topic says so: a broker that selects by topic alone never looks at
an event. A run of one event is its `Publication`.

If its events have positions in an order (consecutive numbers of one entry, otherwise equal), the run's header has the
stamp of its first event. A receiver that needs only headers gets the run without its body.

A run travels as an array of six items, or of nine with a header; an event as one of seven or ten. That tells them
apart where either may come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from tidings.core.errors import PayloadError, TopicError, WireError
from tidings.core.events.event import (
    BARE,
    EVENT_ITEMS,
    INT_MAX,
    MAX_EVENT_BYTES,
    RESERVED_ATTRIBUTE,
    WHOLE,
    Counter,
    Event,
    Kind,
    Name,
    PlainMap,
    Publication,
    TypedEvent,
    bare_publication,
    check_content,
    check_event_size,
    check_header,
    check_publication,
    check_published_topic,
    decode_event,
    decode_publication,
    not_text,
    stamp_publication,
)
from tidings.core.events.payload import Payload, TypedPayload, check_typed, encodable
from tidings.core.events.timestamp import Timestamp
from tidings.core.events.topics import check_topic
from tidings.core.filters.language.predicates import Scalar

MAX_RUN_BYTES = 48 * 1024
"""The limit for all events of a run: readers need not wait for and gather more, and a run holds up others no longer
than that. A larger event travels alone."""
MAX_RUN_EVENTS = 4096
"""More than fit: no event is shorter than 12 bytes."""
RUN_OVERHEAD_BYTES = 32
"""An upper bound on what a run adds to its events, apart from its names."""

_RUN_ITEMS = (0x96, 0x99)
"""The first byte of an encoded run: an array of six items, or of nine."""
_ARRAY_16 = 0xDC
_ARRAY_BYTES = 3
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


class _Head(Struct, array_like=True, gc=False):
    """The first fields of an event inside a run."""

    source: Name
    incarnation: Counter
    sequence: Counter
    topic: Annotated[str, Meta(min_length=2, max_length=1024)]
    published_at: Counter


class Content(_Head, array_like=True, gc=False):
    """An event inside a run as brokers see it: checked, with its attributes."""

    values: PlainMap
    payload: memoryview

    def attributes(self) -> Mapping[str, Scalar]:
        """Return the attributes and the topic, as filters see them."""
        self.values[RESERVED_ATTRIBUTE] = self.topic
        return self.values


class _TypedContent(Content, array_like=True, gc=False):
    """The same, in a run where a payload has a content type or other details."""

    payload: memoryview | TypedPayload  # type: ignore[assignment]


class Run(Struct, array_like=True, eq=False, gc=False):
    """The events `first` to `last` of a source. The fields up to `body` travel, those up to `kind` as its header, if it
    has one; the rest never leaves the process."""

    source: Name
    incarnation: Counter
    first: Counter
    count: Annotated[int, Meta(ge=1, le=MAX_RUN_EVENTS)]
    """At least two, unless the run is bare."""
    topic: Annotated[str, Meta(max_length=1024)]
    """The topic of all its events; empty if they have several."""
    body: memoryview
    """The events as an array; empty if the run is bare."""

    layout: Counter = 0
    """The fingerprint of the stamp's layout."""
    stamp: Timestamp | None = None
    """The position of its first event in its order; the other events have the next numbers."""
    kind: Kind = WHOLE

    size_bytes: int = 0
    encoded: Any = None
    selection: Any = None
    """Which interests all its events match, as in a Publication."""
    selection_token: Any = None
    contents: Any = None
    """The result of `look`, once decoded."""
    has_typed_payload: bool = False
    """True once `events` has found that a payload may have a content type or other details."""
    bounds: Any = None
    """Where each event begins in the body and where the last one ends, once computed."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def raw(self) -> Raw:
        """The complete encoding, as received or created."""
        if self.encoded is None:
            fields = (self.source, self.incarnation, self.first, self.count, self.topic, self.body)
            has_header = self.stamp is not None or self.kind
            header = (self.layout, self.stamp, self.kind) if has_header else ()
            self.encoded = Raw(_encode((*fields, *header)))
        encoded: Raw = self.encoded
        return encoded

    @property
    def packed_header(self) -> bytes:
        """The encoded header; empty if the run has none."""
        has_none = self.stamp is None and self.kind == WHOLE
        return b"" if has_none else _encode((self.layout, self.stamp, self.kind))

    @property
    def numbers(self) -> int:
        """How many numbers of its order the run takes, if it has one."""
        return self.count

    def __str__(self) -> str:
        return f"the run {self.first} to {self.last} of {self.source}"

    # --- Cutting

    def cut(self, first: int, last: int) -> Run | Publication:
        """Return the stretch from sequence `first` to `last`."""
        start, end = first - self.first, last - self.first + 1
        if end - start == self.count:
            return self
        if self.kind == BARE:
            return self._bare(first, end - start)
        bounds = self._bounds()
        stretch = self.body[bounds[start] : bounds[end]]
        if end - start == 1:
            return self._single(start, stretch)
        made = _make(self.source, self.incarnation, first, end - start, self.topic, stretch)
        made.layout, made.stamp = self.layout, self._stamp_at(start)
        if self.contents is not None:
            made.contents = self.contents[start:end]
        shift = bounds[start] - _ARRAY_BYTES
        made.bounds = [bound - shift for bound in bounds[start : end + 1]]
        return made

    def encoding(self, first: int, last: int) -> bytes:
        """Return the encoding of the stretch from sequence `first` to `last`; a single event is not checked."""
        if first < last or self.stamp is not None or self.kind == BARE:
            return bytes(self.cut(first, last).raw)
        bounds, place = self._bounds(), first - self.first
        return bytes(self.body[bounds[place] : bounds[place + 1]])

    def without(self, sequences: Sequence[int]) -> list[Run | Publication]:
        """Return the stretches between these sequences, which are ascending."""
        edges = [self.first - 1, *sequences, self.last + 1]
        return [self.cut(left + 1, right - 1) for left, right in pairwise(edges) if right - left > 1]

    def split(self, limit_bytes: int) -> list[Run | Publication]:
        """Split into stretches of at most this size, each with as many events as fit; a larger event is alone.

        Callers keep the stretches, so this drops `contents`, which refers to the buffer that the run was read from.
        """
        self.contents = None
        limit_bytes -= self._overhead_bytes
        if len(self.body) <= limit_bytes:
            return [self]
        bounds, start = self._bounds(), 0
        stretches: list[Run | Publication] = []
        while start < self.count:
            end = bisect_right(bounds, bounds[start] + limit_bytes - _ARRAY_BYTES) - 1
            end = max(end, start + 1)
            stretches.append(self.cut(self.first + start, self.first + end - 1))
            start = end
        return stretches

    @property
    def _overhead_bytes(self) -> int:
        return len(self.source) + len(self.topic) + RUN_OVERHEAD_BYTES

    def bare(self) -> Run:
        """Return the run without its body, for receivers that need only the header."""
        return self if self.kind == BARE else self._bare(self.first, self.count)

    def _bare(self, first: int, count: int) -> Run:
        fields = (self.source, self.incarnation, first, count, self.topic, memoryview(b""))
        return Run(*fields, self.layout, self._stamp_at(first - self.first), BARE, self._overhead_bytes)

    def _stamp_at(self, place: int) -> Timestamp | None:
        return None if self.stamp is None else self.stamp.at(self.stamp.number + place)

    def pieces(self) -> list[memoryview]:
        """Return the encoding of each event; raise WireError if there are more or fewer than `count`."""
        body = self.body
        return [body[start:end] for start, end in pairwise(self._bounds())]

    def _bounds(self) -> list[int]:
        if self.bounds is None:
            try:
                found = _decode_raws(self.body)
            except _UNREADABLE as error:
                raise WireError(f"{self}: its events do not decode: {error}") from None
            self._check_count(len(found))
            sizes = [memoryview(raw).nbytes for raw in found]
            self.bounds = list(accumulate(sizes, initial=len(self.body) - sum(sizes)))
        bounds: list[int] = self.bounds
        return bounds

    def _single(self, place: int, encoding: memoryview) -> Publication:
        publication = self._stamped(decode_publication(Raw(bytes(encoding))), place)
        self._check_ids([publication], self.first + place)
        content = None if self.contents is None else self.contents[place]
        if content is not None:
            publication.decoded = content.attributes()
        return publication

    def _stamped(self, publication: Publication, place: int) -> Publication:
        if memoryview(publication.raw)[0] != EVENT_ITEMS:
            raise WireError(f"{self} has an event with a header of its own")
        stamp = self._stamp_at(place)
        return publication if stamp is None else stamp_publication(publication, self.layout, stamp)

    # --- Looking inside

    def publications(self) -> list[Publication]:
        """Return its events one by one; raise WireError if they contradict its fields or there is no body."""
        pieces = enumerate(self.pieces())
        singles = [self._stamped(decode_publication(Raw(piece)), place) for place, piece in pieces]
        self._check_ids(singles, self.first)
        return singles

    def look(self) -> Sequence[Content | Publication]:
        """Return what brokers need of each event: its topic, and its attributes for filters."""
        if self.contents is None:
            try:
                contents = _contents(self.body)
            except _UNREADABLE:
                return self.publications()
            self._check_count(len(contents))
            self._check_ids(contents, self.first)
            self.contents = contents
        found: list[Content] = self.contents
        return found

    def events(self, complain: Callable[[WireError], None]) -> list[Event]:
        """Return the decoded events, for applications; pass the error of each that does not decode to `complain`."""
        try:
            events = _decode_events(self.body)
        except _UNREADABLE:
            self.has_typed_payload = True
            try:
                events = _typed_events(self.body)
            except _UNREADABLE:
                return self._events_one_by_one(complain)
        return events if len(events) == self.count else self._events_one_by_one(complain)

    def _events_one_by_one(self, complain: Callable[[WireError], None]) -> list[Event]:
        events: list[Event] = []
        try:
            for piece in self.pieces():
                try:
                    events.append(decode_event(piece))
                except WireError as error:
                    complain(error)
        except WireError as error:  # the events cannot be told apart
            complain(error)
        return events

    def kept(self) -> Run:
        """Return a copy to keep: it does not pin the buffer that the run was read from."""
        fields = (self.source, self.incarnation, self.first, self.count, self.topic)
        header = (self.layout, self.stamp, self.kind)
        return Run(*fields, memoryview(bytes(self.body)), *header, self.size_bytes)

    # --- Checking

    def verify(self) -> None:
        """Raise WireError unless its events match its fields and have no headers: then it can be cut anywhere."""
        check_header(self)
        body = self.body
        if any(body[start] != EVENT_ITEMS for start in self._bounds()[:-1]):
            raise WireError(f"{self} has an event with a header of its own")
        try:
            heads = _decode_heads(body)
        except _UNREADABLE as error:
            raise WireError(f"{self}: its events do not decode: {error}") from None
        self._check_ids(heads, self.first)

    def _check_count(self, found: int) -> None:
        if found != self.count:
            raise WireError(f"{self} has {found} events, not {self.count}")

    def _check_ids(self, events: Sequence[_Head | Publication], first: int) -> None:
        """Raise WireError unless these are its events from `first` on."""
        if [event.sequence for event in events] != list(range(first, first + len(events))):
            raise WireError(f"{self} has events with other sequences")
        kinds = {(event.source, event.incarnation, event.topic) for event in events}
        for source, incarnation, topic in kinds:
            if (source, incarnation) != (self.source, self.incarnation):
                raise WireError(f"{self} has an event of {source!r} in incarnation {incarnation}")
            if self.topic not in ("", topic):
                raise WireError(f"{self} says that all its events are on {self.topic!r}; one is on {topic!r}")

    def check(self) -> list[tuple[int, str]]:
        """Return (sequence, reason) of each event that must not be published. The publisher's broker checks once.

        Raise WireError if the events contradict the run's fields.
        """
        try:
            check_header(self)
        except WireError as error:
            return [(sequence, str(error)) for sequence in range(self.first, self.last + 1)]
        try:
            contents = _contents(self.body)
            self._check_count(len(contents))
            self._check_ids(contents, self.first)
            for topic in {content.topic for content in contents}:
                check_topic(topic)
            if contents[0].__class__ is not Content:
                _check_payloads(contents)
        except (*_UNREADABLE, TopicError, PayloadError):
            return self._check_each()
        if bytes(self.body).find(RESERVED_ATTRIBUTE.encode()) >= 0:
            return self._check_each()
        self.contents = contents
        return []

    def _check_each(self) -> list[tuple[int, str]]:
        rejected: list[tuple[int, str]] = []
        for sequence, piece in enumerate(self.pieces(), self.first):
            try:
                publication = decode_publication(Raw(piece))
            except WireError as error:
                rejected.append((sequence, str(error)))
                continue
            self._check_ids([publication], sequence)
            try:
                check_publication(publication)
            except WireError as error:
                rejected.append((sequence, str(error)))
        return rejected


Stretch = Run | Publication
"""One or more consecutive events of a source."""


class Arrival(Struct, frozen=True, eq=False, gc=False):
    """Events that arrived together, not decoded yet, and how they arrived."""

    stretch: Stretch
    late: bool = False
    """Later events of their source arrived before them."""
    places: Any = None
    """Their positions in their order, if any: `places.of(sequence)`, with consecutive numbers."""
    by: str = ""
    """The recovery algorithm that brought them; empty if they were not lost."""

    @property
    def count(self) -> int:
        return self.stretch.count

    def split(self, count: int) -> tuple[Arrival, Arrival]:
        """Return the first `count` of several events, and the others."""
        run = self.stretch
        assert isinstance(run, Run)
        middle = run.first + count
        how = (self.late, self.places, self.by)
        return Arrival(run.cut(run.first, middle - 1), *how), Arrival(run.cut(middle, run.last), *how)

    def events(self, complain: Callable[[WireError], None]) -> Sequence[Event | None]:
        """Return the decoded events, with None in place of each that does not decode."""
        stretch = self.stretch
        events = stretch.events(complain) if isinstance(stretch, Run) else [stretch.event()]
        for event in events if self.late else ():
            event.__dict__["out_of_order"] = True
        for event in events if self.by else ():
            event.__dict__["recovered_by"] = self.by
        for event in events if self.places is not None else ():
            event.__dict__["places"] = self.places
        if len(events) == stretch.count:
            return events
        found = {event.sequence: event for event in events}
        return [found.get(sequence) for sequence in range(stretch.first, stretch.last + 1)]


_encode = msgspec.msgpack.Encoder().encode
_encode_into = msgspec.msgpack.Encoder().encode_into
_decode_run = msgspec.msgpack.Decoder(Run).decode
_decode_heads = msgspec.msgpack.Decoder(list[_Head]).decode
_decode_raws = msgspec.msgpack.Decoder(list[Raw]).decode
_decode_contents = msgspec.msgpack.Decoder(list[Content]).decode
_decode_typed_contents = msgspec.msgpack.Decoder(list[_TypedContent]).decode
_decode_events = msgspec.msgpack.Decoder(list[Event]).decode
_decode_typed_events = msgspec.msgpack.Decoder(list[TypedEvent]).decode


def _contents(body: memoryview) -> Sequence[Content]:
    """Decode the events of a run for a broker; raise one of `_UNREADABLE` if that needs a closer look.

    Most runs have only plain payloads. Decoding for these costs nothing extra, and fails early for others.
    """
    try:
        return _decode_contents(body)
    except _UNREADABLE:
        return _decode_typed_contents(body)


def _typed_events(body: memoryview) -> list[Event]:
    """Decode events whose payloads may have details; raise one of `_UNREADABLE` if they need a closer look."""
    events = _decode_typed_events(body)
    for event in events:
        event.settle()
    return events  # type: ignore[return-value]


def _check_payloads(contents: Iterable[Content]) -> None:
    for content in contents:
        payload: object = content.payload
        if isinstance(payload, TypedPayload):
            check_typed(payload)


def _make(
    source: str, incarnation: int, first: int, count: int, topic: str, events: bytes | bytearray | memoryview
) -> Run:
    body = b"".join((bytes((_ARRAY_16,)), count.to_bytes(2, "big"), events))
    size_bytes = len(body) + len(source) + len(topic) + RUN_OVERHEAD_BYTES
    return Run(source, incarnation, first, count, topic, memoryview(body), size_bytes=size_bytes)


def decode_stretch(raw: Raw) -> Stretch:
    """Decode a run or an event; raise WireError if it is neither."""
    view = memoryview(raw)
    if not view.nbytes or view[0] not in _RUN_ITEMS:
        return decode_publication(raw)
    try:
        run = _decode_run(raw)
    except _UNREADABLE as error:
        raise WireError(f"not a run of events: {error}") from None
    run.encoded = raw
    run.size_bytes = view.nbytes
    if len(run.body) > MAX_RUN_BYTES + _ARRAY_BYTES:
        raise WireError(f"{run} has {len(run.body)} bytes of events, the limit is {MAX_RUN_BYTES}")
    if run.kind > WHOLE or (run.kind == BARE) != (not run.body) or (run.count == 1 and run.body):
        raise WireError(
            f"{run} has {run.count} events in {len(run.body)} bytes, which kind {run.kind} does not allow"
        )
    if run.last > INT_MAX:
        raise WireError(f"{run}: its sequences do not fit into 64 bits")
    return run


def singles(stretch: Stretch) -> list[Publication]:
    """Return its events one by one."""
    return stretch.publications() if isinstance(stretch, Run) else [stretch]


def look(stretch: Stretch) -> Sequence[Content | Publication]:
    """Return what brokers need of each event."""
    return stretch.look() if isinstance(stretch, Run) else [stretch]


def cut(stretch: Stretch, first: int, last: int) -> Stretch:
    """Return its events with sequences from `first` to `last`; there must be some."""
    if stretch.first >= first and stretch.last <= last:
        return stretch
    assert isinstance(stretch, Run)
    return stretch.cut(max(stretch.first, first), min(stretch.last, last))


def encoding(stretch: Stretch, first: int, last: int) -> bytes:
    """Return the encoding of its events with sequences from `first` to `last`, which it has."""
    if first == stretch.first and last == stretch.last:
        return bytes(stretch.raw)
    assert isinstance(stretch, Run)
    return stretch.encoding(first, last)


def stamped(stretch: Stretch, layout: int, stamp: Timestamp) -> Stretch:
    """Give the events, which have no positions in an order yet, the positions from this one on."""
    if isinstance(stretch, Publication):
        return stamp_publication(stretch, layout, stamp)
    stretch.layout, stretch.stamp, stretch.encoded = layout, stamp, None
    return stretch


def stripped(stretch: Stretch) -> Stretch:
    """Return it without its body, for receivers that need only headers."""
    return stretch.bare() if isinstance(stretch, Run) else bare_publication(stretch)


class RunMaker:
    """Gathers what a source publishes into runs. Each event is encoded once, right after the one before it."""

    def __init__(self, source: str, incarnation: int) -> None:
        self._source = source
        self._incarnation = incarnation
        self._events = bytearray()
        self._first = 0
        self._count = 0
        self._topic = ""
        self._checked_topic: object = self
        self.full: list[Stretch] = []
        """Finished runs, which take no more events."""

    def __bool__(self) -> bool:
        """Return True if any event has not been taken yet."""
        return bool(self._count or self.full)

    @property
    def first(self) -> int | None:
        """The lowest sequence that has not been taken yet."""
        if self.full:
            return self.full[0].first
        return self._first if self._count else None

    def add(
        self,
        sequence: int,
        topic: str,
        attributes: Mapping[str, Scalar],
        payload: Payload,
        published_at: int,
    ) -> bool:
        """Append an event; raise TopicError, AttributeValueError or PayloadError if it cannot be published.

        Return True if a run is full.
        """
        if topic is not self._checked_topic:
            check_published_topic(topic)
            self._checked_topic = topic
        check_content(attributes)
        item = payload if payload.__class__ is bytes else encodable(payload)
        events, end = self._events, len(self._events)
        fields = (self._source, self._incarnation, sequence, topic, published_at, attributes, item)
        try:
            _encode_into(fields, events, end)
            if len(events) - end > MAX_EVENT_BYTES:
                check_event_size(len(events) - end)
        except UnicodeEncodeError as error:
            del events[end:]
            raise not_text(error) from None
        except BaseException:
            del events[end:]
            raise
        size_bytes = len(events)
        if self._count and (size_bytes > MAX_RUN_BYTES or sequence != self._first + self._count):
            last = bytes(events[end:])
            del events[end:]
            self._close()
            self._events += last
        if not self._count:
            self._first, self._topic = sequence, topic
        elif topic != self._topic:
            self._topic = ""
        self._count += 1
        if 2 * size_bytes - end > MAX_RUN_BYTES:  # no room for another event of this size
            self._close()
        return True if self.full else False  # noqa: SIM210 - quicker than bool()

    def take_full(self) -> list[Stretch]:
        made, self.full = self.full, []
        return made

    def take_all(self) -> list[Stretch]:
        if self._count:
            self._close()
        made, self.full = self.full, []
        return made

    def _close(self) -> None:
        count, events = self._count, self._events
        if count == 1:
            self.full.append(decode_publication(Raw(bytes(events))))
        elif count:
            self.full.append(_make(self._source, self._incarnation, self._first, count, self._topic, events))
        self._count = 0
        self._events = bytearray()
