"""The messages that all protocols share, one class each, sent as tagged arrays. The messages of a single protocol are
in `messages.py` of its package; the codec collects them.

`Publication` and `Run` (core/events) are messages too. They travel as they are, between brokers and from a client to
its broker.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from tidings.core.events.event import MAX_ATTRIBUTES, Counter, Name, Publication
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


# --- Opening a connection (drivers/sockets only) ------------------------------------------------------------------


class Hello(WireMessage, frozen=True, gc=False, tag=1):
    """The first message on a connection, from the side that opened it. `version` must always stay first."""

    version: int
    node: Name
    role: Annotated[str, Meta(max_length=16)]
    """broker or client"""
    mode: Annotated[str, Meta(max_length=32)] = ""
    """The overlay's mode, if a broker sends this: brokers of different modes do not connect."""
    token: Annotated[str, Meta(max_length=4096)] = ""


class Welcome(WireMessage, frozen=True, gc=False, tag=2):
    """Accepts a Hello."""

    version: int
    node: Name
    mode: Annotated[str, Meta(max_length=32)] = ""
    sequencers: Annotated[tuple[Annotated[str, Meta(max_length=300)], ...], Meta(max_length=64)] = ()
    """The addresses of the sequencers."""


class Refused(WireMessage, frozen=True, gc=False, tag=3):
    """Rejects a Hello; the connection ends."""

    reason: Text


class Ping(WireMessage, frozen=True, gc=False, tag=4):
    number: Counter


class Pong(WireMessage, frozen=True, gc=False, tag=5):
    number: Counter


# --- A client and its broker (core/overlay/edge.py, core/client/session.py) --------------------------------------


class Subscribe(WireMessage, frozen=True, gc=False, tag=20):
    subscription: SubscriptionId
    topics: Topics
    filter: Text | None
    order: Annotated[str, Meta(max_length=16)]
    headers: bool = False
    """The client needs only the headers of events that match no other subscription of its own."""


class SubscribeAfterHistory(Subscribe, frozen=True, gc=False, tag=29):
    """A Subscribe whose client reads from the archive of a guaranteed broker what came before. If the archive has all
    that it selects, it uses the archive's record (core/overlay/guaranteed/archive_fence.py)."""


class JoinGroup(Subscribe, frozen=True, gc=False, tag=172):
    """A Subscribe of a member of a group, in a network without a guarantee: of the events that it selects, each goes to
    one of the members that the brokers know (core/overlay/groups.py)."""

    group: Annotated[str, Meta(max_length=64)] = ""
    group_by: Annotated[str, Meta(max_length=256)] = ""
    """Events with equal values of this attribute go to one member; empty: to anyone."""


class Subscribed(WireMessage, frozen=True, gc=False, tag=21):
    """The subscription is installed everywhere: matching events published from now on are routed to it."""

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
    """Guaranteed mode: they are on the broker's disk, and some subscriber does not have them yet. Another Confirm
    follows when all have them."""


class PublishFailed(WireMessage, frozen=True, gc=False, tag=26):
    """The broker rejected that publication."""

    sequence: Counter
    reason: Text


class Notify(WireMessage, frozen=True, gc=False, tag=27):
    """Notifies a client of events that match the named subscriptions."""

    subscriptions: tuple[str, ...]
    stretch: Stretch
    by: str = ""
    """The recovery algorithm that brought them; empty if none was needed."""

    @property
    def count(self) -> int:
        return self.stretch.count


class Dropped(WireMessage, frozen=True, gc=False, tag=28):
    """The broker dropped `count` notifications because the client was too slow."""

    count: Counter


class StatusRequest(WireMessage, frozen=True, gc=False, tag=30):
    pass


class Status(WireMessage, frozen=True, gc=False, tag=31):
    """A broker's state for `tidings status`, as JSON text."""

    json: Text


class RespondersRequest(WireMessage, frozen=True, gc=False, tag=170):
    """Asks whether anything is subscribed to an event on this topic with these attributes. A client sends it together
    with a request (bus/requests.py); only the answer that nothing is comes back."""

    number: Counter
    topic: Annotated[str, Meta(min_length=2, max_length=1024)]
    attributes: Annotated[dict[str, Any], Meta(max_length=MAX_ATTRIBUTES)] = {}


class NoResponders(WireMessage, frozen=True, gc=False, tag=171):
    """As far as the broker knows, nothing in the network is subscribed to what the client asked about."""

    number: Counter


Message = Publication | Run | WireMessage
