"""A publisher of ordered events: asks the servers for numbers, and hands out each event with its stamp.

Requests to each server are counted, sent in order and repeated in order until answered; the server stamps each once.
Nothing is acknowledged on the way of the events: a later request tells which answers have come and whose events are
with the event service (`published`). Until then the server remembers them, for the publisher may die.

A `serial` publisher has no request on another topic under way: causal order needs it, else an event could get its
number before the one that its publisher made first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tidings.model.ordering_messages import (
    MAX_BATCH,
    Create,
    EventStamps,
    Identity,
    PublisherAlive,
    PublisherDisowned,
    PublisherGone,
)
from tidings.protocol.facts import Fact
from tidings.protocol.kernel import Part, Port, TimerName
from tidings.protocol.sequencing.stamps import Chain, Timestamp

REPEAT_NS = 200_000_000
WINDOW = 256
MAX_WAITING = 16_384
MAX_MERGED = 256
"""Events of requests for one topic that wait are asked for in one, up to so many."""

Receipt = tuple[str, int]
"""A server and a request to it."""


class EventStamped(Fact, frozen=True, gc=False):
    """To the driver: publish the event with this stamp; then say `published(receipt)`."""

    stamp: Timestamp
    event: object
    receipt: Receipt


class Disowned(Fact, frozen=True, gc=False):
    """The servers hold this publisher for dead: nothing more is stamped, and these events were not."""

    events: tuple[object, ...]


class _Request:
    __slots__ = ("events", "topic", "unpublished")

    def __init__(self, topic: int, events: tuple[object, ...]) -> None:
        self.topic = topic
        self.events = events
        self.unpublished = len(events)


class _Line:
    """The requests to one server."""

    __slots__ = ("answered", "next", "repeats", "unanswered")

    def __init__(self) -> None:
        self.next = 1
        self.unanswered: dict[int, _Request] = {}
        """In the order of their numbers."""
        self.answered: dict[int, _Request] = {}
        """Those of whose events some are not with the event service."""
        self.repeats = 0
        """Since the last answer."""

    @property
    def acknowledged(self) -> int:
        """All requests up to this one are done with."""
        return min(next(iter(self.unanswered), self.next), min(self.answered, default=self.next)) - 1


class OrderedPublisher(Part):
    """Keeps at most `max_waiting` batches that have no number, and `window` requests to a server unacknowledged.

    One that `gathers` sends at the end of the instant, so that events of a topic share a request. `on_silence` is told
    of a server that did not answer again and again.
    """

    name = "ordered-publisher"
    handles = {EventStamps: "on_event_stamps", PublisherDisowned: "on_publisher_disowned"}

    def __init__(
        self,
        port: Port,
        chain: Chain,
        *,
        incarnation: int = 0,
        serial: bool = False,
        repeat_ns: int = REPEAT_NS,
        window: int = WINDOW,
        max_waiting: int = MAX_WAITING,
        gathers: bool = False,
        on_silence: Callable[[str], None] = lambda server: None,
    ) -> None:
        super().__init__(port)
        self.identity: Identity = (port.node, incarnation)
        self.disowned = False
        self._chain = chain
        self._serial = serial
        self._repeat_ns = repeat_ns
        self._window = window
        self._max_waiting = max_waiting
        self._gathers = gathers
        self._on_silence = on_silence
        self._lines: dict[str, _Line] = {}
        self._waiting: deque[_Request] = deque()
        """Not sent yet, in the order in which they were published."""

    @property
    def unstamped(self) -> int:
        """How many batches have no number yet."""
        return len(self._waiting) + sum(len(line.unanswered) for line in self._lines.values())

    def publish(self, topic: int, events: Sequence[object]) -> bool:
        """Number the events one after the other; False if there is no room, or the publisher is disowned."""
        if not 0 <= topic < self._chain.topics or not 0 < len(events) <= MAX_BATCH:
            raise ValueError(f"{len(events)} events for topic {topic}: no such topic, or no such batch")
        if self.disowned or self.unstamped >= self._max_waiting:
            return False
        self._waiting.append(_Request(topic, tuple(events)))
        if not self._gathers:
            self._send_waiting()
        elif len(self._waiting) == 1:
            self.port.set_timer((self.name, "", "gather"), self.port.now)
        return True

    def published(self, receipt: Receipt) -> None:
        """One of the events of that request is with the event service."""
        server, number = receipt
        line = self._lines.get(server)
        request = None if line is None else line.answered.get(number)
        if line is None or request is None:
            return
        request.unpublished -= 1
        if not request.unpublished:
            del line.answered[number]
            if self._waiting:
                self._send_waiting()

    def alive(self) -> None:
        """To be said now and then: who is silent for long is dead to the servers."""
        for server in self._chain.servers:
            line = self._lines.get(server)
            acknowledged = 0 if line is None else line.acknowledged
            self.port.send(server, PublisherAlive(self.identity, server, acknowledged))

    def leave(self) -> None:
        """Nothing more will be published under this identity."""
        for server in self._chain.servers:
            line = self._lines.get(server)
            if line is not None:
                self.port.cancel_timer((self.name, server))
            acknowledged = 0 if line is None else line.acknowledged
            self.port.send(server, PublisherGone(self.identity, server, acknowledged))

    def _send_waiting(self) -> None:
        """All that may go. What must wait holds up what was published later, to the same server or to any."""
        kept: deque[_Request] = deque()
        full: set[str] = set()
        for request in self._merged():
            server = self._chain.server_of(request.topic)
            if server in full or (self._serial and (kept or self._is_busy_with_another(request.topic))):
                kept.append(request)
            elif not self._send_new(server, request):
                full.add(server)
                kept.append(request)
        self._waiting = kept

    def _merged(self) -> list[_Request]:
        """The waiting requests; of neighbours for one topic, one is made."""
        if not self._gathers:
            return list(self._waiting)
        merged: list[_Request] = []
        for request in self._waiting:
            last = merged[-1] if merged else None
            if (
                last is not None
                and last.topic == request.topic
                and len(last.events) + len(request.events) <= MAX_MERGED
            ):
                merged[-1] = _Request(last.topic, last.events + request.events)
            else:
                merged.append(request)
        return merged

    def _is_busy_with_another(self, topic: int) -> bool:
        return any(
            request.topic != topic for line in self._lines.values() for request in line.unanswered.values()
        )

    def _send_new(self, server: str, request: _Request) -> bool:
        line = self._lines.setdefault(server, _Line())
        if line.next - line.acknowledged > self._window:
            return False
        if not line.unanswered:
            self.port.set_timer((self.name, server), self.port.now + self._repeat_ns)
        line.unanswered[line.next] = request
        line.next += 1
        self._send(server, line, line.next - 1, request)
        return True

    def _send(self, server: str, line: _Line, number: int, request: _Request) -> None:
        create = Create(self.identity, number, request.topic, len(request.events), line.acknowledged)
        self.port.send(server, create)

    def on_timer(self, name: TimerName) -> None:
        """In order: a server ignores a request whose predecessor it lacks."""
        server = str(name[1])
        if not server:
            self._send_waiting()
            return
        line = self._lines[server]
        line.repeats += 1
        if line.repeats % 2 == 0:
            self._on_silence(server)
        for number, request in line.unanswered.items():
            self._send(server, line, number, request)
        if line.unanswered:
            self.port.set_timer(name, self.port.now + self._repeat_ns)

    def on_event_stamps(self, sender: str, message: EventStamps) -> None:
        line = self._lines.get(message.server)
        if line is None or message.publisher != self.identity:
            return
        request = line.unanswered.get(message.request)
        if request is None or (request.topic, len(request.events)) != (message.topic, message.count):
            return  # it was answered before
        del line.unanswered[message.request]
        line.answered[message.request] = request
        line.repeats = 0
        for offset, event in enumerate(request.events, start=1):
            stamp = Timestamp(message.topic, message.base + offset, message.index, message.values)
            self.port.emit(EventStamped(stamp, event, (message.server, message.request)))
        if not line.unanswered:
            self.port.cancel_timer((self.name, message.server))
        self._send_waiting()

    def on_publisher_disowned(self, sender: str, message: PublisherDisowned) -> None:
        if message.publisher != self.identity or self.disowned:
            return
        self.disowned = True
        lost = [request for line in self._lines.values() for request in line.unanswered.values()]
        lost += self._waiting
        for server, line in self._lines.items():
            line.unanswered.clear()
            self.port.cancel_timer((self.name, server))
        self._waiting.clear()
        self.port.emit(Disowned(tuple(event for request in lost for event in request.events)))
