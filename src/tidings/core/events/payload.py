"""What an event carries: bytes, or bytes with what describes them.

The last item of an encoded event is its payload: a plain bin, or an array of the data, its content type, when it
expires, where an answer goes and the request's id, without the last items that are empty. Brokers check it once, at the
publisher's, and never look at it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, ClassVar, Protocol

import msgspec
from msgspec import Meta, Struct

from tidings.core.errors import PayloadError, TopicError
from tidings.core.events.topics import check_topic

MAX_CONTENT_TYPE_BYTES = 255
MAX_REQUEST_CHARACTERS = 64
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

_BYTES = (bytes, bytearray, memoryview)
_Instant = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class TypedPayload(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A payload with what travels with its data."""

    data: bytes
    content_type: Annotated[str, Meta(max_length=MAX_CONTENT_TYPE_BYTES)] = ""
    """Empty for bytes of which nothing is known."""
    expires_at: _Instant = 0
    """In nanoseconds since 1970; 0: never."""
    reply_to: Annotated[str, Meta(max_length=1024)] = ""
    """The topic to which an answer goes; empty if none is expected."""
    request: Annotated[str, Meta(max_length=MAX_REQUEST_CHARACTERS)] = ""
    """The id that the answer to a request repeats."""

    @property
    def rest(self) -> tuple[str | int, ...]:
        """The details in the form in which they are encoded: without the last ones that are empty."""
        fields: tuple[str | int, ...] = (self.content_type, self.expires_at, self.reply_to, self.request)
        while fields and not fields[-1]:
            fields = fields[:-1]
        return fields

    @property
    def item(self) -> bytes | tuple[bytes | str | int, ...]:
        """The payload in the form in which it is encoded."""
        if self.request:  # the last detail, so there are all
            return self.data, self.content_type, self.expires_at, self.reply_to, self.request
        rest = self.rest
        return (self.data, *rest) if rest else self.data


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Payload = (
    bytes
    | bytearray
    | memoryview
    | str
    | int
    | float
    | Mapping[str, Any]
    | Sequence[Any]
    | AbstractSet[Any]
    | Struct
    | _Dataclass
    | None
)
"""What can be published: bytes as they are, a str as text, anything else as JSON, if msgspec can encode it."""
PayloadItem = bytes | TypedPayload
"""A payload as events carry it."""
EncodedItem = bytes | bytearray | memoryview | tuple[bytes | str | int, ...]
"""A payload in the form in which it is encoded."""

_to_json = msgspec.json.Encoder().encode


def typed_payload(
    payload: Payload, *, expires_at: int = 0, reply_to: str = "", request: str = ""
) -> TypedPayload:
    """Encode a payload, with these details; raise PayloadError if that is not possible."""
    if isinstance(payload, TypedPayload):  # published again
        data, content_type = payload.data, payload.content_type
    else:
        data, content_type = _encoded(payload)
    made = TypedPayload(data, content_type, expires_at, reply_to, request)
    check_typed(made)
    return made


def _encoded(payload: Payload) -> tuple[bytes, str]:
    """Return the data and its content type."""
    try:
        if isinstance(payload, _BYTES):
            return bytes(payload), ""
        if isinstance(payload, str):
            return payload.encode(), TEXT
        return _to_json(payload), JSON
    except UnicodeEncodeError as error:
        raise PayloadError(f"the payload is not valid Unicode text: {error.object[:40]!r}") from None
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError, OverflowError) as error:
        kind = type(payload).__name__
        raise PayloadError(
            f"a payload of type {kind} cannot be encoded: use bytes, str or what JSON can express ({error})"
        ) from None


def encodable(payload: Payload) -> EncodedItem:
    """Return the last item of an event with this payload; raise PayloadError if there is none."""
    if isinstance(payload, _BYTES):
        return payload
    if isinstance(payload, TypedPayload):
        check_typed(payload)
    else:
        payload = typed_payload(payload)
    return payload.item


def check_typed(payload: TypedPayload) -> None:
    """Raise PayloadError unless an event may carry this. Its decoder has checked types and lengths in characters."""
    size_bytes = 0
    try:
        if payload.content_type:
            size_bytes = len(payload.content_type.encode())
        if payload.reply_to:
            check_topic(payload.reply_to)
    except UnicodeEncodeError as error:
        raise PayloadError(
            f"a detail of the payload is not valid Unicode text: {error.object[:40]!r}"
        ) from None
    except TopicError as error:
        raise PayloadError(f"the payload cannot be answered: {error}") from None
    if size_bytes > MAX_CONTENT_TYPE_BYTES:
        raise PayloadError(
            f"a content type of {size_bytes} bytes; at most {MAX_CONTENT_TYPE_BYTES} are allowed"
        )
    if len(payload.request) > MAX_REQUEST_CHARACTERS:
        raise PayloadError(f"a request's id may have at most {MAX_REQUEST_CHARACTERS} characters")
    if not 0 <= payload.expires_at < 2**63:
        raise PayloadError(f"the payload expires at {payload.expires_at}: expected nanoseconds since 1970")


_decode_item = msgspec.msgpack.Decoder(bytes | TypedPayload).decode


def unpack_item(packed: Any) -> PayloadItem:
    """Decode an event's last item; raise PayloadError if it is none that an event may carry."""
    try:
        item: PayloadItem = _decode_item(packed)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise PayloadError(f"its payload does not decode: {error}") from None
    if isinstance(item, TypedPayload):
        check_typed(item)
    return item
