"""What brokers say to each other to repair losses by gossip: events with their numbers, blocks, digests, labels.

The base and the other messages are in core/messages.py; the files beside this one say what these are for.
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
"""The first eight bytes of an interest's key, or all of it where two interests share eight."""
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
"""(generation, how many blocks are needed, mask of the plain ones that are not: bit i of byte i // 8)"""
Want = tuple[Name, Counter, Counter, Annotated[tuple[Lack, ...], Meta(max_length=1024)]]
"""(source, incarnation, sequence, what lacks): an event of which some blocks are here."""
Route = Annotated[tuple[Name, ...], Meta(max_length=MAX_ROUTE)]
MaybeLabel = Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(max_length=4096)]
Way = Annotated[str, Meta(max_length=32)]
"""Which algorithm sent it: push, subscriber-pull, ...; empty: the tree."""


def later(numbers: PatternNumbers, count: int) -> PatternNumbers:
    """Those of the event so many behind, if all between have the same patterns."""
    if not count:
        return numbers
    return tuple((pattern, epoch, number + count) for pattern, epoch, number in numbers)


class Carried(WireMessage, frozen=True, gc=False, tag=80):
    """An event, or consecutive ones with the same patterns, in one datagram, with what recovery needs to know."""

    origin: Name
    """The publisher's broker, which counts."""
    numbers: PatternNumbers
    """Of the first event; each event behind it has the next number of each pattern."""
    route: Route
    """The brokers that it passed, the origin first, where routes are wanted."""
    by: Way
    stretch: Stretch

    @property
    def count(self) -> int:
        return self.stretch.count

    @property
    def last_numbers(self) -> PatternNumbers:
        return later(self.numbers, self.stretch.count - 1)

    def cut(self, first: int, last: int) -> Carried:
        """The events with the sequences `first` to `last`."""
        return self.part(cut(self.stretch, first, last))

    def part(self, stretch: Stretch) -> Carried:
        """These of its events."""
        if stretch is self.stretch:
            return self
        numbers = later(self.numbers, stretch.first - self.stretch.first)
        return Carried(self.origin, numbers, self.route, self.by, stretch)


class Fragment(WireMessage, frozen=True, gc=False, tag=81):
    """One block of a larger event, with everything that routes it: blocks travel independently."""

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
    """Packed."""
    payload_bytes: Counter
    digest: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """Of the whole payload."""
    block_bytes: Annotated[int, Meta(ge=1, le=DATAGRAM_BYTES)]
    generation: Counter
    coefficients: Annotated[bytes, Meta(max_length=MAX_BLOCKS)]
    """Of a combination of the generation's blocks; empty: the block `index` itself."""
    index: Annotated[int, Meta(ge=0, le=MAX_BLOCKS - 1)]
    data: Annotated[bytes, Meta(max_length=DATAGRAM_BYTES)]
    checksum: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    header: bytes = b""
    """The event's own (core/events/event.py), packed; empty: it has none."""


class Offer(WireMessage, frozen=True, gc=False, tag=82):
    """'These I have': a positive digest. Whoever lacks some asks the initiator."""

    initiator: Name
    pattern: Annotated[bytes, Meta(max_length=16)]
    """Towards whose subscribers it is routed along the tree; empty: it is for the receiver alone."""
    events: Annotated[tuple[IdRanges, ...], Meta(max_length=1024)]
    by: Way


class Ask(WireMessage, frozen=True, gc=False, tag=83):
    """'Send me those': the answer to an Offer."""

    events: Annotated[tuple[IdRanges, ...], Meta(max_length=1024)]
    partial: Annotated[tuple[Want, ...], Meta(max_length=1024)]
    by: Way


class Solicit(WireMessage, frozen=True, gc=False, tag=84):
    """'These I lost': a negative digest. Whoever holds some sends them to the initiator."""

    initiator: Name
    pattern: Annotated[bytes, Meta(max_length=16)]
    """As in Offer."""
    route: Route
    """The brokers that it still visits, if it walks back along a route."""
    lost: Annotated[tuple[Lost, ...], Meta(max_length=1024)]
    partial: Annotated[tuple[Want, ...], Meta(max_length=1024)]
    by: Way


class HighWater(WireMessage, frozen=True, gc=False, tag=85):
    """How far origins have counted, so that a loss at the tail is noticed; it goes where their events go."""

    counts: PatternCounts


class HighWaterTaken(WireMessage, frozen=True, gc=False, tag=93):
    counts: PatternCounts


class LinkCount(WireMessage, frozen=True, gc=False, tag=86):
    """How many events and blocks the sender has put on this link in this incarnation."""

    incarnation: Counter
    sent: Counter


class BrokerEntry(WireMessage, frozen=True, gc=False, tag=87):
    """What a broker says of itself; a later (incarnation, version) replaces an earlier one."""

    broker: Name
    incarnation: Counter
    version: Counter
    label: MaybeLabel
    """Empty: none yet."""
    address: Annotated[str, Meta(max_length=256)]
    loss_ppm: Annotated[int, Meta(ge=0, le=1_000_000)]
    """Of the link from its parent."""
    patterns: Annotated[tuple[PatternId, ...], Meta(max_length=MAX_ENTRY_PATTERNS)]
    """Of its own clients' subscriptions."""
    everything: bool
    """It has more of them than fit."""


class Announce(WireMessage, frozen=True, gc=False, tag=88):
    entries: Annotated[tuple[BrokerEntry, ...], Meta(max_length=1024)]


class DirectoryDigest(WireMessage, frozen=True, gc=False, tag=89):
    """A hash of all (broker, incarnation, version) that the sender knows."""

    digest: Annotated[bytes, Meta(min_length=8, max_length=8)]


class DirectoryVersions(WireMessage, frozen=True, gc=False, tag=90):
    """All that the sender knows, or a part of it: send what is newer, and I send what you lack."""

    versions: Annotated[tuple[tuple[Name, Counter, Counter], ...], Meta(max_length=1024)]
    answer_wanted: bool
    first: Annotated[str, Meta(max_length=256)]
    last: Annotated[str, Meta(max_length=256)]
    """The part of the directory, by names from `first` to before `last`; an empty `last` has no end."""


class LabelAsk(WireMessage, frozen=True, gc=False, tag=91):
    """'I have no label: give me one below yours.'"""


class LabelGiven(WireMessage, frozen=True, gc=False, tag=92):
    label: LabelItems
