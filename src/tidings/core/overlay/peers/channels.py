"""The channels of a process, one to each other process that it knows, for all topics; and their failure detector.

A process that has nothing to say to a peer sends a `Beat` from time to time. Whoever has heard nothing for twice as
long asks, and closes the channel when nothing comes. So a channel is open on both sides or on none, but for moments.
`opened` and `closed` are what the paper calls FD-updateChannelState. Beats become rarer with the number of channels, so
that what a process sends at rest is bounded.

What is sent over an open channel is sent again until it is acknowledged, or the channel closes. It is not in order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Protocol

from tidings.core.errors import WireError
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Handler, Part, Port, TimerName
from tidings.core.messages import Message
from tidings.core.overlay.peers.channel import PACKET_BYTES, Channel, QueuedMessage
from tidings.core.overlay.peers.messages import Beat, Datagram, MessagePiece, Packet
from tidings.core.structures.highest import Highest

LEAST_BEAT_NS = 500_000_000
BEAT_NS_PER_CHANNEL = 20_000_000
"""A beat has some forty bytes, so that a process with many channels sends less than 2 kB/s at rest."""
SILENT_BEATS, CLOSED_BEATS = 2.0, 5.0
"""After so many intervals without a word a peer is asked, and the channel is closed."""
ASK_AGAIN_NS = 150_000_000
ACK_DELAY_NS = 20_000_000
MAX_CHANNELS = 1_024
MAX_UNFINISHED_BYTES = 64 * 1024 * 1024
"""What all pieces of unfinished messages of a peer may take; at the limit, the channel closes."""
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class BodyCodec(Protocol):
    """Sizes and encodings of messages, which protocols do not know."""

    def size_of(self, message: Message) -> int: ...
    def encode(self, message: Message) -> bytes: ...
    def decode(self, body: bytes) -> Sequence[Message]:
        """Raise WireError if it is none."""


class ChannelListener(Protocol):
    """What is above the channels."""

    def opened(self, peer: str) -> None:
        """The channel to that peer is open; whatever was sent before is not on its way any more."""

    def closed(self, peer: str) -> None: ...
    def arrived(self, peer: str, tickets: Sequence[Hashable]) -> None:
        """What was sent with these tickets has been taken in by the peer."""

    def beat(self, peer: str, mark: bytes) -> None:
        """The peer is there, and knows what `mark` stands for."""


class _Whole:
    """A message in pieces: how many are not acknowledged, and its ticket."""

    __slots__ = ("left", "ticket")

    def __init__(self, left: int, ticket: Hashable) -> None:
        self.left = left
        self.ticket = ticket


class _Pieces:
    """The messages that are arriving in pieces over one channel."""

    def __init__(self) -> None:
        self._unfinished: dict[int, dict[int, bytes]] = {}
        self.size_bytes = 0

    def take(self, piece: MessagePiece) -> bytes | None:
        """Return the whole encoding, if this was its last missing piece."""
        if piece.index >= piece.count:
            return None
        known = self._unfinished.setdefault(piece.serial, {})
        self.size_bytes += len(piece.data) - len(known.get(piece.index, b""))
        known[piece.index] = piece.data
        if len(known) < piece.count:
            return None
        del self._unfinished[piece.serial]
        body = b"".join(known[index] for index in sorted(known))
        self.size_bytes -= len(body)
        return body


class Channels(Part):
    name = "channels"
    handles = {Beat: "on_beat", Packet: "on_packet"}

    def __init__(self, port: Port, codec: BodyCodec) -> None:
        super().__init__(port)
        self.listeners: list[ChannelListener] = []
        self.handlers: dict[type, Handler] = {}
        """Message class -> who handles it. Only what comes over an open channel gets there."""
        self.mark = b""
        """What the beats of this process say that it knows."""
        self._codec = codec
        self._channels: dict[str, Channel] = {}
        self._pieces: dict[str, _Pieces] = {}
        self._serials: dict[str, int] = {}
        """Per peer, how many messages went in pieces."""
        self._dirty: dict[str, None] = {}
        """Channels that have something to send in this turn."""
        self._said_at: dict[str, int] = {}
        self._intervals: dict[str, int] = {}
        """How long each peer says that its next beat may take."""
        self._asked_at: Highest[str, int] = Highest(MAX_CHANNELS)

    # --- Which channels there are

    def watch(self, peer: str) -> None:
        """Keep a channel to that process, if it can be reached."""
        if peer in self._channels or peer == self.port.node or len(self._channels) >= MAX_CHANNELS:
            return
        self._channels[peer] = Channel(peer, self.port.now // NS_PER_S, self.port.now)
        self._send_beat(peer)
        self._set_beat(peer, self.port.random.random())

    def unwatch(self, peer: str) -> None:
        """End the channel to a process that is gone for good."""
        channel = self._channels.get(peer)
        if channel is not None:
            self._close(channel)
            for known in (self._channels, self._said_at, self._intervals, self._serials):
                known.pop(peer, None)
            for kind in ("beat", "again", "ack"):
                self.port.cancel_timer((self.name, kind, peer))

    @property
    def open_peers(self) -> list[str]:
        """The peers to which there is an open channel, sorted."""
        return sorted(peer for peer, channel in self._channels.items() if channel.is_open)

    def is_open(self, peer: str) -> bool:
        channel = self._channels.get(peer)
        return channel is not None and channel.is_open

    @property
    def interval_ns(self) -> int:
        """How long this process may say nothing."""
        return max(LEAST_BEAT_NS, BEAT_NS_PER_CHANNEL * len(self._channels))

    # --- Sending

    def cast(self, peer: str, message: Message, ticket: Hashable = None) -> bool:
        """Send a message over an open channel; `arrived` follows unless the channel closes. Return False if it is not
        open or has too much waiting."""
        channel = self._channels.get(peer)
        if channel is None or not channel.is_open or channel.is_full:
            return False
        size_bytes = self._codec.size_of(message)
        if size_bytes <= PACKET_BYTES:
            channel.queue(QueuedMessage(message, size_bytes, ticket))
        else:
            self._queue_pieces(channel, message, ticket)
        self._flush_soon(peer)
        return True

    def _queue_pieces(self, channel: Channel, message: Message, ticket: Hashable) -> None:
        body = self._codec.encode(message)
        serial = self._serials[channel.peer] = self._serials.get(channel.peer, 0) + 1
        parts = [body[start : start + PACKET_BYTES] for start in range(0, len(body), PACKET_BYTES)]
        whole = None if ticket is None else _Whole(len(parts), ticket)
        for index, part in enumerate(parts):
            channel.queue(QueuedMessage(MessagePiece(serial, index, len(parts), part), len(part), whole))

    def _flush_soon(self, peer: str) -> None:
        if not self._dirty:
            self.port.set_timer((self.name, "flush"), self.port.now)
        self._dirty[peer] = None

    def _flush(self, peer: str) -> None:
        """Send what the window lets through, and set the alarm for what is lost."""
        channel = self._channels.get(peer)
        if channel is None or not channel.is_open:
            return
        for number, messages in channel.outgoing(self.port.now):
            header = self._header(channel)
            self.port.send(peer, Packet(*header, number, channel.floor, messages))
        if channel.due_at is not None:
            self.port.set_timer((self.name, "again", peer), channel.due_at)

    def _header(self, channel: Channel) -> tuple[int, int, int, tuple[tuple[int, int], ...]]:
        channel.serial += 1
        channel.ack_wanted = False
        self._said_at[channel.peer] = self.port.now
        return (channel.session, channel.heard, channel.serial, channel.acks)

    def _send_beat(self, peer: str, *, asks: bool = False) -> None:
        channel = self._channels[peer]
        interval_ms = self.interval_ns // NS_PER_MS
        self.port.send(peer, Beat(*self._header(channel), interval_ms, self.mark, asks))

    # --- Time

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "flush":
            dirty, self._dirty = list(self._dirty), {}
            for peer in dirty:
                self._flush(peer)
            return
        peer = str(name[2])
        if peer not in self._channels:
            return
        if name[1] == "again":
            self._flush(peer)
        elif name[1] == "ack":
            if self._channels[peer].ack_wanted:
                self._send_beat(peer)
        else:
            self._on_beat_time(peer)

    def _on_beat_time(self, peer: str) -> None:
        """Look whether the peer is silent, and say something unless that was done lately."""
        channel, now, interval = self._channels[peer], self.port.now, self.interval_ns
        silent_ns = now - channel.heard_at
        patience_ns = max(self._intervals.get(peer, 0), interval)
        if channel.is_open and silent_ns > CLOSED_BEATS * patience_ns:
            self._close(channel)
        suspected = channel.is_open and silent_ns > SILENT_BEATS * patience_ns
        if suspected or now - self._said_at.get(peer, 0) >= interval // 2:
            self._send_beat(peer, asks=suspected)
        self._set_beat(peer, ASK_AGAIN_NS / interval if suspected else 1.0)

    def _set_beat(self, peer: str, share: float) -> None:
        self.port.set_timer((self.name, "beat", peer), self.port.now + int(self.interval_ns * share))

    # --- What arrives

    def on_beat(self, sender: str, message: Beat) -> None:
        channel = self._hear(sender, message)
        if channel is None:
            return
        self._intervals[sender] = min(message.interval_ms, 60_000) * NS_PER_MS
        if message.asks:
            self._send_beat(sender)
        if channel.is_of_this_session(message):
            for listener in self.listeners:
                listener.beat(sender, message.mark)

    def on_packet(self, sender: str, message: Packet) -> None:
        channel = self._hear(sender, message)
        if channel is None or not channel.is_of_this_session(message):
            return
        for inner in channel.take(message):
            if isinstance(inner, MessagePiece):
                self._on_piece(sender, inner)
            else:
                self._receive(sender, inner)
        if channel.ack_wanted:
            self.port.set_timer((self.name, "ack", sender), self.port.now + ACK_DELAY_NS)

    def _on_piece(self, sender: str, piece: MessagePiece) -> None:
        pieces = self._pieces.setdefault(sender, _Pieces())
        body = pieces.take(piece)
        if pieces.size_bytes > MAX_UNFINISHED_BYTES:
            self.port.emit(Misbehaviour(sender, "sends too many pieces of messages that it does not finish"))
            self._close(self._channels[sender])
        if body is None:
            return
        try:
            messages = self._codec.decode(body)
        except WireError as error:
            self.port.emit(Misbehaviour(sender, str(error)))
            return
        for message in messages:
            self._receive(sender, message)

    def _receive(self, sender: str, message: Message) -> None:
        handler = self.handlers.get(message.__class__)
        if handler is not None:
            handler(sender, message)

    def _hear(self, sender: str, message: Datagram) -> Channel | None:
        """Take in what the datagram says about the channel; return the channel."""
        if sender not in self._channels:
            self.watch(sender)
        channel = self._channels.get(sender)
        if channel is None:
            return None
        was_heard = (channel.heard, channel.is_open)
        closed, opened = channel.hear(message, self.port.now)
        if closed:
            self._tell_closed(sender)
        if opened:
            for listener in self.listeners:
                listener.opened(sender)
        if (channel.heard, channel.is_open) != was_heard:
            self._send_beat(sender)  # so that the peer hears at once how we hear it
        if channel.is_of_this_session(message):
            self._arrived(sender, channel.acknowledged(message.acks, self.port.now))
            if not channel.is_idle:
                self._flush_soon(sender)
        return channel

    def _arrived(self, peer: str, tickets: Iterable[Hashable]) -> None:
        found = list(self._finished(tickets))
        for listener in self.listeners if found else ():
            listener.arrived(peer, found)

    @staticmethod
    def _finished(tickets: Iterable[Hashable]) -> Iterator[Hashable]:
        for ticket in tickets:
            if not isinstance(ticket, _Whole):
                yield ticket
                continue
            ticket.left -= 1
            if not ticket.left:
                yield ticket.ticket

    def _close(self, channel: Channel) -> None:
        if channel.is_open:
            channel.close(self.port.now)
            self._tell_closed(channel.peer)

    def _tell_closed(self, peer: str) -> None:
        self._pieces.pop(peer, None)
        self.port.cancel_timer((self.name, "again", peer))
        self.port.cancel_timer((self.name, "ack", peer))
        for listener in self.listeners:
            listener.closed(peer)

    # --- Status

    def status(self) -> list[dict[str, object]]:
        """Return how each channel is, by peer."""
        return [
            {
                "peer": peer,
                "open": channel.is_open,
                "round_trip_ms": None
                if channel.round_trip.smoothed_ns is None
                else channel.round_trip.smoothed_ns / NS_PER_MS,
                "on_their_way": channel.on_their_way,
                "queued_bytes": channel.queued_bytes,
                "sent_again": channel.sent_again,
            }
            for peer, channel in sorted(self._channels.items())
        ]
