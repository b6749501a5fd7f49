"""Everything that nodes say to each other, one class per message, as tagged arrays on the wire.

A `Publication` and a `Run` of them (core/events) are messages too: they travel as themselves, between
brokers and from a client to its broker.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tidings.core.events.event import Counter, Name, Publication
from tidings.core.events.run import Run, Stretch

PROTOCOL_VERSION = 2

Key = Annotated[bytes, Meta(min_length=16, max_length=16)]
Text = Annotated[str, Meta(max_length=65_536)]
Topics = Annotated[tuple[Annotated[str, Meta(max_length=1024)], ...], Meta(max_length=1024)]
SubscriptionId = Annotated[str, Meta(min_length=1, max_length=256)]


PatternCount = tuple[Annotated[bytes, Meta(min_length=8, max_length=16)], Name, Counter, Counter]
"""(pattern, origin, epoch, number)"""


class WireMessage(Struct, array_like=True, frozen=True, gc=False):
    """Base of all messages but publications."""


# --- Opening a session (net/ only) ---------------------------------------------------------------------


class Hello(WireMessage, frozen=True, gc=False, tag=1):
    """The first message on a connection, from the side that opened it. `version` stays first for ever."""

    version: int
    node: Name
    role: Annotated[str, Meta(max_length=16)]
    """broker or client"""
    mode: Annotated[str, Meta(max_length=32)] = ""
    """The overlay's mode, from brokers: different modes do not mix."""
    token: Annotated[str, Meta(max_length=4096)] = ""


class Welcome(WireMessage, frozen=True, gc=False, tag=2):
    """The answer to a Hello that is accepted."""

    version: int
    node: Name
    mode: Annotated[str, Meta(max_length=32)] = ""
    sequencers: Annotated[tuple[Annotated[str, Meta(max_length=300)], ...], Meta(max_length=64)] = ()
    """Where a client finds who gives events one order."""


class Refused(WireMessage, frozen=True, gc=False, tag=3):
    """The answer to a Hello that is not; the connection ends."""

    reason: Text


class Ping(WireMessage, frozen=True, gc=False, tag=4):
    number: Counter


class Pong(WireMessage, frozen=True, gc=False, tag=5):
    number: Counter


# --- Subscription forwarding between brokers (core/overlay/forwarding.py) ------------------------------------


class LinkOpen(WireMessage, frozen=True, gc=False, tag=10):
    """'I live, in this incarnation, and know you in that one (0: not at all).'"""

    incarnation: Counter
    heard: Counter
    answer_wanted: bool


class AddInterest(WireMessage, frozen=True, gc=False, tag=11):
    key: Key
    topics: Topics
    filter: Text | None = None
    serial: Counter = 0
    """Tells the additions of one interest apart: it may be removed and added again before it is settled."""


class RemoveInterest(WireMessage, frozen=True, gc=False, tag=12):
    key: Key


class Settled(WireMessage, frozen=True, gc=False, tag=13):
    """The interest that you sent with that serial is installed in the whole network behind me."""

    key: Key
    serial: Counter = 0
    numbers: Annotated[tuple[PatternCount, ...], Meta(max_length=4096)] = ()
    """Epidemic mode: how far origins behind me have counted the interest's patterns."""


class TableSent(WireMessage, frozen=True, gc=False, tag=14):
    """What you had from me in an earlier life and I have not sent again is void."""


Change = AddInterest | RemoveInterest | Settled | TableSent


class Changes(WireMessage, frozen=True, gc=False, tag=15):
    """A numbered batch of changes; one batch is on its way at a time, and is repeated until taken."""

    incarnation: Counter
    to_incarnation: Counter
    number: Counter
    changes: Annotated[tuple[Change, ...], Meta(max_length=4096)]


class ChangesTaken(WireMessage, frozen=True, gc=False, tag=16):
    incarnation: Counter
    to_incarnation: Counter
    number: Counter


# --- A client and its broker (core/overlay/edge.py, core/client/session.py) --------------------------------------


class Subscribe(WireMessage, frozen=True, gc=False, tag=20):
    subscription: SubscriptionId
    topics: Topics
    filter: Text | None
    order: Annotated[str, Meta(max_length=16)]
    headers: bool = False
    """The client needs no more than headers of what it is notified of for this subscription alone."""


