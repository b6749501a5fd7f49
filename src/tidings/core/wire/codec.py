"""Encodes messages as bodies and decodes them, in msgpack.

A message is the array of its fields, preceded by the tag of its class. Publications travel in batches,
`[64, [event, ...]]`. So do notifications for the same subscriptions, `[65, [subscription, ...], [event, ...]]`, and
what the guaranteed overlay forwards (66) or receives from a client (67), with the shared fields first. An event is the
encoding that its publisher made: a broker that forwards it decodes the first fields and copies the rest. In place of an
event there may be a run of events (events/run.py), of which a broker decodes less.

A message may be longer than its class: decoding skips items after the known fields, so that a later version can append
fields (a `Hello` with more fields still shows its version). Bytes after the message are an error.

Decoded messages refer to the body's buffer (`publication.raw` is a view). Keeping a publication after the current turn
keeps that buffer alive, unless you take `raw.copy()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Union

import msgspec
from msgspec import Meta, Raw, Struct

from tidings.core import messages
from tidings.core.errors import WireError
from tidings.core.events.event import (
    INT_MAX,
    MAX_EVENT_BYTES,
    Counter,
    Name,
    Publication,
    check_size,
)
from tidings.core.events.run import Run, Stretch, decode_stretch
from tidings.core.messages import Message, Notify, SubscriptionId, WireMessage
from tidings.core.ordering import messages as ordering_messages
from tidings.core.overlay import messages as forwarding_messages
from tidings.core.overlay.epidemic import messages as recovery_messages
from tidings.core.overlay.epidemic.messages import Carried, Fragment, PatternNumbers, Route, Way
from tidings.core.overlay.guaranteed import messages as guaranteed_messages
from tidings.core.overlay.guaranteed import share_messages
from tidings.core.overlay.guaranteed.messages import Forward, Ids, LabelItems, Relayed, Stamped
from tidings.core.overlay.peers import messages as peer_messages
from tidings.core.overlay.peers.messages import Beat, Cast, Packet, Ranges, Session, TopicName
from tidings.core.wire import archive_messages
from tidings.core.wire.frames import MAX_FRAME_BYTES, check_body_size

MAX_EVENTS_PER_FRAME = 4096
MAX_SUBSCRIPTIONS_PER_FRAME = 65_536
CAST_BYTES = 24
"""An upper bound on what a Cast adds to its events, apart from its names."""
BATCH_OVERHEAD_BYTES = 8
"""An upper bound on what a batch adds to the encodings in it, apart from the names of subscriptions."""

_Events = Annotated[list[Raw], Meta(min_length=1, max_length=MAX_EVENTS_PER_FRAME)]
_Subscriptions = Annotated[
    tuple[SubscriptionId, ...], Meta(min_length=1, max_length=MAX_SUBSCRIPTIONS_PER_FRAME)
]


class PublicationBatch(Struct, array_like=True, tag=64, gc=False):
    events: _Events


class NotificationBatch(Struct, array_like=True, tag=65, gc=False):
    subscriptions: _Subscriptions
    events: _Events
    by: Way = ""


class ForwardBatch(Struct, array_like=True, tag=66, gc=False):
    origin: Name
    label: LabelItems
    generation: Counter
    stamp: Counter
    excluded: Ids
    events: _Events


class StampedBatch(Struct, array_like=True, tag=67, gc=False):
    generation: Counter
    stamp: Counter
    events: _Events


class RelayedBody(Struct, array_like=True, tag=68, gc=False):
    peer: Name
    serial: Counter
    body: bytes


class CarriedEvent(Struct, array_like=True, tag=69, gc=False):
    origin: Name
    numbers: PatternNumbers
    route: Route
    by: Way
    event: Raw


class PacketBody(Struct, array_like=True, tag=201, gc=False):
    session: Session
    heard: Session
    serial: Counter
    acks: Ranges
    number: Counter
    floor: Counter
    bodies: Annotated[tuple[bytes, ...], Meta(max_length=MAX_EVENTS_PER_FRAME)]


class CastEvents(Struct, array_like=True, tag=206, gc=False):
    publisher: Name
    incarnation: Counter
    topic: TopicName
    first: Counter
    collected: Counter
    events: Raw


CARRIERS = (Notify, Forward, Stamped, Relayed, Carried, Packet, Cast)
"""Messages that contain an event or a message; they travel as the classes above."""


def message_classes() -> tuple[type[WireMessage], ...]:
    """Return all message classes that travel as they are, sorted by tag."""
    found = [
        value
        for module in (
            messages,
            forwarding_messages,
            guaranteed_messages,
            share_messages,
            recovery_messages,
            peer_messages,
            ordering_messages,
            archive_messages,
        )
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, WireMessage)
        and value not in (WireMessage, *CARRIERS)
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda cls: int(cls.__struct_config__.tag or 0)))


_Body: Any = Union[
    (
        *message_classes(),
        PublicationBatch,
        NotificationBatch,
        ForwardBatch,
        StampedBatch,
        RelayedBody,
        CarriedEvent,
        PacketBody,
        CastEvents,
    )
]
_TRAVELS_AS_IT_IS = frozenset(message_classes())
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_encode = msgspec.msgpack.Encoder().encode


def encode(message: Message) -> bytes:
    """Encode one message as a body."""
    if message.__class__ in _TRAVELS_AS_IT_IS:  # the most frequent case in the simulator
        return _encode(message)
    if isinstance(message, Publication | Run):
        return encode_publications([message.raw])
    if isinstance(message, Notify):
        return encode_notifications(message.subscriptions, [message.stretch.raw], message.by)
    if isinstance(message, Forward | Stamped):
        return _encode(batch_of(message, [message.stretch.raw]))
    if isinstance(message, Carried):
        header = (message.origin, message.numbers, message.route, message.by)
        return _encode(CarriedEvent(*header, message.stretch.raw))
    if isinstance(message, Cast):
        return _encode(CastEvents(*_fields_of(message), message.stretch.raw))
    if isinstance(message, Packet):
        about = (message.session, message.heard, message.serial, message.acks, message.number, message.floor)
        return _encode(PacketBody(*about, tuple(map(encode, message.messages))))
    assert isinstance(message, Relayed)
    return _encode(RelayedBody(message.peer, message.serial, encode(message.message)))


def _fields_of(message: Cast | CastEvents) -> tuple[str, int, str, int, int]:
    return (message.publisher, message.incarnation, message.topic, message.first, message.collected)


def batch_of(first: Forward | Stamped, raws: list[Raw]) -> ForwardBatch | StampedBatch:
    """Return a body of encoded events that share the other fields of `first`."""
    if isinstance(first, Forward):
        return ForwardBatch(first.origin, first.label, first.generation, first.stamp, first.excluded, raws)
    return StampedBatch(first.generation, first.stamp, raws)


def encode_publications(raws: list[Raw]) -> bytes:
    """Encode a body of encoded events, in their order."""
    return _encode(PublicationBatch(raws))


def encode_notifications(subscriptions: tuple[str, ...], raws: list[Raw], by: str = "") -> bytes:
    """Encode a body of encoded events for the same subscriptions, in their order."""
    return _encode(NotificationBatch(subscriptions, raws, by))


def decode(body: bytes | bytearray | memoryview, *, inside: bool = False) -> Sequence[Message]:
    """Decode the messages of a body; raise WireError, and nothing else, if the bytes are not a body. What is `inside`
    another message carries none itself."""
    size_bytes = len(body)
    if not 0 < size_bytes <= MAX_FRAME_BYTES:
        check_body_size(size_bytes, MAX_FRAME_BYTES)
    try:
        message = _decode_body(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise WireError(f"not a message: {error or type(error).__name__}") from None
    kind = message.__class__
    if kind is NotificationBatch:
        subscriptions, by = message.subscriptions, message.by
        return [Notify(subscriptions, stretch, by) for stretch in _stretches(message.events, size_bytes)]
    if kind is PublicationBatch:
        return _stretches(message.events, size_bytes)
    if kind is ForwardBatch:
        shared = (message.origin, message.label, message.generation, message.stamp, message.excluded)
        return [Forward(*shared, stretch) for stretch in _kept(message.events, size_bytes)]
    if kind is StampedBatch:
        generation, stamp = message.generation, message.stamp
        return [Stamped(generation, stamp, stretch) for stretch in _kept(message.events, size_bytes)]
    if kind is CarriedEvent:
        header = (message.origin, message.numbers, message.route, message.by)
        carried = Carried(*header, decode_stretch(message.event.copy()))
        _check_carried(carried, size_bytes)
        return [carried]
    if inside and (kind is RelayedBody or kind is PacketBody or kind is Beat):
        raise WireError("not a message: a relayed message or a datagram inside a message")
    if kind is RelayedBody:
        return [Relayed(message.peer, message.serial, inner) for inner in decode(message.body, inside=True)]
    if kind is PacketBody:
        return [_packet(message)]
    if kind is CastEvents:
        stretch = decode_stretch(message.events.copy())
        _check_sizes((stretch,))
        if isinstance(stretch, Run):
            stretch.verify()
        return [Cast(*_fields_of(message), stretch)]
    return (message,)


def _kept(raws: list[Raw], body_bytes: int) -> Sequence[Stretch]:
    """Decode what a broker may queue for long: it must not pin the buffer of a whole read."""
    return _stretches([raw.copy() for raw in raws], body_bytes)


def _packet(body: PacketBody) -> Packet:
    header = (body.session, body.heard, body.serial, body.acks)
    inner = (message for each in body.bodies for message in decode(each, inside=True))
    return Packet(*header, body.number, body.floor, tuple(inner))


def _stretches(raws: list[Raw], body_bytes: int) -> Sequence[Stretch]:
    stretches = list(map(decode_stretch, raws))
    if body_bytes > MAX_EVENT_BYTES:  # otherwise no event can be too large
        _check_sizes(stretches)
    return stretches


def _check_carried(message: Carried, body_bytes: int) -> None:
    """Raise WireError unless all events and their numbers are valid: brokers cut and keep a stretch without looking."""
    stretch = message.stretch
    if body_bytes > MAX_EVENT_BYTES:
        _check_sizes((stretch,))
    if isinstance(stretch, Run):
        stretch.verify()
        if any(number > INT_MAX for _, _, number in message.last_numbers):
            raise WireError(f"{stretch}: its numbers do not fit into 64 bits")


def _check_sizes(stretches: Sequence[Stretch]) -> None:
    """Raise WireError if an event is too large; runs are always small."""
    for stretch in stretches:
        if isinstance(stretch, Publication):
            check_size(stretch)


def encoded_size(message: Message) -> int:
    """Return the bytes that the message takes in a batch of its kind, without encoding an event for that."""
    return size_of(message.__class__)(message)


def size_of(kind: type) -> Callable[[Any], int]:
    """Return the function that computes `encoded_size` for messages of one class."""
    encode_it = encoder_of(kind)
    return _SIZES[kind] if encode_it is None else lambda message: len(encode_it(message))


def encoder_of(kind: type) -> Callable[[Any], bytes] | None:
    """Return the encoder of a class whose sizes are known only after encoding; None if they are known before."""
    if kind in _SIZES:
        return None
    return _encode if kind in _TRAVELS_AS_IT_IS else encode


def _forward_bytes(message: Forward) -> int:
    size_bytes: int = message.stretch.size_bytes + BATCH_OVERHEAD_BYTES
    return size_bytes + sum([len(name) + 2 for name in message.excluded]) if message.excluded else size_bytes


def _packet_bytes(message: Packet) -> int:
    return 24 + 8 * len(message.acks) + sum([encoded_size(inner) + 2 for inner in message.messages])


def _fragment_bytes(message: Fragment) -> int:
    attributes = len(message.attributes) + len(message.topic) + len(message.source) + len(message.header)
    return len(message.data) + len(message.coefficients) + attributes + 48 + _header_bytes(message)


_SIZES: dict[type, Callable[[Any], int]] = {
    Publication: lambda publication: publication.size_bytes,
    Run: lambda run: run.size_bytes,
    Notify: lambda message: message.stretch.size_bytes + BATCH_OVERHEAD_BYTES,
    Forward: _forward_bytes,
    Stamped: lambda message: message.stretch.size_bytes + BATCH_OVERHEAD_BYTES,
    Carried: lambda message: message.stretch.size_bytes + _header_bytes(message),
    Fragment: _fragment_bytes,
    Packet: _packet_bytes,
    Cast: lambda message: (
        message.stretch.size_bytes + len(message.topic) + len(message.publisher) + CAST_BYTES
    ),
}
"""Sizes without encoding: the simulator asks for the size of every message."""


def _header_bytes(message: Carried | Fragment) -> int:
    """Estimate what recovery adds to an event or a block; cheap, because it is computed for each of them."""
    return 8 + len(message.origin) + 24 * len(message.numbers) + 8 * len(message.route)
