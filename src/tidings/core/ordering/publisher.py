"""Publishes ordered events: requests numbers from the servers, and emits each batch with its first stamp.

Requests to each server are counted, sent in order and retried in order until answered; the server stamps each once.
There are no separate acknowledgements: a later request says which answers have arrived and whose events the event
service has confirmed (`published`). Until then the server remembers the answers, because the publisher may die.

A `serial` publisher has outstanding requests for one topic only. Causal order needs that: otherwise an event could get
its number before one that the same publisher made earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Fact
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.ordering.messages import (
    MAX_BATCH,
    Create,
    EventStamps,
    Identity,
    PublisherAlive,
    PublisherGone,
)
from tidings.core.ordering.stamps import Chain

REPEAT_NS = 200_000_000
WINDOW = 256
MAX_WAITING = 16_384

MAX_DOUBLINGS = 2
"""Limits the back-off of retries: a server that does not answer may only be slow."""

Receipt = tuple[str, int]
"""A server and a request to it."""


class EventStamped(Fact, frozen=True, gc=False):
    """Asks the driver to publish the `count` events of `event` with the numbers from this stamp on, and to call
    `published(receipt)` for each."""

    stamp: Timestamp
    event: object
    receipt: Receipt
    count: int = 1


class _Request:
    __slots__ = ("batches", "count", "repeat_at", "repeats", "topic", "unpublished")

    def __init__(self, topic: int, event: object, count: int) -> None:
        self.topic = topic
        self.batches = [(event, count)]
        self.count = count
        self.unpublished = count
        self.repeats = 0
        self.repeat_at = 0

    def add(self, other: _Request) -> None:
        """Append the events of another request."""
        self.batches += other.batches
        self.count += other.count
        self.unpublished += other.count


class _Line:
    """The requests to one server."""

    __slots__ = ("acknowledged", "answered", "done", "next", "server", "unanswered", "waiting")

    def __init__(self, server: str) -> None:
        self.server = server
        self.next = 1
        self.waiting: deque[_Request] = deque()
        """Requests not sent yet; a serial publisher does not use it."""
        self.unanswered: dict[int, _Request] = {}
        """By number, ascending."""
        self.answered: dict[int, _Request] = {}
        """Requests with events that the event service has not confirmed."""
        self.acknowledged = 0
        """All requests up to this one are done."""
        self.done: set[int] = set()
        """Requests above `acknowledged` + 1 that are done."""

    def finish(self, number: int) -> None:
        del self.answered[number]
        self.done.add(number)
        while self.acknowledged + 1 in self.done:
            self.acknowledged += 1
            self.done.remove(self.acknowledged)


class OrderedPublisher(Part):
    """Keeps at most `max_waiting` batches without numbers, and `window` unacknowledged requests to each server.

    A publisher that `gathers` sends on `flush` only, so that batches of a topic share a request. `on_silence` is called
    for a server that repeatedly does not answer.
    """

    name = "ordered-publisher"
    handles = {EventStamps: "on_event_stamps"}

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
        self._chain = chain
        self._serial = serial
        self._repeat_ns = repeat_ns
        self._window = window
        self._max_waiting = max_waiting
        self._gathers = gathers
        self._on_silence = on_silence
        self._lines: dict[str, _Line] = {}
        self._line_of: dict[int, _Line] = {}
        """Topic -> the requests to its server."""
        self._waiting: deque[_Request] = deque()
        """All unsent requests of a serial publisher: one that must wait holds up those published later."""
        self._unstamped = 0
        self._asked: dict[int, int] = {}
        """Topic -> its number of unanswered requests."""

    @property
    def unstamped(self) -> int:
        """The number of batches without numbers."""
        return self._unstamped

    def publish(self, topic: int, event: object, count: int = 1) -> bool:
        """Request consecutive numbers for a batch of `count` events; False if there is no room."""
        if not 0 <= topic < self._chain.topics or not 0 < count <= MAX_BATCH:
            raise ValueError(
                f"{count} events for topic {topic}: unknown topic, or not 1 to {MAX_BATCH} events"
            )
        if self._unstamped >= self._max_waiting:
            return False
        self._unstamped += 1
        line = self._line_of.get(topic) or self._line(topic)
        waiting = self._waiting if self._serial else line.waiting
        waiting.append(_Request(topic, event, count))
        if not self._gathers:
            self._send_waiting(line)
        return True

    def flush(self) -> None:
        """Send what has been gathered."""
        for line in list(self._lines.values())[: 1 if self._serial else None]:
            self._send_waiting(line)

    def published(self, receipt: Receipt, count: int = 1) -> None:
        """Record that the event service has confirmed `count` events of that request."""
        server, number = receipt
        line = self._lines.get(server)
        request = None if line is None else line.answered.get(number)
        if line is None or request is None:
            return
        request.unpublished -= count
        if not request.unpublished:
            line.finish(number)
            self._send_waiting(line)

    def alive(self) -> None:
        """Send a heartbeat. Call it regularly: servers declare a silent publisher dead."""
        for server in self._chain.servers:
            line = self._lines.get(server)
            acknowledged = 0 if line is None else line.acknowledged
            self.port.send(server, PublisherAlive(self.identity, server, acknowledged))

    def leave(self) -> None:
        """Tell the servers that nothing more will be published under this identity."""
        for server in self._chain.servers:
            line = self._lines.get(server)
            if line is not None:
                self.port.cancel_timer((self.name, server))
            acknowledged = 0 if line is None else line.acknowledged
            self.port.send(server, PublisherGone(self.identity, server, acknowledged))

    def _line(self, topic: int) -> _Line:
        server = self._chain.server_of(topic)
        line = self._lines.get(server)
        if line is None:
            line = self._lines[server] = _Line(server)
        self._line_of[topic] = line
        return line

    def _send_waiting(self, line: _Line) -> None:
        """Send what may go to the line's server; a serial publisher sends what is next, to any server."""
        waiting = self._waiting if self._serial else line.waiting
        while waiting and self._may_send(waiting[0]):
            request = waiting.popleft()
            while self._gathers and waiting and self._may_merge(request, waiting[0]):
                request.add(waiting.popleft())
                self._unstamped -= 1
            self._send_new(request)

    def _may_send(self, request: _Request) -> bool:
        line = self._line_of[request.topic]
        if line.next - line.acknowledged > self._window:
            return False
        return not self._serial or not self._asked or request.topic in self._asked

    @staticmethod
    def _may_merge(request: _Request, other: _Request) -> bool:
        return other.topic == request.topic and request.count + other.count <= MAX_BATCH

    def _send_new(self, request: _Request) -> None:
        line = self._line_of[request.topic]
        if not line.unanswered:
            self.port.set_timer((self.name, line.server), self.port.now + self._repeat_ns)
        self._asked[request.topic] = self._asked.get(request.topic, 0) + 1
        line.unanswered[line.next] = request
        line.next += 1
        request.repeat_at = self.port.now + self._repeat_ns
        self._send(line.server, line, line.next - 1, request)

    def _send(self, server: str, line: _Line, number: int, request: _Request) -> None:
        create = Create(self.identity, number, request.topic, request.count, line.acknowledged)
        self.port.send(server, create)

    def on_timer(self, name: TimerName) -> None:
        """Retry in order: a server ignores a request whose predecessor it lacks."""
        server = str(name[1])
        line, now = self._lines[server], self.port.now
        first = next(iter(line.unanswered.values()), None)
        if (
            first is not None and first.repeat_at <= now and first.repeats % 2
        ):  # only the first request counts
            self._on_silence(server)
        for number, request in line.unanswered.items():
            if request.repeat_at <= now:
                request.repeat_at = now + (self._repeat_ns << min(request.repeats, MAX_DOUBLINGS))
                request.repeats += 1
                self._send(server, line, number, request)
        if line.unanswered:
            self.port.set_timer(name, min(request.repeat_at for request in line.unanswered.values()))

    def repeat(self, server: str) -> None:
        """Send unanswered requests again: another replica is active for that server and has not seen them."""
        line = self._lines.get(server)
        if line is not None and line.unanswered:
            for number, request in line.unanswered.items():
                request.repeats, request.repeat_at = 0, self.port.now + self._repeat_ns
                self._send(server, line, number, request)
            self.port.set_timer((self.name, server), self.port.now + self._repeat_ns)

    def on_event_stamps(self, sender: str, message: EventStamps) -> None:
        line = self._lines.get(message.server)
        if line is None or message.publisher != self.identity:
            return
        request = line.unanswered.get(message.request)
        if request is None or (request.topic, request.count) != (message.topic, message.count):
            return  # answered before
        del line.unanswered[message.request]
        line.answered[message.request] = request
        self._unstamped -= 1
        self._asked[request.topic] -= 1
        if not self._asked[request.topic]:
            del self._asked[request.topic]
        receipt = (message.server, message.request)
        stamp = Timestamp(message.topic, message.base + 1, message.index, message.values)
        for event, count in request.batches:
            self.port.emit(EventStamped(stamp, event, receipt, count))
            stamp = stamp.at(stamp.number + count)
        if not line.unanswered:
            self.port.cancel_timer((self.name, message.server))
        self._send_waiting(line)
