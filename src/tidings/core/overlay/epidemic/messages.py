"""The messages that brokers exchange to repair losses by gossip: numbered events, blocks, digests, labels.

The base class and the other messages are in core/messages.py; the other files here explain what these are for.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidings.core.events.event import Counter, Name
from tidings.core.events.run import Stretch, cut
from tidings.core.messages import PatternCount, WireMessage
from tidings.core.overlay.guaranteed.messages import LabelItems

MAX_NUMBERS = 64
MAX_ROUTE = 64
MAX_BLOCKS = 255
MAX_ENTRY_PATTERNS = 128
DATAGRAM_BYTES = 65_507

PatternId = Annotated[bytes, Meta(min_length=8, max_length=16)]
"""The first eight bytes of an interest's key, or all of it if two interests share these."""
PatternNumbers = Annotated[tuple[tuple[PatternId, Counter, Counter], ...], Meta(max_length=MAX_NUMBERS)]
"""(pattern, epoch, number): the event is the number-th of its origin for that pattern since the epoch began."""
PatternCounts = Annotated[tuple[PatternCount, ...], Meta(max_length=MAX_NUMBERS)]
Range = tuple[Counter, Counter]
"""First and last, both included."""
Ranges = Annotated[tuple[Range, ...], Meta(max_length=1024)]
IdRanges = tuple[Name, Counter, Ranges]
"""(source, incarnation, sequences)"""
Lost = tuple[Name, PatternId, Counter, Ranges]
"""(origin, pattern, epoch, numbers)"""
Lack = tuple[Counter, Counter, Annotated[bytes, Meta(max_length=32)]]
"""(generation, number of blocks needed, mask of the plain blocks that are not: bit i % 8 of byte i // 8)"""
Want = tuple[Name, Counter, Counter, Annotated[tuple[Lack, ...], Meta(max_length=1024)]]
"""(source, incarnation, sequence, missing blocks): an event of which the sender has some blocks."""
Route = Annotated[tuple[Name, ...], Meta(max_length=MAX_ROUTE)]
MaybeLabel = Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(max_length=4096)]
Way = Annotated[str, Meta(max_length=32)]
"""The algorithm that sent a message: push, subscriber-pull, ...; empty: the tree."""


def later(numbers: PatternNumbers, count: int) -> PatternNumbers:
    """Return the numbers of the event `count` later, if all events between have the same patterns."""
    if not count:
        return numbers
    return tuple((pattern, epoch, number + count) for pattern, epoch, number in numbers)


class Carried(WireMessage, frozen=True, gc=False, tag=80):
    """An event, or consecutive events with the same patterns, in one datagram, with what recovery needs."""

    origin: Name
    """The publisher's broker, which counts."""
    numbers: PatternNumbers
    """The numbers of the first event; each later event has the next number of each pattern."""
    route: Route
    """The brokers it passed, the origin first, if routes are recorded."""
    by: Way
    stretch: Stretch

    @property
    def count(self) -> int:
        return self.stretch.count

    @property
    def last_numbers(self) -> PatternNumbers:
        return later(self.numbers, self.stretch.count - 1)

    def cut(self, first: int, last: int) -> Carried:
        """Return the events with sequences `first` to `last`."""
        return self.part(cut(self.stretch, first, last))

    def part(self, stretch: Stretch) -> Carried:
        """Return this part of its events, with their numbers."""
        if stretch is self.stretch:
            return self
        numbers = later(self.numbers, stretch.first - self.stretch.first)
        return Carried(self.origin, numbers, self.route, self.by, stretch)


class Fragment(WireMessage, frozen=True, gc=False, tag=81):
    """One block of a large event, with everything that routes it: blocks travel independently."""

    origin: Name
    numbers: PatternNumbers
    route: Route
    by: Way
    source: Name
    incarnation: Counter
    sequence: Counter
    topic: Annotated[str, Meta(min_length=2, max_length=1024)]
    published_at: Counter
    attributes: bytes
    """Encoded."""
    payload_bytes: Counter
    digest: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """The digest of the whole payload."""
    block_bytes: Annotated[int, Meta(ge=1, le=DATAGRAM_BYTES)]
    generation: Counter
    coefficients: Annotated[bytes, Meta(max_length=MAX_BLOCKS)]
    """The coefficients of a combination of the generation's blocks; empty for the plain block `index`."""
    index: Annotated[int, Meta(ge=0, le=MAX_BLOCKS - 1)]
    data: Annotated[bytes, Meta(max_length=DATAGRAM_BYTES)]
    checksum: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    header: bytes = b""
    """The event's own header (core/events/event.py), encoded; empty if it has none."""


