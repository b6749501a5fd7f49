"""The messages of the guaranteed overlay: those between brokers, then those between a client and its broker."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from tidings.core.events.event import Counter, Name
from tidings.core.events.run import Stretch
from tidings.core.messages import SubscriptionId, Text, Topics, WireMessage

LabelItems = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(min_length=1, max_length=4096)
]
Ids = Annotated[tuple[SubscriptionId, ...], Meta(max_length=4096)]
MAX_RANGES = 65_536
NumberRanges = Annotated[tuple[tuple[Counter, Counter], ...], Meta(max_length=MAX_RANGES)]
"""(first, last) of each range."""
Address = Annotated[str, Meta(max_length=512)]
RegionRules = Annotated[
    tuple[tuple[Annotated[tuple[int, ...], Meta(max_length=4096)], bool, bool], ...], Meta(max_length=16_384)
]


class Greeting(WireMessage, frozen=True, gc=False, tag=40):
    """The first message of a broker on a new connection."""

    label: LabelItems
    delta: Annotated[int, Meta(ge=0, le=32)]
    incarnation: Counter
    window: Annotated[int, Meta(ge=1)]
    """How many publications the sender sends before they are reported as taken."""
    address: Address = ""


class Heartbeat(WireMessage, frozen=True, gc=False, tag=41):
    wanted: bool
    """The sender needs this session. A session that neither side needs is closed."""
    answer_wanted: bool = False


class Activate(WireMessage, frozen=True, gc=False, tag=42):
    """Lists the ids of all records in the sender's log, in parts; `last` ends the list. The receiver answers Sync."""

    ids: Ids
    dead: Ids
    last: bool


class Record(WireMessage, frozen=True, gc=False, tag=43):
    """One entry of the subscription log: what a broker's clients want or, if `dead`, no longer want."""

    id: SubscriptionId
    broker: Name
    label: LabelItems
    topics: Topics
    filter: Text | None = None
    dead: bool = False


class SilentRecord(Record, frozen=True, gc=False, tag=60):
    """Only the broker's archive uses it, and streams that began with what the archive has: nobody answers requests."""


class Records(WireMessage, frozen=True, gc=False, tag=44):
    records: Annotated[tuple[Record | SilentRecord, ...], Meta(max_length=4096)]


class RecordsTaken(WireMessage, frozen=True, gc=False, tag=45):
    """These are in the sender's log, on disk; those in `dead` as tombstones."""

    ids: Ids
    dead: Ids


class Sync(WireMessage, frozen=True, gc=False, tag=46):
    """Answers Activate: lists in parts which of the listed records the sender lacks."""

    needed: Ids
    last: bool
    recovering: bool = False
    """The sender's own log is not complete."""


class Covered(WireMessage, frozen=True, gc=False, tag=47):
    """All brokers of the region (core/overlay/guaranteed/regions.py) know these records."""

    ids: Ids
    dead: bool
    region: RegionRules


class Collect(WireMessage, frozen=True, gc=False, tag=48):
    """Every broker has the tombstones of these records: they can be collected."""

    ids: Ids


class Forward(WireMessage, frozen=True, gc=False, tag=49):
    """Carries publications between brokers. Both ends number them; Passed and Parked name the numbers."""

    origin: Name
    """The publisher's broker."""
    label: LabelItems
    generation: Counter
    stamp: Counter
    """The publisher's broker certifies them for the records in its log up to this position."""
    excluded: Ids
    stretch: Stretch

    @property
    def count(self) -> int:
        return self.stretch.count


class ForwardGap(WireMessage, frozen=True, gc=False, tag=50):
    """Replaces publications that were given up for these subscriptions."""

    origin: Name
    label: LabelItems
    source: Name
    incarnation: Counter
    first: Counter
    last: Counter
    subscriptions: Ids


class Passed(WireMessage, frozen=True, gc=False, tag=51):
    """All subscribers behind the sender have the publications of these numbers."""

    ranges: NumberRanges


class Parked(WireMessage, frozen=True, gc=False, tag=52):
    """The publications of these numbers wait only for somebody unreachable."""

    ranges: NumberRanges


