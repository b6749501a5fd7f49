"""The messages of durable subscriptions and groups (core/overlay/guaranteed/shares.py): those between a client and its
broker, and how they travel between the client's broker and the broker that keeps the subscription."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tidings.core.events.event import Counter, Name
from tidings.core.events.subscription import OrderName
from tidings.core.messages import SubscriptionId, Text, Topics, WireMessage
from tidings.core.overlay.guaranteed.messages import LabelItems, NumberRanges
from tidings.core.sharing.choice import MAX_GROUP_BY_LENGTH

ShareName = Annotated[str, Meta(min_length=1, max_length=64)]
Serial = tuple[Counter, Counter]
"""Of one end of a link between two brokers: the broker's incarnation, and a count."""
Life = tuple[Annotated[str, Meta(max_length=256)], Counter, Counter]
"""Which share of a name: the broker that created it, the broker's incarnation, and a count. Numbers of events are those
of one life."""
NO_LIFE: Life = ("", 0, 0)
StartItem = tuple[Literal["new", "earliest", "last", "offset", "time"], Counter]
"""Where a share begins in its broker's archive, with the offset or the time; a new one has no history."""
NEW_START: StartItem = ("new", 0)
MAX_ASIDE_SHOWN = 100
"""How many events that were set aside travel at once."""
MAX_STRETCHES_READ = 4_096
MAX_LISTED, MAX_LISTED_BYTES = 100, 256 * 1024
"""How many shares are listed at once, and from which size on there are fewer."""


class ShareAttach(WireMessage, frozen=True, gc=False, tag=150):
    """A client attaches to the share of that name, which is created if it does not exist. Sent again on a new
    connection, with what the client still holds."""

    subscription: SubscriptionId
    name: ShareName
    topics: Topics
    filter: Text | None
    group: bool = False
    """False: one client at a time. True: every event goes to one of those attached."""
    group_by: Annotated[str, Meta(max_length=MAX_GROUP_BY_LENGTH)] = ""
    """Events with equal values of this attribute go to one member; empty: to anyone."""
    order: OrderName = "none"
    """With any but none, what comes back calls back everything newer."""
    max_unacked: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_024
    keep_for_ns: Counter = 0
    """How long the share is kept while nobody is attached; 0: as long as before, or the broker's default."""
    takeover: bool = False
    holding: NumberRanges = ()
    """What it holds of an earlier connection, and what it was done with and got no answer to."""
    life: Life = NO_LIFE
    """Of the share that it holds these of."""
    ask: Counter = 0
    """How often the client has asked. Of several questions under way only the last counts: what an earlier answer
    brings is not in `holding`."""
    reading: Counter = 0
    """Not 0: the client is sent nothing, and reads by number (guaranteed/share_reading.py)."""
    resumes: bool = False
    """This reading has begun before."""
    start: StartItem = NEW_START
    """Where the share begins if it does not exist."""


class ShareAccepted(WireMessage, frozen=True, gc=False, tag=151):
    """The client is attached. It must drop what it holds, except what is in `claimed`; and if the share has another
    life than before, also what it was done with."""

    subscription: SubscriptionId
    claimed: NumberRanges = ()
    uncovered: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()
    life: Life = NO_LIFE
    ask: Counter = 0
    """The question that this answers."""


class ShareRefused(WireMessage, frozen=True, gc=False, tag=152):
    """The client is not attached, or no longer."""

    subscription: SubscriptionId
    reason: Text


class ShareGiven(WireMessage, frozen=True, gc=False, tag=153):
    """Consecutive events of a source for one client, with consecutive numbers from `first` on."""

    subscription: SubscriptionId
    first: Counter
    attempt: Counter
    events: bytes
    """The encoded event or run."""
    out_of_order: bool = False
    before: Counter = 0
    """How many deliveries were before the events were set aside and released: they do not count for a limit."""


class ShareDone(WireMessage, frozen=True, gc=False, tag=154):
    """The client is done with these."""

    subscription: SubscriptionId
    numbers: NumberRanges
    expired: NumberRanges = ()
    """Of these, what it did not show, because it had expired."""