class Subscribed(WireMessage, frozen=True, gc=False, tag=21):
    """The subscription is installed everywhere: what is published from now on is routed to it."""

    subscription: SubscriptionId


class SubscribeFailed(WireMessage, frozen=True, gc=False, tag=22):
    subscription: SubscriptionId
    reason: Text


class Unsubscribe(WireMessage, frozen=True, gc=False, tag=23):
    subscription: SubscriptionId


class Unsubscribed(WireMessage, frozen=True, gc=False, tag=24):
    subscription: SubscriptionId


class Confirm(WireMessage, frozen=True, gc=False, tag=25):
    """The broker has taken the client's publications `first` to `last`."""

    incarnation: Counter
    first: Counter
    last: Counter
    kept: bool = False
    """Guaranteed mode: they are on the broker's disk, and somebody has not got them yet. Another Confirm
    follows when all have."""


class PublishFailed(WireMessage, frozen=True, gc=False, tag=26):
    """The broker did not take that publication, and why."""

    sequence: Counter
    reason: Text


class Notify(WireMessage, frozen=True, gc=False, tag=27):
    """Events for the named subscriptions of a client."""

    subscriptions: tuple[str, ...]
    stretch: Stretch
    by: str = ""
    """Which recovery algorithm brought them; empty: none was needed."""

    @property
    def count(self) -> int:
        return self.stretch.count


class Dropped(WireMessage, frozen=True, gc=False, tag=28):
    """So many notifications were not sent because the client did not keep up."""

    count: Counter


class StatusRequest(WireMessage, frozen=True, gc=False, tag=30):
    pass


class Status(WireMessage, frozen=True, gc=False, tag=31):
    """A broker's state for `tidings status`, as JSON text."""

    json: Text


# --- The guaranteed overlay: between brokers (guaranteed/sessions.py, subscriptions.py, delivery.py) -------------

LabelItems = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(min_length=1, max_length=4096)
]
Ids = Annotated[tuple[SubscriptionId, ...], Meta(max_length=4096)]
NumberRanges = Annotated[tuple[tuple[Counter, Counter], ...], Meta(max_length=65_536)]
"""First and last of each."""
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
    """How many publications the sender sends before it has heard that they were taken."""
    address: Address = ""


class Heartbeat(WireMessage, frozen=True, gc=False, tag=41):
    wanted: bool
    """The sender needs this session; a session that neither side needs is closed."""
    answer_wanted: bool = False


class Activate(WireMessage, frozen=True, gc=False, tag=42):
    """The ids of all records in the sender's log, in parts; `last` ends the list. The receiver answers Sync."""

    ids: Ids
    dead: Ids
    last: bool


class Record(WireMessage, frozen=True, gc=False, tag=43):
    """One entry of the subscription log: what a broker's clients want, or that they want it no more."""

    id: SubscriptionId
    broker: Name
    label: LabelItems
    topics: Topics
    filter: Text | None = None
    dead: bool = False


class Records(WireMessage, frozen=True, gc=False, tag=44):
    records: Annotated[tuple[Record, ...], Meta(max_length=4096)]


class RecordsTaken(WireMessage, frozen=True, gc=False, tag=45):
    """These are in the sender's log, on disk; `dead` as tombstones."""

    ids: Ids
    dead: Ids


class Sync(WireMessage, frozen=True, gc=False, tag=46):
    """The answer to Activate: what the sender lacks of what was listed, in parts."""

    needed: Ids
    last: bool
    recovering: bool = False
    """The sender's log is not complete itself."""


class Covered(WireMessage, frozen=True, gc=False, tag=47):
    """These records are known to all brokers of the region (core/overlay/guaranteed/regions.py)."""

    ids: Ids
    dead: bool
    region: RegionRules


class Collect(WireMessage, frozen=True, gc=False, tag=48):
    """Every broker has the tombstones of these: they may be forgotten."""

    ids: Ids


