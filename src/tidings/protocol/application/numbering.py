"""Publications into an order: each gets its number, then goes to the service, all in the order of the calls.

So the sequence of an event is known when it is published, and is that of its application whatever the sequencers do.
An event on a topic without an order waits behind those that wait for their numbers, and for no other reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from tidings.model.errors import AttributeValueError, OrderError
from tidings.model.event import (
    MAX_ATTRIBUTES,
    MAX_EVENT_BYTES,
    ORDER_ATTRIBUTE,
    make_publication,
)
from tidings.model.predicates import Scalar
from tidings.protocol.application.beneath import Beneath
from tidings.protocol.facts import PublicationFailed, PublicationNumbered, PublicationSent
from tidings.protocol.sequencing.client import OrderingModule, PublishNow
from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.stamps import encode_stamp

STAMP_BYTES = 64 + 1024
"""What a timestamp without entries takes, and the name and numbers of the event's source."""
ENTRY_BYTES = 12
FULL = "too many events wait for a number"


class _Call:
    """An event that the application published and the service does not have."""

    __slots__ = ("attributes", "handle", "payload", "published_at", "ready", "sequence", "topic")

    def __init__(
        self, topic: str, attributes: Mapping[str, Scalar], payload: bytes, published_at: int, *, ready: bool
    ) -> None:
        self.sequence = 0
        self.topic = topic
        self.attributes = attributes
        self.payload = payload
        self.published_at = published_at
        self.ready = ready
        """It has its stamp, or needs none."""
        self.handle: int | None = None


class Numbering:
    """`wanted` says whether anybody wants an order at all. Where the service does not say what became of each
    publication (`confirms` is False), an event counts as published when it is handed over."""

    def __init__(
        self,
        beneath: Beneath,
        module: OrderingModule,
        emit: Callable[[object], None],
        *,
        wanted: Callable[[], bool],
        confirms: bool,
    ) -> None:
        self.refusal = ""
        """Why nothing gets a number any more."""
        self._beneath = beneath
        self._module = module
        self._layout = module.layout
        self._emit = emit
        self._wanted = wanted
        self._confirms = confirms
        self._calls: deque[_Call] = deque()
        """Not with the service, in the order of their sequences."""
        self._handles: dict[int, int] = {}
        """Sequence of an event that the service has not confirmed -> its handle in the module."""

    def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar],
        payload: bytes,
        published_at: int,
        *,
        numbered: bool = True,
    ) -> int:
        """The event's sequence; OrderError if its topic gets no numbers any more. Mistakes show before it has one."""
        rank = self._layout.rank_of(topic) if numbered and self._wanted() else None
        if rank is None and not self._calls:
            sequence = self._beneath.reserve()
            self._beneath.publish_as(sequence, topic, attributes, payload, published_at)
            self._emit(PublicationSent(sequence))
            return sequence
        _check_event(topic, attributes, payload, None if rank is None else self._layout)
        call = _Call(topic, dict(attributes), bytes(payload), published_at, ready=rank is None)
        if rank is not None:
            if self.refusal:
                raise OrderError(self.refusal)
            if not self._module.publish(rank, call):
                raise OrderError(FULL)
        call.sequence = self._beneath.reserve()
        self._calls.append(call)
        return call.sequence

    def on_publish_now(self, fact: PublishNow) -> None:
        call = fact.event
        assert isinstance(call, _Call)
        carried = encode_stamp(self._layout.fingerprint, fact.stamp)
        call.attributes = {**call.attributes, ORDER_ATTRIBUTE: carried}
        call.handle, call.ready = fact.handle, True
        self._emit(PublicationNumbered(call.sequence, 1 + len(fact.stamp.index)))
        self._hand_over()

    def _hand_over(self) -> None:
        calls = self._calls
        while calls and calls[0].ready:
            call = calls.popleft()
            sequence = call.sequence
            if call.handle is not None and self._confirms:
                self._handles[sequence] = call.handle
            self._beneath.publish_as(sequence, call.topic, call.attributes, call.payload, call.published_at)
            self._emit(PublicationSent(sequence))
            if call.handle is not None and not self._confirms:
                self._module.published(call.handle)

    def is_waiting(self, sequence: int) -> bool:
        """For its number, or behind one that does."""
        return bool(self._calls) and sequence >= self._calls[0].sequence

    # --- What the service says

    def on_confirmed(self, first: int, last: int) -> None:
        for sequence in range(first, last + 1):
            handle = self._handles.pop(sequence, None)
            if handle is not None:
                self._module.published(handle)

    def on_failed(self, sequence: int) -> None:
        handle = self._handles.pop(sequence, None)
        if handle is not None:
            self._module.failed(handle)

    # --- When it cannot go on

    def refuse(self, reason: str) -> None:
        """Nothing gets a number any more: what waits for one, or behind one, fails."""
        self.refusal = reason
        calls, self._calls = self._calls, deque()
        for call in calls:
            self._emit(PublicationFailed(call.sequence, reason, unordered=True))

    def leave(self) -> None:
        """Nothing more is published; what has no number gets none."""
        self._calls.clear()
        self._module.leave()


def _check_event(topic: str, attributes: Mapping[str, Scalar], payload: bytes, layout: Layout | None) -> None:
    """AttributeValueError or TopicError for what cannot be published, or leaves no room for a timestamp."""
    publication = make_publication("-", 0, 1, topic, attributes, payload, 0)
    if layout is None:
        return
    if len(attributes) >= MAX_ATTRIBUTES:
        raise AttributeValueError(
            f"{len(attributes)} attributes; with a place in an order at most {MAX_ATTRIBUTES - 1} are carried"
        )
    most = MAX_EVENT_BYTES - STAMP_BYTES - ENTRY_BYTES * len(layout.topics)
    if publication.size_bytes > most:
        raise AttributeValueError(
            f"the event has {publication.size_bytes} bytes; with a place in this order at most {most} are carried"
        )