class Offer(WireMessage, frozen=True, gc=False, tag=82):
    """'I have these': a positive digest. A broker that lacks some asks the initiator."""

    initiator: Name
    pattern: Annotated[bytes, Meta(max_length=16)]
    """The pattern towards whose subscribers it is routed along the tree; empty if it is only for the receiver."""
    events: Annotated[tuple[IdRanges, ...], Meta(max_length=1024)]
    by: Way


class Ask(WireMessage, frozen=True, gc=False, tag=83):
    """'Send me these': the answer to an Offer."""

    events: Annotated[tuple[IdRanges, ...], Meta(max_length=1024)]
    partial: Annotated[tuple[Want, ...], Meta(max_length=1024)]
    by: Way


class Solicit(WireMessage, frozen=True, gc=False, tag=84):
    """'I lost these': a negative digest. A broker that has some sends them to the initiator."""

    initiator: Name
    pattern: Annotated[bytes, Meta(max_length=16)]
    """As in Offer."""
    route: Route
    """The brokers still to visit, if it goes back along a route."""
    lost: Annotated[tuple[Lost, ...], Meta(max_length=1024)]
    partial: Annotated[tuple[Want, ...], Meta(max_length=1024)]
    by: Way


class HighWater(WireMessage, frozen=True, gc=False, tag=85):
    """Reports how far origins have counted, to reveal a loss at the tail; it goes where their events go."""

    counts: PatternCounts


class HighWaterTaken(WireMessage, frozen=True, gc=False, tag=93):
    """Acknowledges a HighWater."""

    counts: PatternCounts


class LinkCount(WireMessage, frozen=True, gc=False, tag=86):
    """Reports how many events and blocks the sender has put on this link in this incarnation."""

    incarnation: Counter
    sent: Counter


class BrokerEntry(WireMessage, frozen=True, gc=False, tag=87):
    """A broker's entry in the directory; a later (incarnation, version) replaces an earlier one."""

    broker: Name
    incarnation: Counter
    version: Counter
    label: MaybeLabel
    """Empty if it has none yet."""
    address: Annotated[str, Meta(max_length=256)]
    loss_ppm: Annotated[int, Meta(ge=0, le=1_000_000)]
    """The loss on the link from its parent, in parts per million."""
    patterns: Annotated[tuple[PatternId, ...], Meta(max_length=MAX_ENTRY_PATTERNS)]
    """The patterns of its own clients' subscriptions."""
    everything: bool
    """It has more patterns than fit, so it counts as subscribed to all."""


class Announce(WireMessage, frozen=True, gc=False, tag=88):
    """Floods new and changed entries of the directory."""

    entries: Annotated[tuple[BrokerEntry, ...], Meta(max_length=1024)]


class DirectoryDigest(WireMessage, frozen=True, gc=False, tag=89):
    """Carries a hash of all (broker, incarnation, version) that the sender knows."""

    digest: Annotated[bytes, Meta(min_length=8, max_length=8)]


class DirectoryVersions(WireMessage, frozen=True, gc=False, tag=90):
    """Lists the versions that the sender knows, or a part: 'send me what is newer, and I will send what you lack'."""

    versions: Annotated[tuple[tuple[Name, Counter, Counter], ...], Meta(max_length=1024)]
    answer_wanted: bool
    first: Annotated[str, Meta(max_length=256)]
    last: Annotated[str, Meta(max_length=256)]
    """The part of the directory covered: names from `first` to before `last`, or to the end if `last` is empty."""


class LabelAsk(WireMessage, frozen=True, gc=False, tag=91):
    """'I have no label: give me one below yours.'"""


class LabelGiven(WireMessage, frozen=True, gc=False, tag=92):
    """Answers a LabelAsk."""

    label: LabelItems