class Forward(WireMessage, frozen=True, gc=False, tag=49):
    """Publications on their way between brokers. Both ends number them; Passed and Parked name the numbers."""

    origin: Name
    """The publisher's broker."""
    label: LabelItems
    generation: Counter
    stamp: Counter
    """The publisher's broker certifies them for what was in its log up to this position."""
    excluded: Ids
    stretch: Stretch

    @property
    def count(self) -> int:
        return self.stretch.count


class ForwardGap(WireMessage, frozen=True, gc=False, tag=50):
    """In the place of publications that were given up: for these subscriptions they are missing."""

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
    """The publications of these numbers wait only for somebody who cannot be reached."""

    ranges: NumberRanges


class Taken(WireMessage, frozen=True, gc=False, tag=59):
    """The sender has taken the first `count` publications of this connection."""

    count: Counter


class Relay(WireMessage, frozen=True, gc=False, tag=53):
    """About a circuit through a common neighbour, between it and either end; `peer` is the other end."""

    peer: Name
    step: Literal["ask", "offer", "accept", "opened", "closed"]
    serial: Counter


class Relayed(WireMessage, frozen=True, gc=False, tag=54):
    """A message for `peer`, or from it."""

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


# --- The guaranteed overlay: a client and its broker (guaranteed/attachments.py, core/client) -------------------


class Attach(WireMessage, frozen=True, gc=False, tag=70):
    """The first message of a client on a new connection, and again before it publishes for the first time."""

    incarnation: Counter
    publishes: bool
    lasting: bool = True
    """False: nobody will come back under this name, its subscriptions need not be kept long while it is away."""


class Attached(WireMessage, frozen=True, gc=False, tag=71):
    """The broker takes publications, certified up to `position` of its log `generation`."""

    generation: Counter
    position: Counter
    window: Counter


class Stamp(WireMessage, frozen=True, gc=False, tag=72):
    """The broker's log has grown: stamp what you publish from now on with this."""

    generation: Counter
    position: Counter


class StampTaken(WireMessage, frozen=True, gc=False, tag=73):
    position: Counter


class Stamped(WireMessage, frozen=True, gc=False, tag=74):
    """Publications of a client, with the stamp that they got when they were first sent."""

    generation: Counter
    stamp: Counter
    stretch: Stretch

    @property
    def count(self) -> int:
        return self.stretch.count


class Notified(WireMessage, frozen=True, gc=False, tag=75):
    """Of the notifications of this connection the client has room for those after the first `granted`, as far as the
    window goes, and will never need those of the ranges `done` again."""

    granted: Counter
    done: NumberRanges = ()


class Drain(WireMessage, frozen=True, gc=False, tag=58):
    """The subscription ends, and what waits for it is still wanted: Unsubscribed follows when that is done with."""

    subscription: SubscriptionId


class Missed(WireMessage, frozen=True, gc=False, tag=76):
    """Counts as a notification: these events of a source were given up for the named subscriptions."""

    subscriptions: tuple[str, ...]
    source: Name
    incarnation: Counter
    first: Counter
    last: Counter


class Baseline(WireMessage, frozen=True, gc=False, tag=78):
    """The subscription begins behind these: (source, incarnation, sequence)."""

    subscription: SubscriptionId
    marks: Annotated[tuple[tuple[Name, Counter, Counter], ...], Meta(max_length=4096)]


class Coverage(WireMessage, frozen=True, gc=False, tag=77):
    """Which brokers do not know the subscription yet; none: it is complete. The set only shrinks."""

    subscription: SubscriptionId
    uncovered: Annotated[tuple[str, ...], Meta(max_length=4096)]


MAX_BOOKMARK_BYTES = 32_768


class KeepBookmark(WireMessage, frozen=True, gc=False, tag=79):
    """What the next life of a subscription needs to know, in its client's own words: the broker keeps it, and says it
    to that life before anything else. Without a state it is forgotten."""

    subscription: SubscriptionId
    state: Annotated[bytes, Meta(max_length=MAX_BOOKMARK_BYTES)]
    number: Counter = 0
    """Other than 0: the client wants to know when the broker has it on disk."""


class BookmarkKept(WireMessage, frozen=True, gc=False, tag=63):
    subscription: SubscriptionId
    number: Counter


Message = Publication | Run | WireMessage
