"""What processes without brokers send to each other: datagrams of a channel, and the messages inside them.

The base class and the other messages are in core/messages.py; the other files here explain what these are for.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from tidings.core.events.event import Counter, Name
from tidings.core.events.run import Stretch
from tidings.core.messages import Text, Topics, WireMessage

MAX_RANGES = 64
MAX_PROCESSES = 1_024
MAX_STREAMS = 512
MAX_TAKES = 1_024

Session = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""One side of a channel, from its beginning to its end; 0: none."""
Mark = Annotated[bytes, Meta(max_length=8)]
Range = tuple[Counter, Counter]
"""First and last, both included."""
Ranges = Annotated[tuple[Range, ...], Meta(max_length=MAX_RANGES)]
ManyRanges = Annotated[tuple[Range, ...], Meta(max_length=1_024)]
TopicName = Annotated[str, Meta(min_length=1, max_length=1_024)]
Stream = tuple[Name, Counter, TopicName]
"""What one process broadcasts on one topic: publisher, its incarnation, topic. Its events are numbered from 1."""
Take = tuple[Topics, Text | None]
"""Topic patterns and a filter that a process takes part with."""


class Beat(WireMessage, frozen=True, gc=False, tag=200):
    """The sender is there, and knows what `mark` stands for (membership.py)."""

    session: Session
    """The sender's."""
    heard: Session
    """The receiver's, as far as the sender has heard from it."""
    serial: Counter
    """Counts the datagrams of this session: an older one says nothing new about the sessions."""
    acks: Ranges
    """Which of the receiver's packets have arrived, of those that it may send again."""
    interval_ms: Counter
    """How long the next one may take."""
    mark: Mark
    asks: bool = False
    """The receiver is to answer at once."""


class Packet(WireMessage, frozen=True, gc=False, tag=201):
    """Messages that are sent again until they are acknowledged, or the channel closes. The first four fields are those
    of a Beat."""

    session: Session
    heard: Session
    serial: Counter
    acks: Ranges
    number: Counter
    floor: Counter
    """Every packet below this has been acknowledged."""
    messages: tuple[Any, ...]


Datagram = Beat | Packet


class MessagePiece(WireMessage, frozen=True, gc=False, tag=202):
    """A part of the encoding of a message that is too large for a packet."""

    serial: Counter
    """Of the message, among those of the channel."""
    index: Annotated[int, Meta(ge=0, le=2**20)]
    count: Annotated[int, Meta(ge=1, le=2**20)]
    data: Annotated[bytes, Meta(max_length=2_048)]


class ProcessRow(WireMessage, frozen=True, gc=False, tag=203):
    """What a process says of itself. Of two rows the one with the higher (incarnation, clock) counts; only the process
    itself raises its clock."""

    process: Name
    incarnation: Counter
    clock: Counter
    address: Annotated[str, Meta(max_length=300)]
    open: Annotated[tuple[Name, ...], Meta(max_length=MAX_PROCESSES)]
    """The processes to which it has an open channel, sorted."""
    takes: Annotated[tuple[Take, ...], Meta(max_length=MAX_TAKES)]
    left: bool = False
    """It has left for good."""

    @property
    def version(self) -> tuple[int, int]:
        return (self.incarnation, self.clock)


class Vote(WireMessage, frozen=True, gc=False, tag=204):
    """That process knows the rows that `agreed` stands for, and no others."""

    process: Name
    incarnation: Counter
    serial: Counter
    agreed: Mark

    @property
    def version(self) -> tuple[int, int]:
        return (self.incarnation, self.serial)


Entry = tuple[Name, Counter, Counter, Counter, Counter]
"""(process, incarnation and clock of its row, incarnation and serial of its vote)"""


class Digest(WireMessage, frozen=True, gc=False, tag=205):
    """The versions of everything that the sender knows: the receiver sends what is newer, and says what it lacks."""

    entries: Annotated[tuple[Entry, ...], Meta(max_length=MAX_PROCESSES)]
    asks: bool = True
    """The receiver is to answer with its own digest if it lacks something."""


class Cast(WireMessage, frozen=True, gc=False, tag=206):
    """Events of one stream, numbered from `first` on."""

    publisher: Name
    incarnation: Counter
    topic: TopicName
    first: Counter
    collected: Counter
    """Up to this number, every member has everything."""
    stretch: Stretch

    @property
    def stream(self) -> Stream:
        return (self.publisher, self.incarnation, self.topic)

    @property
    def last(self) -> int:
        return self.first + self.stretch.count - 1


StreamState = tuple[Name, Counter, TopicName, Counter, ManyRanges]
"""A stream, up to which number it is collected, and what a process has received of it."""


class ReceivedSummary(WireMessage, frozen=True, gc=False, tag=207):
    """What a process has received. Whoever has more, and is the first to have it, sends it."""

    process: Name
    incarnation: Counter
    streams: Annotated[tuple[StreamState, ...], Meta(max_length=MAX_STREAMS)]
    complete: bool = False
    """It has received nothing of streams that are not listed."""
