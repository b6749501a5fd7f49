"""What all nodes say to each other, one class per message, as tagged arrays on the wire. The messages of one protocol
are beside it (`messages.py` of its package); the codec collects them.

A `Publication` and a `Run` of them (core/events) are messages too: they travel as themselves, between
brokers and from a client to its broker.
"""

from __future__ import annotations

from typing import Annotated

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


Message = Publication | Run | WireMessage
