"""One channel, as one of its two sides sees it: whether it is open, what is on its way, how much may be.

A channel is open while both sides hear each other. Each side numbers its sessions, one for each time that it is open,
and every datagram says the sender's session and which one of the receiver's it hears:

    closed -- hears the peer, which hears this session --> open
      ^                                                     |
      +-- silence, or the peer began a new session ---------+   (with a new session, so that the peer closes, too)

While it is open, what was queued arrives exactly once, in any order. When it closes, everything on its way is gone, and
whoever cares finds out at the next opening what is missing. Packets keep their number when they are sent again.

The window grows by one packet per round trip, twice as fast before the first loss, and is halved by a loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from tidings.core.messages import Message
from tidings.core.overlay.peers.messages import MAX_RANGES, Datagram, Packet, Ranges
from tidings.core.overlay.peers.round_trip import RoundTrip
from tidings.core.structures.range_set import RangeSet

FIRST_WINDOW = 16.0
LEAST_WINDOW = 2.0
MOST_WINDOW = 1_024.0
"""In packets. A receiver remembers twice as many numbers."""
LATER_ACKED = 3
"""A packet is lost when so many that were sent after it have arrived."""
PACKET_BYTES = 1_200
"""The messages of a packet; with a header and a full list of acknowledgements it has less than 1,400 bytes, unless
ranges are many."""
MAX_QUEUED_BYTES = 4 * 1024 * 1024
"""A channel takes no more until less waits."""


class QueuedMessage(NamedTuple):
    """A message that waits for its packet."""

    message: Message
    size_bytes: int
    ticket: Hashable
    """Whoever sent the message is told that it has arrived by this."""


class _OnItsWay:
    """A packet that is not acknowledged."""

    __slots__ = ("messages", "number", "order", "sent_at", "tickets", "times")

    def __init__(self, number: int, messages: tuple[Message, ...], tickets: tuple[Hashable, ...]) -> None:
        self.number = number
        self.messages = messages
        self.tickets = tickets
        self.times = 0
        self.order = self.sent_at = 0


class Channel:
    """One side of a channel. Its owner sends what `outgoing` returns, and looks at `due_at`."""

    def __init__(self, peer: str, session: int, now: int) -> None:
        self.peer = peer
        self.session = max(session, 1)
        self.heard = 0
        """The peer's session; 0: none was heard of."""
        self.is_open = False
        self.heard_at = now
        self.serial = 0
        self.round_trip = RoundTrip()
        self.ack_wanted = False
        """A packet arrived that no datagram has acknowledged."""
        self.sent_again = 0
        """Packets that were sent more than once, in all sessions."""
        self._heard_serial = 0
        self._begin()

    def _begin(self) -> None:
        """Forget everything of the session."""
        self.queued_bytes = 0
        self._queue: deque[QueuedMessage] = deque()
        self._flight: dict[int, _OnItsWay] = {}
        """By number, in the order in which they were last sent."""
        self._next_number = self._lowest = 1
        self._order = self._acked_order = 0
        self._window, self._threshold = FIRST_WINDOW, MOST_WINDOW
        self._halved_at = 0
        """The order of what was sent after the window was last halved."""
        self._received = RangeSet()
        self._floor = 1
        self.ack_wanted = False

    # --- Opening and closing

    def hear(self, datagram: Datagram, now: int) -> tuple[bool, bool]:
        """Take in what a datagram says about the sessions. Return whether the channel closed, and whether it opened."""
        if not datagram.session or datagram.session < self.heard:
            return False, False
        closed = False
        if datagram.session > self.heard:
            closed = self.is_open
            if closed:
                self.close(now)
            self.heard, self._heard_serial = datagram.session, 0
        if datagram.serial <= self._heard_serial:
            return closed, False  # overtaken: it says nothing new
        self._heard_serial = datagram.serial
        self.heard_at = now
        opened = not self.is_open and datagram.heard == self.session
        self.is_open = self.is_open or opened
        return closed, opened

    def close(self, now: int) -> None:
        """The peer is not heard any more, or began anew: so do we."""
        self.is_open = False
        self.session += 1
        self.serial = 0
        self._begin()

    def is_of_this_session(self, datagram: Datagram) -> bool:
        return self.is_open and (datagram.session, datagram.heard) == (self.heard, self.session)

    # --- Sending

    @property
    def is_full(self) -> bool:
        return self.queued_bytes >= MAX_QUEUED_BYTES

    @property
    def is_idle(self) -> bool:
        """Nothing is to be sent, or sent again."""
        return not self._queue and not self._flight

    @property
    def on_their_way(self) -> int:
        """How many packets are."""
        return len(self._flight)

    def queue(self, queued: QueuedMessage) -> None:
        self._queue.append(queued)
        self.queued_bytes += queued.size_bytes

    def outgoing(self, now: int) -> list[tuple[int, tuple[Message, ...]]]:
        """Return the packets to send now, by number: what is lost, and what the window has room for."""
        lost = self._lost(now)
        for packet in lost:
            self._depart(packet, now)
        self.sent_again += len(lost)
        found = lost
        while self._queue and len(self._flight) < int(self._window):
            packet = self._next_packet()
            self._depart(packet, now)
            found.append(packet)
        return [(packet.number, packet.messages) for packet in found]

    def _next_packet(self) -> _OnItsWay:
        messages: list[Message] = []
        tickets: list[Hashable] = []
        size_bytes = 0
        while self._queue and (not messages or size_bytes + self._queue[0].size_bytes <= PACKET_BYTES):
            queued = self._queue.popleft()
            size_bytes += queued.size_bytes
            messages.append(queued.message)
            if queued.ticket is not None:
                tickets.append(queued.ticket)
        self.queued_bytes -= size_bytes
        number, self._next_number = self._next_number, self._next_number + 1
        return _OnItsWay(number, tuple(messages), tuple(tickets))

    def _depart(self, packet: _OnItsWay, now: int) -> None:
        self._order += 1
        packet.order, packet.sent_at = self._order, now
        packet.times += 1
        self._flight.pop(packet.number, None)
        self._flight[packet.number] = packet

    def _lost(self, now: int) -> list[_OnItsWay]:
        lost: list[_OnItsWay] = []
        for packet in self._flight.values():
            overtaken = packet.order + LATER_ACKED <= self._acked_order
            if not overtaken and now - packet.sent_at < self.round_trip.timeout_ns(packet.times):
                break
            lost.append(packet)
        if lost and lost[-1].order > self._halved_at:
            self._window = self._threshold = max(self._window / 2, LEAST_WINDOW)
            self._halved_at = self._order
        return lost

    @property
    def due_at(self) -> int | None:
        """When the next packet is to be sent again, unless it is acknowledged."""
        for packet in self._flight.values():
            return packet.sent_at + self.round_trip.timeout_ns(packet.times)
        return None

    @property
    def floor(self) -> int:
        """Every packet below has been acknowledged."""
        while self._lowest < self._next_number and self._lowest not in self._flight:
            self._lowest += 1
        return self._lowest

    def acknowledged(self, acks: Ranges, now: int) -> list[Hashable]:
        """Take in which packets have arrived; return the tickets of what was in them."""
        tickets: list[Hashable] = []
        for packet in self._among(acks):
            del self._flight[packet.number]
            tickets += packet.tickets
            self._acked_order = max(self._acked_order, packet.order)
            if packet.times == 1:
                self.round_trip.measured(now - packet.sent_at)
            grows = 1.0 if self._window < self._threshold else 1.0 / self._window
            self._window = min(self._window + grows, MOST_WINDOW)
        return tickets

    def _among(self, acks: Ranges) -> list[_OnItsWay]:
        found: list[_OnItsWay] = []
        for first, last in acks:
            if last - first < len(self._flight):
                numbers: Iterable[int] = range(first, last + 1)
            else:
                numbers = [number for number in self._flight if first <= number <= last]
            found += [self._flight[number] for number in numbers if number in self._flight]
        return list(dict.fromkeys(found))

    # --- Receiving

    def take(self, packet: Packet) -> Sequence[Message]:
        """Return the messages of a packet that has not arrived before."""
        if packet.floor > self._floor:
            self._floor = packet.floor
            self._received.trim_below(self._floor)
        if not self._floor <= packet.number < self._floor + 2 * int(MOST_WINDOW):
            self.ack_wanted = self.ack_wanted or packet.number < self._floor
            return ()
        self.ack_wanted = True
        if packet.number in self._received:
            return ()
        self._received.add(packet.number)
        return packet.messages

    @property
    def acks(self) -> Ranges:
        """Which packets have arrived that the peer may send again."""
        ranges = [(start, stop - 1) for start, stop in self._received]
        return tuple(ranges[-MAX_RANGES:])