class ShareForgotten(WireMessage, frozen=True, gc=False, tag=155):
    """Answers what the client was done with: the broker has forgotten these, and refuses those, because somebody else
    has them, or was done with them first."""

    subscription: SubscriptionId
    numbers: NumberRanges
    refused: NumberRanges = ()


class ShareBack(WireMessage, frozen=True, gc=False, tag=156):
    """The client gives an event back, to be delivered again after a while, or to be set aside."""

    subscription: SubscriptionId
    number: Counter
    after_ns: Counter = 0
    aside: bool = False


class ShareCalledBack(WireMessage, frozen=True, gc=False, tag=157):
    """The client must drop these; they come again."""

    subscription: SubscriptionId
    numbers: NumberRanges


class ShareLeave(WireMessage, frozen=True, gc=False, tag=158):
    """The client leaves; the share stays."""

    subscription: SubscriptionId
    unseen: NumberRanges = ()
    """What its application has not seen."""


class ShareLeft(WireMessage, frozen=True, gc=False, tag=159):
    subscription: SubscriptionId


class ShareEnd(WireMessage, frozen=True, gc=False, tag=160):
    """Ends the share, and drops what it keeps."""

    name: ShareName


class ShareEnded(WireMessage, frozen=True, gc=False, tag=161):
    """The share has ended; with a reason, it has not."""

    name: ShareName
    reason: Text = ""


class ShareInterrupted(WireMessage, frozen=True, gc=False, tag=162):
    """The way to the broker that keeps the share is broken: the client must attach again, and nothing that it reported
    and got no answer to counts. Meanwhile nothing comes from `home`."""

    subscription: SubscriptionId
    home: Name


class ShareAsideRequest(WireMessage, frozen=True, gc=False, tag=163):
    """Asks how a share is and for events that it has set aside, or does something with them."""

    name: ShareName
    after: Counter = 0
    """List those with higher numbers."""
    release: NumberRanges = ()
    drop: NumberRanges = ()


class ShareAside(WireMessage, frozen=True, gc=False, tag=164):
    """How a share is, and events that it has set aside; with a reason, the request failed."""

    name: ShareName
    events: Annotated[tuple[tuple[Counter, Counter, bytes], ...], Meta(max_length=MAX_ASIDE_SHOWN)] = ()
    """The number, how often it was delivered, its encoding."""
    changed: Counter = 0
    """How many were released or dropped."""
    more: bool = False
    reason: Text = ""
    status: str = ""
    """What `tidings subscriptions` shows of the share, as JSON."""
    attended: bool = True
    """False: nobody is attached, or about to be."""


class ShareElsewhere(WireMessage, frozen=True, gc=False, tag=187):
    """Answers an attachment: the share is not here but at that broker, as far as we know."""

    subscription: SubscriptionId
    name: ShareName
    epoch: Counter
    broker: Name
    label: LabelItems


class ShareReach(WireMessage, frozen=True, gc=False, tag=180):
    """A client that reads by number takes more events, and is done with others."""

    subscription: SubscriptionId
    request: Counter
    position: Counter = 0
    """How far it has come: it takes events from here on; 0: it only asks."""
    count: Counter = 0
    """How many from its position on it wants to have, at most."""
    stop: Counter = 0
    """It wants none from here on; 0: no limit."""
    done_below: Counter = 0
    """It is done with everything before."""


class ShareReached(WireMessage, frozen=True, gc=False, tag=181):
    """Answers with numbers; with a reason, the request failed."""

    subscription: SubscriptionId
    request: Counter
    done_below: Counter = 0
    stop: Counter = 0
    """The number after the last event that it asked for."""
    end: Counter = 0
    """The number after the last event that there is."""
    reason: Text = ""


class ShareRead(WireMessage, frozen=True, gc=False, tag=182):
    """Asks for events that went out to a reading, by their numbers, as often as one likes until they are done."""

    name: ShareName
    request: Counter
    reading: Counter
    first: Counter
    stop: Counter


class ShareRows(WireMessage, frozen=True, gc=False, tag=183):
    """Some of these events; with a reason, the request failed."""

    name: ShareName
    request: Counter
    next: Counter = 0
    """The number to ask for next; what is missing before it was done before the reading began."""
    events: Annotated[tuple[tuple[Counter, Counter, bytes], ...], Meta(max_length=MAX_STRETCHES_READ)] = ()
    """The first number, the attempt, and the encoding of consecutive events of a source."""
    reason: Text = ""
    unread: bool = False
    """The reason is that nobody reads the share by number, or that it does not exist."""