class Taken(WireMessage, frozen=True, gc=False, tag=59):
    """The sender has taken the first `count` publications of this connection."""

    count: Counter


class Relay(WireMessage, frozen=True, gc=False, tag=53):
    """Controls a circuit through a common neighbour. Sent between it and either end; `peer` is the other end."""

    peer: Name
    step: Literal["ask", "offer", "accept", "opened", "closed"]
    serial: Counter


class Relayed(WireMessage, frozen=True, gc=False, tag=54):
    """Carries a message to `peer`, or from it, over a circuit."""

    peer: Name
    serial: Counter
    message: Any


class Join(WireMessage, frozen=True, gc=False, tag=55):
    """A new broker asks an existing one for a place below it."""

    address: Address


class Neighbour(WireMessage, frozen=True, gc=False, tag=56):
    name: Name
    label: LabelItems
    address: Address = ""
    gone: bool = False


class Joined(WireMessage, frozen=True, gc=False, tag=57):
    label: LabelItems
    delta: Annotated[int, Meta(ge=0, le=32)]
    neighbours: Annotated[tuple[Neighbour, ...], Meta(max_length=65_536)]


class Attach(WireMessage, frozen=True, gc=False, tag=70):
    """The first message of a client on a new connection. Sent again before it first publishes."""

    incarnation: Counter
    publishes: bool
    lasting: bool = True
    """False: nobody will return under this name, so its subscriptions need not be kept long while it is absent."""


class Attached(WireMessage, frozen=True, gc=False, tag=71):
    """The broker accepts publications, certified up to `position` of its log of that generation."""

    generation: Counter
    position: Counter
    window: Counter


class Stamp(WireMessage, frozen=True, gc=False, tag=72):
    """The broker's log has grown: the client uses this stamp from now on."""

    generation: Counter
    position: Counter


class StampTaken(WireMessage, frozen=True, gc=False, tag=73):
    position: Counter


class Stamped(WireMessage, frozen=True, gc=False, tag=74):
    """Carries publications of a client, with the stamp that they got when they were first sent."""

    generation: Counter
    stamp: Counter
    stretch: Stretch

    @property
    def count(self) -> int:
        return self.stretch.count


class Notified(WireMessage, frozen=True, gc=False, tag=75):
    """The client has room for one window of notifications after the first `granted` of this connection, and will never
    need those in `done` again."""

    granted: Counter
    done: NumberRanges = ()


class Drain(WireMessage, frozen=True, gc=False, tag=58):
    """Ends the subscription, but what waits for it is still wanted. Unsubscribed follows when that is done."""

    subscription: SubscriptionId


class Missed(WireMessage, frozen=True, gc=False, tag=76):
    """These events of a source were given up for the named subscriptions. Numbered like a notification."""

    subscriptions: tuple[str, ...]
    source: Name
    incarnation: Counter
    first: Counter
    last: Counter


class Baseline(WireMessage, frozen=True, gc=False, tag=78):
    """The subscription begins after these: (source, incarnation, sequence)."""

    subscription: SubscriptionId
    marks: Annotated[tuple[tuple[Name, Counter, Counter], ...], Meta(max_length=4096)]


class Coverage(WireMessage, frozen=True, gc=False, tag=77):
    """Lists the brokers that do not know the subscription yet. The set only shrinks; when empty, it is complete."""

    subscription: SubscriptionId
    uncovered: Annotated[tuple[str, ...], Meta(max_length=4096)]


MAX_BOOKMARK_BYTES = 32_768


class KeepBookmark(WireMessage, frozen=True, gc=False, tag=79):
    """What a subscription needs to resume after its client restarts, opaque to the broker. The broker keeps it, and
    sends it to the restarted client before anything else. An empty state removes it."""

    subscription: SubscriptionId
    state: Annotated[bytes, Meta(max_length=MAX_BOOKMARK_BYTES)]
    number: Counter = 0
    """Unless 0, the broker answers BookmarkKept when it is on disk."""


class BookmarkKept(WireMessage, frozen=True, gc=False, tag=63):
    subscription: SubscriptionId
    number: Counter
