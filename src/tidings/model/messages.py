"""Everything that nodes say to each other, one class per message, as tagged arrays on the wire.

A `Publication` (model/event.py) is a message too: it travels as itself, between brokers and from a client to
its broker.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tidings.model.event import Counter, Name, Publication

PROTOCOL_VERSION = 1

Key = Annotated[bytes, Meta(min_length=16, max_length=16)]
Text = Annotated[str, Meta(max_length=65_536)]
Topics = Annotated[tuple[Annotated[str, Meta(max_length=1024)], ...], Meta(max_length=1024)]
SubscriptionId = Annotated[str, Meta(min_length=1, max_length=256)]


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


class Refused(WireMessage, frozen=True, gc=False, tag=3):
    """The answer to a Hello that is not; the connection ends."""

    reason: Text


class Ping(WireMessage, frozen=True, gc=False, tag=4):
    number: Counter


class Pong(WireMessage, frozen=True, gc=False, tag=5):
    number: Counter


# --- Subscription forwarding between brokers (protocol/forwarding.py) ------------------------------------


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


# --- A client and its broker (protocol/edge.py, protocol/client.py) --------------------------------------


class Subscribe(WireMessage, frozen=True, gc=False, tag=20):
    subscription: SubscriptionId
    topics: Topics
    filter: Text | None
    order: Annotated[str, Meta(max_length=16)]


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


class PublishFailed(WireMessage, frozen=True, gc=False, tag=26):
    """The broker did not take that publication, and why."""

    sequence: Counter
    reason: Text


class Notify(WireMessage, frozen=True, gc=False, tag=27):
    """An event for the named subscriptions of a client."""

    subscriptions: tuple[str, ...]
    publication: Publication


class Dropped(WireMessage, frozen=True, gc=False, tag=28):
    """So many notifications were not sent because the client did not keep up."""

    count: Counter


class StatusRequest(WireMessage, frozen=True, gc=False, tag=30):
    pass


class Status(WireMessage, frozen=True, gc=False, tag=31):
    """A broker's state for `tidings status`, as JSON text."""

    json: Text


Message = Publication | WireMessage