class ShareListRequest(WireMessage, frozen=True, gc=False, tag=167):
    """Asks for the shares of the network with names after this one."""

    after: Annotated[str, Meta(max_length=64)] = ""


class ShareList(WireMessage, frozen=True, gc=False, tag=168):
    """Shares by name, as JSON: of those at other brokers only name and broker. `more`: there are others after these."""

    rows: str
    more: bool = False


ShareMessage = (
    ShareAttach
    | ShareAccepted
    | ShareRefused
    | ShareGiven
    | ShareDone
    | ShareForgotten
    | ShareBack
    | ShareCalledBack
    | ShareLeave
    | ShareLeft
    | ShareEnd
    | ShareEnded
    | ShareInterrupted
    | ShareAsideRequest
    | ShareAside
    | ShareElsewhere
    | ShareReach
    | ShareReached
    | ShareRead
    | ShareRows
)


MAX_ROWS = 4_096
"""How many rows of a share travel at once."""


class ShareMoveRows(WireMessage, frozen=True, gc=False, tag=188):
    """From the home of a share to the next one: what it keeps, as on its disk. The first part says what the share is,
    the last one ends it."""

    name: ShareName
    epoch: Counter
    """Of the share at the receiver: how often it has moved."""
    part: Counter
    """From 0 on."""
    rows: Annotated[tuple[tuple[bytes, bytes], ...], Meta(max_length=MAX_ROWS)]
    definition: bytes = b""
    formers: Counter = 0
    """How many former homes the share has at the receiver."""
    last: bool = False


class ShareMoveTaken(WireMessage, frozen=True, gc=False, tag=189):
    """The parts up to this one are on the next home's disk."""

    name: ShareName
    epoch: Counter
    part: Counter


class ShareMoved(WireMessage, frozen=True, gc=False, tag=190):
    """From the former home: the share is the receiver's now."""

    name: ShareName
    epoch: Counter


class ShareMoveAsked(WireMessage, frozen=True, gc=False, tag=191):
    """To the former home: is the share ours?"""

    name: ShareName
    epoch: Counter


class ShareMoveEnded(WireMessage, frozen=True, gc=False, tag=192):
    """The sender no longer takes part in this move: it has not happened, or is over."""

    name: ShareName
    epoch: Counter


class ShareForward(WireMessage, frozen=True, gc=False, tag=194):
    """From the former home: events that came there."""

    name: ShareName
    epoch: Counter
    number: Counter
    events: bytes
    """The encoded event or run."""


class ShareForwarded(WireMessage, frozen=True, gc=False, tag=195):
    """To the former home: what was forwarded with this number is on disk."""

    name: ShareName
    epoch: Counter
    number: Counter
    complete: Annotated[tuple[tuple[Name, Counter], ...], Meta(max_length=64)] = ()
    """Sources (with their incarnations) of which the sender gets everything from now on by itself."""


MoveMessage = (
    ShareMoveRows
    | ShareMoveTaken
    | ShareMoved
    | ShareMoveAsked
    | ShareMoveEnded
    | ShareForward
    | ShareForwarded
)
"""Between a share's former home and the next one."""


class ClientGone(WireMessage, frozen=True, gc=False, tag=165):
    """A client is no longer connected to the broker that speaks for it."""


class Routed(WireMessage, frozen=True, gc=False, tag=166):
    """A message from one broker to another along the tree (core/overlay/guaranteed/far_links.py)."""

    to: Name
    to_label: LabelItems
    origin: Name
    origin_label: LabelItems
    serial: Serial
    """Of the sender's end of the link."""
    peer_serial: Serial
    """Of the receiver's end, as far as the sender knows; zeros: it does not."""
    received: Counter
    """How many messages the sender has received on this link."""
    number: Counter = 0
    """Of the message, from 1 on; 0: there is none."""
    client: Annotated[str, Meta(max_length=256)] = ""
    message: ShareMessage | MoveMessage | ClientGone | None = None
    closing: bool = False
