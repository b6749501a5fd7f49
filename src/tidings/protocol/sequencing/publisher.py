"""A publisher of ordered events: asks the servers for numbers, and hands out each event with its stamp.

Requests to each server are counted, sent in order and repeated in order until answered; the server stamps each once.
Nothing is acknowledged on the way of the events: a later request tells which answers have come.

A `serial` publisher has no request on another topic under way: causal order needs it, else an event could get its
number before the one that its publisher made first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidings.model.ordering_messages import MAX_BATCH, Create, EventStamps, Identity, PublisherDisowned
from tidings.protocol.facts import Fact
from tidings.protocol.kernel import Part, Port, TimerName
from tidings.protocol.sequencing.stamps import Chain, Timestamp

REPEAT_NS = 200_000_000
WINDOW = 64
MAX_WAITING = 4096


class EventStamped(Fact, frozen=True, gc=False):
    """To the driver: publish the event with this stamp, before anything that is sent after this fact is sent."""

    stamp: Timestamp
    event: object


class Disowned(Fact, frozen=True, gc=False):
    """The servers hold this publisher for dead: nothing more is stamped, and these events were not."""

    events: tuple[object, ...]


class _Request:
    __slots__ = ("events", "topic")

    def __init__(self, topic: int, events: tuple[object, ...]) -> None:
        self.topic = topic
        self.events = events


class _Line:
    """The requests to one server."""

    __slots__ = ("acknowledged", "next", "unanswered")

    def __init__(self) -> None:
        self.next = 1
        self.acknowledged = 0
        """The answers to all requests up to this one have come."""
        self.unanswered: dict[int, _Request] = {}
        """In the order of their numbers."""


class OrderedPublisher(Part):
    """Keeps at most `max_waiting` batches that have no number, and `window` requests to a server unacknowledged."""

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
    ) -> None:
        super().__init__(port)
        self.identity: Identity = (port.node, incarnation)
        self.disowned = False
        self._chain = chain
        self._serial = serial
        self._repeat_ns = repeat_ns
        self._window = window
        self._max_waiting = max_waiting
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
        self._send_waiting()
        return True

    def _send_waiting(self) -> None:
        """All that may go. What must wait holds up what was published later, to the same server or to any."""
        kept: deque[_Request] = deque()
        full: set[str] = set()
        for request in self._waiting:
            server = self._chain.server_of(request.topic)
            if server in full or (self._serial and (kept or self._is_busy_with_another(request.topic))):
                kept.append(request)
            elif not self._send_new(server, request):
                full.add(server)
                kept.append(request)
        self._waiting = kept

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
        line = self._lines[server]
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
        for offset, event in enumerate(request.events, start=1):
            stamp = Timestamp(message.topic, message.base + offset, message.index, message.values)
            self.port.emit(EventStamped(stamp, event))
        line.acknowledged = next(iter(line.unanswered), line.next) - 1
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
